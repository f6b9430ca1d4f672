"""``stoker bench``, ``generate`` and ``simulate``: help, usage, settings, and which options are arguments of the library."""

from __future__ import annotations

import json
from importlib.metadata import entry_points

import pytest

import stoker as package
import stoker_bench
from command_line import check_options, check_usage, stoker
from stoker.cli import COMMANDS, GROUP, OF_BENCH, main


def test_stoker_knows_all_that_this_package_brings() -> None:
    assert {entry.name for entry in entry_points(group=GROUP)} == set(OF_BENCH)
    assert not set(OF_BENCH) & set(COMMANDS)
    for entry in entry_points(group="stoker.names"):
        assert getattr(package, entry.name) is getattr(stoker_bench, entry.name)


@pytest.mark.parametrize("name", OF_BENCH)
def test_help_and_a_wrong_flag_show_the_usage_of_the_command_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stoker(capsys, name, "--help").startswith(f"usage: stoker {name} ")
    check_usage(name, capsys)


def test_each_option_is_an_argument_of_the_library() -> None:
    library = ["stoker_bench.generation:generate", "stoker_bench.generation:DatasetSpec"]
    check_options("generate", library, {"json", "hash", "dry_run"})


def test_missing_words_name_what_is_needed_and_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "arguments are required: {run,init,list,compare,report," in stoker(capsys, "bench", code=2)
    said = stoker(capsys, "bench", "run", code=2)
    assert "arguments are required: WORKLOAD, --results" in said
    said = stoker(capsys, "bench", "size", code=2)
    assert "SECTION.KEY=VALUE" not in said.partition("error:")[2]


def test_settings_may_stand_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "size", "unet3d-h100", "compute.seconds=1", "--rules-only", "--host-memory", "1gb"]
    assert main([*asked, "dataset.files=5", "--accelerators", "2", "reader.batch_size=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples_for_steps"] == 500 * 2 * 2
    for wrong in ("nonsense", "--nonsense=1"):
        with pytest.raises(SystemExit) as ended:
            main([*asked, "--accelerators", "2", wrong])
        assert ended.value.code == 2
        assert f"unrecognized arguments: {wrong}" in capsys.readouterr().err

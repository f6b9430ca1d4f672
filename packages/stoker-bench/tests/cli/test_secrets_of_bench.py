"""What people get to see holds no secret of a URL or of options, and nothing that moves their terminal."""

from __future__ import annotations

import pytest

from command_line import stoker
from stoker_bench.clients import ClientLocation
from stoker_bench.settings.workload import Workload


def test_no_repr_holds_a_secret() -> None:
    assert "SECRET" not in repr(ClientLocation("s3://b", {"secret_access_key": "SECRET"}))
    workload = Workload()
    workload.storage.options["secret_access_key"] = "SECRET"
    assert "SECRET" not in repr(workload)


@pytest.mark.parametrize("url", ["s3://bucket/data?X-Amz-Signature=SECRET", "https://user:SECRET@host/data"])
def test_a_url_with_a_secret_is_refused_and_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["generate", url, "--format", "mds", "--samples", "1"], ["simulate", url]):
        assert "SECRET" not in stoker(capsys, *command, code=1)


def test_a_hostile_name_of_a_workload_moves_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told = stoker(capsys, "bench", "run", "no\x1b]0;owned\x07\x1b[2Jsuch", "--results", "out", code=1)
    assert "\\x1b]0;owned" in told
    assert told.removesuffix("\n").isprintable()

"""The page on the architecture is true: its files exist, its layers are the contract's, its paths those of real runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from support import TESTS
from trace_paths import PAGE, PATHS, drawing

ROOT = TESTS.parent
TEXT = PAGE.read_text()


@pytest.mark.parametrize("name", PATHS)
def test_the_drawn_path_is_the_one_of_a_real_run(name: str, tmp_path: Path) -> None:
    for attempt in range(3):  # threads that are late for others' work take another path
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if drawing(name, PATHS[name](folder)) in TEXT:
            return
    pytest.fail(f"the path of a {name} is another now: python tests/trace_paths.py draws it anew")


def test_files_that_it_names_exist() -> None:
    named = re.findall(r"`((?:[\w.]+/)*[\w.]+(?:\.py|/))`", TEXT)
    assert len(named) > 30
    roots = (ROOT / "src" / "stoker", ROOT)
    assert not [name for name in named if not any((root / name).exists() for root in roots)]


def test_it_draws_every_layer_in_order() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    layers = [one.removeprefix("stoker.") for line in contract for one in line.split(" | ")]
    folders = [one for one in layers if (ROOT / "src" / "stoker" / one).is_dir()]
    drawn = [name for label in re.findall(r'\["([^":]+):', TEXT) for name in label.split(", ")]
    assert [name for name in drawn if name in folders] == folders

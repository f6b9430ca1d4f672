"""Remedies of messages: every extra that one names exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stoker
from patience import PATIENCE

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("package", "folder"), [("stoker", ROOT), ("stoker-bench", ROOT / "packages" / "stoker-bench")]
)
def test_extras_that_messages_name_exist(package: str, folder: Path) -> None:
    known = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    places = (ROOT, ROOT / "packages" / "stoker-bench")
    files = [
        path for place in places for kind in ("README.md", "src/**/*.py", "docs/**/*.md") for path in place.glob(kind)
    ]
    named = {name: path.name for path in files for name in re.findall(rf"\b{package}\[([\w-]+)\]", path.read_text())}
    assert named, "messages name no extra any more"
    assert {name: path for name, path in named.items() if name not in known} == {}


def test_both_packages_have_one_version() -> None:
    folders = (ROOT, ROOT / "packages" / "stoker-bench")
    ours, bench = (tomllib.loads((one / "pyproject.toml").read_text())["project"] for one in folders)
    assert ours["version"] == bench["version"] == stoker.__version__
    assert f"stoker=={ours['version']}" in bench["dependencies"]
    assert ours["optional-dependencies"]["bench"] == [f"stoker-bench=={ours['version']}"]


WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
import importlib.util
before = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else before(name, package)
from stoker import *
assert MDSWriter and StreamingDataset and "StreamingDataLoader" not in globals()
import stoker
try:
    stoker.StreamingDataLoader
except stoker.StokerError as error:
    assert "stoker[torch]" in str(error), error
else:
    raise AssertionError("there is torch")
"""


@pytest.mark.processes
def test_a_star_import_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr

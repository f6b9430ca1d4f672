"""Remedies of messages: every extra that one names exists, and what they say to install can be installed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

import stoker
from patience import PATIENCE
from stoker.errors import MissingPackageError
from stoker.lazy import INSTALL_BENCH

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
    # The extra bench is for the time when packages are published.
    assert {name: path for name, path in named.items() if name not in known - {"bench"}} == {}


@pytest.mark.parametrize("name", ["generate", "DatasetSpec"])
def test_names_of_stoker_bench_say_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    said = rf"stoker.{name} is of the package stoker-bench, which is not installed: {re.escape(INSTALL_BENCH)}"
    assert not hasattr(stoker, name)
    assert getattr(stoker, name, None) is None
    with pytest.raises(AttributeError, match=said):
        getattr(stoker, name)
    with pytest.raises(MissingPackageError, match=said):
        exec(f"from stoker import {name}")
    with pytest.raises(ImportError, match=r"no attribute 'Elastic': it is in stoker\.partitions"):
        exec("from stoker import Elastic")
    with pytest.raises(AttributeError, match=r"no attribute 'Elastic': it is in stoker\.partitions"):
        stoker.Elastic  # noqa: B018
    command = INSTALL_BENCH.partition(",")[0].split()
    assert command[:2] == ["pip", "install"]
    assert all((ROOT / place / "pyproject.toml").exists() for place in command[2:])


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

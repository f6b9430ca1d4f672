"""Tests of a trainer run in the environment that ``tools/environments.py`` made for it; any other Python skips them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.launch import write_dataset

HERE = Path(__file__).resolve().parent


class _Elsewhere(pytest.Module):
    """A module of tests that this Python can not import."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        pytest.skip(
            f"of the environment {self.path.parent.name!r}: make trainers",
            allow_module_level=True,
        )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip modules of another environment than this Python's."""
    folder = module_path.resolve().parent
    if folder.parent != HERE or Path(sys.prefix).resolve() == HERE.parents[1] / ".venvs" / folder.name:
        return None
    module: pytest.Module = _Elsewhere.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples: 12.5 global batches of two ranks with 4 samples each."""
    return write_dataset(tmp_path_factory.mktemp("data") / "data", 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of them."""
    for item in items:
        if HERE in item.path.resolve().parents:
            item.add_marker(pytest.mark.trainers)

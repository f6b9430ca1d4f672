"""Wrong arguments of public classes and functions: a ConfigError that names the argument, never a raw Python error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stoker_bench.generation
from stoker_bench import DatasetSpec
from wrong_arguments import OUT, check_arguments, nothing

CASES: dict[str, dict[str, Any]] = {
    "stoker_bench.generation.DatasetSpec": {"format": "npy", "files": 1, "samples_per_file": 2, "record_bytes": 8},
    "stoker_bench.generate": {"spec": DatasetSpec(format="npy", record_bytes=8), "url": OUT},
    "stoker_bench.simulate.Cluster": {"nodes": 1, "ranks_per_node": 1},
    "stoker_bench.simulate.CostModel": {},
}


def test_the_table_has_what_generates() -> None:
    checked = {
        name
        for name in stoker_bench.generation.__all__
        if hasattr(getattr(stoker_bench.generation, name), "__wrapped__")
    }
    assert checked <= {name.rpartition(".")[2] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_argument_is_an_error_of_our_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_arguments(name, lambda: dict(CASES[name]), nothing, tmp_path, monkeypatch)

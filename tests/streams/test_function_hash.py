"""Hashes of functions: they change with what a function does, and with nothing else."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import StreamingDataset, Where
from stoker.errors import StateError
from stoker.streams.conditions import chosen_ids, hash_function
from support import open_parquet

SOURCE = """
LEAST = 500
WORDS = {"a": [1, 2]}

def helper(y):
    return y > LEAST

def make(bound):
    return lambda y: y > bound

def default(y, least=500):
    return y > least

def keyword(y, *, least=500):
    return y > least

def calls(y):
    return helper(y) & (y in {"some", "words", "that", "hash", "by", "seed"})

def looks_up(y):
    return [one for one in y if one in WORDS["a"]]

class Above:
    def __init__(self, least):
        self.least = least
    def __call__(self, y):
        return y > self.least

    def method(self, y):
        return y > 500

def recursive(y):
    return recursive(y - 1) if y > 500 else y
"""
FUNCTIONS = ["make(500)", "default", "keyword", "calls", "looks_up", "Above(500)", "Above(1).method", "recursive"]


def compiled(source: str, name: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "mine"}
    exec(compile(source, "mine.py", "exec"), space)
    found: Callable[..., Any] = eval(name, space)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_edited_value_changes_the_hash_and_a_moved_function_does_not(name: str) -> None:
    first = hash_function(compiled(SOURCE, name))
    assert hash_function(compiled("\n\n# moved\n" + SOURCE, name)) == first
    edited, other = SOURCE.replace("500", "900").replace("[1, 2]", "[1, 3]"), name.replace("500", "900")
    assert hash_function(compiled(edited, other)) != first


def test_arguments_of_partial_functions_and_arrays_count() -> None:
    def above(least: Any, values: Any) -> Any:
        return values > least

    bounds = [
        500,
        900,
        np.arange(3),
        np.arange(3) + 1,
        [1],
        (1,),
        {1: 2},
        {1: 3},
        1.0,
        True,
        "1",
        b"1",
        None,
        np.float32(1),
    ]
    found = [hash_function(functools.partial(above, bound)) for bound in bounds]
    assert len(set(found)) == len(bounds)
    assert found == [hash_function(functools.partial(above, bound)) for bound in bounds]


def test_values_that_hold_themselves_come_to_an_end() -> None:
    around: list[Any] = [1]
    around.append(around)
    deep = {"a": around}
    assert hash_function(lambda: deep) == hash_function(lambda: deep) != hash_function(lambda: around)
    assert hash_function(len) != hash_function(max)
    assert hash_function(np.isnan) != hash_function(np.isinf)
    assert hash_function(SimpleNamespace(a=1).__eq__)


@pytest.mark.processes
def test_the_hash_is_the_same_in_other_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    code = (
        "import mine; from stoker.streams.conditions import hash_function\n"
        f"for name in {FUNCTIONS!r}: print(hash_function(eval('mine.' + name)))"
    )
    found = set()
    for seed in ("1", "2"):  # the second reads the compiled file
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": ""}
        found.add(subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, check=True, stdout=-1).stdout)
    assert (tmp_path / "__pycache__").exists()
    assert len(found) == 1
    assert len(set(found.pop().split())) == len(FUNCTIONS)


def test_an_edited_function_chooses_again_and_its_name_stands_in_states(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": range(1000)}), tmp_path / "data.parquet")

    def above(least: int) -> Any:
        return Where.function("y", lambda y: y > least, "mine")

    for where, kept in ((above(500), 499), (above(900), 99), (above(500), 499), (~above(900), 901)):
        assert len(chosen_ids(open_parquet(tmp_path), where)) == kept
    assert len(chosen_ids(open_parquet(tmp_path), above(900) & Where("y", "<", 950))) == 49

    def dataset(where: Any) -> StreamingDataset:
        return StreamingDataset(remote=str(tmp_path), format="parquet", subset=where, batch_size=1)

    state = dataset(above(500)).state_dict(num_samples=10)
    dataset(Where.function("y", lambda y: ~(y <= 500), "mine")).load_state_dict(state)
    with pytest.raises(StateError, match="499"):
        dataset(above(900)).load_state_dict(state)

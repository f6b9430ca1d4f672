"""What tests share: datasets whose samples are known from their ids, partitions, and child processes that can not hang."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pytest

from patience import PATIENCE
from stoker import MDSWriter
from stoker.cache.directory import is_cache_directory
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed.files_location import Files
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import Contiguous, HashBased, RoundRobin, Stratified
from stoker.storage.transfer import FILE_STORES

__all__ = [
    "COLUMNS",
    "PARTITIONS",
    "TESTS",
    "all_of",
    "batches_of_workers",
    "cache_of",
    "check_batch",
    "check_sample",
    "environ",
    "files_of",
    "ids_of",
    "make_dataset",
    "open_parquet",
    "read_local_files_into_memory",
    "run_script",
    "sample_of",
    "start_script",
    "write_columns",
    "write_samples",
]

TESTS = Path(__file__).parent

COLUMNS = {"data": "bytes", "id": "int", "row": "ndarray:int32:6", "text": "str"}
"""A variable column, a scalar, a fixed-width array and text."""

PARTITIONS: Final[tuple[Partition, ...]] = (
    Elastic(),
    RoundRobin(),
    Contiguous(),
    HashBased(8, 1),
    Stratified("label"),
)
"""A partition of each kind whose settings do not depend on the data."""

_SALT = b"stoker"

_Place = TypeVar("_Place", bound=str | os.PathLike[str])


def sample_of(number: int, least: int = 0) -> dict[str, Any]:
    """The sample with this id. No byte of it is like another sample's, so that any wrong byte is noticed.

    Args:
        number: the id.
        least: fewest bytes of ``data``.
    """
    digest = hashlib.shake_128(_SALT + number.to_bytes(8, "little"))
    return {
        "data": digest.digest(least + number % 37),
        "id": number,
        "row": np.frombuffer(digest.digest(24), "<i4"),
        "text": f"number {number} " + "é" * (number % 5),
    }


def cache_of(local: Path) -> Path:
    """The only directory of a version of a dataset in a cache."""
    (found,) = (path for path in local.iterdir() if is_cache_directory(path))
    return found


def check_sample(sample: dict[str, Any], least: int = 0) -> int:
    """Compare every byte of a sample with what its id says; returns the id."""
    number = int(sample["id"])
    expected = sample_of(number, least)
    assert sample.keys() == expected.keys(), sorted(sample)
    assert bytes(sample["data"]) == expected["data"], f"sample {number}: wrong bytes in data"
    assert np.array_equal(np.asarray(sample["row"]), expected["row"]), f"sample {number}: wrong numbers in row"
    assert sample["text"] == expected["text"], f"sample {number}: wrong text {sample['text']!r}"
    return number


def check_batch(batch: dict[str, Any], least: int = 0) -> list[int]:
    """The same for a batch of columns; returns the ids in order."""
    count = len(batch["id"])
    assert all(len(column) == count for column in batch.values())
    return [check_sample({name: column[k] for name, column in batch.items()}, least) for k in range(count)]


def all_of(loader: Any) -> list[Any]:
    """All batches of torch's DataLoader. Its workers end with an error, too: the garbage collector takes 10 s for them."""
    running = iter(loader)
    try:
        return list(running)
    finally:
        running._shutdown_workers()


def ids_of(samples: Any, least: int = 0) -> list[int]:
    """The ids of samples of :func:`sample_of`, each compared with its id: of one sample, a batch, or an iterable of them."""
    if isinstance(samples, dict):
        return check_batch(samples, least) if np.ndim(samples["id"]) else [check_sample(samples, least)]
    return [number for one in samples for number in ids_of(one, least)]


def open_parquet(
    remote: Files | None, local: str | os.PathLike[str] | None = None, **arguments: Any
) -> DatasetLocation:
    """Parquet files, indexed from their footers; arguments of ``open_unindexed``, and the format's settings."""
    options: dict[str, Any] = {
        name: arguments.pop(name) for name in ("filters", "hive", "on_bad_files") if name in arguments
    }
    return open_unindexed(remote, "parquet", local, options=options, **arguments)


def write_samples(
    out: _Place,
    samples: Iterable[dict[str, Any]],
    encodings: Mapping[str, str] | None = None,
    *,
    writer: Any = MDSWriter,
    **options: Any,
) -> _Place:
    """Write samples one by one; returns ``out``.

    Args:
        out: a directory or URL.
        samples: one or more.
        encodings: of the columns; by default those of the first sample's values, see :func:`_encoding_of`.
        writer: the class, of any format.
        **options: the writer's.
    """
    if encodings is None:
        rest = iter(samples)
        first = next(rest)
        encodings = {name: _encoding_of(value) for name, value in first.items()}
        samples = chain([first], rest)
    with writer(encodings, out, **options) as sink:
        for sample in samples:
            sink.write(sample)
    return out


def write_columns(
    out: _Place,
    columns: Mapping[str, Any],
    encodings: Mapping[str, str] | None = None,
    *,
    shard: int | None = None,
    **options: Any,
) -> _Place:
    """Write an MDS dataset from whole columns; returns ``out``.

    Args:
        out: a directory or URL.
        columns: an array or a list of each column.
        encodings: of the columns; by default those of their first values, see :func:`_encoding_of`.
        shard: rows of a shard, for which no limit of size holds then.
        **options: MDSWriter's.
    """
    if encodings is None:
        encodings = {name: _encoding_of(column[0]) for name, column in columns.items()}
    count = len(next(iter(columns.values())))
    if shard is not None:
        options["size_limit"] = None
    with MDSWriter(encodings, out, **options) as sink:
        for first in range(0, count, shard or count):
            sink.write_batch({name: column[first : first + (shard or count)] for name, column in columns.items()})
            if shard is not None:
                sink.flush_shard()
    return out


def _encoding_of(value: Any) -> str:
    """``ndarray:<dtype>:<shape>`` of an array, the type of a number, text or bytes, ``json`` of anything else."""
    if isinstance(value, np.ndarray):
        return f"ndarray:{value.dtype}:{','.join(map(str, value.shape))}"
    if isinstance(value, np.generic):
        return "int" if value.dtype == np.int64 else str(value.dtype)
    return type(value).__name__ if isinstance(value, (int, str, bytes)) else "json"


def make_dataset(
    out: _Place, samples: int | Iterable[int], *, least: int = 0, size_limit: int = 4096, **options: Any
) -> _Place:
    """Write a dataset of :func:`sample_of`; returns ``out``.

    Args:
        out: a directory or URL.
        samples: how many, or their ids.
        least: fewest bytes of ``data``.
        size_limit: raw bytes of a shard; 4096 holds about 35 samples where ``least`` is 0.
        **options: MDSWriter's.
    """
    ids = range(samples) if isinstance(samples, int) else samples
    return write_samples(out, (sample_of(number, least) for number in ids), COLUMNS, size_limit=size_limit, **options)


def batches_of_workers(plan: Any, workers: int, samples: int, skip: int = 0) -> list[Any]:
    """A rank's batches in the order in which a loader of so many workers hands them out, planned so many samples at once."""
    each = [
        [batch for chunk in plan.chunks(samples, worker, workers, skip) for batch in chunk] for worker in range(workers)
    ]
    return [batch for turn in zip_longest(*each) for batch in turn if batch is not None]


def files_of(folder: Path) -> dict[str, bytes]:
    """Path within the folder to bytes, of all files below it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def environ(**more: str) -> dict[str, str]:
    """This process's environment for a child that is to find the tests' modules and no launcher's variables."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_", "SLURM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    kept["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, **more}


def start_script(script: Path, *arguments: Any, **env: str) -> subprocess.Popen[str]:
    """Start a Python script of the tests as a process of its own, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        env=environ(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_script(command: Sequence[Any], **env: str) -> list[Any]:
    """Run ``python <command>`` to its end; what it printed, a JSON value a line.

    Some start a hundred processes, one after the other, so the time is that of several waits.

    Raises:
        AssertionError: it failed, or did not end in time; with what it said.
    """
    try:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env=environ(**env),
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{command[0]} hung: {error.stdout!r} {error.stderr!r}") from None
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def read_local_files_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``storage_options={"read_by": "buffered"}`` without stoker-bench: local datasets in a memory cache."""
    of_packages = importlib.metadata.entry_points
    ours = importlib.metadata.EntryPoint("buffered", "stoker.storage.local:LocalStore", FILE_STORES)

    def entry_points(**which: Any) -> Any:
        return importlib.metadata.EntryPoints([ours]) if which == {"group": FILE_STORES} else of_packages(**which)

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)

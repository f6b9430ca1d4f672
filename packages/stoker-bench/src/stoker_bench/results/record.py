"""The files of a rank: its record, and the steps of each epoch. Each is written whole or not at all."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from stoker.storage.files.file_errors import file_errors
from stoker.storage.types import BufferLike
from stoker_bench.measure.steps import Steps
from stoker_bench.measure.storage_series import StorageSeries


def save_record(record: dict[str, Any], results: Path) -> None:
    """Write a rank's record.

    Raises:
        StorageError: it could not be written, such as to a disk that is full; what was there before stays.
    """
    replace_file(results / f"rank{record['rank']:05d}.json", json.dumps(record).encode())


def save_steps(steps: Steps, results: Path, rank: int, name: str) -> None:
    """Write the moments of an epoch's steps, which :mod:`~stoker_bench.measure.step_files` reads.

    Raises:
        StorageError: as of :func:`save_record`.
    """
    arrays = steps.arrays()
    asked = arrays["asked"]
    packed = io.BytesIO()
    np.savez_compressed(
        packed,
        asked=asked - (asked[0] if len(asked) else 0),
        wait=arrays["arrived"] - asked,
        compute=arrays["ended"] - arrays["begun"],
        barrier=arrays["barrier"],
        samples=arrays["samples"],
        bytes=arrays["bytes"],
        drawn=np.zeros(0, np.int64) if steps.drawn is None else steps.drawn,
        block=np.array([block.first for block in steps.blocks], np.int64),
    )
    replace_file(results / "steps" / f"rank{rank:05d}-{name}.npz", packed.getbuffer())


def save_series(series: StorageSeries, results: Path, rank: int, name: str) -> None:
    """Write the counters of storage over an epoch's time, which :mod:`~stoker_bench.results.storage_over_time` reads.

    Raises:
        StorageError: as of :func:`save_record`.
    """
    moments, counters = series.arrays()
    packed = io.BytesIO()
    np.savez_compressed(packed, moments=moments, counters=counters)
    replace_file(results / "steps" / f"rank{rank:05d}-{name}.storage.npz", packed.getbuffer())


def replace_file(path: Path, data: BufferLike) -> None:
    """Write a file of the results, in a folder that is made for it.

    Raises:
        StorageError: as of :func:`save_record`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with file_errors(path):
        path.parent.mkdir(exist_ok=True)
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

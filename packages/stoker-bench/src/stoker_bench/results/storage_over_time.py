"""Storage over the time of an epoch, of the ranks' files: bytes and requests in bins of equal width, for ``results.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Array
from stoker_bench.measure.requests import NOT_TOLD
from stoker_bench.measure.step_files import read_arrays
from stoker_bench.measure.storage_series import COLUMNS, MOST_BINS

_ALL: Final = 6_000
"""Bins of all epochs together, about, so that results of many epochs stay small; each epoch has at least :data:`_FEWEST`."""
_FEWEST: Final = 24
_NARROWEST: Final = 0.1
"""Seconds of a bin, at least: counters are looked at no more often."""
_MOST_BYTES: Final = 1 << 24
_NAMES: Final = ("device", "page_cache", "cache_directory", "network")
_DEVICE, _READ, _READS = (COLUMNS.index(name) for name in ("device_bytes", "read_bytes", "block_reads"))
_REQUESTS, _REQUEST_BYTES = COLUMNS.index("device_requests"), COLUMNS.index("device_request_bytes")


def series_path(results: Path, rank: int, kind: str, repeat: int, epoch: int) -> Path:
    """The file of a rank's counters over an epoch."""
    return results / "steps" / f"rank{rank:05d}-{kind}-{repeat}-{epoch}.storage.npz"


def storage_series(paths: Sequence[Path], began: float, ended: float, epochs: int) -> dict[str, Any] | None:
    """Bytes and requests over time, of all ranks.

    Args:
        paths: of the ranks' files.
        began, ended: the epoch, of ``time.time``.
        epochs: of the run, which share the room there is.

    Returns:
        ``began_at``, ``bin_seconds``, and of each source the bytes and requests of each bin; a source that gave nothing is
        left out. ``None`` where a file is missing, or the epoch took no time.
    """
    ranks = [read_series(path) for path in paths]
    if not ranks or not ended > began:
        return None
    most = min(MOST_BINS, max(_FEWEST, _ALL // max(1, epochs)))
    count = max(1, min(most, int((ended - began) / _NARROWEST)))
    edges = np.linspace(began, ended, count + 1)
    columns: Array = np.zeros((count, len(COLUMNS)))
    for rank in ranks:
        if rank is None:
            return None
        moments, counters = rank
        # Looks that were taken a moment before and after the epoch are of its begin and end, so that no byte is left out.
        moments = np.clip(moments, began, ended)
        columns += np.stack([np.diff(np.interp(edges, moments, column)) for column in counters.T], axis=1)
    known = [all(rank is not None and (rank[1][:, at] >= 0).all() for rank in ranks) for at in range(len(COLUMNS))]
    bytes_of = {name: columns[:, _REQUEST_BYTES + at] for at, name in enumerate(_NAMES)}
    requests = {name: columns[:, _REQUESTS + at] for at, name in enumerate(_NAMES)}
    if not known[_DEVICE]:
        for found in (bytes_of, requests):
            found[NOT_TOLD] = found.pop("device") + found.pop("page_cache")
    elif not bytes_of["network"].any():
        # What a request gave may have come ahead of it. The kernel's count is when it came.
        local = bytes_of["device"] + bytes_of["page_cache"]
        bytes_of["device"] = columns[:, _DEVICE]
        given = local if local.any() or not known[_READ] else columns[:, _READ]
        bytes_of["page_cache"] = _beyond(given, bytes_of["device"])
    block = any(rank is not None and (rank[1][:, _READS] >= 0).all() for rank in ranks)
    reads, read_bytes, milliseconds = columns[:, _READS : _READS + 3].T
    return {
        "began_at": began,
        "bin_seconds": (ended - began) / count,
        "bytes": {name: _whole(values) for name, values in bytes_of.items() if values.any()},
        "requests": {name: _whole(values) for name, values in requests.items() if values.any()},
        "block_device": {
            "reads": _whole(reads),
            "bytes": _whole(read_bytes),
            "mean_bytes": float(read_bytes.sum() / reads.sum()) if reads.any() else None,
            "mean_seconds": float(milliseconds.sum() / reads.sum()) / 1000 if reads.any() else None,
        }
        if block
        else None,
    }


def read_series(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """Moments and counters of a rank's file; ``None`` where it is missing, or not what a rank writes."""
    arrays = read_arrays(path, ("moments", "counters"), _MOST_BYTES)
    if arrays is None:
        return None
    moments, counters = arrays["moments"], arrays["counters"]
    if moments.dtype != np.float64 or counters.dtype != np.int64 or moments.ndim != 1 or not len(moments):
        return None
    if counters.shape != (len(moments), len(COLUMNS)) or not np.isfinite(moments).all() or (np.diff(moments) < 0).any():
        return None
    return moments, counters


def _beyond(given: Array, fetched: Array) -> Array:
    """Of bytes that were given, bin by bin, those that had not to be fetched, which may have been fetched bins before."""
    total = np.maximum.accumulate(np.maximum(np.cumsum(given) - np.cumsum(fetched), 0.0))
    return np.diff(total, prepend=0.0)


def _whole(values: Array) -> list[int]:
    """Whole numbers whose running sums are right."""
    found: list[int] = np.diff(np.rint(np.cumsum(values)), prepend=0.0).astype(np.int64).tolist()
    return found

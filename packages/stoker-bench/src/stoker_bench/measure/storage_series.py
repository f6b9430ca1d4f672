"""Storage over the time of an epoch: a thread of the rank looks at its counters again and again, and no reader does more."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.storage.files.mounts import mount_of
from stoker_bench.measure.page_cache import file_system
from stoker_bench.measure.request_counts import BYTES, COUNT, RequestCounts
from stoker_bench.measure.usage import bytes_read

MOST_BINS: Final = 600
"""Bins of an epoch."""
_EVERY: Final = 0.05
"""Seconds between two looks, at first; twice as many each time that there would be more than twice :data:`MOST_BINS`."""
_FEWEST: Final = 10
"""Looks without which nobody can tell when in an epoch bytes came."""
COLUMNS: Final = (
    *("device_bytes", "read_bytes", "block_reads", "block_bytes", "block_milliseconds"),
    *("device_requests", "page_cache_requests", "cache_directory_requests", "network_requests"),
    *("device_request_bytes", "page_cache_request_bytes", "cache_directory_request_bytes", "network_request_bytes"),
)
"""Counters that only rise: of a rank's processes as the kernel counts them, of the block device for all that use it, and of
requests; -1 where nobody knows."""


class StorageSeries:
    """Looks at counters while an epoch runs: from :meth:`start` to :meth:`close`.

    Args:
        counts: of the rank's requests.
        block: of the block device that holds the data, as :func:`block_device` gives it; ``None`` for none, or where another
            rank of this host looks at it.
        path: of the data, where it is a directory.
    """

    def __init__(self, counts: RequestCounts, block: Path | None, path: str | None = None) -> None:
        in_memory = path is not None and file_system(path)[1]
        self._counts, self._block, self._path = counts, block, None if in_memory else path
        self._every, self._stopped = _EVERY, threading.Event()
        self._moments: list[float] = []
        self._found: list[list[int]] = []
        self._thread = threading.Thread(target=self._run, name="storage-series", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._look()
        self._thread.start()

    def close(self) -> None:
        """Look once more, and never again."""
        if self._moments and not self._stopped.is_set():
            self._stopped.set()
            if self._thread.is_alive():  # an interrupt may have come before it ran
                self._thread.join()
            self._look()

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Moments, of ``time.time``, shape ``(looks,)``; and counters by :data:`COLUMNS`, shape ``(looks, columns)``."""
        found = np.array(self._found, np.int64).reshape(-1, len(COLUMNS))
        # A process that ends takes its counts with it for a moment, until its parent has them.
        return np.maximum.accumulate(np.array(self._moments, np.float64)), np.maximum.accumulate(found, axis=0)

    def stored_until(self, moments: Sequence[float], *, local: bool) -> NDArray[np.float64] | None:
        """Bytes that had come from the device, or over the network, by some moments of ``time.time``: one for each.

        Returns:
            ``None`` where nobody counts them, none came, or the epoch was too short to tell when.
        """
        looks, counters = self.arrays()
        found = counters[:, COLUMNS.index("device_bytes" if local else "network_request_bytes")]
        if len(found) < _FEWEST or found[0] < 0 or found[-1] == found[0]:
            return None
        return np.interp(np.array(moments, np.float64), looks, found)

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self._look()
            if len(self._moments) > 2 * MOST_BINS:
                del self._moments[1::2], self._found[1::2]
                self._every *= 2

    def _look(self) -> None:
        device, read = bytes_read(self._path)
        block = [None] * 3 if self._block is None else _block_counts(self._block)
        table = self._counts.table()
        known = [-1 if one is None else one for one in (device, read, *block)]
        self._found.append([*known, *table[:, COUNT].tolist(), *table[:, BYTES].tolist()])
        self._moments.append(time.time())


def block_device(folder: str) -> Path | None:
    """The counters of the block device that holds a directory; ``None`` where there is none, or it can not be told."""
    with contextlib.suppress(OSError):
        device = os.stat(folder).st_dev
        if not os.major(device):  # a file system over several devices, or over none
            device = os.stat(mount_of(folder)[2]).st_rdev
        found = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        if os.major(device) and found.exists():
            return found
    return None


def _block_counts(path: Path) -> list[int] | list[None]:
    """Reads that a block device has completed for all processes, their bytes, and the sum of the milliseconds of each."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = path.read_text().split()
        return [int(fields[0]), int(fields[2]) << 9, int(fields[3])]
    return [None] * 3

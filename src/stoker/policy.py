"""Limits of what a process opens, maps, fetches and holds of a dataset, from sizes and from those of its host.

Nothing here changes which sample comes when. ``docs/scale.md`` has the same as a table.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

# -- opened and mapped ---------------------------------------------------------------------------------------------------

READ_WHOLE: Final = 16 << 10
"""A file of at most so many bytes is read: a map of it costs more time, and a process can have only so many maps."""

SMALL_PART: Final = 1 << 17
"""A part of a file that is a shard, such as a row group, is read where it has at most so many bytes: a map of 60 kB costs
three times as much. All that are kept open, :data:`MOST_OPEN`, so take 32 MiB of memory at most."""

SMALL_FILE: Final = 1 << 20
"""A file that is a sample is read where it has at most so many bytes, as all of them are needed at once. A map of 100 kB
costs three times as much as to read it, of 1 MiB half as much again."""

SMALL_FILES_AT_ONCE: Final = 32
SMALL_BYTES_AT_ONCE: Final = 4 << 20
"""Small files that one thread opens at a time, and their bytes: to hand over one costs as much as to open it."""

SMALL_BYTES_AHEAD: Final = 64 << 20
"""Bytes of small files that a process reads before they are needed, unless more are asked for at once."""

MOST_DECODERS: Final = 8
"""Videos and sounds that a process keeps open between clips. Each may hold some pictures, and 4 MiB of its file or a clip."""

MOST_OPEN: Final = 256
"""Shards that are kept open although no sample ahead needs them."""

SHARED: Final = 1 << 20
"""Bytes of an index or listing from which on all processes map one copy: each map takes descriptors."""

SHARED_SHARDS: Final = 8 << 20
"""Bytes of a file in memory for small shards that processes share. A shard of a quarter of it has a file of its own."""

_USUAL_MAPS: Final = 65_530
_MOST_SHARED: Final = 64
_MOST_SHARED_SHARDS: Final = 1024


@lru_cache(maxsize=1)
def most_maps() -> int:
    """Shards that may be open at once: the system limits the maps of a process, and some shards have two."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text()) // 4
    except (OSError, ValueError):
        return _USUAL_MAPS // 4


def allow_descriptors(wanted: int) -> None:
    """Raise the limit of descriptors of this process, which is 1024 as a rule, where it is short and may be raised."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
            )


CACHE_DESCRIPTORS: Final = 2
"""Descriptors that a process keeps of each cache on disk: they say that it is in use."""

USUAL_DESCRIPTORS: Final = 512
"""Descriptors beside those: of connections, of files for a moment, of memory that processes share, and of others' code."""


def small_files_open(threads: int) -> int:
    """Small files that each of some threads may have open at once: together an eighth of a process's descriptors."""
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8 // threads)


def most_shared() -> int:
    """Files that a process maps for good. Each takes two descriptors: together an eighth of what it may have."""
    return min(_MOST_SHARED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16)


def most_shared_shards() -> int:
    """Files with shards in memory that a process keeps for itself and others: each takes a descriptor."""
    return min(_MOST_SHARED_SHARDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


# -- fetched -------------------------------------------------------------------------------------------------------------

USUAL_FETCHES: Final = 8
"""Shards that are fetched at once before anything was seen, and at least."""

# Of small ones more at once, as nothing is known of how late the store answers: as many as carry so many bytes, and at most.
_FIRST_UNDER_WAY: Final = 4 << 20
_MOST_FIRST_FETCHES: Final = 32

INDEXES_AT_ONCE: Final = 64
"""Indexes of streams, or of parts to merge, that are read at once where storage answers late."""

FETCHED_FOR_WORKER: Final = 8
"""Shards that the main process fetches for each DataLoader worker; by then these have connections of their own."""

SMALL_OBJECT: Final = 1 << 18
"""An object of at most so many bytes is fetched into memory by a request that has a bound on the whole. A cache on disk
writes it by one call, and its reader does without a map."""

# Requests of a process, and of all processes of a node that read through one cache; bytes under way in all of them.
_MOST_FETCHES: Final = 128
_MOST_FETCHES_OF_NODE: Final = 256
_MOST_UNDER_WAY: Final = 256 << 20


def most_fetches(shard_bytes: float, sharers: int) -> int:
    """The bound for the shards that a process fetches at once, whatever the latency.

    ``sharers``: processes on this node that read through the same cache.
    """
    of_bytes = int(_MOST_UNDER_WAY / sharers / max(shard_bytes, 1.0))
    return max(USUAL_FETCHES, min(_MOST_FETCHES, _MOST_FETCHES_OF_NODE // sharers, of_bytes))


def first_fetches(shard_bytes: int, sharers: int) -> int:
    """Shards that a process fetches at once before anything was seen; the arguments are those of :func:`most_fetches`."""
    usual = max(USUAL_FETCHES, min(_MOST_FIRST_FETCHES, _FIRST_UNDER_WAY // max(1, shard_bytes)))
    return min(usual, most_fetches(shard_bytes, sharers))


# -- held, and read in one step ------------------------------------------------------------------------------------------

# Bytes of the shards that ``cache="memory"`` holds at once, over the processes of a node, where no limit is given.
_HELD_IN_MEMORY: Final = 8 << 30
# Of memory of shards that were let go, kept for those to come, in each process.
_REUSED: Final = 1 << 30
# Of decoded row groups and the like, kept in each process.
_DECODED: Final = 1 << 30
# Bytes of small shards that the processes of a node hold as they were fetched, and one of them at least.
_SMALL_SHARDS_HELD: Final = 1 << 28
_LEAST_SMALL_SHARDS_HELD: Final = 1 << 24

GROUP_BYTES: Final = 1 << 28
"""Bytes of samples that the processes of a node hold where they read an order shard by shard, where there is memory."""

FIRST_SAMPLES: Final = 1 << 14
"""The first batch waits until so many samples are located, of at least :data:`FIRST_SHARDS` shards."""
FIRST_SHARDS: Final = 16
FIRST_SAMPLES_OF_FEW_SHARDS: Final = 1 << 16
"""The same where they are of fewer shards."""
FIRST_MOST_SHARDS: Final = 256
"""Or until samples of so many shards are located: of many streams or small shards, each costs something when first met."""

FEW_LINES: Final = 1 << 15
"""Lines of text that are parsed in less time than it pays to begin threads for."""

TOKENS_AHEAD: Final = 1 << 26
"""Tokens ahead of the block that is decoded that are fetched meanwhile, where they come from remote storage."""

# Bytes and samples that are read in one step: enough that NumPy's per-call costs vanish, few enough to stay in the
# processor's cache.
_CHUNK_BYTES: Final = 2 << 20
_CHUNK_SAMPLES: Final = 4096
# Of lines of text: a step lets go of Python's lock some thirty times, and each time waits for threads that parse others.
_CHUNK_LINES: Final = 1 << 14
# Samples that functions make in one step: they take longer than reading, and several threads or processes end together.
_MADE_AT_ONCE: Final = 512
# Bytes of samples that are held in a list and no function makes, such as joined ones: a step has costs of its own.
_HELD_AT_ONCE_BYTES: Final = 1 << 20

# Bytes of samples whose shards are fetched ahead, and where the shards are at hand, opened ahead.
_AHEAD_BYTES: Final = 1 << 30
_AHEAD_NEAR_BYTES: Final = 1 << 28
# Where they are held in memory: enough for the shards that are fetched at once. Beyond that, memory is used again.
_AHEAD_HELD_BYTES: Final = 1 << 29
# What the processes of a node keep in memory for each other when they have read it: they read in nearly the same order.
_SPARE_BYTES: Final = 1 << 28
# Threads that parse text: more of them wait for each other to make Python's strings.
_MOST_PARSERS: Final = 4
# Small samples are located ahead no further than this: each takes 28 bytes of memory.
_AHEAD_SAMPLES: Final = 1 << 20
# Shards at hand are opened ahead no further than this: a process may have only so many maps.
_AHEAD_NEAR_SHARDS: Final = 1 << 12


# The part of the memory that is free when reading begins which the tuner may use, on all processes of a node together.
_TUNED_PART: Final = 4
# Where nothing says how much that is.
_USUAL_FREE: Final = 4 << 30

MOST_CHUNKS_AHEAD: Final = 64
"""Steps of reading that may wait for the consumer, beyond those that threads work at."""

CHUNKS_OF_PROCESS: Final = 2
"""Steps of reading that a process has at once: one that it reads, and the next."""

PROCESS_BYTES: Final = 64 << 20
"""Bytes of a process that reads, beside what it reads, where the tuner asks: an interpreter with NumPy, and functions."""

STEP_SECONDS: Final = 0.04
"""A step of reading is cut where its samples would take longer, as seen, to be read or until the consumer has had them: steps
are what threads take one after the other, what waits for its last shard, and what waits in memory. One costs some 50 µs."""

LITTLE_WAITING: Final = 0.03
"""A consumer that waits for less than this part of its time leaves nothing to gain: the tuner changes nothing."""

LOOKAHEAD_FULL: Final = 0.5
"""The lookahead is too short where it is full in this part of the waiting, while no more than this part of downloads run."""

MOST_TIMES_AHEAD: Final = 8
"""The tuner looks ahead no further than this many times what is usual, where that takes no memory of the process."""


def most_read_threads(processes: int) -> int:
    """Threads that may read ahead in one of some processes of a node: twice its processors, or more, as some of them wait."""
    return min(64, max(16, 2 * processor_count() // processes))


def most_read_processes(processes: int) -> int:
    """Processes that may read for one of some processes of a node: twice its processors, or more, as some of them wait."""
    return min(64, max(8, 2 * processor_count() // processes))


def processors(processes: int) -> float:
    """Processors for each of some processes of a node, at least 1: those that it may run on, and that its container has."""
    return max(1.0, min(len(os.sched_getaffinity(0)), _quota()) / processes)


def processor_count() -> int:
    """Processors that this process may keep busy: as many threads or processes that compute; of a quota of 1.5, 2."""
    return math.ceil(processors(1))


@lru_cache(maxsize=1)
def _quota() -> float:
    """Processors that the control groups of this process let it have, on average."""
    found = [math.inf]
    for kind, folder in _control_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            if kind:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            else:
                quota, period = (folder / "cpu.max").read_text().split()
            if float(quota) > 0:  # "max" is no number; -1 is none, too
                found.append(float(quota) / float(period))
    return min(found)


@lru_cache(maxsize=1)
def memory_limit() -> int:
    """Bytes of memory that the processes of this container may have together: the machine's, or those of a control group."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for kind, folder in _control_groups("memory"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(int((folder / ("memory.limit_in_bytes" if kind else "memory.max")).read_text()))
    return max(1, min(found))


def held_in_memory() -> int:
    """Bytes of the shards that ``cache="memory"`` holds at once, over the processes of a node, where no limit is given."""
    return min(_HELD_IN_MEMORY, memory_limit() // 2)


def reused_memory() -> int:
    """Bytes of memory of shards that were let go that a process keeps for those to come."""
    return min(_REUSED, memory_limit() // 8)


def decoded_memory() -> int:
    """Bytes of decoded row groups and the like that a process keeps, where no limit is given."""
    return min(_DECODED, memory_limit() // 8)


def _of_node(usual: int) -> int:
    """Bytes that all processes of a node hold for a purpose: those that are usual, or a smaller part of little memory."""
    return min(usual, memory_limit() // 16)


def tuned_memory(processes: int) -> int:
    """Bytes that the tuner may use in one of some processes of a node: a quarter of what is free now."""
    free = [_USUAL_FREE]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")] or free
    free += _free_of_groups(min(free))
    return max(0, min(free)) // _TUNED_PART // max(1, processes)


def _free_of_groups(most: int) -> list[int]:
    """Bytes that each control group of this process may still take, where below ``most``; a container is one."""
    found = []
    for kind, folder in _control_groups("memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if kind else ("memory.max", "memory.current")
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in names)
            if limit - used < most:  # else it does not count; the kernel takes milliseconds to sum up a group's pages
                found.append(limit - used + _page_cache(folder))
    return found


def _control_groups(controller: str) -> Iterator[tuple[str, Path]]:
    """The control groups of this process that limit something, and the controllers of each; version 2 names none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds and controller not in kinds.split(","):
            continue
        root = Path("/sys/fs/cgroup") / kinds
        inside = root / name.lstrip("/")
        # In a container the names may be those outside of it; its own group is the root there.
        for folder in {root, *(one for one in (inside, *inside.parents) if one.is_relative_to(root))}:
            yield kinds, folder


def _page_cache(folder: Path) -> int:
    """Bytes of a control group's use that are files, which the system drops when memory is needed."""
    with contextlib.suppress(OSError, ValueError):
        numbers = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(numbers.get("inactive_file") or numbers.get("total_inactive_file") or 0)
    return 0


def spare_bytes(limit: int | None, sharers: int) -> int:
    """Bytes of shards in memory that a process keeps for others of its node when it has read them.

    ``limit``: bytes that all ``sharers``, processes of the node, may hold.
    """
    most = _of_node(_SPARE_BYTES)
    return min(most, most if limit is None else limit // 4) // sharers


def small_shards_held(sharers: int) -> int:
    """Bytes of small shards that a process holds as they were fetched; it maps those beyond in the cache on disk."""
    return max(_LEAST_SMALL_SHARDS_HELD, _of_node(_SMALL_SHARDS_HELD) // sharers)


def parsers(sharers: int) -> int:
    """Threads that parse text ahead of the consumer: none where a process has no more than one processor."""
    count = int(processors(sharers))
    return min(_MOST_PARSERS, count) if count > 1 else 0


@dataclass(frozen=True, slots=True)
class ReadAmounts:
    """Amounts that a process reads ahead of training, and in one step.

    Attributes:
        sample_bytes: bytes of an average sample.
        shard_bytes: bytes of an average shard.
        near: whether shards are read where they are, with nothing to fetch or decompress.
        lines: whether batches of lines of text are parsed, many at a time.
        held: whether they are held in this process's memory.
        limit: bytes that the cache may take, or ``None``.
        sharers: processes on this node that read through the same cache.
        predownload: samples ahead of the current one whose shards are fetched; ``None``: as many as make sense.
    """

    sample_bytes: int = 1
    shard_bytes: int = 1
    near: bool = False
    lines: bool = False
    held: bool = False
    limit: int | None = None
    sharers: int = 1
    predownload: int | None = None

    def made_at_once(self, *, calls_functions: bool) -> int:
        """Samples of a list that is made in one step."""
        most = 0 if calls_functions else _HELD_AT_ONCE_BYTES // max(1, self.sample_bytes)
        return max(_MADE_AT_ONCE, most)

    @property
    def most_shards(self) -> int:
        """Shards that this process may have open: with a limit, its part of half the cache. The rest is for eviction."""
        if self.limit is None:
            return _AHEAD_NEAR_SHARDS if self.near else sys.maxsize
        return max(1, self.limit // 2 // max(1, self.shard_bytes) // self.sharers)

    @property
    def group_bytes(self) -> int:
        """Bytes of samples that this process holds where it reads shard by shard."""
        ahead = _of_node(GROUP_BYTES) if self.predownload is None else self.predownload * max(1, self.sample_bytes)
        return ahead // self.sharers

    def lookahead(self, batch_size: int) -> int:
        """Samples ahead of the one delivered whose shards are fetched, or opened and read into the page cache."""
        if self.predownload is not None:
            return max(1, self.predownload)
        held = min(_AHEAD_HELD_BYTES, memory_limit() // 8)
        most = _AHEAD_NEAR_BYTES if self.near else held if self.held else _AHEAD_BYTES
        ahead = most // max(1, self.sample_bytes) // self.sharers
        return max(8 * batch_size, min(ahead, _AHEAD_SAMPLES))

    def chunk(self, batch_size: int, *, one_by_one: bool) -> int:
        """Samples that are read in one step.

        Samples that are made as they are asked for (``one_by_one``) take no memory ahead; but all shards of a chunk must be
        there before its first sample, so it is not much larger then, unless they are mapped where they lie. And all of its
        shards are open, and so can not be evicted, at once.
        """
        mapped = self.near and self.shard_bytes > SMALL_FILE
        size = _CHUNK_BYTES if not one_by_one else sys.maxsize if mapped else 8 * _CHUNK_BYTES
        most, most_shards = _CHUNK_SAMPLES, self.most_shards
        if self.lines and self.limit is None:
            most, most_shards = _CHUNK_LINES, most_shards * max(1, self.shard_bytes // max(1, self.sample_bytes))
        chunk = min(most, max(1, size // max(1, self.sample_bytes)), most_shards)
        return chunk if self.near else min(chunk, max(1, self.lookahead(batch_size) // 2))

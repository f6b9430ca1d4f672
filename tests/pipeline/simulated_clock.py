"""A clock of traces that goes on only where a test says so: what the machine takes for the work itself is no time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from patience import PATIENCE
from stoker.cache.disk.disk_cache import DiskCache
from stoker.concurrency.spans import recorder, sample_clock
from stoker.concurrency.spans.thread_times import ReadTimes
from stoker.formats.base import ShardReader
from stoker.pipeline.stats import trace
from stoker.reading.opening.small_files import SmallStream
from stoker.reading.shard_pool import ShardPool
from stoker.storage.local import LocalStore
from stoker.storage.types import ObjectInfo

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000


class SimulatedClock:
    """Times of all threads, in ns, by which a trace records.

    Args:
        monkeypatch: puts it in place of the clocks of the machine.

    Attributes:
        now: the time.
        computed, displaced: of each thread, what it had of the processors, and for how long others had them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = MILLISECOND
        self.computed: Counter[int] = Counter()
        self.displaced: Counter[int] = Counter()
        self._lock = threading.Lock()
        monkeypatch.setattr(recorder, "perf_counter_ns", self.read)
        monkeypatch.setattr(sample_clock, "perf_counter_ns", self.read)
        monkeypatch.setattr(recorder, "ThreadTimes", lambda: _SimulatedTimes(self))
        monkeypatch.setattr(trace, "time", SimpleNamespace(perf_counter_ns=self.read, time_ns=time.time_ns))

    def read(self) -> int:
        """The time, a nanosecond later than it was read before: of two moments one is the first."""
        with self._lock:
            self.now += 1
            return self.now

    def passes(self, nanoseconds: int, *, computed: int = 0, displaced: int = 0) -> None:
        """Let time pass, in which this thread computes, or waits for a processor, for some of it."""
        thread = threading.get_ident()
        with self._lock:
            self.now += nanoseconds
            self.computed[thread] += computed
            self.displaced[thread] += displaced

    def computes(self, nanoseconds: int) -> None:
        """Let time pass in which this thread computes."""
        self.passes(nanoseconds, computed=nanoseconds)


class _SimulatedTimes:
    """In place of :class:`~stoker.concurrency.spans.thread_times.ThreadTimes`."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock, self._thread = clock, threading.get_ident()
        self._before = 0, 0
        self.ask()

    def ask(self) -> tuple[int, int]:
        before, self._before = self._before, (self._clock.computed[self._thread], self._clock.displaced[self._thread])
        return self._before[0] - before[0], self._before[1] - before[1]


class SimulatedStore:
    """The files of folders as a store whose shards take their time, each from when the consumer waits for it.

    So nothing depends on which of the threads that fetch runs when. A dataset is read once, in its own order: with few of
    these threads, the shard that is waited for must be the next one.

    Args:
        clock: the time.
        takes: ns of a shard.
        monkeypatch: makes all folders such stores.
    """

    def __init__(self, clock: SimulatedClock, takes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked = threading.local()
        self._awaited: set[str] = set()
        self._changed = threading.Condition()
        download, get, awaiting = LocalStore.download, ShardPool.get, ReadTimes.awaiting

        def asked(pool: ShardPool, shard: int) -> ShardReader:
            self._asked.keys = {file.basename for file in pool.index.shards[shard].raw}
            return get(pool, shard)

        @contextmanager
        def awaited(times: ReadTimes) -> Iterator[None]:
            with awaiting(times), self._changed:
                self._awaited |= self._asked.keys
                self._changed.notify_all()
            yield

        def slow(store: LocalStore, key: str, path: Path, **settings: Any) -> ObjectInfo:
            with self._changed:
                assert self._changed.wait_for(lambda: key in self._awaited, PATIENCE), f"nobody waits for {key}"
                clock.passes(takes)
            return download(store, key, path, **settings)

        monkeypatch.setattr(ShardPool, "get", asked)
        monkeypatch.setattr(ReadTimes, "awaiting", awaited)
        monkeypatch.setattr(LocalStore, "download", slow)
        # Small objects come in groups, of which the first waits for the last.
        monkeypatch.setattr(SmallStream, "is_object", lambda *_: False)
        monkeypatch.setattr(DiskCache, "is_small", lambda *_: False)

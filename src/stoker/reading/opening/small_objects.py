"""Small objects of a store, loaded in groups: each is requested by a thread of its own, and one thread does all the rest.

A request of an object of 100 kB takes some 100 µs of the processor, and what else there is to do for it, in a thread among a
hundred that take turns, would take as much again: each meets caches of the processor that others have filled, and waits for
Python's lock wherever it lets go of it. One thread does that for a whole group in a third of the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stoker.cache.base import ShardCache
from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import CorruptDataError, DatasetChangedError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.registry import get_format
from stoker.reading.opening.load_shard import Loaded, open_files
from stoker.storage.types import Arrival
from stoker.types import Buffer

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Loaded | Exception | None
"""A shard, or its error, or ``None``: it is not to be had now, as another process is fetching it."""

_Requested: TypeAlias = tuple[Arrival | Exception, float, float]
"""The answer to a request, the seconds that it took, and those of them in which the thread computed."""


class ObjectGroup:
    """Shards of one cache that are small objects of its store, and are loaded together.

    Args:
        table: descriptions of all shards, by number.
        first: number of the first of those.
        cache: where they are to be.
        counts: where repeated fetches are counted.
        load: loads a shard alone, which the cache has, or others are fetching. If ``True``, it came once, and was corrupt.
        may_hold: whether what was fetched is held as it came, and not mapped in the cache on disk.
        at_once: how many are fetched at once, for traces.
    """

    def __init__(
        self,
        shards: Sequence[int],
        table: Sequence[ShardInfo],
        cache: ShardCache,
        options: ReadOptions,
        counts: Counts,
        load: Callable[[int, bool], Loaded | None],
        may_hold: Callable[[], bool],
        at_once: Callable[[], int],
    ) -> None:
        self.shards = shards
        self._table, self._cache, self._options, self._counts = table, cache, options, counts
        self._load, self._may_hold, self._at_once = load, may_hold, at_once
        self._lock = threading.Lock()
        self._infos: list[ShardInfo] = []
        self._claimed: Sequence[bool] | Exception | None = None

    def _claim(self) -> Sequence[bool] | Exception:
        """Whether each shard is to be requested: claimed for all of them by the first thread, when its turn has come."""
        with self._lock:
            if self._claimed is None:
                self._infos = infos = [self._table[shard] for shard in self.shards]
                small = [self._cache.is_small(info) for info in infos]
                try:
                    mine = iter(self._cache.claim_small([info for info, one in zip(infos, small, strict=True) if one]))
                    self._claimed = [one and next(mine) for one in small]
                except Exception as error:  # noqa: BLE001 - raised where a shard is asked for
                    self._claimed = error
            return self._claimed

    def fetch(self, number: int) -> tuple[int, _Requested | Outcome]:
        """Have the shard of a number in this group fetched; called by many threads."""
        claimed = self._claimed
        if claimed is None:
            claimed = self._claim()
        if isinstance(claimed, Exception):
            return number, claimed
        if not claimed[number]:
            return number, self._load_alone(self.shards[number])
        begun, work = time.perf_counter(), time.thread_time()
        info = self._infos[number]
        with span(Stage.FETCH, info.raw[0].bytes, self._at_once()):
            answer = self._cache.try_request(info)
        return number, (answer, time.perf_counter() - begun, time.thread_time() - work)

    def finish(self, fetched: Sequence[tuple[int, _Requested | Outcome]]) -> list[tuple[int, Outcome]]:
        """Open the shards that :meth:`fetch` gave these results for; shard and outcome of each."""
        found: list[tuple[int, Outcome]] = []
        requested: dict[int, _Requested] = {}
        for number, one in fetched:
            if isinstance(one, tuple) and not isinstance(one, Loaded):
                requested[number] = one
            else:
                found.append((self.shards[number], one))
        claimed = self._claimed
        if claimed is None or isinstance(claimed, Exception):
            return found
        work = time.thread_time()
        chosen = [number for number, mine in enumerate(claimed) if mine]
        infos = [self._infos[number] for number in chosen]
        answers = [requested[number][0] if number in requested else None for number in chosen]
        taken = self._cache.take_small(infos, answers)
        if not taken:
            return found
        work = (time.thread_time() - work) / len(taken)
        for number, info, data in zip(chosen, infos, taken, strict=True):
            if isinstance(data, Exception):
                found.append((self.shards[number], data))
            elif data is not None:
                _, seconds, mine = requested[number]
                found.append((self.shards[number], self._opened(self.shards[number], info, data, seconds, mine + work)))
        return found

    def _opened(self, shard: int, info: ShardInfo, data: Buffer, seconds: float, work: float) -> Outcome:
        cache = self._cache
        if cache.keeps and not self._may_hold():
            return self._load_alone(shard)
        form = get_format(info.format)
        try:
            reader = open_files(form, info, [data], cache.describe(info), self._options)
            form.read_ahead(reader)
        except CorruptDataError as error:
            if isinstance(error, DatasetChangedError) or not cache.discard(info):
                return error
            self._counts.add(Count.RETRIES, 1)
            logger.warning("%s; fetching it again", error)
            return self._load_alone(shard, repeated=True)
        except Exception as error:  # noqa: BLE001 - raised where the shard is asked for
            return error
        return Loaded.of(shard, info, reader, [data], fetched=True, held=cache.keeps, took=(seconds, work))

    def _load_alone(self, shard: int, *, repeated: bool = False) -> Outcome:
        try:
            return self._load(shard, repeated)
        except Exception as error:  # noqa: BLE001 - raised where the shard is asked for
            return error

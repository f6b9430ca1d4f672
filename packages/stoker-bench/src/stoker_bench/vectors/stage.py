"""A rank's part of the stage ``vectors``: an index is made where there is none, and threads search it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.display import bytes_text
from stoker.errors import ConfigError, StorageFullError
from stoker.storage import is_local
from stoker.storage.files.file_errors import file_errors
from stoker_bench.measure import page_cache as pagecache
from stoker_bench.measure import usage
from stoker_bench.measure.call_times import CallTimer, OperationTimes
from stoker_bench.measure.page_cache import existing_path
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.settings.workload import VectorSettings
from stoker_bench.vectors.base import Searcher, VectorIndex
from stoker_bench.vectors.indexes import INDEXES
from stoker_bench.vectors.points import F32, I64, draw_search, nearest_vectors, recall

FOLDER: Final = "vectors"
"""Below the data's URL. Indexes stay, and the next run finds them."""

Hops = list[NDArray[np.int64]]


def check_vectors(url: str) -> Path:
    """The directory in which vectors are searched.

    Raises:
        ConfigError: the data is not in a directory.
    """
    folder = is_local(url)
    if folder is None:
        raise ConfigError(f"the stage vectors searches files of a directory, and {url} is none")
    return folder


def check_vectors_space(settings: VectorSettings, url: str) -> None:
    """See that the vectors alone have room, where an index of them is still to be made in a file.

    Raises:
        StorageFullError: they have not; says how much is needed, and how much is free.
    """
    index, folder = _index(settings, f"{check_vectors(url)}/{FOLDER}"), check_vectors(url)
    if index.served or index.exists():
        return
    needed = 4 * settings.count * settings.dimension
    with file_errors(folder):
        free = shutil.disk_usage(existing_path(folder)).free
    if needed > free:
        raise StorageFullError(
            f"{folder}: {settings.count:,} vectors of {settings.dimension} values have {bytes_text(needed)}, beside "
            f"their index, and {bytes_text(free)} are free: free some space, give another --data, or set "
            "vectors.count lower",
            url=str(folder),
        )


def _index(settings: VectorSettings, folder: str) -> VectorIndex:
    name = f"{settings.count}x{settings.dimension}-{settings.degree}-{settings.seed}"
    kind = INDEXES[settings.index]
    return kind(settings, f"{folder}/{name}.{kind.suffix}")


class VectorStage:
    """Searches a rank's queries.

    Args:
        rank: this one.

    Raises:
        ConfigError: the data is not in a directory.
    """

    def __init__(self, rank: RankContext) -> None:
        self._rank, self._world, self._link, url = rank, rank.world, rank.link, rank.plan.url
        self._settings = rank.plan.workload.vectors
        self._folder = f"{check_vectors(url)}/{FOLDER}"

    def run(self) -> None:
        """All repeats.

        Raises:
            StorageError: the index could not be written or read.
            CorruptDataError: the file is not what was to be searched.
        """
        settings, world = self._settings, self._world
        index = _index(settings, self._folder)
        points, queries = draw_search(settings, world.rank)
        made = self._make(index, points)
        index.load(points)
        index.open()
        right = nearest_vectors(points, queries, settings.neighbours)
        del points
        record = self._rank.record["vectors"] = {
            "index": settings.index,
            "path": index.path,
            "bytes": index.bytes(),
            "memory_bytes": index.memory,
            "unit": index.unit,
            "build_seconds": made,
            "repeats": [],
        }
        for repeat in range(settings.repeats):
            index.close()
            self._link.barrier("vectors")  # what one has mapped stays in the page cache
            if self._rank.first_on_host:
                pagecache.cached_files(self._folder, drop=True)
            self._link.barrier("vectors")
            found = self._repeat(index, queries, right)
            record["repeats"].append({"repeat": repeat, **found})
            self._rank.save()
            self._link.barrier("vectors")

    def _make(self, index: VectorIndex, points: F32) -> float | None:
        """Make the index once a host, or once in a server, unless it is there; seconds, if this rank did."""
        seconds = None
        if not index.served:
            with file_errors(self._folder):
                os.makedirs(self._folder, exist_ok=True)
        makes = self._world.rank == 0 if index.served else self._rank.first_on_host
        if makes and not index.exists():
            begun = time.perf_counter()
            index.build(points)
            seconds = time.perf_counter() - begun
        self._link.barrier("vectors")
        return seconds

    def _repeat(self, index: VectorIndex, queries: F32, right: I64) -> dict[str, Any]:
        """All queries; then their reads again without the searching, where the index says what it reads."""
        answers: list[I64 | None] = [None] * len(queries)
        hops: list[Hops] = [[] for _ in queries]
        search, replay = OperationTimes(), OperationTimes()

        def ask(searcher: Searcher, number: int, timer: CallTimer) -> None:
            timer.begin()
            found, read = searcher.search(queries[number], timer)
            search.add(index.unit * sum(map(len, read)), timer.end())
            answers[number], hops[number] = found, read

        def read_again(searcher: Searcher, number: int, timer: CallTimer) -> None:
            timer.begin()
            searcher.replay(hops[number], timer)
            replay.add(index.unit * sum(map(len, hops[number])), timer.end())

        before, served = usage.measure(str(self._folder)), index.bytes_read()
        index.open()  # of a mapped index this may read much
        seconds = self._all(index, ask)
        used = usage.measure(str(self._folder)).since(before)
        if served is not None:
            self._link.barrier("vectors")  # what the server has read is that of all ranks
            used["device_bytes"] = (index.bytes_read() or 0) - served if self._world.rank == 0 else 0
            self._link.barrier("vectors")
        replay_seconds, replay_used = None, None
        if index.unit:
            if not self._settings.direct and self._rank.first_on_host:
                pagecache.cached_files(self._folder, drop=True)
            self._link.barrier("vectors")
            before = usage.measure(str(self._folder))
            replay_seconds = self._all(index, read_again)
            replay_used = usage.measure(str(self._folder)).since(before)
        return {
            "seconds": seconds,
            "replay_seconds": replay_seconds,
            "recall": recall(_whole(answers, self._settings.neighbours), right),
            "reads": sum(len(one) for all_of in hops for one in all_of),
            "hops": sum(map(len, hops)),
            "search": search.as_dict(),
            "replay": replay.as_dict(),
            "usage": used,
            "replay_usage": replay_used,
        }

    def _all(self, index: VectorIndex, work: Callable[[Searcher, int, CallTimer], None]) -> float:
        """Do something for all queries, in threads; seconds."""
        numbers = iter(range(self._settings.queries))
        lock, failed = threading.Lock(), list[BaseException]()

        def run(searcher: Searcher) -> None:
            timer = CallTimer()
            try:
                while not failed:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    self._link.check()
                    work(searcher, number, timer)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
            finally:
                timer.close()

        searchers = [index.searcher() for _ in range(self._settings.workers)]
        threads = [threading.Thread(target=run, args=[one], daemon=True) for one in searchers]
        begun = time.perf_counter()
        try:
            for thread in threads:
                thread.start()
        except BaseException as error:  # noqa: BLE001 - Ctrl-C
            failed.append(error)
        for thread in threads:
            while thread.is_alive():
                try:
                    thread.join()
                except BaseException as error:  # noqa: BLE001 - Ctrl-C; they end with their query
                    failed.append(error)
        seconds = time.perf_counter() - begun
        for one in searchers:
            one.close()
        if failed:
            raise failed[0]
        return seconds


def _whole(answers: list[I64 | None], count: int) -> I64:
    """All answers as one array; what was not found is -1."""
    made = np.full((len(answers), count), -1, np.int64)
    for row, answer in zip(made, answers, strict=True):
        if answer is not None:
            row[: len(answer)] = answer
    return made

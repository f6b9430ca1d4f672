"""A rank's part of the stage ``kv_cache``: workers answer requests, and what they write and read is timed and counted."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from stoker.cluster import World
from stoker.display import bytes_text
from stoker.errors import ConfigError, StokerError, StorageError
from stoker.storage import RetryPolicy, Store, is_local, open_store
from stoker.storage.files.file_errors import file_errors
from stoker_bench.checkpoint.content import draw_seed
from stoker_bench.kv_cache.entries import EntryStore, FileEntries, ObjectEntries
from stoker_bench.kv_cache.requests import draw_users, longest_context
from stoker_bench.kv_cache.workers import KvRun
from stoker_bench.measure import usage
from stoker_bench.measure.page_cache import existing_path, memory_bytes
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.settings.workload import KvCacheSettings, Workload

FOLDER: Final = "kv-cache"
"""Below the data's URL; each run has a folder of its own in it."""
_OF_FREE: Final = 0.9
_OF_MEMORY: Final = 0.8
_UNLIMITED: Final = 1 << 62


class RunEndedError(StokerError):
    """An entry was not written or read to its end, as the run has failed elsewhere."""


def check_kv_cache(plan: RunPlan, world: World) -> None:
    """See that this host has the memory, and its storage the room, before anything is started.

    Args:
        plan: the run.
        world: the first rank of this host.

    Raises:
        ConfigError: it has not; names what is needed and what is there.
    """
    local = world.local_world_size
    _check_memory(plan.workload.kv_cache, local)
    check_capacity(plan.workload, range(world.rank, world.rank + local), _capacity(plan, local))


def check_capacity(workload: Workload, ranks: Iterable[int], capacity: int) -> None:
    """See that the storage takes the largest entry that users may have.

    Args:
        workload: all settings.
        ranks: whose users.
        capacity: bytes that the storage of each may hold.

    Raises:
        ConfigError: it does not.
    """
    settings, each = workload.kv_cache, workload.model.kv_bytes
    if settings.phase != "decode" and capacity >= each * max(kind.context[1] for kind in settings.kinds):
        return  # without drawing users
    tokens = longest_context(settings, ranks)
    if capacity < tokens * each:
        given = (
            "kv_cache.capacity_bytes" if capacity == settings.capacity_bytes else "a rank's part of what is free there"
        )
        raise ConfigError(
            f"an entry of the KV cache may have {tokens:,} tokens of {each:,} bytes, {bytes_text(tokens * each)}, "
            f"and the storage may hold {bytes_text(capacity)} ({given}): each rank needs at least "
            f"{tokens * each:,} bytes there, beside a tenth that is left free; or take fewer ranks, a smaller model or "
            "shorter contexts (kv_cache.kinds)"
        )


def _check_memory(settings: KvCacheSettings, local: int) -> None:
    wanted = (settings.memory_bytes + 2 * settings.threads * settings.part_bytes) * local
    most = int(_OF_MEMORY * memory_bytes())
    if wanted > most:
        raise ConfigError(
            f"kv_cache.memory_bytes, and two part_bytes for each worker, ask for {wanted:,} bytes of this host, which can "
            f"give {most:,}: give less, or start fewer ranks"
        )


def _capacity(plan: RunPlan, local: int) -> int:
    """Bytes that entries of a rank may take, with so many ranks on this host."""
    given, url = plan.workload.kv_cache.capacity_bytes, plan.url
    if is_local(url) is None:
        return given or _UNLIMITED
    with file_errors(url):
        free = int(_OF_FREE * shutil.disk_usage(existing_path(url)).free) // local
    return min(given or free, free)


class KvCacheStage:
    """Writes and reads a rank's entries.

    Args:
        rank: this one.
    """

    def __init__(self, rank: RankContext) -> None:
        self._rank, self._plan, self._world, self._link = rank, rank.plan, rank.world, rank.link
        self._settings = rank.plan.workload.kv_cache
        self._root = f"{rank.plan.url.rstrip('/')}/{FOLDER}"
        self._abandon = threading.Event()

    def run(self) -> None:
        """All repeats.

        Raises:
            ConfigError: there is not enough memory, or the file system refuses O_DIRECT.
            CorruptDataError: the storage gave other bytes than were written.
            StorageError: an entry could not be written or read.
        """
        settings, world = self._settings, self._world
        _check_memory(settings, world.local_world_size)
        users = draw_users(settings.kinds, settings.users, settings.seed + world.rank)
        folder = is_local(self._plan.url)
        local, path = folder is not None, None if folder is None else str(folder)
        record = self._rank.record["kv_cache"] = {
            "storage": {"url": self._root, "local": local, "direct": local and settings.direct},
            "bytes_per_token": self._plan.workload.model.kv_bytes,
            "users": {kind.name: sum(user.kind == kind.name for user in users) for kind in settings.kinds},
            "repeats": [],
        }
        for repeat in range(settings.repeats):
            self._link.barrier(
                "kv_cache"
            )  # entries of the repeat before are gone on all ranks, so that all see what is free
            with self._entries(repeat) as (entries, capacity):
                self._link.barrier("kv_cache")
                run = KvRun(
                    self._plan.workload,
                    world.rank,
                    entries,
                    capacity,
                    self._seed(repeat),
                    check=self._link.check,
                    abandon=self._abandon,
                )
                before = usage.measure(path)
                found = run.run()
                found["usage"] = usage.measure(path).since(before)
                record["repeats"].append({"repeat": repeat, "capacity_bytes": capacity, **found})
                self._rank.save()
                self._link.barrier("kv_cache")  # nobody removes entries while others measure

    def _check(self) -> None:
        self._link.check()
        if self._abandon.is_set():
            raise RunEndedError("the run has ended before this entry")

    def _seed(self, repeat: int) -> int:
        """Of the entries' bytes: no storage has seen them, whatever ran before."""
        return draw_seed(f"{self._plan.run} {repeat}", self._settings.seed + self._world.rank)

    @contextlib.contextmanager
    def _entries(self, repeat: int) -> Iterator[tuple[EntryStore, int]]:
        """The storage of a repeat, and how much it may hold; entries are removed afterwards."""
        settings, url = self._settings, self._plan.url
        name = f"{self._plan.run}/{repeat}-rank{self._world.rank:05d}"
        entries: EntryStore
        if is_local(url):
            with file_errors(url):
                os.makedirs(url, exist_ok=True)
            entries = FileEntries(
                f"{self._root}/{name}", direct=settings.direct, fsync=settings.fsync, check=self._check
            )
        else:
            entries = ObjectEntries(_store(self._plan, self._world.rank), f"{FOLDER}/{name}", check=self._check)
        entries.prepare()
        try:
            yield entries, _capacity(self._plan, self._world.local_world_size)
        except BaseException:
            with contextlib.suppress(StorageError):  # the first error tells more
                entries.clear()
            raise
        entries.clear()


def remove_entries(plan: RunPlan, *, retry: RetryPolicy) -> None:
    """Remove all entries of a run, once none of its ranks is left: one that was killed has not removed its own.

    Raises:
        StorageError: an entry could not be removed.
    """
    if is_local(plan.url):
        root = f"{plan.url.rstrip('/')}/{FOLDER}"
        shutil.rmtree(f"{root}/{plan.run}", ignore_errors=True)
        with contextlib.suppress(OSError):  # another run's entries are there
            os.rmdir(root)
    else:
        ObjectEntries(_store(plan, 0, retry), f"{FOLDER}/{plan.run}", check=lambda: None).clear()


def _store(plan: RunPlan, rank: int, retry: RetryPolicy | None = None) -> Store:
    return open_store(plan.url, plan.workload.storage.store_options(plan.url, rank), retry=retry)

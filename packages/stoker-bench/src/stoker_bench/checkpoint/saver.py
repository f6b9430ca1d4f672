"""A rank's checkpoints: its part of each is saved and loaded here, together with all other ranks."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from stoker.cluster import World
from stoker.display import bytes_text, counted
from stoker.errors import ConfigError, StorageFullError
from stoker.storage import RetryPolicy, Store, is_local, open_store
from stoker.storage.files.file_errors import file_errors
from stoker_bench.checkpoint import manifest as manifests
from stoker_bench.checkpoint.content import CheckpointContent, blocks, draw_seed
from stoker_bench.checkpoint.layout import CheckpointLayout, checkpoint_layout
from stoker_bench.checkpoint.manifest import Manifest, SavedFile, checkpoint_folder
from stoker_bench.checkpoint.transfer import Mover, Moving
from stoker_bench.measure import page_cache as pagecache
from stoker_bench.measure import usage
from stoker_bench.measure.page_cache import existing_path
from stoker_bench.measure.requests import Moment, request_record
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.settings.extent import training_checkpoints

_NAP: Final = 0.05


def open_checkpoint_store(plan: RunPlan, *, rank: int = 0, retry: RetryPolicy | None = None) -> Store:
    """Open the store of a run's checkpoints, as a rank uses it."""
    settings = plan.workload.checkpoint
    url = settings.url or f"{plan.url.rstrip('/')}/checkpoints"
    return open_store(url, plan.workload.storage.store_options(url, rank, settings.options), retry=retry)


def check_checkpoint_space(plan: RunPlan, world: World) -> None:
    """See that there is room for the checkpoints of this host's ranks that are there at once, before hours are spent.

    Args:
        plan: the run.
        world: the first rank of this host.

    Raises:
        StorageFullError: there is not.
    """
    workload, store = plan.workload, open_checkpoint_store(plan)
    if is_local(store.url) is None:
        return
    settings = workload.checkpoint
    count = settings.writes + training_checkpoints(workload, world.world_size)
    layout = checkpoint_layout(workload.model, world.world_size, all_write=settings.ranks == "all")
    mine = layout.files[world.rank : world.rank + world.local_world_size]
    each = sum(one.bytes for files in mine for one in files)
    at_once = min(count, settings.keep + 1 if settings.keep else count)
    with file_errors(store.url):
        free = shutil.disk_usage(existing_path(store.url)).free
    if free < at_once * each:
        raise StorageFullError(
            f"{store.url}: {counted(at_once, 'checkpoint')} of this host's ranks need {bytes_text(at_once * each)}, "
            f"{bytes_text(free)} are free. Write fewer, or set checkpoint.keep, which has one more for a moment.",
            url=store.url,
        )


class Saver:
    """Saves and loads a rank's part of each checkpoint.

    Args:
        rank: this one, to whose record what was measured is added, entry by entry.

    Raises:
        ConfigError: the ranks do not fit the model's parallelism, or the destination can not be used.
    """

    def __init__(self, rank: RankContext) -> None:
        plan, world, link, record = rank.plan, rank.world, rank.link, rank.record
        self._plan, self._world, self._link, self._record, self._note = plan, world, link, record, rank.save
        settings = plan.workload.checkpoint
        self._settings = settings
        self._store = open_checkpoint_store(plan, rank=world.rank)
        folder = is_local(self._store.url)
        self._local, self._path = folder is not None, None if folder is None else str(folder)
        self._told = usage.tells_device_from_page_cache(self._path)
        self._layout = checkpoint_layout(plan.workload.model, world.world_size, all_write=settings.ranks == "all")
        self._seed = draw_seed(plan.run, plan.workload.dataset.seed)
        self._mover = Mover(
            self._store,
            threads=settings.threads,
            direct=settings.direct,
            fsync=settings.fsync,
            verify=settings.verify,
            check=link.check,
        )
        self._number = 0
        self._kept: list[int] = []
        record["checkpoint_layout"] = _described(self._layout, world.world_size)
        record["checkpoint_place"] = {"url": self._store.url, "local": self._local}
        record["checkpoint_leftovers"] = self._leftovers() if world.rank == 0 else None

    def _leftovers(self) -> dict[str, Any]:
        """Unfinished checkpoints of other runs. They stay: another run may be saving one now."""
        found = manifests.unfinished(self._store)
        return {
            "checkpoints": len(found),
            "bytes": sum(one.bytes for one in found),
            "first": min((one.folder for one in found), default=None),
        }

    # -- the stage -------------------------------------------------------------------------------------------------

    def stage(self) -> None:
        """The checkpoints that are written and read apart from training."""
        settings = self._settings
        written = []
        for _ in range(settings.writes):
            self._pause()
            written.append(self.save({"place": "stage"}))
        kept = [checkpoint_folder(self._plan.run, one) for one in self._kept] if settings.writes else None
        for folder in self._to_read(kept):
            self._pause()
            self.load(folder)

    def _pause(self) -> None:
        """As long as training takes until the next checkpoint; the end of another rank ends it."""
        end = time.monotonic() + self._settings.pause_seconds
        while (left := end - time.monotonic()) > 0:
            self._link.check()
            time.sleep(min(_NAP, left))

    def _to_read(self, kept: list[str] | None) -> list[str]:
        """Folders, the same ones on all ranks: of this run, or else the latest at the destination."""
        wanted = self._settings.reads
        if not wanted:
            return []
        if kept is None:
            found = manifests.find(self._store) if self._world.rank == 0 else None
            kept = self._link.gather("checkpoints", found)[0] or []
            kept = kept[-wanted:]
        if len(kept) < wanted:
            raise ConfigError(
                f"{self._store.url} has {len(kept)} whole checkpoints, checkpoint.reads asks for {wanted}: write more first"
            )
        return kept[:wanted]

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(self, where: dict[str, Any]) -> int:
        """Save one, on all ranks; its number.

        Args:
            where: for the record: ``place``, and of training ``repeat``, ``epoch`` and ``step``.

        Raises:
            StorageError: this rank could not write its part. What it wrote is removed, and the checkpoint does not count.
            RankFailedError: another rank failed.
        """
        number, rank = self._number, self._world.rank
        self._number += 1
        folder = checkpoint_folder(self._plan.run, number)
        files = self._saved_files(rank)
        entry = self._entry("save", number, where, sum(file.bytes for file in files), len(files))
        content = CheckpointContent(self._seed, number, self._layout.ranks, rank)
        # Who has said that its part is saved no longer removes it: the manifest may be there. Rank 0 knows.
        removes = True
        try:
            self._link.barrier("save")
            with self._timed(entry):
                for file in files:
                    self._mover.save(Moving(f"{folder}/{file.name}", file.bytes, content, file.first_block))
                if files:
                    self._mover.sync_folder(folder)
            done = time.perf_counter()
            removes = rank == 0
            self._link.barrier("saved")
            if rank == 0:
                manifests.write(self._store, self._manifest(number))
            removes = False
            self._link.barrier("counts")
            entry["commit_seconds"] = time.perf_counter() - done
            entry["complete"] = True
        except BaseException:
            if removes:
                with contextlib.suppress(Exception):
                    manifests.remove(self._store, folder, [file.name for file in files], all_=rank == 0)
            raise
        finally:
            self._note()
        self._kept.append(number)
        self._forget_oldest()
        return number

    def _saved_files(self, rank: int) -> list[SavedFile]:
        found, block = [], 0
        for file in self._layout.files[rank]:
            found.append(SavedFile(f"{file.name}.bin", file.bytes, rank, block))
            block += blocks(file.bytes)
        return found

    def _manifest(self, number: int) -> Manifest:
        ranks = self._world.world_size
        files = tuple(file for rank in range(ranks) for file in self._saved_files(rank))
        return Manifest(self._plan.run, number, time.time(), self._seed, ranks, self._layout.ranks, files)

    def _forget_oldest(self) -> None:
        """Remove the checkpoints that are more than are to be kept; their manifests go first."""
        while self._settings.keep and len(self._kept) > self._settings.keep:
            folder = checkpoint_folder(self._plan.run, self._kept.pop(0))
            if self._world.rank == 0:
                self._store.delete(f"{folder}/{manifests.NAME}")
            self._link.barrier("forgotten")
            manifests.remove(
                self._store, folder, [file.name for file in self._saved_files(self._world.rank)], all_=False
            )

    # -- loading ---------------------------------------------------------------------------------------------------

    def load(self, folder: str) -> None:
        """Load one, on all ranks.

        Raises:
            CorruptDataError: it is not what was saved.
            StorageError: this rank could not read its part.
            RankFailedError: another rank failed.
        """
        world = self._world
        found = manifests.read(self._store, folder)
        if found.ranks != world.world_size:
            raise ConfigError(
                f"{self._store.url_of(folder)} was saved by {counted(found.ranks, 'rank')}: start as many to load it, "
                f"not {world.world_size}"
            )
        source = source_rank(self._settings.shift, world)
        files = found.of_rank(source)
        where = {"place": "stage", "source_rank": source}
        entry = self._entry("load", found.number, where, sum(file.bytes for file in files), len(files))
        content = CheckpointContent(found.seed, found.number, found.whole, source)
        try:
            entry["cache"] = self._drop(folder)
            self._link.barrier("load")
            with self._timed(entry):
                for file in files:
                    self._mover.load(Moving(f"{folder}/{file.name}", file.bytes, content, file.first_block))
            self._link.barrier("loaded")
            entry["complete"] = True
        finally:
            self._note()

    def _drop(self, folder: str) -> dict[str, Any] | None:
        """Let the checkpoint leave this host's page cache."""
        if not self._local or self._plan.workload.storage.cache != "drop":
            return None
        self._link.barrier("before dropping")
        if self._world.rank % self._world.local_world_size:
            return None
        return asdict(pagecache.cached_files(self._store.url_of(folder), drop=True))

    # -- the record ------------------------------------------------------------------------------------------------

    def _entry(self, kind: str, number: int, where: dict[str, Any], size: int, files: int) -> dict[str, Any]:
        entry = {
            "kind": kind,
            "number": number,
            "repeat": None,
            "epoch": None,
            "step": None,
            **where,
            "bytes": size,
            "files": files,
            "began_at": None,
            "ended_at": None,
            "complete": False,
        }
        self._record["checkpoints"].append(entry)
        return entry

    @contextlib.contextmanager
    def _timed(self, entry: dict[str, Any]) -> Iterator[None]:
        """Note how long the block takes, and what it uses."""
        requested = Moment(time.monotonic(), self._mover.requests.table())
        before, begun = usage.measure(self._path), time.perf_counter()
        entry["began_at"] = time.time()
        self._mover.spent()
        try:
            yield
        finally:
            entry["ended_at"] = time.time()
            entry["seconds"] = time.perf_counter() - begun
            entry |= {f"{name}_seconds": value for name, value in asdict(self._mover.spent()).items()}
            entry["usage"] = usage.measure(self._path).since(before)
            # Of what is written, the program chose where to; of what is read, the kernel has to tell.
            told = entry["kind"] == "save" or self._told
            ended = Moment(time.monotonic(), self._mover.requests.table())
            entry["requests"] = request_record(requested, requested, ended, told=told)


def source_rank(shift: int | str, world: World) -> int:
    """The rank whose part this one loads: the one ``shift`` further on; of ``"host"``, of the next host's."""
    by = world.local_world_size if shift == "host" else int(shift)
    return (world.rank + by) % world.world_size


def _described(layout: CheckpointLayout, ranks: int) -> dict[str, Any]:
    sizes = [sum(one.bytes for one in files) for files in layout.files[:ranks]]
    return {
        "ranks": ranks,
        "whole_ranks": layout.ranks,
        "bytes": sum(sizes),
        "whole_bytes": layout.total(),
        "model_bytes": layout.total("model"),
        "optimizer_bytes": layout.total("optimizer"),
        "least_rank_bytes": min(sizes),
        "most_rank_bytes": max(sizes),
    }

"""Computes this process's data rank from its world: ranks that read the same samples count as one reader. Compares ranks."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from stoker.arguments import at_least
from stoker.cluster import LoaderWorker, World
from stoker.cluster.call_stack import called_from, callers, in_other_thread, module_of
from stoker.cluster.mesh import DeviceMesh, Mesh, model_parallel
from stoker.cluster.outer_division import (
    OuterDivision,
    divides_among_workers,
    may_divide,
    outer_division,
    wrappers_imported,
)
from stoker.concurrency.user_code import in_user_code
from stoker.digests import blake2b
from stoker.errors import ConfigError
from stoker.order.sample_order import DataRank, EpochPosition, SampleOrder

logger = logging.getLogger(__name__)

Replication: TypeAlias = int | Mesh | DeviceMesh
"""The ranks that read the same samples: so many consecutive ones, or those that a mesh says."""

_OF_THREADS: Final = (
    "Read in the main thread; or say it: world=World() where a wrapper divides, world=World.detect() where each rank reads "
    "its own part"
)
_OF_DATASETS: Final = (
    "The datasets package reads in threads for interleave_datasets(), and for shuffle() but with max_buffer_input_shards=1: "
    "let the StreamingDataset shuffle and mix (shuffle=True, streams=[Stream(...), ...]); or give it world=World(), with "
    "which each rank reads all, let split_dataset_by_node or a trainer divide, and give the same seed= on all ranks"
)


class DataRankFinder:
    """Finds the data rank, each time that it is asked for.

    ConfigError for a number below 1, or a mesh without the dimension ``"dp"``. ``world``: rank and world size; ``None``:
    found by :meth:`World.detect <stoker.cluster.world.World.detect>`. ``replication``: which ranks read the same samples: so
    many consecutive ones, or those that a mesh says. ``compare``: whether ranks are compared when iteration starts.
    """

    def __init__(
        self, world: World | None = None, replication: Replication | None = None, *, compare: bool = False
    ) -> None:
        if isinstance(replication, int):
            at_least(1, replication=replication)
        self._given = world
        self._made_in = os.getpid()
        self._inherited: World | None = None
        # A world of one was given to each rank that is to read by itself.
        self._comparison = RankComparison() if compare and (world is None or world.world_size > 1) else None
        self._replication = replication if isinstance(replication, int) else 1
        mesh = None if isinstance(replication, int) else replication
        self._mesh = mesh if mesh is None or isinstance(mesh, Mesh) else Mesh.of(mesh)
        self._division: OuterDivision | None = None

    @property
    def world(self) -> World:
        """This process among all processes."""
        # A process that has joined others knows better than the one that it has a copy from.
        return self._given or World.of_process_group() or self._inherited or World.detect()

    def launched(self) -> World | None:
        """This process among all processes, where that was said; ``None`` where a trainer may yet make it one of several.

        A process that a trainer starts may be told the number of ranks before it is told its own: that is ``None``, too.
        """
        try:
            return self._given or World.of_process_group() or self._inherited or World.launched()
        except ConfigError:
            return None

    @property
    def may_be_divided(self) -> bool:
        """Whether a wrapper may divide what is delivered now, seen from here or not."""
        return self._division is not None or wrappers_imported()

    def division(self) -> OuterDivision | None:
        """The wrapper that divides what is delivered now, if any; in a spawned worker, the one around its main process.

        ConfigError: see :func:`~stoker.cluster.outer_division.outer_division`.
        """
        return outer_division() or self._division

    def data_rank(self, batch_size: int, division: OuterDivision | None = None, world: World | None = None) -> DataRank:
        """This process's data rank; beneath a wrapper that divides, the only one, with the global batch.

        ConfigError if the world can not be divided so, or the mesh is not of its size. ``batch_size``: samples a batch of one
        rank. ``division``: of the wrapper; default: of the one that is found, if no ``world`` is given. ``world``: this
        process among all; default: the one that is found.
        """
        if division is None and world is None:
            division = self.division()
        if division is not None:
            return DataRank(batch_size=division.batch_size or batch_size * division.ranks)
        world = world or self.world
        if self._mesh is not None:
            readers = self._mesh.data_world(world)
            return DataRank(readers.rank, readers.world_size, readers.local_world_size, batch_size)
        readers = world if self._replication == 1 else world.replicate(self._replication)
        return DataRank(readers.rank, readers.world_size, world.local_world_size, batch_size, self._replication)

    def check_prepared(self, division: OuterDivision | None) -> None:
        """See that accelerate has not left it to the dataset, without a word, that ranks are to read the same samples.

        It divides nothing where all ranks of a device mesh are to have the same batches. ConfigError if there are such ranks,
        and neither ``replication`` nor ``world`` tells of them. ``division``: the wrapper's, if one divides.
        """
        if division is None and self._given is None and self._made_in == os.getpid() and not in_user_code():
            self._check_made_in_worker()
        told = division or self._given or self._mesh or self._replication > 1
        if (
            told
            or in_user_code()
            or not called_from("accelerate.data_loader", "__iter__")
            or self.world.world_size == 1
        ):
            return
        if sizes := model_parallel():
            raise ConfigError(
                f"the ranks along {', '.join(f'{name}={size}' for name, size in sizes.items())} of the device mesh read the "
                "same samples, and accelerate does not divide here: tell the dataset, with replication=Mesh.of(mesh, "
                "data=[...]) or the number of ranks that read the same; or, where each is to read its own, with world="
            )

    def check_thread(self, division: OuterDivision | None, *, of_datasets: bool = False) -> None:
        """See that it is known who divides what another thread than the main one reads.

        ConfigError if a package is imported that may divide, unseen from here, and ``world`` does not tell. ``division``: the
        wrapper's, if one divides. ``of_datasets``: whether it is a thread of the ``datasets`` package.
        """
        wrapper, worker = (may_divide(), LoaderWorker.detect()) if division is None else (None, LoaderWorker())
        said = ""
        if wrapper is not None and (of_datasets or self._given is None) and (ranks := self.world.world_size) > 1:
            remedy = _OF_DATASETS if of_datasets else _OF_THREADS
            said = (
                f"{wrapper} is imported, and who divides samples among the {ranks} ranks can not be seen here. {remedy}"
            )
        elif worker.count > 1:
            # accelerate's dispatcher needs batches that are equally long from all workers.
            whole = wrapper is not None and self._given == World() and World.detect().world_size > 1
            if package := divides_among_workers() or (wrapper if whole else None):
                said = f"it is one of {worker.count} DataLoader workers, which {package} may divide: use num_workers=1 or 0"
        if said:
            raise ConfigError(f"this dataset is read in the thread {threading.current_thread().name!r}: {said}")

    def _check_made_in_worker(self) -> None:
        """See that this dataset was not made in a spawned DataLoader worker, where its loader may be one of accelerate's.

        Where accelerate's dispatcher reads on rank 0 for all ranks, nothing in such a worker tells of it. ConfigError if it
        was; says what to do.
        """
        if (
            LoaderWorker.detect().token is not None
            and ("accelerate" in sys.modules or any(name.startswith("ACCELERATE_") for name in os.environ))
            and (called_from("multiprocessing.spawn") or in_other_thread())
            and self.world.world_size > 1
        ):
            raise ConfigError(
                f"this dataset is made in a spawned worker of a DataLoader, in a world of {self.world.world_size} ranks that "
                "uses accelerate: whether accelerate divides among the ranks what the worker reads can not be seen here. "
                "Make the dataset before the loader, and the worker gets a copy; or say it: world=World() where accelerate "
                "divides, world=World.detect() where each rank reads its own part"
            )

    def compare(self, order: SampleOrder, point: EpochPosition, data_rank: DataRank, loads: int, left: int) -> None:
        """Compare with the other ranks what this one is about to read; beneath a wrapper that divides, nothing.

        ConfigError: see :meth:`~stoker.pipeline.ranks.data_rank.RankComparison.compare`.
        """
        if (comparison := self._compared()) is not None:
            comparison.compare(order, point, data_rank, loads, left)

    def agree(self, name: str, mine: str) -> str:
        """A text of which all ranks have one: that of the rank that was the first to ask for it.

        ``name``: what it is. ``mine``: of this rank, which is returned where ranks are not compared.
        """
        comparison = self._compared()
        return mine if comparison is None else comparison.agree(name, mine)

    def _compared(self) -> RankComparison | None:
        """The comparison of ranks, unless a wrapper divides or they are not compared."""
        return None if self._comparison is None or in_user_code() or self.division() is not None else self._comparison

    def early_data_rank(self, batch_size: int) -> DataRank | None:
        """The data rank before iteration starts; ``None`` where it is not known yet.

        ConfigError if the world is known, and can not be divided so.
        """
        try:
            return self.data_rank(batch_size)
        except ConfigError:
            if self.launched() is not None:
                raise
            return None

    def __getstate__(self) -> dict[str, Any]:
        # The child process may not be able to find out its world (a process group does not survive a spawn), nor who divides.
        # Where there is none yet, the child may be a rank that a trainer spawns: it finds its own.
        return {**self.__dict__, "_inherited": self.launched(), "_division": self.division()}


# -- comparison of ranks --------------------------------------------------------------------------------------------------

_REMEDY: Final = (
    "All ranks must be given the same data and settings. Where ranks are to read apart from each other, give each "
    "world=World(); read=ReadOptions(compare_ranks=False) leaves this comparison out"
)
_STREAM: Final = ("fingerprint", "subset", "block_size", "choose")

_PATIENCE: Final = 1.0
"""Seconds to wait for a rank that was caught halfway through writing its claim."""

# Of this process: number of datasets that each line has made, and what was compared already.
_made: dict[str, int] = {}
_compared: set[str] = set()


class RankComparison:
    """The comparison of one dataset with its counterpart on the other ranks, once an epoch, without waiting for any of them.

    Each rank writes what it is about to read to the process group's key-value store, where the first to do so has set what
    the others compare theirs with, and where each data rank may be taken only so often. Of two ranks that differ, the later
    one sees it. No rank waits for another: a rank that does not iterate, or iterates later, is no problem.

    Where a rank's iterations begin, and how many batches it had of the one before, are compared too, and are a warning where
    they differ: ranks that train together are out of step if one of them alone has taken a batch first, or loaded a state.
    Ranks that do not wait for each other may differ so.

    Its counterpart was made by the same line of the training script, called by the same lines, as the dataset of the same
    number there. Where ranks run different scripts, their datasets have no counterparts and are not compared.
    """

    def __init__(self) -> None:
        origin = blake2b("\n".join(_lines()).encode(), 12).hexdigest()
        _made[origin] = number = _made.get(origin, -1) + 1
        self._key = f"stoker/{origin}/{number}"
        # Iterations that have begun; and whether a difference was told.
        self._begun, self._told = 0, False

    def agree(self, name: str, mine: str) -> str:
        """The text that the first rank to ask has given; ``mine`` without a process group.

        ``name``: of the text. ``mine``: of this rank.
        """
        if (group := _group()) is None:
            return mine
        store, _, ranks, _ = group
        found: str = store.compare_set(f"{self._key}/{ranks}/{name}", "", mine).decode()
        return found

    def compare(self, order: SampleOrder, point: EpochPosition, data_rank: DataRank, loads: int, left: int) -> None:
        """Compare an epoch that begins at ``point``.

        ConfigError if another rank reads other data, or in another order, or takes the part of this one. ``loads``: states
        that were loaded before. ``left``: batches that the iteration before had delivered; 0 where there was none.
        """
        if (group := _group()) is None:
            return
        store, rank, ranks, number = group
        key = f"{self._key}/{ranks}/{point.epoch}/{loads}"
        once = f"{os.getpid()}/{number}/{key}"
        self._compare_steps(store, f"{self._key}/{ranks}/begun", rank, point, left)
        if once in _compared:
            return
        _compared.add(once)
        mine = _claim(order, data_rank)
        try:
            first = _set_first(store, key, rank, mine)
            others = _take(store, f"{key}/rank/{data_rank.rank}", rank)
        except Exception as error:  # noqa: BLE001 - whatever a store raises; its process group says so by itself
            logger.warning("ranks were not compared, as the process group's store failed: %s", error)
            return
        if first is not None:
            said = "; ".join(_differences(first[1], mine)) or "they differ"
            raise ConfigError(
                f"ranks {first[0]} and {rank} do not read the same in epoch {point.epoch}: {said}. {_REMEDY}"
            )
        if len(others) * data_rank.world_size > ranks:
            raise ConfigError(
                f"processes {', '.join(map(str, others))} of {ranks} all read as data rank {data_rank.rank} of "
                f"{data_rank.world_size} in epoch {point.epoch}, so that samples would come more than once, and others not "
                f"at all: leave world= out, which finds this process's rank, or correct it and replication=. {_REMEDY}"
            )

    def _compare_steps(self, store: Any, key: str, rank: int, point: EpochPosition, left: int) -> None:
        """Warn, once, if the first rank to begin as many iterations was elsewhere, or had left the one before elsewhere."""
        self._begun += 1
        mine = [rank, point.epoch, point.position, left]
        try:
            first = json.loads(store.compare_set(f"{key}/{self._begun}", "", json.dumps(mine)))
        except Exception as error:  # noqa: BLE001 - whatever a store raises; its process group says so by itself
            logger.warning("ranks were not compared, as the process group's store failed: %s", error)
            return
        # Of epochs that are not divided equally, and of batches that are fetched ahead, a rank may have one more.
        if self._told or (first[1:3] == mine[1:3] and abs(first[3] - left) <= 1):
            return
        self._told = True
        logger.warning(
            "ranks are out of step: as its iteration %d, rank %d begins epoch %d at position %d, after %d batches of the one "
            "before, and rank %d epoch %d at position %d, after %d. If they train together, samples are lost and others come "
            "twice: a rank must not take batches or load a state by itself (dataset[0] shows a sample). Ranks that do not "
            "wait for each other may differ so; read=ReadOptions(compare_ranks=False) leaves this comparison out",
            self._begun,
            *first,
            *mine,
        )


def _lines() -> Iterator[str]:
    """The lines that led here, of all code but stoker's and what starts scripts."""
    for frame in callers():
        name, code = module_of(frame), frame.f_code
        if name.partition(".")[0] != "stoker" and name != "runpy" and not code.co_filename.startswith("<frozen"):
            yield f"{os.path.basename(code.co_filename)}:{code.co_name}:{frame.f_lineno}"


def _group() -> tuple[Any, int, int, int] | None:
    """The store of the default process group, this process's rank in it, its size, and a number that no other group has.

    ``None`` where there is none of several ranks, or its store is not public (torch before 2.9).
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group, ranks = distributed.group.WORLD, distributed.get_world_size()
    found = getattr(group, "get_group_store", None)
    store = None if found is None or ranks == 1 else found()
    return None if store is None else (store, distributed.get_rank(), ranks, id(group))


def _claim(order: SampleOrder, data_rank: DataRank) -> dict[str, Any]:
    said = order.as_dict()
    streams = [{name: one.get(name) for name in _STREAM} for one in said["streams"].values()]
    return {
        **said["order"],
        "streams": streams,
        "batch_size": data_rank.batch_size,
        "data ranks": data_rank.world_size,
    }


def _set_first(store: Any, key: str, rank: int, mine: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """Say what this rank reads, if it is the first; otherwise the first rank and what it reads, if that is something else."""
    text = json.dumps(mine, sort_keys=True, default=str)
    digest = blake2b(text.encode(), 16).hexdigest()
    found, _, its_digest = store.compare_set(key, "", f"{rank} {digest}").decode().partition(" ")
    if int(found) == rank:
        store.set(f"{key}/said", text)
    if its_digest == digest:
        return None
    known = store.check([f"{key}/said"])
    return int(found), json.loads(store.get(f"{key}/said")) if known else {}


def _take(store: Any, key: str, rank: int) -> list[int]:
    """Note that this process reads as a data rank; the processes that do."""
    taken: set[int] = set()
    number = store.add(key, 1)
    store.set(f"{key}/{number}", str(rank))
    for one in range(1, number + 1):
        until = time.monotonic() + _PATIENCE
        while not (there := store.check([f"{key}/{one}"])) and time.monotonic() < until:
            time.sleep(0.001)  # it has taken its number, and says in a moment who it is
        if there:
            taken.add(int(store.get(f"{key}/{one}")))
    return sorted(taken)


def _differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[str]:
    if not theirs:
        return
    for name in sorted(theirs.keys() | mine.keys()):
        before, now = theirs.get(name), mine.get(name)
        if json.dumps(before, default=str, sort_keys=True) == json.dumps(now, default=str, sort_keys=True):
            continue
        yield "the data differs" if name == "streams" else f"{name} is {before!r} and {now!r}"

"""Computes this process's data rank from its world: ranks that read the same samples count as one reader."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final, TypeAlias

from stoker.cluster import LoaderWorker, World
from stoker.cluster.call_stack import called_from, in_other_thread
from stoker.cluster.mesh import DeviceMesh, Mesh, model_parallel
from stoker.cluster.outer_division import OuterDivision, divides_among_workers, may_divide, outer_division
from stoker.concurrency.user_code import in_user_code
from stoker.errors import ConfigError
from stoker.order.sample_order import DataRank, EpochPosition, SampleOrder
from stoker.pipeline.ranks.rank_comparison import RankComparison

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

    Args:
        world: rank and world size; ``None``: found by :meth:`World.detect <stoker.cluster.world.World.detect>`.
        replication: which ranks read the same samples: so many consecutive ones, or those that a mesh says.
        compare: whether ranks are compared when iteration starts.

    Raises:
        ConfigError: a number below 1, or a mesh without the dimension ``"dp"``.
    """

    def __init__(
        self, world: World | None = None, replication: Replication | None = None, *, compare: bool = False
    ) -> None:
        if isinstance(replication, int) and replication < 1:
            raise ConfigError(f"replication must be at least 1, got {replication}")
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
        return self._known() or self._inherited or World.detect()

    def launched(self) -> World | None:
        """This process among all processes, where that was said; ``None`` where a trainer may yet make it one of several.

        A process that a trainer starts may be told the number of ranks before it is told its own: that is ``None``, too.
        """
        try:
            return self._known() or self._inherited or World.launched()
        except ConfigError:
            return None

    def _known(self) -> World | None:
        # A process that has joined others knows better than the one that it has a copy from.
        return self._given or World.of_process_group()

    def division(self) -> OuterDivision | None:
        """The wrapper that divides what is delivered now, if any; in a spawned worker, the one around its main process.

        Raises:
            ConfigError: see :func:`~stoker.cluster.outer_division.outer_division`.
        """
        return outer_division() or self._division

    def data_rank(self, batch_size: int, division: OuterDivision | None = None, world: World | None = None) -> DataRank:
        """This process's data rank; beneath a wrapper that divides, the only one, with the global batch.

        Args:
            batch_size: samples a batch of one rank.
            division: of the wrapper; default: of the one that is found.
            world: this process among all; default: the one that is found.

        Raises:
            ConfigError: the world can not be divided so, or the mesh is not of its size.
        """
        division = division or self.division()
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

        It divides nothing where all ranks of a device mesh are to have the same batches.

        Args:
            division: the wrapper's, if one divides.

        Raises:
            ConfigError: there are such ranks, and neither ``replication`` nor ``world`` tells of them.
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

        Args:
            division: the wrapper's, if one divides.
            of_datasets: whether it is a thread of the ``datasets`` package.

        Raises:
            ConfigError: a package is imported that may divide, unseen from here, and ``world`` does not tell.
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

        Where accelerate's dispatcher reads on rank 0 for all ranks, nothing in such a worker tells of it.

        Raises:
            ConfigError: it was; says what to do.
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

        Raises:
            ConfigError: see :meth:`~stoker.pipeline.ranks.rank_comparison.RankComparison.compare`.
        """
        if (comparison := self._compared()) is not None:
            comparison.compare(order, point, data_rank, loads, left)

    def agree(self, name: str, mine: str) -> str:
        """A text of which all ranks have one: that of the rank that was the first to ask for it.

        Args:
            name: what it is.
            mine: of this rank, which is returned where ranks are not compared.
        """
        comparison = self._compared()
        return mine if comparison is None else comparison.agree(name, mine)

    def _compared(self) -> RankComparison | None:
        """The comparison of ranks, unless a wrapper divides or they are not compared."""
        return None if self._comparison is None or in_user_code() or self.division() is not None else self._comparison

    def early_data_rank(self, batch_size: int) -> DataRank | None:
        """The data rank before iteration starts; ``None`` where it is not known yet.

        Raises:
            ConfigError: the world is known, and can not be divided so.
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

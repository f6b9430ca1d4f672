"""The world: this process's rank, the number of ranks, and how they lie on nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stoker.arguments import checked
from stoker.cluster.call_stack import called_from
from stoker.concurrency.user_code import in_user_code
from stoker.errors import ConfigError


@checked
@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process among the processes that read one dataset together.

    Attributes:
        rank: number of this process, in ``[0, world_size)``.
        world_size: number of processes.
        local_world_size: number of processes on this node; they share its cache.
        source: where this was learnt from, for messages.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    source: str = "given"

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} is not in a world of {self.world_size} ({self.source}): ranks are numbered from 0 to "
                "world_size - 1; give world=World(rank, world_size), or set RANK and WORLD_SIZE right"
            )
        if not 1 <= self.local_world_size <= self.world_size:
            raise ConfigError(
                f"local world size {self.local_world_size} does not fit a world of {self.world_size} ({self.source}): it is "
                "the number of ranks on this node, from 1 to world_size"
            )

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> World:
        """Find the world of this process.

        In this order: an initialised ``torch.distributed`` or ``jax.distributed``; torchrun's ``RANK`` and ``WORLD_SIZE``;
        Open MPI's ``OMPI_COMM_WORLD_*``; Slurm's, inside a job step (``srun``); else one process.

        Raises:
            ConfigError: variables are half set or contradict each other, or torch and JAX differ.
        """
        return cls.launched(environ) or _ALONE

    @classmethod
    def launched(cls, environ: Mapping[str, str] | None = None) -> World | None:
        """The world that a launcher or a process group has said; ``None``: neither has, so that there may be more to come.

        Raises:
            ConfigError: variables are half set or contradict each other.
        """
        if environ is None:
            initialised = cls.of_process_group()
            if initialised is not None:
                return initialised
            environ = os.environ
        for source, rank, size, local in _LAUNCHERS:
            if source == "Slurm" and not (
                environ.get("SLURM_STEP_ID", "").isdigit() and "SLURM_STEP_NUM_TASKS" in environ
            ):
                # In a batch script or an salloc shell Slurm's variables speak of the allocation, not of this process.
                continue
            found = [name for name in (rank, size) if environ.get(name, "") != ""]
            if not found:
                continue
            if len(found) == 1:
                missing = size if found[0] == rank else rank
                raise ConfigError(
                    f"{found[0]} is set but {missing} is not ({source}): set both, or neither, or pass world=; under a "
                    "trainer that starts the ranks itself, iterate after it has joined them (in its fit)"
                )
            world_size = _integer(environ, size)
            per_node = _integer(environ, local) if environ.get(local, "").isdigit() else _slurm_local(environ, source)
            return cls(_integer(environ, rank), world_size, min(max(1, per_node), world_size), source)
        return None

    @classmethod
    def of_process_group(cls) -> World | None:
        """The world of an initialised ``torch.distributed`` or ``jax.distributed``. Looks only at what is imported already.

        Raises:
            ConfigError: both are initialised, and differ.
        """
        if sys.modules.keys().isdisjoint(("torch", "jax")):
            return None
        torch, jax = _torch_distributed(), _jax_distributed()
        if torch is not None and jax is not None and (torch.rank, torch.world_size) != (jax.rank, jax.world_size):
            raise ConfigError(
                f"torch.distributed says rank {torch.rank} of {torch.world_size}, and JAX process {jax.rank} of "
                f"{jax.world_size}: pass world= for the one that trains"
            )
        return torch or jax

    def replicate(self, replication: int) -> World:
        """The world in which each group of ``replication`` consecutive ranks is one reader, so that it reads the same.

        For tensor or sequence parallelism over neighbouring ranks; :class:`~stoker.cluster.mesh.Mesh` is for all else.

        Returns:
            This process's group, the number of groups, and how many of them have processes on this node.

        Raises:
            ConfigError: the world can not be divided into such groups.
        """
        if replication < 1 or self.world_size % replication:
            raise ConfigError(
                f"replication must divide the world size: {self.world_size} ranks ({self.source}) cannot be divided "
                f"into groups of {replication}"
            )
        node = ranks_of_node(self)
        local = (node.stop - 1) // replication - node.start // replication + 1
        return World(self.rank // replication, self.world_size // replication, local, self.source)


_ALONE: Final = World(source="single process")


def ranks_of_node(world: World) -> range:
    """The ranks on this process's node, if launchers fill one node after the other, as they do."""
    first = world.rank // world.local_world_size * world.local_world_size
    return range(first, min(first + world.local_world_size, world.world_size))


_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
)


def _slurm_local(environ: Mapping[str, str], source: str) -> int:
    """Tasks on this node where the launcher does not say so plainly: Slurm writes ``"4(x2),3"``, a count a node."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "") if source == "Slurm" else ""
    node = environ.get("SLURM_NODEID", "0")
    counts: list[int] = []
    for part in tasks.split(",") if tasks else ():
        count, _, times = part.partition("(x")
        if not count.isdigit():
            return 1
        counts += [int(count)] * (int(times.rstrip(")")) if times else 1)
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 1


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"{name} must be an integer, got {environ[name]!r}") from None


def _torch_distributed() -> World | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _initialised(int(distributed.get_rank()), int(distributed.get_world_size()), "torch.distributed")


def _jax_distributed() -> World | None:
    jax = sys.modules.get("jax")
    initialised = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or initialised is None or not initialised():
        return None
    return _initialised(int(jax.process_index()), int(jax.process_count()), "jax.distributed")


def _initialised(rank: int, size: int, source: str) -> World:
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    per_node = int(local) if local.isdigit() else 1
    return World(rank, size, min(max(1, per_node), size), source)


@dataclass(frozen=True, slots=True)
class LoaderWorker:
    """This process among the worker processes of one torch ``DataLoader``.

    Attributes:
        number: this worker, in ``[0, count)``.
        count: number of workers; 1 outside a worker process.
        token: equal in all workers that were started together, different each time workers are started; ``None``
            outside a worker process.
    """

    number: int = 0
    count: int = 1
    token: int | None = None

    @classmethod
    def detect(cls) -> LoaderWorker:
        """Read it from torch, if torch is imported; a process without torch is no worker of its DataLoader.

        Another data set that a transform reads is not divided among workers: each has samples of its own to transform. Nor
        is one that the ``datasets`` package reads, as in ``IterableDataset.from_generator``: it chooses the worker itself.
        """
        data = sys.modules.get("torch.utils.data")
        info = None if data is None else data.get_worker_info()
        if info is None or in_user_code() or called_from("datasets.iterable_dataset"):
            return cls()
        # DataLoader draws a base seed each time it starts workers and gives worker w that plus w.
        return cls(int(info.id), int(info.num_workers), int(info.seed) - int(info.id))

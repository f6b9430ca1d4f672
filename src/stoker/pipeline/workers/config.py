"""``StreamingConfig``: settings of one worker of a :class:`~stoker.loaders.shard_loader.StreamingShardLoader`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from stoker.arguments import at_least, checked
from stoker.cluster import World
from stoker.coordination.records import CoordinationSettings
from stoker.display import redact_url
from stoker.errors import ConfigError
from stoker.order.global_batches import WorkerRemainder
from stoker.order.partition import Elastic, Partition
from stoker.order.sample_order import check_rank
from stoker.pipeline.workers.adaptive import Adaptive
from stoker.types import StorageOptions

CommitWhen = Literal["next", "explicit"]


@checked
@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """Settings of one worker of a ``StreamingShardLoader``: rank, batching, checkpoints, coordination.

    Frozen: the ``with_*`` methods give changed copies. All settings are checked when it is made.

    Attributes:
        world_size: number of workers; with :class:`~stoker.pipeline.workers.adaptive.Adaptive` the most that may take part.
        rank: this one, in ``[0, world_size)``.
        partition: strategy that divides samples among ranks. ``None``: as the dataset says; for arrays, ``RoundRobin()`` in a
            world of several.
        prefetch_buffer_size: samples that a background thread reads ahead, at least one batch; 0: none, they are read when
            asked for.
        shuffle_seed: shuffle by this seed. ``None``: the dataset's own order; for arrays, that of their rows.
        batch_size: samples a batch, as columns; ``None``: samples, one by one.
        global_batch_size: samples of all ranks together in a step, as columns, in place of ``batch_size``. Each rank gets its
            part by a plan, which :meth:`~stoker.loaders.shard_loader.StreamingShardLoader.change_plan` changes on the way.
            What is no whole global batch at an epoch's end is left out.
        weights: for each rank an integer, its part of the global batch in proportion: unlike machines get unlike parts.
            The same for all ranks. ``None``: equal parts.
        remainder: what ranks do that run out before others; ``None``: as the dataset says; for arrays ``"uneven"``.
            ``"pad"``: they repeat some of their samples. ``"drop"``: all stop when the first runs out. ``"uneven"``: they
            stop, and the others continue. ``"join"``: they continue in step with fillers, batches whose column ``"_filler"``
            says so; so collectives meet, and nothing is lost or repeated.
        checkpoint_interval: samples of this rank between two checkpoints; ``None``: only on request.
        checkpoint_url: folder, at any URL, that gets them.
        storage_options: credentials for it.
        fault_tolerant: others take over what this worker leaves undone; needs ``Adaptive`` and a coordinator.
        replication_factor: so many workers keep each shard in their caches; above 1 only if fault tolerant.
        dynamic_balancing: short for ``partition=Adaptive(partition)``.
        coordinator: URL of the engine that keeps the leases (``sqlite://``, ``redis://``, ``ray://``).
        run_id: name of the job at the coordinator; the same for all its workers, and no other job's.
        coordination: the coordinator's numbers; the same for all workers.
        commit: ``"next"``: asking for the next sample (or batch) commits the one before. ``"explicit"``: only
            :meth:`~stoker.loaders.shard_loader.StreamingShardLoader.commit` does.
        commit_every: seconds after which what is done is committed, in the background. What a worker does in such a time
            may be done again by another if it dies.
        patience: seconds without an answer from the coordinator after which waiting calls raise.
    """

    world_size: int = 1
    rank: int = 0
    partition: Partition | Adaptive | None = None
    prefetch_buffer_size: int = 128
    shuffle_seed: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    weights: tuple[int, ...] | None = None
    remainder: WorkerRemainder | None = None
    checkpoint_interval: int | None = 1000
    checkpoint_url: str | os.PathLike[str] | None = None
    storage_options: StorageOptions | None = field(default=None, repr=False)
    fault_tolerant: bool = False
    replication_factor: int = 1
    dynamic_balancing: bool = False
    coordinator: str | None = None
    run_id: str = "stoker"
    coordination: CoordinationSettings = field(default_factory=CoordinationSettings)
    commit: CommitWhen = "next"
    commit_every: float = 1.0
    patience: float = 120.0

    def __post_init__(self) -> None:
        self.validate()

    def __repr__(self) -> str:
        shown = ((one.name, getattr(self, one.name)) for one in fields(self) if one.repr)
        values = ((name, redact_url(value) if isinstance(value, str) else value) for name, value in shown)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"

    @classmethod
    def detect(cls, **settings: Any) -> Self:
        """The config with the rank and world size that the launcher gave this process (torchrun, Open MPI, Slurm)."""
        world = World.detect()
        return cls(world.world_size, world.rank, **settings)

    @property
    def adaptive(self) -> Adaptive | None:
        """The settings of leased work; ``None`` where work is not leased."""
        if isinstance(self.partition, Adaptive):
            return self.partition
        return Adaptive(self.partition) if self.dynamic_balancing else None

    @property
    def leased(self) -> bool:
        """Whether a coordinator hands out the work."""
        return self.adaptive is not None and self.adaptive.replay is None

    # -- changed copies --------------------------------------------------------------------------------------------

    def with_partition(self, partition: Partition | Adaptive) -> Self:
        """Another partition strategy."""
        return replace(self, partition=partition)

    def with_prefetch_buffer_size(self, samples: int) -> Self:
        """Another number of samples to read ahead."""
        return replace(self, prefetch_buffer_size=samples)

    def with_shuffle_seed(self, seed: int) -> Self:
        """Shuffled by this seed."""
        return replace(self, shuffle_seed=seed)

    def with_batch_size(self, samples: int, remainder: WorkerRemainder | None = None) -> Self:
        """In batches; ``remainder`` says what ranks do that run out before others."""
        return replace(self, batch_size=samples, remainder=remainder or self.remainder)

    def with_global_batch_size(self, samples: int, weights: Sequence[int] | None = None) -> Self:
        """In parts of global batches, by these weights of the ranks."""
        return replace(
            self, batch_size=None, global_batch_size=samples, weights=None if weights is None else tuple(weights)
        )

    def with_checkpointing(self, interval: int | None, url: str | os.PathLike[str] | None = None) -> Self:
        """A checkpoint every ``interval`` samples, below ``url``."""
        return replace(self, checkpoint_interval=interval, checkpoint_url=url or self.checkpoint_url)

    def with_coordinator(
        self, url: str, run_id: str | None = None, settings: CoordinationSettings | None = None
    ) -> Self:
        """Leases from this engine. Fault tolerance, replication and Adaptive need it, and it needs one of them."""
        adaptive = self.partition if self.adaptive is not None else Adaptive(self._base)
        return replace(
            self,
            partition=adaptive,
            coordinator=url,
            run_id=run_id or self.run_id,
            coordination=settings or self.coordination,
        )

    def with_fault_tolerance(self, replication_factor: int = 1) -> Self:
        """Others take over from a lost worker, and each shard is in so many caches. Give the coordinator before."""
        return replace(self, fault_tolerant=True, replication_factor=replication_factor)

    def with_dynamic_balancing(self, *, on: bool = True) -> Self:
        """Work is leased, by the partition at first. Give the coordinator before."""
        return replace(self, dynamic_balancing=on)

    @property
    def _base(self) -> Partition | None:
        return None if isinstance(self.partition, Adaptive) else self.partition

    # -- checks ----------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check that the settings make sense, each and together.

        Raises:
            ConfigError: they do not; names what contradicts what.
        """
        self._check_numbers()
        self._check_plan()
        if self.remainder == "join" and self.batch_size is None:
            raise ConfigError("remainder='join' flags batches: give batch_size=")
        adaptive = self.adaptive
        if adaptive is None:
            self._check_unleased()
            return
        if self.remainder not in (None, "uneven"):
            raise ConfigError(
                f"remainder={self.remainder!r} is for workers in lockstep, Adaptive for those that are not: leave remainder= "
                "out, or use a static partition or Elastic()"
            )
        if adaptive.replay is not None:
            if self.coordinator is not None or self.fault_tolerant:
                raise ConfigError(
                    "a replay runs a recorded assignment, without coordinator= and fault_tolerant=True: leave them out"
                )
        elif self.coordinator is None:
            raise ConfigError("Adaptive needs coordinator=: sqlite:///path for one host, redis://host:port for several")
        if self.replication_factor > 1 and not self.fault_tolerant:
            raise ConfigError(
                f"replication_factor={self.replication_factor} keeps shards for others to take over, but fault_tolerant is "
                "False: use with_fault_tolerance()"
            )

    def _check_numbers(self) -> None:
        at_least(1, world_size=self.world_size)
        check_rank(self.rank, self.world_size)
        at_least(0, prefetch_buffer_size=self.prefetch_buffer_size)
        at_least(1, batch_size=self.batch_size, global_batch_size=self.global_batch_size)
        at_least(1, checkpoint_interval=self.checkpoint_interval, replication_factor=self.replication_factor)
        for name in ("smallest", "largest", "grid", "multiple"):
            if getattr(self.coordination, name) < 1:
                raise ConfigError(
                    f"coordination: {name} must be at least 1 sample, got {getattr(self.coordination, name)}"
                )
        if self.replication_factor > self.world_size:
            raise ConfigError(
                f"replication_factor {self.replication_factor} exceeds world_size {self.world_size}: there are not so many "
                "workers to keep a shard"
            )
        for name in ("patience", "commit_every"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is seconds above 0, got {getattr(self, name)}")

    def _check_plan(self) -> None:
        if self.weights is not None and self.global_batch_size is None:
            raise ConfigError("weights= needs global_batch_size=: weights divide a global batch among the ranks")
        if self.global_batch_size is None:
            return
        for name, given in (
            ("batch_size", self.batch_size is not None),
            (f"remainder={self.remainder!r}", self.remainder not in (None, "drop")),
            ("dynamic_balancing", self.dynamic_balancing),
            ("a partition other than Elastic()", not isinstance(self.partition, Elastic | None)),
        ):
            if given:
                raise ConfigError(
                    f"global_batch_size={self.global_batch_size} cannot be combined with {name}: a global batch is divided "
                    "among the ranks by weights, and an incomplete one is dropped. Remove one of the two"
                )
        if self.weights is not None and (
            len(self.weights) != self.world_size or any(weight < 1 for weight in self.weights)
        ):
            raise ConfigError(
                f"weights must have an integer from 1 for each of the {self.world_size} ranks, got {self.weights!r}"
            )

    def _check_unleased(self) -> None:
        for name, given in (
            ("coordinator", self.coordinator is not None),
            ("fault_tolerant", self.fault_tolerant),
            ("replication_factor", self.replication_factor > 1),
            ("commit='explicit'", self.commit == "explicit"),
        ):
            if given:
                raise ConfigError(
                    f"{name} is for work that is leased: give partition=Adaptive(...) or dynamic_balancing=True too, or "
                    "leave it out. In lockstep no worker takes over from another; its launcher restarts it from a checkpoint"
                )

    def as_dict(self) -> Mapping[str, Any]:
        """The settings that all workers of a job must have in common, JSON-serialisable."""
        partition = self.adaptive or self.partition or Elastic()
        common = {"world_size": self.world_size, "partition": partition.as_dict(), "batch_size": self.batch_size}
        if self.global_batch_size is not None:
            common |= {"global_batch_size": self.global_batch_size, "weights": self.weights}
        return common

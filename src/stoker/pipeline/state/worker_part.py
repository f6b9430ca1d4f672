"""The part of an epoch that one DataLoader worker has delivered, as the worker's own state holds it (torchdata's loaders)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from stoker.cluster import LoaderWorker
from stoker.errors import StateError
from stoker.order.sample_order import DataRank
from stoker.pipeline.state.state import is_count

_FIELDS: Final = ("number", "count", "batches", "samples")


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """The batches and samples that a worker has delivered of an epoch.

    Attributes:
        number: of the worker.
        count: of all workers.
        batches: whole batches.
        samples: of one batch more.
    """

    number: int
    count: int
    batches: int
    samples: int

    def as_dict(self, data_rank: DataRank) -> dict[str, int]:
        """As a state has it, with what decides which samples these were."""
        return {**asdict(self), "world_size": data_rank.world_size, "batch_size": data_rank.batch_size}

    @classmethod
    def read(cls, state: Mapping[str, Any], worker: LoaderWorker, data_rank: DataRank) -> Self | None:
        """The part in a state; ``None`` where the state is not that of a worker.

        Raises:
            StateError: it is not complete, of another worker, or was taken inside an epoch of another world.
        """
        found = state.get("worker") if isinstance(state, Mapping) else None
        if found is None:
            return None
        if isinstance(found, Mapping):
            found = {"samples": 0, **found}  # which states of earlier versions do not say
        if not (isinstance(found, Mapping) and all(is_count(found.get(name)) for name in _FIELDS)):
            raise StateError(f"this state's worker should have a number, a count, batches and samples, found {found!r}")
        part = cls(*(found[name] for name in _FIELDS))
        if worker.token is None or (part.number, part.count) != (worker.number, worker.count):
            raise StateError(
                f"this is the state of DataLoader worker {part.number} of {part.count}, which only that worker can "
                "resume from. States of StreamingDataLoader fit any number of workers"
            )
        # Which samples a worker's batches were depends on the world; states of earlier versions do not say it.
        theirs = found.get("world_size", data_rank.world_size), found.get("batch_size", data_rank.batch_size)
        if (part.batches or part.samples) and theirs != (data_rank.world_size, data_rank.batch_size):
            raise StateError(
                f"this state of DataLoader worker {part.number} was taken inside an epoch on {theirs[0]} ranks with "
                f"batch_size {theirs[1]}; here they are {data_rank.world_size} and {data_rank.batch_size}. States of "
                "StreamingDataLoader, and states without workers, fit any number of ranks"
            )
        return part

"""Runs of a dataset with some features, delivered by the dataset itself or by a loader over it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from features import FEATURES, NEUTRAL, PROCESSES, Plan
from recording import Recorded, Run, close_all, digest_of

from stoker import Adaptive, StreamingConfig, StreamingDataLoader, StreamingDataset, StreamingShardLoader, World

__all__ = ["BY_NAME", "SEPARATOR", "DatasetRun", "without_neutral"]

BY_NAME = {one.name: one for one in (*FEATURES, *PROCESSES)}
SEPARATOR = " + "
"""Between the features of a run's name."""


def without_neutral(name: str) -> str:
    """The name of the run without its neutral features."""
    return SEPARATOR.join(one for one in name.split(SEPARATOR) if one not in NEUTRAL) or "plain"


class DatasetRun(Run):
    """A run by its name: its features. The name draws the worlds, the batch sizes, and where the run stops.

    Neutral features draw nothing: a run with them is as one without.
    """

    def __init__(self, name: str, root: Path, scratch: Path) -> None:
        lot = random.Random(without_neutral(name))
        self._worlds = lot.choice((1, 2, 2, 3, 4)), lot.choice((1, 2, 3, 4))
        same = lot.random() < 0.7  # of global batches
        self._sizes = (
            (12 // self._worlds[0], 12 // self._worlds[1]) if same else (lot.choice((3, 4, 6)), lot.choice((3, 5, 8)))
        )
        super().__init__(root, scratch, lot.randrange(1, 4))
        self._plan = plan = Plan()
        for one in name.split(SEPARATOR):
            if one != "plain":
                BY_NAME[one].apply(plan)
        if "replication" in plan.options:
            self._worlds = self._worlds[0] + self._worlds[0] % 2, self._worlds[1] + self._worlds[1] % 2
        self._how = plan.delivery

    def readers(self, phase: int) -> list[Any]:
        """See the base class."""
        ranks, size = self._worlds[phase], self._sizes[phase]
        found: list[Any] = []
        try:
            for rank in range(ranks):
                caches = self.scratch / f"caches {phase}"
                dataset = self._plan.opened(self.root, caches, World(rank, ranks), size, self.log)
                found.append(self._loader(dataset, rank, ranks, size))
        except BaseException:
            close_all(found)
            raise
        return found

    def _loader(self, dataset: StreamingDataset, rank: int, ranks: int, size: int) -> Any:
        match self._how:
            case "loader" | "columnar" | "workers" | "columnar workers":
                workers = 2 if "workers" in self._how else 0
                return StreamingDataLoader(dataset, num_workers=workers, columnar=self._how.startswith("columnar"))
            case "shard loader":
                return StreamingShardLoader(dataset, StreamingConfig(ranks, rank))
            case "shard batches":
                return StreamingShardLoader(dataset, StreamingConfig(ranks, rank, batch_size=size))
            case "planned":
                config = StreamingConfig(ranks, rank, global_batch_size=12, weights=(3, *[1] * (ranks - 1)))
                return StreamingShardLoader(dataset, config)
            case "leased":
                url = f"sqlite://{self.scratch / 'leases.db'}"
                config = StreamingConfig(ranks, rank, partition=Adaptive(), coordinator=url, prefetch_buffer_size=0)
                return StreamingShardLoader(dataset, config)
            case _:
                return dataset

    def stay(self) -> None:
        """See the base class."""
        self._worlds, self._sizes = self._worlds[:1] * 2, self._sizes[:1] * 2

    def steps(self, reader: Any) -> Iterator[Any]:
        """See the base class."""
        match self._how:
            case "samples" | "shard loader":
                samples = iter(reader)
                while part := list(islice(samples, 5 if self._how == "shard loader" else reader.batch_size)):
                    yield part
            case "batches":
                yield from reader.batches()
            case _:
                yield from reader

    def saved(self, reader: Any) -> Any:
        """See the base class."""
        if isinstance(reader, StreamingShardLoader):
            return json.loads(json.dumps(reader.get_checkpoint().as_dict()))
        return super().saved(reader)

    def load(self, reader: Any, state: Any) -> None:
        """See the base class."""
        if isinstance(reader, StreamingShardLoader):
            reader.restore_from_checkpoint(state, any_rank=True)
        else:
            super().load(reader, state)

    def counts(self, readers: Sequence[Any]) -> Recorded:
        """See the base class."""
        reads_ahead = self._plan.read.get("read_threads", 0) != 0
        if reads_ahead or self._how not in ("batches", "samples", "loader", "columnar"):
            return {}
        stats = [reader.stats() for reader in readers]
        return {"bad": sum(one.bad_samples for one in stats), "filtered": sum(one.filtered for one in stats)}

    def _recorded(self) -> Recorded:
        match self._how:
            case "by id":
                return self._by_id()
            case "leased":
                return self._leased()
            case _:
                return super()._recorded()

    def _by_id(self) -> Recorded:
        """Samples by their ids, and the ids of steps."""
        dataset, *others = self.readers(0)
        close_all(others)
        questions: dict[str, Callable[[], Any]] = {
            "samples": lambda: [dataset[number] for number in (0, 30, 12, dataset.num_samples - 1)],
            "read": lambda: dataset.read([3, 41, 3]),
            "where": lambda: self.masked(str([dataset.where(number) for number in (0, 44)])),
            "ids of steps": lambda: [dataset.ids_of(step) for step in range(3)],
            "ids of a rank": lambda: dataset.ids_of(1, rank=0, epoch=2),
        }
        found: Recorded = {}
        for name, ask in questions.items():
            try:
                found[name] = digest_of(ask())
            except Exception as error:
                found[name] = self.failed(error)
        dataset.close()
        return found

    def _leased(self) -> Recorded:
        """Two epochs of leased work, a thread a rank. Who gets which split is up to the coordinator: all that came counts."""
        readers = self.readers(0)
        found: Recorded = {}
        with ThreadPoolExecutor(len(readers)) as pool:
            for name in ("epoch", "next epoch"):
                taken = [pool.submit(_taken, reader) for reader in readers]
                wait(taken)
                errors = sorted({type(error).__name__ for one in taken if (error := one.exception()) is not None})
                if errors:
                    found[name] = errors
                    break
                came = sorted(digest for one in taken for digest in one.result())
                found[name] = [len(came), digest_of(came)]
        close_all(readers)
        return found


def _taken(reader: Any) -> list[str]:
    """Digests of what a worker has in an epoch. One that fails leaves the run, so that the others do not wait for it."""
    try:
        return [digest_of(item) for item in reader]
    except Exception:
        reader.close()
        raise

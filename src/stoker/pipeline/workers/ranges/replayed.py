"""``ReplayedSource``: a rank's ranges of a recorded assignment again, in the order in which it had them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from stoker.coordination.checkpoint import Replay, differences
from stoker.errors import ConfigError, StateError
from stoker.order.capabilities import stream_urls
from stoker.order.native import NativeOrder
from stoker.pipeline.state.state import check_same_order
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.range_source import (
    RangePart,
    RangeReader,
    RangeSource,
    RestoreRequest,
    SampleChunk,
    WorkerProgress,
)
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.storage.versions import check_versions, host_versions


class ReplayedSource(RangeSource):
    """One rank's samples of a recorded assignment, numbered in its order.

    Args:
        sample_order: see :func:`~stoker.pipeline.workers.adaptive.adaptive_order`.
        config: the worker's settings; its partition is an ``Adaptive`` with a ``replay``.

    Raises:
        StateError: the assignment is of another data set, order or settings, or not of a whole epoch; says what differs.
        ConfigError: it needs a larger world.
    """

    kind = "replay"
    per_rank = False  # its ranges are compared

    def __init__(self, sample_source: SampleSource, sample_order: NativeOrder, config: StreamingConfig) -> None:
        super().__init__(sample_source, sample_order, config)
        assert config.adaptive is not None
        assignment = config.adaptive.replay
        assert assignment is not None
        ours = {**host_versions(sample_order.as_dict(), stream_urls(sample_order)), "batch_size": config.batch_size}
        check_versions(assignment.identity, ours, stream_urls(sample_order), "assignment['identity']")
        assignment.check(ours)
        partition = sample_order.settings.partition
        if partition.static and assignment.world_size != config.world_size:
            raise StateError(
                f"the recorded assignment is of a world of {assignment.world_size}, this one has {config.world_size} ranks, "
                f"and parts of {partition.name!r} are others in each: replay it in a world of {assignment.world_size}"
            )
        self.epoch = assignment.epoch
        self._order = sample_order
        self._splits = Splits(sample_order, self.epoch, config.world_size)
        self._ranges = Replay(assignment.entries, self._splits.total, config.world_size).splits(config.rank)

    def __len__(self) -> int:
        """Samples, or batches, of this rank."""
        size = self._config.batch_size or 1
        return sum(-(-(end - begin) // size) for begin, end in self._ranges)

    def chunks(self, at: int, closing: threading.Event) -> Iterator[SampleChunk]:  # noqa: ARG002 - waits for nobody
        reader = RangeReader(
            self._sample_source, self._splits, self._config, batched=self._config.batch_size is not None
        )
        return reader.chunks(_parts(reader, self._ranges, at))

    def check_advance(self, *, finished: bool) -> None:  # noqa: ARG002
        """Raises ConfigError: an assignment is of one epoch."""
        raise ConfigError("a replay has one epoch, that which was recorded: make another loader for another assignment")

    def advance(self) -> None:
        raise AssertionError("a replay has one epoch")

    def progress(self, at: int, *, finished: bool) -> WorkerProgress:  # noqa: ARG002 - it has one epoch
        done, left = [], at
        for begin, end in self._ranges:
            if left > 0:
                done.append((begin, min(end, begin + left)))
            left -= end - begin
        return WorkerProgress(self.epoch, tuple(sorted(done)), {**self._order.as_dict(), **self._own_state()})

    def restore(self, request: RestoreRequest) -> int:
        checkpoint = request.checkpoint
        check_same_order(checkpoint.state, self._order, "checkpoint.state")
        ours = {"epoch": self.epoch, **self._own_state()}
        theirs = {"epoch": checkpoint.epoch, **{name: checkpoint.state.get(name) for name in self._own_state()}}
        if theirs != ours:
            raise StateError(
                "the checkpoint is of another assignment, or of another rank of it: "
                f"{differences(theirs, ours, 'the checkpoint', 'this loader')}"
            )
        return checkpoint.position

    def _own_state(self) -> dict[str, Any]:
        return {"batch_size": self._config.batch_size, "ranges": [list(one) for one in self._ranges]}


def _parts(reader: RangeReader, ranges: list[tuple[int, int]], at: int) -> Iterator[RangePart]:
    """The ranges one after the other, from their sample number ``at`` on."""
    before = 0
    for first, last in ranges:
        for begin, end in reader.steps(first + max(0, at - before), last):
            number = before + begin - first
            yield RangePart(begin, end, (number, number + end - begin))
        before += last - first

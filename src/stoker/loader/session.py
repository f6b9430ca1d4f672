"""One run through a data set: which epoch, how far, and the state that it leaves behind."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.cluster import LoaderWorker
from stoker.dataset.samples import SampleRun
from stoker.errors import StateError
from stoker.loader.progress import EpochClock, StartingPoint
from stoker.loader.state import leg_of, make_state, read_changed, read_state
from stoker.order.course import Course, Seat
from stoker.order.protocols import Plan

__all__ = ["Delivery", "Session"]


class Delivery:
    """How far one iteration has got, counted by what the consumer has taken.

    Args:
        point: where it began.
        plan: the batches of this rank.
        begun: batches of this loader worker that were delivered before it began.
    """

    def __init__(self, point: StartingPoint, plan: Plan, begun: int = 0) -> None:
        self.point = point
        self.plan = plan
        self.finished = False
        self._entered = begun * plan.batch_size
        self._remaining: Iterator[Any] = iter(())

    def enter(self, run: SampleRun) -> None:
        """Samples are about to be taken, one by one."""
        self._entered += operator.length_hint(run.remaining)
        self._remaining = run.remaining

    def batch(self) -> None:
        """A whole batch is taken."""
        self._entered += self.plan.batch_size

    def failed(self) -> None:
        """The sample that was taken last has an error instead, and was not delivered."""
        self._entered -= 1

    @property
    def samples(self) -> int:
        """Samples that were taken, of this rank."""
        return self._entered - operator.length_hint(self._remaining)

    @property
    def batches(self) -> int:
        """Batches of which at least one sample was taken."""
        return -(-self.samples // self.plan.batch_size)

    def here(self) -> StartingPoint:
        """Where to go on from."""
        plan, count = self.plan, self.samples
        full = min(count // plan.batch_size, plan.full_batches)
        inside = count - full * plan.batch_size
        if full == plan.full_batches and inside and count >= plan.samples:
            full, inside = len(plan), 0  # all of the last, partial batch
        position = plan.position_after(full)
        if position >= plan.end and not inside:
            return StartingPoint(self.point.epoch + 1, terms=self.point.terms)
        return replace(self.point, position=position, partial=inside)


class Session:
    """Epochs and states of a data set object, and of its copies in DataLoader workers.

    Args:
        course: what is read.
    """

    def __init__(self, course: Course) -> None:
        self.course = course
        self._clock = EpochClock()
        self._delivery: Delivery | None = None
        self._resumed: tuple[StartingPoint, int] | None = None

    def upcoming(self) -> StartingPoint:
        """Where the next iteration begins."""
        return self._clock.peek()

    def begin(self, worker: LoaderWorker, seat: Seat) -> tuple[StartingPoint, int]:
        """Begin the next epoch: where, and how many batches of this worker were delivered before."""
        if self._resumed is not None:
            (point, begun), self._resumed = self._resumed, None
            self._clock.adopt(worker.token, point.epoch)
        else:
            point, begun = self._clock.begin(worker.token, worker.number), 0
        return self.settled(point, seat), begun

    def settled(self, point: StartingPoint, seat: Seat) -> StartingPoint:
        """The point with the terms that hold for the rest of its epoch, as begun, or gone on with, in this world."""
        return replace(point, terms=self.course.terms(leg_of(point), seat))

    def deliver(self, point: StartingPoint, plan: Plan, begun: int) -> Delivery:
        """The iteration that states speak of from now on."""
        self._delivery = Delivery(point, plan, begun)
        return self._delivery

    def state(self, point: StartingPoint, seat: Seat) -> dict[str, Any]:
        """The state at ``point``."""
        return make_state(self.course, point, seat)

    def here(self) -> StartingPoint:
        """Where to go on from, by what this object has delivered."""
        delivery = self._delivery
        return self._clock.peek() if delivery is None or delivery.finished else delivery.here()

    def after(self, samples: int, seat: Seat, *, from_beginning: bool) -> StartingPoint:
        """Where to go on from, after ``samples`` of the current epoch or, if not ``from_beginning``, of this run of it."""
        if self._delivery is not None:
            begun = self._delivery.point
        else:
            # Workers iterate: the epoch that they are in is the last that has begun.
            upcoming = self._clock.peek()
            begun = self._clock.started(upcoming.epoch - 1) if upcoming.epoch else upcoming
        position = samples + (0 if from_beginning else begun.position)
        point = replace(self.settled(begun, seat), position=position, partial=0)
        return replace(point, position=self.course.epoch_size) if self.course.beyond(leg_of(point)) else point

    def worker_state(self, worker: LoaderWorker, seat: Seat) -> dict[str, Any]:
        """What a loader that saves each worker's state apart (torchdata's) asks for, in the worker."""
        delivery = self._delivery
        if delivery is None:
            begun, batches = self._resumed or (self._clock.peek(), 0)
        elif delivery.finished:
            begun, batches = StartingPoint(delivery.point.epoch + 1, terms=delivery.point.terms), 0
        else:
            begun, batches = delivery.point, delivery.batches
        own = {"number": worker.number, "count": worker.count, "batches": batches}
        return {**self.state(begun, seat), "worker": own}

    def load(self, state: Mapping[str, Any], worker: LoaderWorker, seat: Seat) -> None:
        """Make the next iteration go on where ``state`` was taken.

        Raises:
            StateError: it belongs to another data set, to other order settings, or to another worker.
        """
        own = state.get("worker") if isinstance(state, Mapping) else None
        if own is not None and not (
            isinstance(own, Mapping)
            and all(type(own.get(name)) is int and 0 <= own[name] < 1 << 62 for name in ("number", "count", "batches"))
        ):
            raise StateError(f"this state's worker should have a number, a count and batches, found {own!r}")
        if own is not None and (worker.token is None or (own["number"], own["count"]) != (worker.number, worker.count)):
            raise StateError(
                f"this is the state of DataLoader worker {own['number']} of {own['count']}, which only that worker can go on "
                "from. States of StreamingDataLoader fit any number of workers"
            )
        point, self.course = read_state(state, self.course, seat)
        if own is not None:
            self._resumed = point, own["batches"]
        else:
            self._clock.load(point)
        self._delivery = None

    def change(self, state: Mapping[str, Any]) -> None:
        """Begin a new epoch, with other streams than those of ``state``.

        Raises:
            StateError: more than the streams differs.
        """
        point, self.course = read_changed(state, self.course)
        self._clock.load(point)
        self._delivery = None

    def __getstate__(self) -> dict[str, Any]:
        # What was delivered here was not delivered by the copy.
        return {**self.__dict__, "_delivery": None}

"""Tracks the progress of a run through its epochs, by what its consumer has taken, and makes and loads its states."""

from __future__ import annotations

import json
import logging
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stoker.cluster import LoaderWorker
from stoker.errors import ConfigError, StateError
from stoker.lazy import cached_property
from stoker.order.capabilities import with_epoch_start, with_weights_of
from stoker.order.sample_order import DataRank, EpochPosition, Plan, Run, SampleOrder
from stoker.pipeline.state.epoch_counter import EpochCounter, NamedEpochs
from stoker.reading.sample_errors import url_of_shard
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool
from stoker.reading.steps import LEFT_OUT, SeveralSamples

if TYPE_CHECKING:
    from stoker.cluster.datasets_package import NamedEpoch
    from stoker.streams.quarantine import Mark, Quarantine

logger = logging.getLogger(__name__)

_ALL_ENDED: Final = "ask the dataset for state_dict(num_samples=dataset.epoch_size)"


class Progress:
    """The progress of one iteration: the samples that the consumer has taken.

    ``point``: where it began. ``plan``: the batches of this rank. ``begun``: batches of this loader worker that were
    delivered before it began. ``clock``: in a DataLoader's worker, tells of states that its parent process loads.
    """

    def __init__(self, point: EpochPosition, plan: Plan, begun: int = 0, clock: EpochCounter | None = None) -> None:
        self.point = point
        self.plan = plan
        self.finished = False
        self._superseded = False
        self._clock = clock
        self._loads = 0 if clock is None else clock.parent_loads
        self._entered = begun * plan.batch_size
        self._remaining: Iterator[Any] = iter(())
        self._among = False

    def enter(self, run: SampleRun) -> None:
        """Note that samples are about to be taken one by one."""
        self._entered += operator.length_hint(run.remaining)
        self._remaining = run.remaining
        self.check()

    def supersede(self) -> None:
        """End the iteration, as a state was loaded: no sample is delivered any more, and :meth:`check` raises an error."""
        self._superseded = True
        deque(self._remaining, maxlen=0)  # a check for each sample would cost more than the sample

    def check(self) -> None:
        """Called after each batch, and before and after each run of samples.

        StateError if a state was loaded since this iteration began.
        """
        if self._superseded or (self._clock is not None and self._clock.parent_loads > self._loads):
            raise superseded_error()

    def present(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Samples without what stands for those that are left out, and those of which several come for one, each."""
        for sample in samples:
            if isinstance(sample, SeveralSamples):
                for left, one in zip(range(len(sample) - 1, -1, -1), sample, strict=True):
                    self._among = left > 0
                    yield one
            elif sample is not LEFT_OUT:
                yield sample

    def batch(self, count: int = 1) -> None:
        """Note that a whole batch was taken, or so many of them."""
        self._entered += count * self.plan.batch_size

    def failed(self) -> None:
        """Note that the sample that was taken last was not delivered, as it has an error."""
        self._entered -= 1

    @property
    def samples(self) -> int:
        """Samples that were taken, of this rank."""
        return self._entered - operator.length_hint(self._remaining)

    @property
    def batches(self) -> int:
        """Whole batches that were taken, of this rank."""
        return self.samples // self.plan.batch_size

    def here(self) -> EpochPosition:
        """The position to resume from. StateError if it lies between samples that a chain made of one."""
        if self._among:
            raise among_error()
        return resume_point(self.point, self.plan, self.samples)


def among_error() -> StateError:
    """The error of a state that is taken between samples that were made of one."""
    return StateError(
        "this iterator is between samples that flat_map() made of one sample, and a state cannot describe that: take it "
        "after the last of them, between batches(), or from a StreamingDataLoader"
    )


def superseded_error() -> StateError:
    """The error of an iteration that asks for its next item after a state was loaded, or another epoch named."""
    return StateError(
        "this iterator has ended: load_state_dict(), set_weights() or set_epoch() was called after its last item (trainers "
        "call set_epoch() when they start to read a loader). Create a new iterator, which starts at the new position. To "
        "read the same data for something else meanwhile, such as evaluation, use another dataset object"
    )


def resume_point(point: EpochPosition, plan: Plan, samples: int) -> EpochPosition:
    """The position to resume from after ``samples`` samples of this rank in a run of ``plan`` that began at ``point``."""
    if not samples:
        return point
    full, inside = divmod(samples, plan.batch_size)
    if inside and full == plan.full_batches and samples >= plan.samples:
        full, inside = len(plan), 0  # all of the last, partial batch
    position = plan.position_after(full)
    if position >= plan.end and not inside:
        return point.next_epoch()
    return replace(point, position=position, partial=inside)


def run_from(sample_order: SampleOrder, point: EpochPosition, data_rank: DataRank) -> Run:
    """The samples of a reader from ``point`` to the end of its epoch.

    StateError if this world can not resume from a state at ``point``; says why. ConfigError for settings that do not go
    together, or an epoch whose samples are all left out.
    """
    try:
        run = sample_order.run(point, data_rank)
    except ConfigError as error:
        if not point.position:
            raise
        raise StateError(
            f"the state was taken at position {point.position} of epoch {point.epoch}, from which {data_rank.world_size} "
            f"ranks with batch_size {data_rank.batch_size} can not resume: {error}"
        ) from error
    check_not_empty(sample_order, point, run, data_rank)
    return run


def others_have_more(plan: Plan) -> bool:
    """Return whether other ranks still have batches when this one has taken all of its own."""
    return plan.position_after(len(plan)) < plan.end


def check_not_empty(sample_order: SampleOrder, point: EpochPosition, run: Run, data_rank: DataRank) -> None:
    """Check that an epoch which begins has something for some rank; otherwise a loop over epochs would never end.

    ConfigError if all of its samples are left out. If it has none at all, that is logged.
    """
    if point.position or run.plan:  # to count all of its batches may take time
        return
    if not sample_order.epoch_size:
        logger.warning(
            "epoch %d has no samples: there are none in the dataset, or subset=, filters= or the streams' weights leave none",
            point.epoch,
        )
    elif not sample_order.run(point, replace(data_rank, rank=run.plan.longest)).plan:
        raise ConfigError(
            f"epoch {point.epoch} has no batches: there is too little data to fill one batch of {data_rank.batch_size} on "
            f"each of {data_rank.world_size} ranks, and the rest is dropped (by remainder='drop', by batching_method=, or as "
            "an incomplete row of tokens). Use a smaller batch_size, fewer ranks, more data, remainder='pad', or pad_id="
        )


class ResumeState:
    """Epochs and states of a data set object, and of its copies in DataLoader workers.

    ``all_ended``: how a user says that all ranks have ended an epoch, for errors. ``chain``: the steps that make samples, as
    states name them. ``others``: the entries that identify the datasets of its zips and joins, by their names.
    ``quarantine``: leaves samples out; with the pool that holds them.

    ``sample_order``: what is read. ``order_number``: rises with each other one; a copy in a DataLoader's worker that lives on
    keeps the order that it was made with. ``loads``: how many states were loaded into this object. Each ends the iterations
    that were running.
    """

    def __init__(
        self,
        sample_order: SampleOrder,
        all_ended: str = _ALL_ENDED,
        chain: Sequence[str] = (),
        quarantine: tuple[Quarantine, ShardPool] | None = None,
        others: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        self.sample_order = sample_order
        self.order_number = 0
        self._chain, self._others = list(chain), dict(others or {})
        self._all_ended = all_ended
        self.loads = 0
        self._clock = EpochCounter()
        self._quarantine = quarantine
        self._in_worker = False
        self._progress: Progress | None = None
        self._changed: Progress | None = None
        # Iterations that were left for a later one, and how many samples of each had been delivered by then.
        self._left: list[tuple[weakref.ref[Progress], int]] = []
        self._resumed: tuple[EpochPosition, int, int] | None = None

    @cached_property
    def _names(self) -> NamedEpochs:
        return NamedEpochs(self._clock)

    def upcoming(self) -> EpochPosition:
        """The position at which the next iteration begins."""
        return self._clock.peek()

    @property
    def batches_before(self) -> int:
        """Batches that the iteration which this object began last has delivered."""
        return 0 if self._progress is None else self._progress.batches

    def claim_warning(self, matter: int) -> bool:
        """Whether neither this object nor a copy of it in a DataLoader worker has told of a matter; from now on, one has."""
        return self._clock.claim_warning(matter)

    def begin(self, worker: LoaderWorker, data_rank: DataRank) -> tuple[EpochPosition, int, int]:
        """Begin the next epoch: where, and what this worker has delivered of it: whole batches, and samples of one more."""
        self._in_worker = worker.token is not None
        if self._resumed is not None:
            (point, begun, inside), self._resumed = self._resumed, None
            self._clock.count_started(worker.token)
        else:
            if self._in_worker and self._clock.order_number > self.order_number:
                raise StateError(
                    "a state was loaded that changed the streams or their weights, and this DataLoader worker was started "
                    "before that, with persistent_workers=True: make a new DataLoader (a StreamingDataLoader starts its "
                    "workers again)"
                )
            point, begun, inside = self._clock.begin(worker.token, worker.number), 0, 0
        return with_epoch_start(self.sample_order, point, data_rank), begun, inside

    def run(self, point: EpochPosition, data_rank: DataRank) -> Run:
        """The samples of this process from ``point`` on, without those in quarantine; see :func:`run_from`."""
        run = run_from(self.sample_order, point, data_rank)
        if self._quarantine is None:
            return run
        from stoker.order.left_out import run_without

        (quarantine, pool), mark = self._quarantine, self._clock.marks.get(point.epoch)
        table = pool.index.table
        return run_without(run, table, quarantine.left_out(table, partial(url_of_shard, pool), point.epoch, mark))

    def pin_quarantine(self, epoch: int, agree: Callable[[str, str], str] | None = None) -> None:
        """Read the list of samples to leave out, where no process that shares the count has done so for an epoch.

        ConfigError if the list has changed otherwise than at its end, or this rank has another one than others. ``epoch``:
        its number. ``agree``: makes ranks agree on a text, given its name.
        """
        if self._quarantine is None:
            return
        from stoker.streams.quarantine import Mark

        quarantine, _ = self._quarantine

        def read(last: Mark | None) -> Mark:
            mark = quarantine.newest(last)
            if agree is not None:
                # Ranks tell their questions apart by how many states were loaded.
                mark = Mark(
                    *json.loads(agree(f"{epoch}/{self.loads}/quarantine", json.dumps([mark.lines, mark.digest])))
                )
                quarantine.check(mark)
            logger.info("epoch %d is without the samples of %s: %s", epoch, quarantine.told, mark.as_dict())
            return mark

        self._clock.freeze(epoch, read)

    def deliver(self, point: EpochPosition, plan: Plan, begun: int) -> Progress:
        """Make an iteration the one whose progress states describe."""
        self._left = [(left, count) for left, count in self._left if left() is not None]
        if self._progress is not None and not self._progress.finished:
            self._left.append((weakref.ref(self._progress), self._progress.samples))
        self._progress, self._changed = Progress(point, plan, begun, self._clock if self._in_worker else None), None
        return self._progress

    def state(self, point: EpochPosition, data_rank: DataRank) -> dict[str, Any]:
        """The state at ``point``."""
        from stoker.pipeline.state.state import make_state

        state = make_state(self.sample_order, point, data_rank)
        if self._chain:
            state["chain"] = list(self._chain)
        if self._others:
            state["others"] = {name: [dict(one) for one in about] for name, about in self._others.items()}
        marks = self._clock.marks if self._quarantine else {}
        mark = marks.get(point.epoch) or next(reversed(marks.values()), None)
        return state if mark is None else state | {"quarantine": mark.as_dict()}

    def check_alone(self) -> None:
        """Check that only this object delivers. StateError if copies in other processes have begun to iterate."""
        if not self._clock.alone:
            raise StateError(
                "workers of a DataLoader iterate copies of this dataset and read ahead, so it does not know how many samples "
                "training has received. Use StreamingDataLoader and its state_dict(), or pass the number of samples of this "
                "epoch that all ranks together have received: state_dict(num_samples=...)"
            )

    def here(self) -> EpochPosition:
        """The position to resume from, by what this object has delivered.

        StateError if it can not know: copies in other processes iterate, two iterations take turns, or other ranks have more
        batches than this one, which has had all of its own.
        """
        self.check_alone()
        if any((other := left()) is not None and (other.finished or other.samples != n) for left, n in self._left):
            raise StateError(
                "state_dict() is ambiguous: two iterators over this dataset are active. Continue one of them alone, or use a "
                "dataset object for each"
            )
        progress = self._progress
        if progress is None:
            return self._clock.peek()
        return self.after_epoch(progress.point, progress.plan) if progress.finished else progress.here()

    def after(self, samples: int, data_rank: DataRank, *, from_beginning: bool, ended: bool = False) -> EpochPosition:
        """The position to resume from, after ``samples`` of the epoch or, if not ``from_beginning``, of this run of it.

        StateError if no run has got to where that is. ``samples``: over all ranks. ``ended``: whether the caller has had the
        epoch that was begun last, and counts samples of the one after it.
        """
        if samples < 0:
            raise StateError(f"num_samples must be at least 0, got {samples}")
        begun = self._begun()
        ended = ended and begun is not None
        begun = self._clock.peek() if begun is None else begun
        begun = with_epoch_start(self.sample_order, begun.next_epoch() if ended else begun, data_rank)
        taken = samples - (begun.position if from_beginning else 0)
        if taken <= 0:
            return replace(begun, position=begun.position + taken, partial=0)
        plan = self.sample_order.run(begun, data_rank).plan
        # The samples that ranks repeat, to have equally many, count too.
        most = max(
            self.sample_order.epoch_size - begun.position, len(plan) * data_rank.batch_size * data_rank.world_size
        )
        if taken > most:
            raise StateError(
                f"num_samples={samples}: epoch {begun.epoch} has {most + samples - taken} at most; count the samples of the "
                "current epoch alone, over all ranks"
            )
        try:
            return _moved(begun, plan, plan.position_at(taken))
        except ConfigError as error:
            raise StateError(f"num_samples={samples}: {error}") from error

    @property
    def current_epoch(self) -> int:
        """Number of the epoch that was begun last, or that the next iteration begins."""
        return (self._begun() or self.upcoming()).epoch

    def latest(self, epoch: int | None, data_rank: DataRank, *, begun_here: bool = True) -> EpochPosition:
        """The position at which the iteration that began last did begin, or else the next one will.

        ``epoch``: another epoch, from its beginning. ``data_rank``: a rank. ``begun_here``: whether an epoch that has begun
        is that of this world; otherwise ``data_rank`` begins it anew.
        """
        begun = self._begun() or self.upcoming()
        if not begun_here:
            begun = self._clock.started(begun.epoch)
        if epoch is not None and epoch != begun.epoch:
            begun = EpochPosition(epoch, start=begun.start)
        return with_epoch_start(self.sample_order, begun, data_rank)

    def _begun(self) -> EpochPosition | None:
        """The position at which the iteration that began last, here or in workers, did begin."""
        if not self._clock.alone:
            # Workers iterate: the epoch that they are in is the last that has begun.
            return self._clock.started(self._clock.peek().epoch - 1)
        return None if self._progress is None else self._progress.point

    def state_after(
        self, start: EpochPosition, batches: int, data_rank: DataRank, *, ended: bool = False
    ) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``.

        StateError if it has ended, and other ranks have more. ``batches``: how many of this rank's were delivered. ``ended``:
        whether this rank was then told that there are no more.
        """
        start = with_epoch_start(self.sample_order, start, data_rank)
        if not batches and not ended:
            return self.state(start, data_rank)
        plan = self.sample_order.run(start, data_rank).plan
        if ended:
            return self.state(self.after_epoch(start, plan), data_rank)
        return self.state(_moved(start, plan, plan.position_after(batches)), data_rank)

    def after_epoch(self, point: EpochPosition, plan: Plan) -> EpochPosition:
        """The position to resume from after an iteration over ``plan``, begun at ``point``, has ended.

        StateError if other ranks have more batches than this one.
        """
        if others_have_more(plan):
            raise StateError(
                f"rank {plan.rank} has had all of its {len(plan)} batches of epoch {point.epoch}, and other ranks have more: "
                f"how many of them were delivered is not known here. Take the state of rank {plan.longest}, which has most; "
                f"or, when all ranks have ended the epoch, {self._all_ended}; or let all ranks end together with "
                "remainder='pad' or 'drop'"
            )
        return point.next_epoch()

    def worker_state(self, worker: LoaderWorker, data_rank: DataRank) -> dict[str, Any]:
        """The state of one DataLoader worker, for a loader that saves each worker's apart (torchdata's)."""
        progress = self._progress
        if progress is None:
            begun, batches, inside = self._resumed or (self._clock.peek(), 0, 0)
        else:
            # A loader's batches may have another size than the dataset's. A worker that has ended waits for the others.
            begun, (batches, inside) = progress.point, divmod(progress.samples, progress.plan.batch_size)
        part = {"number": worker.number, "count": worker.count, "batches": batches, "samples": inside}
        # Which samples these were depends on the world.
        part |= {"world_size": data_rank.world_size, "batch_size": data_rank.batch_size}
        return {**self.state(begun, data_rank), "worker": part}

    def load(self, state: Mapping[str, Any], worker: LoaderWorker, data_rank: DataRank, *, check: bool = True) -> None:
        """Make the next iteration resume where ``state`` was taken.

        StateError if it belongs to another data set, to other order settings, or to another worker, or this world can not
        resume there. ``check``: whether the batch size is known, to see that.
        """
        from stoker.pipeline.state.state import check_same_steps, read_state, read_worker_part, same_so_far

        own = read_worker_part(state, worker, data_rank)
        if own is None and same_so_far(state, self.sample_order):
            self.change(state)
            return
        point, sample_order = read_state(state, self.sample_order, data_rank)
        inside = bool(point.position or point.partial or any(own or ()))
        check_same_steps(state, self._chain, self._others, inside=inside)
        if check:
            run_from(sample_order, with_epoch_start(sample_order, point, data_rank), data_rank)
        mark = self._mark_of(state)
        if worker.token is None:  # for all workers the main process says it
            self._clock.thaw(mark)
        if own is not None:
            self.sample_order = sample_order  # of this worker alone
            self._resumed = point, *own
            # At once: of an epoch that has ended torchdata begins another one before the rest, which is nothing, is read.
            self._clock.skip_to(point.epoch)
        else:
            self.order_number += sample_order is not self.sample_order
            self.sample_order = sample_order
            self._clock.load(point, self.order_number)
        self._forget()

    def change(self, state: Mapping[str, Any], order: SampleOrder | None = None, *, goes_on: bool = False) -> None:
        """Continue where ``state`` was taken, with other streams or weights. StateError if more than these differs.

        ``order``: with other weights or streams. Default: that of this object, as it was made. ``goes_on``: whether an
        iteration that runs continues there, too.
        """
        from stoker.pipeline.state.state import check_same_steps, read_changed

        order = with_weights_of(self.sample_order, {}) if order is None else order
        point, sample_order = read_changed(state, order, logging.INFO if goes_on else logging.WARNING)
        mark = self._mark_of(state)
        if not goes_on and mark is not None and mark.lines:
            raise StateError(
                "change_streams=True gives samples other ids, and this state's run leaves some out by theirs (quarantine=): "
                'leave those out by subset=SkipIds(...) of their stream, and take "quarantine" out of the state'
            )
        check_same_steps(state, self._chain, self._others, inside=bool(point.position))
        self.sample_order = sample_order
        self.order_number += 1
        self._clock.thaw(mark if goes_on else None)
        self._clock.load(point, self.order_number)
        self._forget(goes_on=goes_on)

    def _mark_of(self, state: Mapping[str, Any]) -> Mark | None:
        if "quarantine" not in state:
            return None  # as most are
        from stoker.streams.quarantine import check_quarantine

        return check_quarantine(state, self._quarantine and self._quarantine[0])

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch; see :meth:`~stoker.pipeline.state.epoch_counter.NamedEpochs.name`."""
        if self._names.name(epoch):
            self._forget()

    def follow(self, epoch: NamedEpoch | None) -> None:
        """Begin next the epoch that the ``datasets`` package around this reads, where it was named."""
        if self._names.follow(epoch):
            self._forget()

    def is_changed(self, progress: Progress) -> bool:
        """Whether the order of an iteration that runs was changed, and it continues in the new one if it is not its end."""
        return self._changed is progress

    def continues(self, progress: Progress) -> bool:
        """Whether something is left of the epoch of such an iteration, which begins again then."""
        self._changed = None
        return self.upcoming().epoch == progress.point.epoch

    def _forget(self, *, goes_on: bool = False) -> None:
        """End all iterations that run, but for the one that ``goes_on``; the next one begins where a state says."""
        self.loads += 1
        if not goes_on:
            self._changed = None
        elif self._progress is not None and not self._progress.finished:
            self._changed = self._progress
        for one in (self._progress, *(left() for left, _ in self._left)):
            if one is not None:
                one.supersede()
        self._progress, self._left = None, []

    def __getstate__(self) -> dict[str, Any]:
        # What was delivered here was not delivered by the copy.
        return {**self.__dict__, "_progress": None, "_changed": None, "_left": []}


def _moved(point: EpochPosition, plan: Plan, position: int) -> EpochPosition:
    """Another position of the same epoch, or the next epoch where nothing of this one is left."""
    return point.next_epoch() if position >= plan.end else replace(point, position=position, partial=0)

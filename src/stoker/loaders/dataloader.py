"""``StreamingDataLoader``: torch's DataLoader over a dataset of stoker, with a state that counts the batches yielded."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from stoker.arguments import at_least, check_argument, checked
from stoker.cluster import World
from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.spans.recorder import WaitClock, note_settings
from stoker.concurrency.threads import close_at_exit
from stoker.concurrency.user_code import UserFunction
from stoker.errors import ConfigError, MissingPackageError, StateError
from stoker.lazy import told
from stoker.loaders.dataset import StreamingDataset
from stoker.loaders.dataset_methods.opened import BatchSize
from stoker.loaders.protocol import CloseOnExit
from stoker.loaders.trainers.consumers import looks_only, reads_ahead
from stoker.loaders.trainers.lightning_progress import follow_lightning, load_for_lightning, saved_by_lightning
from stoker.order.capabilities import makes_batches
from stoker.order.global_batches import Remainder
from stoker.order.sample_order import EpochPosition
from stoker.pipeline.batch_groups import ungroup
from stoker.pipeline.collate import as_tensors, collate
from stoker.pipeline.first_fetches import FirstFetches
from stoker.pipeline.state.resume import superseded_error
from stoker.pipeline.stats.stats import StreamStats

try:
    from torch.utils.data import DataLoader

    from stoker.loaders.column_batches import CollatePresent, ColumnBatches, SamplesInPlaces, to_send
    from stoker.loaders.loader_options import LoaderOptions, check_options
except ModuleNotFoundError as error:
    raise MissingPackageError(f"StreamingDataLoader needs torch ({error}): pip install 'stoker[torch]'") from error

if TYPE_CHECKING:  # most loaders are over datasets, which need nothing of tokens
    from stoker.loaders.parquet_loader import StreamingParquetLoader

    Source: TypeAlias = StreamingDataset | StreamingParquetLoader
else:
    Source = Any  # _check_source looks at it

__all__ = ["StreamingDataLoader", "as_tensors", "collate"]

logger = logging.getLogger(__name__)


class StreamingDataLoader(CloseOnExit, DataLoader[Any]):
    """A ``DataLoader`` whose run can be stopped in the middle of an epoch and resumed, also on a cluster of another size.

    ``state_dict`` and ``load_state_dict`` follow torchdata's protocol, so trainers that save a ``StatefulDataLoader`` save
    this. The state counts batches that were yielded, not those that workers have prepared.

    Over a :class:`~stoker.loaders.parquet_loader.StreamingParquetLoader` it yields the batches that the loader makes
    (:class:`~stoker.tokens.batch.LMBatch`), or what ``collate_fn`` makes of each:
    ``collate_fn=lambda batch: batch.torch("input_ids", "labels")``. Each worker decodes all that the rank reads, so
    the loader's own ``read_threads`` are the better way to more speed.

    Args:
        dataset: what to read: a ``StreamingDataset`` or a ``StreamingParquetLoader``.
        batch_size: samples, or rows of tokens, in a batch of this rank. Default: the dataset's, which it must agree with.
        columnar: batches are read as whole columns: a dict of tensors (of lists for columns that are not arrays), without
            work for each sample and without ``collate_fn``. Much faster for small samples. Not for a
            ``StreamingParquetLoader``, whose batches are arrays already. Always so with ``batch_map`` or ``batch_by``.
        **options: DataLoader's other arguments, see :class:`LoaderOptions`. ``collate_fn`` is :func:`collate` unless given.

    Raises:
        ConfigError: arguments cannot be combined, or do not apply to this dataset.
    """

    @checked
    def __init__(
        self,
        dataset: Source,
        batch_size: int | None = None,
        *,
        columnar: bool = False,
        **options: Unpack[LoaderOptions],
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            _check_source(type(self).__name__, dataset)
        check_options(options)
        if (collate_fn := options.get("collate_fn")) is not None:
            options["collate_fn"] = UserFunction(collate_fn, "collate_fn")
        if (worker_init_fn := options.get("worker_init_fn")) is not None:
            options["worker_init_fn"] = UserFunction(worker_init_fn, "worker_init_fn")
        at_least(1, batch_size=batch_size)
        if batch_size is None and dataset.batch_size is None:
            logger.warning("neither the StreamingDataLoader nor its dataset has batch_size=: each batch has one sample")
        if batch_size is None:
            batch_size = dataset.batch_size if dataset.batch_size is not None else 1
        if dataset.batch_size is None:
            dataset.batch_size = batch_size
        if dataset.batch_size != batch_size:
            differs = f"differs from batch_size={dataset.batch_size} of its dataset: pass it to the dataset only"
            if isinstance(dataset, StreamingDataset) and _batch_by(dataset):
                differs = "has no meaning, as batch_by= of its dataset decides how large batches are: leave it out"
            raise ConfigError(f"batch_size={batch_size} of the StreamingDataLoader {differs}")
        BatchSize.fix(dataset, "the StreamingDataLoader over it")
        self._stream = dataset
        self._pass: _Pass | None = None
        self._open: Any = None
        self._interleaved = False
        self._looked_from: dict[str, Any] | None = None
        self._only_ends = False
        self._fetched_first = False
        self._order_number = 0
        self._changed: _Pass | None = None
        self._drop_last = options.get("drop_last", False)
        if not isinstance(dataset, StreamingDataset):
            if columnar or options.get("drop_last"):
                raise ConfigError(
                    "columnar= and drop_last= have no meaning here: batches are arrays already, and how many there are is "
                    "the loader's, see StreamingParquetLoader(remainder=)"
                )
            if options.get("collate_fn") is None:
                if options.get("pin_memory"):
                    raise ConfigError(
                        "pin_memory=True pins tensors, and these batches hold NumPy arrays: give collate_fn= too, such as "
                        'lambda batch: batch.torch("input_ids", "labels")'
                    )
                options["collate_fn"] = _as_it_is
            self._init(dataset, None, options)
        elif (takes_batch := told(dataset, "chain").takes_batch or _batch_by(dataset)) or columnar:
            reads = "columnar=True" if columnar else takes_batch
            if options.get("collate_fn") is not None:
                raise ConfigError(
                    f"{reads} reads whole columns, so there is nothing for collate_fn to collate: what it does with samples, "
                    "dataset.batch_map(function) does with the columns of a batch"
                )
            dataset.check_columns_allowed(reads, "__iter__")
            changes = dataset.leaves_out or takes_batch
            if self._drop_last and changes:
                raise ConfigError(
                    f"drop_last=True can not tell a partial batch from one that {changes} has changed: give "
                    "remainder='drop' to the dataset"
                )
            options["collate_fn"] = to_send
            options["drop_last"] = False  # torch drops nothing where it does not batch; see _most
            self._init(ColumnBatches(dataset, full_only=self._drop_last), None, options)
        else:
            if dataset.leaves_out and dataset.overrides("__iter__"):
                raise ConfigError(
                    f"{type(dataset).__name__}.__iter__() hides which samples are left out of a batch: with it "
                    f"{dataset.leaves_out} can not keep ranks in step; use 'replace'"
                )
            make = options.get("collate_fn") or collate
            own = options.get("collate_fn") is not None
            options["collate_fn"] = CollatePresent(make, of_none=own) if dataset.leaves_out else make
            self._init(SamplesInPlaces(dataset) if dataset.leaves_out else dataset, batch_size, options)

    def _init(self, dataset: Any, batch_size: int | None, options: LoaderOptions) -> None:
        try:
            super().__init__(dataset, batch_size=batch_size, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"StreamingDataLoader: torch's DataLoader refuses its arguments: {error}") from error
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: workers that live on over epochs are the parent's."""
        _abandoned.extend((self._iterator, self._open))
        self._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        # What was delivered here was not delivered by the copy.
        return {
            **self.__dict__,
            "_iterator": None,
            "_open": None,
            "_pass": None,
            "_changed": None,
            "_interleaved": False,
            "_looked_from": None,
            "_only_ends": False,
            "_fetched_first": False,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        reset_in_children(self)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        load_for_lightning(self)
        if self._only_ends:
            self._only_ends = False
            return iter(())
        return close_at_exit(self._batches())

    def _begin_iterating(self) -> Any:
        try:
            return super().__iter__()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if not self.num_workers or (self.multiprocessing_context or multiprocessing).get_start_method() == "fork":
                raise
            raise ConfigError(
                f"the dataset can not be sent to a worker ({error}): define functions at the top of a module (transform=, a "
                "chain's, collate_fn=, worker_init_fn=), or fork the workers: multiprocessing_context='fork'"
            ) from error

    def _batches(self) -> Iterator[Any]:
        self._changed = None
        ahead, looks = reads_ahead(), looks_only()  # which look at what called this generator
        while (current := (yield from self._batches_of_run(ahead=ahead, looks=looks))) is not None:
            self._changed, looks = None, False
            if self._stream.upcoming().epoch != current.start.epoch:  # weights were changed behind the last batch
                return

    def _batches_of_run(self, *, ahead: bool, looks: bool) -> Generator[Any, None, _Pass | None]:
        """Batches until the end, or until weights are changed: then gives the iteration, which begins again."""
        self._end_look()
        self._note_settings()
        if looks:
            self._looked_from = self.state_dict()
        self._interleaved = False
        left = 0 if self._pass is None else self._pass.yielded
        current = self._pass = _Pass(self._stream.upcoming(), self._stream.states_loaded, ahead=ahead)
        pid, first = os.getpid(), None
        if self.num_workers:
            # A worker has no connection to the store. Without workers the dataset compares by itself.
            self._stream.compare_ranks(current.start, left)
            if isinstance(self._stream, StreamingDataset) and not self._fetched_first:
                # Before the workers are there: they would claim the shards first, and then make their connections.
                self._fetched_first = True
                first = FirstFetches(self._stream.epoch_reader, self.num_workers, self.world.local_world_size)
                first.begin(current.start, self._stream.batch_size or 1)
        columns = self.dataset if self.num_workers and isinstance(self.dataset, ColumnBatches) else None
        if self._order_number != self._stream.order_number:
            self._end_workers()  # those that live on would read the order that they were started with
            self._order_number = self._stream.order_number
        with contextlib.nullcontext() if columns is None else columns.grouping():
            batches = self._open = self._begin_iterating()
        try:
            in_order = batches if columns is None else ungroup(batches)
            waits = WaitClock()
            waits.begin()
            for batch in islice(in_order, self._most(current.start)):
                waits.end(self._stream.batch_size or 1)
                current.yielded += 1
                yield batch
                if self.num_workers and pid != os.getpid():
                    raise StateError(
                        "the DataLoader workers of this iteration serve the process that this one was forked from: begin "
                        "another iteration in this process"
                    )
                if self._open is None:
                    raise StateError("the loader was closed in the middle of this iteration: begin another one")
                if self._changed is current:
                    return current
                if self._stream.states_loaded != current.states_loaded:
                    raise superseded_error()
                if self._pass is not current:
                    self._interleaved = True
                waits.begin()
        finally:
            if self._open is batches:
                self._open = None
            if pid != os.getpid():
                _abandoned.append(batches)
            elif self.num_workers and not self.persistent_workers:
                batches._shutdown_workers()  # an error's traceback would hold them until garbage is collected
            if first is not None:
                first.end()  # what has not begun is not needed any more
            if self._pass is current:
                self._end_look()
        waits.flush()
        current.ended = True
        return None

    def _note_settings(self) -> None:
        """Tell a trace what this loader has."""
        noted: dict[str, Any] = {"num_workers=": self.num_workers, "batch_size=": self._stream.batch_size}
        if isinstance(self._stream, StreamingDataset) and not isinstance(self.dataset, ColumnBatches):
            noted["columnar="] = False
        note_settings("StreamingDataLoader", noted)

    def _end_look(self) -> None:
        """Go back to where an iteration began that only looked at batches: training begins with these."""
        state, self._looked_from = self._looked_from, None
        if state is not None:
            self.load_state_dict(state)

    def _most(self, start: EpochPosition) -> int | None:
        """Batches to yield from ``start`` where partial ones are left out; by torch's rule alone ranks may end apart."""
        if not self._drop_last or not isinstance(self._stream, StreamingDataset) or self._stream.overrides("__iter__"):
            return None
        epoch_reader, size = self._stream.epoch_reader, self._stream.batch_size or 1
        steps = epoch_reader.plan(start, size).full_steps
        if not steps and not start.position and self._stream.epoch_size:
            raise ConfigError(
                f"drop_last=True leaves nothing of epoch {start.epoch}: its {self._stream.epoch_size} samples do not make a "
                f"batch of {size} for every rank. Use a smaller batch_size, fewer ranks or more samples"
            )
        return steps

    def __len__(self) -> int:
        if not isinstance(self._stream, StreamingDataset):
            return len(self._stream)
        if self._stream.overrides("__len__"):
            size = self._stream.batch_size or 1
            return len(self._stream) // size if self._drop_last else -(-len(self._stream) // size)
        return self._count(self._stream.upcoming().epoch_begin())

    @property
    def world(self) -> World:
        """This process's rank and world."""
        found: World = told(self._stream, "world")
        return found

    @property
    def remainder(self) -> Remainder:
        """Treatment of ranks whose parts of an epoch do not end together: the dataset's; ``drop_last`` drops, too."""
        return "drop" if self._drop_last else told(self._stream, "remainder")

    def stats(self) -> StreamStats:
        """Statistics of reading, over all workers."""
        return self._stream.stats()

    def close(self) -> None:
        """End the workers, and close the dataset. Iterating again starts them anew."""
        self._end_workers()
        self._stream.close()

    def _end_workers(self) -> None:
        iterator: Any = self._iterator if self._open is None else self._open
        self._open = None
        self._iterator = None
        if self.num_workers and iterator is not None:
            iterator._shutdown_workers()

    def state_dict(self) -> dict[str, Any]:
        """The state of training after the batches that this loader has yielded.

        Raises:
            StateError: two iterations over this loader take turns; or this rank has ended an epoch of which other ranks have
                more (``remainder="uneven"``); or a subclass of the dataset overrides ``__iter__`` so that batches do not tell
                how many samples it took.
        """
        dataset, (state, batches) = self._stream, self._counted_state()
        if not isinstance(dataset, StreamingDataset):
            return state
        size = dataset.batch_size or 1
        samples = batches * size * dataset.epoch_reader.data_rank(size).world_size
        if dataset.overrides("__iter__"):
            if dataset.overrides("state_dict"):
                return dataset.state_dict(samples, False)
            self._check_counts(dataset, state)
            return state
        return dataset.state_for_loader(state, samples)

    def _counted_state(self) -> tuple[dict[str, Any], int]:
        """The state after the batches that were yielded, without what a subclass of the dataset adds; and their number."""
        self._end_look()
        if self._interleaved:
            raise StateError(
                "state_dict() is ambiguous: two iterators over this loader are active. Continue one of them alone, or use a "
                "dataset and a loader for each"
            )
        dataset, current = self._stream, self._pass
        if current is None or current.states_loaded != dataset.states_loaded:
            if isinstance(dataset, StreamingDataset):
                return StreamingDataset.state_dict(dataset), 0
            return dataset.state_dict(), 0
        untrained, ended = saved_by_lightning(self)
        batches = max(0, current.trained - untrained)
        return dataset.state_after(current.start, batches, ended=ended or current.ended), batches

    def _check_counts(self, dataset: StreamingDataset, state: Mapping[str, Any]) -> None:
        """See that batches tell how many samples a subclass's ``__iter__`` has taken. StateError if they do not."""
        if self.num_workers or StreamingDataset.state_dict(dataset) != state:
            raise StateError(
                f"{type(dataset).__name__}.__iter__() may take another number of samples of the dataset than it gives, so "
                "batches do not tell where it is: override __getitem__ instead, which gives one sample for one; or override "
                "state_dict(), too"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where ``state`` was taken, with the next iteration. One that is running ends with a ``StateError``.

        Raises:
            StateError: it belongs to another dataset, or to other order settings, or was taken inside a batch.
        """
        if isinstance(state, Mapping) and state.get("partial"):
            raise StateError(
                "this state was taken inside a batch, by iterating over samples: a loader can only go on between batches"
            )
        self._stream.load_state_dict(state)
        self._interleaved, self._changed = False, None
        self._only_ends = follow_lightning(self, self._steps)

    @checked
    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of the dataset's streams, or of the sources of a mixture of tokens, from the next batch on; see
        :meth:`stoker.loaders.dataset.StreamingDataset.set_weights`.

        A loop over this loader that is running continues with the new weights. Batches that workers have prepared are
        dropped, and the workers start again.

        Args:
            weights: the proportion of each stream or source, by its name.

        Raises:
            ConfigError: as there; or a trainer has taken a batch before it trains on it: give the dataset a ``Schedule``.
        """
        dataset, current = self._stream, self._pass
        running = current is not None and not current.ended and current.states_loaded == dataset.states_loaded
        if running and (saved_by_lightning(self)[0] or (current and current.trained != current.yielded)):
            raise ConfigError(
                "the trainer around this loader has taken a batch with the old weights that it has not trained on: give the "
                "dataset a Schedule"
            )
        state, _ = self._counted_state()
        if isinstance(dataset, StreamingDataset) and dataset.overrides("__iter__"):
            self._check_counts(dataset, state)
        changed = self._changed or (current if running else None)
        dataset.change_weights(weights, state)
        self._changed = changed

    def _steps(self) -> tuple[int, int]:
        """Batches of the epoch that comes next, and those of it that are left."""
        upcoming = self._stream.upcoming()
        return self._count(upcoming.epoch_begin()), self._count(upcoming)

    def _count(self, start: EpochPosition) -> int:
        plan = self._stream.plan(start)
        return plan.full_steps if self._drop_last else len(plan)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver this epoch; see :meth:`stoker.loaders.dataset.StreamingDataset.set_epoch`."""
        upcoming = self._stream.upcoming()
        self._stream.set_epoch(epoch)
        if self._stream.upcoming() != upcoming:
            self._pass, self._interleaved = None, False


@dataclass(slots=True)
class _Pass:
    """One iteration over a loader.

    Attributes:
        start: where it began.
        states_loaded: how many states the dataset had loaded by then.
        yielded: batches that were handed out.
        ended: whether the consumer was told that there are no more.
        ahead: whether the consumer asks for each batch before it hands out the one before.
    """

    start: EpochPosition
    states_loaded: int
    yielded: int = 0
    ended: bool = False
    ahead: bool = False

    @property
    def trained(self) -> int:
        """Batches that training has had."""
        return self.yielded - (self.ahead and not self.ended and self.yielded > 0)


# Iterators of the parent's, in a process that was forked from it: their finalisers would end its workers.
_abandoned: list[Any] = []


def _check_source(owner: str, dataset: Any) -> None:
    from stoker.loaders.parquet_loader import StreamingParquetLoader

    remedy = "for an LMStream use torch's DataLoader(stream, batch_size=None), for anything else torch's DataLoader"
    check_argument(owner, "dataset", StreamingDataset | StreamingParquetLoader, dataset, remedy)


def _batch_by(dataset: StreamingDataset) -> str:
    """The dataset's setting by which its order makes batches; empty where there is none."""
    return "batch_by=" if makes_batches(dataset.epoch_reader.sample_order) else ""


def _as_it_is(batch: Any) -> Any:
    return batch

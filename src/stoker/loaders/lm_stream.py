"""``LMStream``: batches for language models from any dataset, made of its documents as they are read."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Unpack, cast

import numpy as np
from numpy.typing import DTypeLike

from stoker.arguments import at_least, checked
from stoker.cluster import LoaderWorker, World
from stoker.cluster.call_stack import called_from
from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.spans.recorder import Stage, note_settings, span
from stoker.concurrency.threads import close_at_exit
from stoker.errors import ConfigError, StateError
from stoker.lazy import told
from stoker.loaders.dataset_methods.chained import ChainMethods, tokenized
from stoker.loaders.dataset_methods.opened import BatchSize
from stoker.loaders.iterable import WHOLE_BATCHES, TorchIterable, refuse_collating
from stoker.loaders.protocol import CloseOnExit
from stoker.loaders.trainers.consumers import reads_ahead
from stoker.loaders.trainers.lightning_progress import follow_lightning, load_for_lightning
from stoker.order.global_batches import Remainder
from stoker.order.sample_order import EpochPosition
from stoker.pipeline.state.resume import superseded_error
from stoker.pipeline.stats.stats import StreamStats
from stoker.reading.chain import Chain
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.base import LAYOUTS, LayoutName, RowMaker, layout_class, make_layout, state_number
from stoker.tokens.layouts.bin_packing import TooLong
from stoker.tokens.settings import LMOptions, LMSettings
from stoker.tokens.sources.document_column import DocumentColumn, as_function
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Batch, Ids

__all__ = ["DatasetLike", "LMStream"]

_AT_ONCE = 64
_WHOLE = "it is not complete, or was changed: give what LMStream.state_dict() returned, as it was"
# Marks are looked through for some that are not needed when there are so many.
_MOST_MARKS = 1 << 12


class DatasetLike(Protocol):
    """The members of :class:`~stoker.StreamingDataset` that an :class:`LMStream` uses."""

    batch_size: int | None

    @property
    def world(self) -> World: ...
    @property
    def remainder(self) -> Remainder: ...
    @property
    def counts(self) -> Counts: ...
    def __len__(self) -> int: ...
    def batches(self, batch_size: int | None = None) -> Iterator[Batch]: ...
    def upcoming(self) -> EpochPosition: ...
    def check_alone(self) -> None: ...
    def state_after(self, start: EpochPosition, batches: int) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def stats(self) -> StreamStats: ...
    def close(self) -> None: ...


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A position in the dataset: the number of the next document, and the batches from ``start`` that lead there."""

    document: int
    start: EpochPosition
    batches: int


class LMStream(CloseOnExit, TorchIterable[LMBatch]):
    """Makes batches for language models from any dataset: from a column of tokens, or from text with a tokenizer.

    Documents come in the dataset's order, and are joined or packed in this order. The number of batches is not known in
    advance, and may differ between ranks: ranks in lockstep should take the same number of batches of an ``endless``
    stream. (:class:`~stoker.loaders.parquet_loader.StreamingParquetLoader` knows the number in advance.)

    ``on_bad_sample=`` of the dataset holds, also for what the tokenizer raises for a text: documents that are left out are
    not joined or packed; where each document is a row, batches are shorter by them, and may have no row.

    torch's ``DataLoader`` takes a stream as it is, with ``batch_size=None``: each of its workers makes batches of every n-th
    batch of documents. States are of iterations without workers.

    A state is this rank's; a resumed stream gives exactly the batches that were left, in a world of the same size. It holds
    numbers, not tokens: documents that were read but not delivered are read again.

    Proportions of a dataset's streams count its documents, not their tokens.

    Args:
        dataset: a :class:`~stoker.StreamingDataset`. If it has no ``batch_size``, it gets one, of documents read at a time.
        column: of lists or arrays of token ids, of ``bytes`` that hold ``token_dtype``, or of text.
        batch_size: rows in a batch.
        seq_len: tokens a row.
        layout: as for the loader. ``"pad"`` and ``"truncate"`` make a row of each document.
        tokenizer: for text: a function from texts to lists of ids, or a ``tokenizers.Tokenizer``, for which ``<|endoftext|>``
            in a text is text like any other; a function does as it does.
        token_dtype: what ``bytes`` hold, such as ``"uint16"``.
        endless: continue with the next epoch's documents where one ends; otherwise an iteration is an epoch.
        too_long: as for the loader.
        lookahead: documents that are packed together.
        **options: labels, padding and dtype: as for the loader.

    Raises:
        ConfigError: arguments that make no sense.
    """

    @checked(dataset="such as StreamingDataset(path)")
    def __init__(
        self,
        dataset: DatasetLike,
        column: str,
        batch_size: int,
        seq_len: int,
        *,
        layout: LayoutName = "concat",
        tokenizer: Any = None,
        token_dtype: DTypeLike | None = None,
        endless: bool = False,
        too_long: TooLong = "split",
        lookahead: int = 8192,
        **options: Unpack[LMOptions],
    ) -> None:
        at_least(1, batch_size=batch_size, lookahead=lookahead)
        if token_dtype is not None and np.dtype(token_dtype).kind not in "iu":
            raise ConfigError(f"token_dtype={token_dtype!r}: tokens are integers, like uint16")
        self._settings = LMSettings(seq_len, **options)
        self._layout = make_layout(layout, self._settings, too_long)
        self._rows = self._layout.document_rows
        if dataset.batch_size is None:
            dataset.batch_size = batch_size if self._rows else _AT_ONCE
        BatchSize.fix(dataset, "the LMStream over it")
        if self._rows and dataset.batch_size != batch_size:
            raise ConfigError(
                f"batch_size={batch_size} here and {dataset.batch_size} in the dataset: with layout={layout!r} a row is a "
                "sample, so they must be the same"
            )
        if getattr(dataset, "ids", None) is not None:
            raise ConfigError(
                "an LMStream delivers tokens, which have no ids: leave ids= of the dataset out; ids_of(step) of a dataset "
                "tells which samples its batches have"
            )
        if not self._rows and any(one.weight.proportion is not None for one in getattr(dataset, "streams", ())):
            logger.warning(
                "the proportions of the dataset's streams count documents, not the tokens of an LMStream: to mix by tokens, "
                "divide each by the mean length of its stream's documents, or mix token files in a StreamingParquetLoader"
            )
        chain = getattr(dataset, "chain", None)
        if self._rows and isinstance(chain, Chain) and chain.makes_several:
            raise ConfigError(
                f"{chain.makes_several} makes batches longer, and with layout={layout!r} each has {batch_size} rows at most: "
                "use a layout that joins documents"
            )
        self._column = column
        self._batch_size = batch_size
        self._tokenizes = tokenizer is not None
        tokenize = None if tokenizer is None else as_function(tokenizer)
        if tokenize is not None and isinstance(dataset, ChainMethods):
            made = tokenized(dataset, column, tokenize, self._settings.limit)
            if made is not None:
                dataset, tokenize = cast(DatasetLike, made), None
        self._dataset = dataset
        self._source = DocumentColumn(column, tokenize, token_dtype)
        self._endless = endless
        self._lookahead = lookahead
        self._maker: RowMaker | None = None
        self._marks: deque[_Mark] = deque()
        # A state that was loaded, until an iteration has gone back to it.
        self._resumed: Mapping[str, Any] | None = None
        self._only_ends = False
        self._current: object = None
        # The state before the batch that was yielded last, where that waits until the one before it was trained on.
        self._before: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<LMStream of {self._dataset!r}, {self._batch_size} x {self._settings.seq_len}, {self._layout.name}>"

    def __iter__(self) -> Iterator[LMBatch]:
        """This rank's batches of the next epoch, or of all that follow. One iteration at a time.

        Raises:
            StateError: another iteration has begun meanwhile, or a state was loaded.
            ConfigError: the stream is ``endless``, and an epoch has no documents for this rank; or a state was loaded, and
                this is a ``DataLoader``'s worker.
        """
        load_for_lightning(self)
        refuse_collating(LMBatch, WHOLE_BATCHES)
        if self._resumed is not None and LoaderWorker.detect().token is not None:
            raise ConfigError(
                "a state of an LMStream is resumed in one process, and this is a DataLoader's worker: iterate over the "
                "stream itself, or use num_workers=0"
            )
        if self._only_ends:
            self._only_ends = False
            return iter(())
        return close_at_exit(self._iterate())

    def _iterate(self) -> Iterator[LMBatch]:
        tokenizer = {"tokenizer=": True} if self._tokenizes else {}
        note_settings("LMStream", {"batch_size=": self._batch_size, **tokenizer})
        current = self._current = object()
        self._maker = None
        if self._resumed is not None:
            self._dataset.load_state_dict(self._resumed["dataset"])
        counts = told(self._dataset, "counts")
        batches = self._rows_of_documents() if self._rows else self._joined_or_packed(self._resumed)
        ahead = reads_ahead()
        while True:
            self._before = None
            before = self.state_dict() if ahead else None
            with span(Stage.WAIT, self._batch_size or 1):
                batch = next(batches, None)
            if batch is None:
                return
            self._before = before
            counts.token_batch(batch.num_tokens, batch.input_ids.size, batch.cut_documents, batch.cut_tokens)
            yield batch
            if self._current is None:
                raise superseded_error()
            if self._current is not current:
                raise StateError(
                    "another iteration over this LMStream has begun, or a state was loaded: continue that one, or make a "
                    "stream with a dataset of its own"
                )

    def __len__(self) -> int:
        """Batches of this rank in an epoch, with the layouts that make a row of each document.

        Raises:
            TypeError: with the others, and of an endless stream, only iterating tells.
            ConfigError: transformers' ``Trainer`` trains on the stream, and it is not endless.
        """
        if not self._endless and called_from("transformers.trainer", "set_initial_training_values"):
            raise ConfigError(
                "Trainer counts epochs, and an LMStream does not: a run that resumes in the second one would begin with the "
                "first, and ranks may end apart. Give LMStream(endless=True), and TrainingArguments(max_steps=)"
            )
        if self._endless or not self._rows:
            known = " or ".join(repr(name) for name in LAYOUTS if layout_class(name).document_rows)
            raise TypeError(
                f"how many batches an LMStream makes is known only with layout={known}, not with "
                f"{self._layout.name!r}{' and endless=True' if self._endless else ''}; StreamingParquetLoader knows it"
            )
        return math.ceil(len(self._dataset) / self._batch_size)

    @property
    def world(self) -> World:
        """This process's rank and world."""
        found: World = told(self._dataset, "world")
        return found

    @property
    def remainder(self) -> Remainder:
        """The dataset's where each document is a row; otherwise ranks end when their documents do, ``"uneven"``."""
        return told(self._dataset, "remainder") if self._rows else "uneven"

    def stats(self) -> StreamStats:
        """Statistics of the dataset's reading, and of the tokens that were delivered."""
        return self._dataset.stats()

    def close(self) -> None:
        """Close the dataset. Iterating again opens its files anew."""
        self._dataset.close()

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank after the batch that was yielded last; JSON-serialisable.

        Raises:
            ConfigError: in a ``DataLoader``'s worker.
            StateError: such workers iterate, which run ahead of what was yielded.
        """
        if LoaderWorker.detect().token is not None:
            raise ConfigError("a DataLoader's worker has no state to resume from: iterate in the main process")
        world = told(self._dataset, "world")
        state: dict[str, Any] = {
            "version": 1,
            "settings": self._identity(),
            "rank": world.rank,
            "world_size": world.world_size,
        }
        if self._resumed is not None:
            return dict(self._resumed)
        if self._before is not None:
            return self._before
        self._dataset.check_alone()
        maker = None if self._maker is None else self._maker.state_dict()
        if maker is None and not self._marks:
            return {**state, "dataset": self._dataset.state_after(self._dataset.upcoming(), 0)}
        if maker is None:
            mark = self._marks[-1]
            return {**state, "dataset": self._dataset.state_after(mark.start, mark.batches)}
        self._forget_before(maker)
        mark = self._marks[0]
        dataset = self._dataset.state_after(mark.start, mark.batches)
        return {**state, "dataset": dataset, "document": mark.document, "maker": maker}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume where ``state`` was taken. One that is running ends with a ``StateError``.

        Raises:
            StateError: it belongs to another rank or world, to other settings, or to another dataset; says what differs.
        """
        world = told(self._dataset, "world")
        mine = {"rank": world.rank, "world_size": world.world_size, "settings": self._identity(), "version": 1}
        if not isinstance(state, Mapping) or not isinstance(state.get("dataset"), Mapping):
            raise StateError(
                "this is not a state of an LMStream, as it has no 'dataset': give what LMStream.state_dict() returned, whole"
            )
        for name, value in mine.items():
            if state.get(name) != value:
                raise StateError(
                    f"this state's {name} is {state.get(name)!r}, here it is {value!r}: what this rank has read and not "
                    "delivered fits nobody else"
                )
        maker = state.get("maker")
        if maker is not None:
            if not isinstance(maker, Mapping):
                raise StateError(f"this state's 'maker' should be a dict, found {maker!r}: {_WHOLE}")
            if state_number(state, "document") > state_number(maker, "document"):
                raise StateError(f"this state's 'document' lies behind that of its 'maker': {_WHOLE}")
        elif "document" in state:
            raise StateError(f"this state has a 'document' and no 'maker': {_WHOLE}")
        self._dataset.load_state_dict(state["dataset"])
        self._current = self._maker = self._before = None
        self._marks.clear()
        self._resumed = dict(state)
        begins = maker is None and self._dataset.upcoming() == self._dataset.upcoming().epoch_begin()
        self._only_ends = follow_lightning(self, lambda: (1, 1) if begins else (0, 1))

    def _forget_before(self, maker: Mapping[str, Any]) -> None:
        """Drop marks of batches of which nothing is needed any more."""
        first = min([maker["document"], *(held[0] for held in maker.get("held", ()))])
        while len(self._marks) > 1 and self._marks[1].document <= first:
            self._marks.popleft()

    def __getstate__(self) -> dict[str, Any]:
        # What was read here was not read by the copy.
        return {**self.__dict__, "_maker": None, "_marks": deque(), "_current": None, "_before": None}

    # -- within ----------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "layout": self._layout.name,
            "column": self._column,
            "seq_len": self._settings.seq_len,
            "batch_size": self._batch_size if self._rows else None,
            "endless": self._endless,
            "dataset_batch_size": self._dataset.batch_size,
        }

    def _rows_of_documents(self) -> Iterator[LMBatch]:
        for documents in self._read(0):
            read = self._marks.pop()
            rows = self._layout.rows(documents, self._marks[-1].document)
            self._marks.append(read)  # where they make no rows, a state is of the batch before
            self._resumed = None
            yield rows
        self._resumed = None  # also where the state left nothing of the epoch

    def _joined_or_packed(self, resumed: Mapping[str, Any] | None) -> Iterator[LMBatch]:
        first = 0 if resumed is None else int(resumed.get("document", 0))
        source = self._read(first)
        state = None if resumed is None else resumed.get("maker")
        # What was read before the state was taken, and is needed again.
        again: list[Ragged] = []
        count = 0
        while state is not None and first + count < int(state["document"]):
            documents = next(source, None)
            if documents is None:
                raise StateError(
                    f"the dataset ends at document {first + count}, before {state['document']}: has it changed?"
                )
            again.append(documents)
            count += len(documents)
        known = Ragged.concat(again)

        def fetch(numbers: Ids) -> Ragged:
            return known.take(numbers - first)

        maker = self._maker = self._layout.row_maker(self._batch_size, self._lookahead, state, fetch)
        self._resumed = None
        rest = known[maker.next_document - first :] if again else known
        yield from maker.feed(rest)
        for documents in source:
            yield from maker.feed(documents)
        yield from maker.finish()
        self._maker = None
        self._marks.clear()

    def _read(self, first: int) -> Iterator[Ragged]:
        """The dataset's documents, a batch of it at a time; notes how to get back to each."""
        self._marks.clear()
        number = first
        while True:
            start = self._dataset.upcoming()
            self._marks.append(_Mark(number, start, 0))
            read = 0
            for read, batch in enumerate(self._dataset.batches(), 1):
                if len(self._marks) > _MOST_MARKS:
                    if self._maker is None:
                        self._marks.popleft()
                    else:
                        self._forget_before(self._maker.state_dict())
                documents = self._source.documents(batch, number)
                number += len(documents)
                self._marks.append(_Mark(number, start, read))
                yield documents
            if not self._endless:
                return
            if not read and not start.position:
                raise ConfigError(
                    f"epoch {start.epoch} has no documents for rank {self.world.rank}, and an endless stream would look "
                    "for the next one for ever: use fewer ranks, a smaller batch_size of the dataset or more data"
                )

"""A column of any dataset as a source of tokens: token ids as they are stored, or texts through a tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final, Protocol

import numpy as np
import xxhash
from numpy.typing import DTypeLike

from stoker.arguments import checked, must_know
from stoker.concurrency.user_code import pass_exits
from stoker.errors import ConfigError, CorruptDataError, SampleError
from stoker.order.capabilities import makes_batches
from stoker.order.native import NativeOrder
from stoker.order.sample_order import SampleOrder
from stoker.order.selection import dense_starts
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.stages.tokenize import check_tokenized
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.chain import Chain, as_chain
from stoker.reading.sample_errors import located, location_of, url_of_shard
from stoker.reading.samples import read_samples
from stoker.reading.steps import TokenizeColumn
from stoker.streams.conditions import hash_function
from stoker.streams.derived_arrays import ArraySink
from stoker.streams.streams import Streams
from stoker.tokens.chat import ChatTokenizer
from stoker.tokens.order.division import Groups
from stoker.tokens.sources.block_buffer import counts_of, measure
from stoker.tokens.sources.document_column import Tokenize, as_function
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import ShardSource, SkippedFile
from stoker.types import Column, Ids

logger = logging.getLogger(__name__)

_GROUP_TOKENS: Final = 1 << 20
_GROUP_BYTES: Final = 1 << 26
"""The most bytes of a shard that a group has, where its documents are much longer than the first ones."""
_LOOKED_AT: Final = 64
_PARTS: Final = 64
"""The most parts in which documents are counted: what a process has counted is kept when it is stopped."""
_PROBE: Final = (
    'Hello, world! 1234567890 3.14e-10  \t\n\n def f(x):\n    return {"a": [x ** 2]}  # naïve café',
    "Straße 你好世界 こんにちは 안녕하세요 Привет мир مرحبا नमस्ते 🙂 <|endoftext|> <s> [MASK] https://a.b/c?d=e&f=%20",
)
"""Texts whose ids tell tokenizers apart."""
_VERSION: Final = 1


class OpenedDataset(Protocol):
    """The members of :class:`~stoker.StreamingDataset` that a :class:`DatasetSource` uses."""

    batch_size: int | None

    @property
    def epoch_reader(self) -> EpochReader: ...
    @property
    def open_streams(self) -> Streams: ...
    def check_columns_allowed(self, reader: str) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Rows(Groups):
    """Groups of samples of shards, which are the files.

    ``firsts``: number of each group's first sample among those of the shard that belong; ``rows_of``: rows of samples of
    shards by such numbers.
    """

    firsts: Ids
    rows_of: Callable[[Ids, Ids], Ids]

    def find(self, row: int) -> tuple[int, int, int]:
        """See the base class; rows are those of shards, where a subset leaves some out."""
        group = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        number = int(self.firsts[group]) + row - int(self.first_rows[group])
        found = int(self.rows_of(self.file[group : group + 1], np.array([number]))[0])
        return group, found, found


class DatasetSource(ShardSource):
    """A column of a :class:`~stoker.StreamingDataset` as a source of a :class:`~stoker.StreamingParquetLoader`.

    The dataset may have any format, ``subset=``, and a chain of ``map()`` and columns. Its order is the loader's. The number
    of tokens is counted once, by reading the column of all samples, and kept beside the dataset's index: a start after that
    reads no data. A count that was stopped continues.

    >>> english = StreamingDataset("s3://bucket/web", subset=Where("lang", "==", "en"))
    >>> web = DatasetSource(english, "text", tokenizer=tokenizer)
    >>> loader = StreamingParquetLoader({"web": web, "books": "s3://bucket/books"}, weights={"web": 0.7, "books": 0.3})

    Args:
        dataset: of one stream, without ``shuffle=``, ``batch_size=`` or ``epoch_size=``.
        column: of lists or arrays of token ids, of ``bytes`` that hold ``token_dtype``, or of text.
        tokenizer: for text: a function from texts to lists of ids, or a ``tokenizers.Tokenizer``; for conversations a
            :class:`~stoker.tokens.chat.ChatTokenizer`.
        token_dtype: what ``bytes`` hold, such as ``"uint16"``.

    Raises:
        ConfigError: the dataset has several streams, an order of its own, or a step that does not make one sample of each.
        SampleError: a sample's column does not hold tokens, can not be read or tokenized; names it.
    """

    skipped: Sequence[SkippedFile] = ()

    @checked(dataset="such as StreamingDataset(path)")
    def __init__(
        self, dataset: OpenedDataset, column: str, *, tokenizer: Any = None, token_dtype: DTypeLike | None = None
    ) -> None:
        dataset.check_columns_allowed("a DatasetSource")
        if token_dtype is not None and np.dtype(token_dtype).kind not in "iu":
            raise ConfigError(f"token_dtype={token_dtype!r}: tokens are integers, like uint16")
        order = dataset.epoch_reader.sample_order
        streams = dataset.open_streams
        _check_order(dataset, order, streams)
        assert isinstance(order, NativeOrder)
        (stream,), (location,) = order.sources, streams.locations
        self._dtype = token_dtype
        self._chat = tokenizer if isinstance(tokenizer, ChatTokenizer) else None
        self.has_loss_mask = self._chat is not None
        self._reader, made = _reading(dataset.epoch_reader, column, tokenizer, token_dtype)
        self.name, self.url = stream.name, stream.url
        self._selection = stream.selection
        own = {"column": column, "subset": stream.about().get("subset"), **made}
        super().__init__(location, column, self._reader.pool, {**own, **self._codes()})
        self._counted = False
        self.groups: _Rows = self._divide()
        self.groups, self._counted = self._count(), True
        counts = np.concatenate([self.groups.rows, self.groups.tokens])
        self._recipe["counts"] = xxhash.xxh3_128_hexdigest(counts.tobytes())  # which decide what layouts keep
        tokens = int(self.groups.tokens.sum())
        if not tokens:
            raise ConfigError(f"{location.where}: there are no tokens in column {column!r}")
        about = {**stream.about(), **own}
        fingerprint = xxhash.xxh3_128_hexdigest(repr([about["fingerprint"], sorted(own.items())]).encode())
        self.about: Mapping[str, Any] = {**about, "fingerprint": fingerprint, "tokens": tokens}

    # -- reading ---------------------------------------------------------------------------------------------------

    def where(self, group: int) -> str:
        shards, rows = self._places(group)
        first, last = (location_of(self._pool, int(shards[0]), int(row)) for row in (rows.min(), rows.max()))
        return f"{first.file}: rows {first.row} to {last.row}" if first.row < last.row else str(first)

    def _shard(self, group: int) -> int:
        return int(self.groups.file[group])

    def chunks(self, group: int) -> Iterator[Ragged]:
        try:
            found = self._read(*self._places(group))
            if self._counted and isinstance(found[0], Ragged) and len(found) == 1:
                self._check(group, found[0].lengths)
            yield from self._pieces(group, found)
        finally:
            self.done(group)

    def last_documents(self, group: int) -> Ragged | None:
        shards, rows = self._places(group)
        found = self._read(shards, rows)
        after = next(
            (len(found) - number for number, one in enumerate(reversed(found)) if isinstance(one, Exception)), 0
        )
        (last,) = self._pieces(group, found[after:], after) if after < len(found) else (None,)
        return last

    def _places(self, group: int) -> tuple[Ids, Ids]:
        """Shards and rows of a group's samples."""
        groups = self.groups
        stop = groups.first_rows[group + 1] if group + 1 < len(groups) else self._samples
        numbers = np.arange(stop - groups.first_rows[group], dtype=np.int64) + groups.firsts[group]
        shards = np.full_like(numbers, groups.file[group])
        return shards, groups.rows_of(shards, numbers)

    def _read(self, shards: Ids, rows: Ids) -> list[Ragged | Exception]:
        """The documents of samples: of all together, or where that fails, of each sample or its error."""
        try:
            return [self._documents(shards, rows)]
        except Exception as error:
            if not is_of_sample(error):
                raise
            found = [self._document(shards[place : place + 1], rows[place : place + 1]) for place in range(len(rows))]
            return found if any(isinstance(one, Exception) for one in found) else [error]

    def _document(self, shard: Ids, row: Ids) -> Ragged | Exception:
        try:
            return self._documents(shard, row)
        except Exception as error:
            if not is_of_sample(error):
                raise
            if isinstance(error, SampleError):
                return error
            origin = location_of(self._pool, int(shard[0]), int(row[0]))
            told = located(SampleError, f"{origin}: {error}", origin)
            told.__cause__ = error
            return told

    def _documents(self, shards: Ids, rows: Ids) -> Ragged:
        reader = self._reader
        columns = _columns(self.column, self._chat)
        if reader.settings.transform is None:
            found: Mapping[str, Column] = read_samples(reader.pool, shards, rows, columns)
        else:
            samples = reader.read_by_id(shards, rows)
            for sample in samples[:1]:
                must_know("the dataset's column", columns, sample if isinstance(sample, dict) else {})
            found = {name: [sample[name] for sample in samples] for name in columns}
        if self._chat is None:
            return Ragged.of(found[self.column], dtype=self._dtype, name=self.column)
        made = [self._chat(*values) for values in zip(*(found[name] for name in columns), strict=True)]
        documents = Ragged.from_arrays([ids for ids, _ in made], column=self.column)
        documents.loss_mask = np.concatenate([mask for _, mask in made])
        return documents

    def _pieces(self, group: int, found: Sequence[Ragged | Exception], first: int = 0) -> Iterator[Ragged]:
        """The documents before the first error, and this error. ``first``: number of the first in the group."""
        good = [one for one in takewhile(lambda one: isinstance(one, Ragged), found) if isinstance(one, Ragged)]
        if good:
            made = Ragged.concat(good)
            where, mask = self.where(group), made.loss_mask
            yield Ragged(made.values, made.offsets, column=self.column, where=where, rows=first, loss_mask=mask)
        error = found[len(good)] if len(good) < len(found) else None
        if isinstance(error, Exception):
            raise error

    def _check(self, group: int, lengths: Ids) -> None:
        """See that a group has as many documents and tokens as when they were counted."""
        found = int(np.count_nonzero(lengths)), int(lengths.sum())
        counted = int(self.groups.rows[group]), int(self.groups.tokens[group])
        if found != counted:
            raise CorruptDataError(
                f"{self.where(group)}: {found[1]} tokens in {found[0]} documents of column {self.column!r}, and "
                f"{counted[1]} in {counted[0]} when they were counted: the data was rewritten, or the tokenizer or a "
                "function of the chain does not always give the same. If it was changed, remove document-counts.* below "
                f"{self._location.keep[0]}"
            )

    def _codes(self) -> dict[str, Any]:
        """Return what decides the counts but is not in states: code of the chain, and rows of the subset."""
        steps = as_chain(self._reader.settings.transform).steps
        functions = [getattr(step, one.name) for step in steps if not step.own for one in fields(step)]
        rows = [self._selection.sizes]
        for shard in np.flatnonzero(self._selection.sizes)[
            :: max(1, self._selection.sizes.size // _LOOKED_AT)
        ].tolist():
            numbers = np.arange(min(_LOOKED_AT, int(self._selection.sizes[shard])), dtype=np.int64)
            rows.append(self._selection.rows(np.full_like(numbers, shard), numbers))
        chosen = xxhash.xxh3_128_hexdigest(np.concatenate(rows).tobytes())
        return {"chosen": chosen, "functions": [hash_function(one) for one in functions if callable(one)]}

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _divide(self) -> _Rows:
        """The groups: as many samples of one shard as have about a million tokens, by the first documents of some shards."""
        index, sizes = self._location.index, self._selection.sizes
        full = np.flatnonzero(sizes)

        def make() -> Ids:
            looked_at = full[[0, full.size // 2, full.size - 1]] if full.size else full
            lengths = [np.zeros(0, np.int64)]
            for shard in dict.fromkeys(looked_at.tolist()):
                numbers = np.arange(min(_LOOKED_AT, int(sizes[shard])), dtype=np.int64)
                shards = np.full_like(numbers, shard)
                found = self._read(shards, self._selection.rows(shards, numbers))
                lengths += [one.lengths for one in found if isinstance(one, Ragged)]
            known = np.concatenate(lengths)
            return np.array([max(1, _GROUP_TOKENS * known.size // max(1, int(known.sum())))], np.int64)

        each = int(self.keep("group-rows", {"version": _VERSION}, make)[0])
        shards, firsts = [], []
        for shard in full.tolist():
            info = index.shards[shard]
            step = max(1, min(each, _GROUP_BYTES * info.samples // max(1, info.size)))
            firsts.append(np.arange(0, sizes[shard], step, dtype=np.int64))
            shards.append(np.full_like(firsts[-1], shard))
        none = np.zeros(0, np.int64)
        found, first = np.concatenate([none, *shards]), np.concatenate([none, *firsts])
        names = tuple(url_of_shard(self._pool, number) for number in range(len(index)))
        starts = dense_starts(self._selection)
        zeros = np.zeros_like(found)
        return _Rows(names, found, zeros, zeros, starts[found] + first, first, self._selection.rows)

    def _count(self) -> _Rows:
        """The groups with their documents and tokens, counted in parts, each of which is kept when it is done."""
        groups = self.groups
        parts = np.array_split(np.arange(len(groups)), max(1, min(_PARTS, len(groups) >> 4)))

        told: list[int] = []

        def make(number: int, sink: ArraySink) -> Ids:
            logger.log(
                logging.INFO if told else logging.WARNING,
                "%s: column %r of %d samples is read once to count its tokens (part %d of %d)",
                self._location.where,
                self.column,
                self._samples,
                number + 1,
                len(parts),
            )
            told.append(number)
            counts = [np.zeros(0, np.int64)]
            for counted in measure(self, parts[number].tolist(), partial(counts_of, self)):
                counts.append(counted)
                sink.beat()  # processes that wait for a count that makes no progress would begin one too
            return np.concatenate(counts)

        recipe = {"version": _VERSION, "groups": len(groups), "parts": len(parts)}
        try:
            counts = np.concatenate(
                [
                    self._keep("document-counts", {**recipe, "part": number}, partial(make, number))
                    for number in range(len(parts))
                ]
            ).reshape(-1, 2)
        finally:
            self.rest()
        return replace(groups, rows=counts[:, 0].copy(), tokens=counts[:, 1].copy())

    @property
    def _samples(self) -> int:
        return int(self._selection.sizes.sum())


def _check_order(dataset: OpenedDataset, order: SampleOrder, streams: Streams) -> None:
    """See that a dataset has one stream, and no order of its own that a loader would not follow."""
    if len(streams.names) != 1:
        raise ConfigError(
            f"a DatasetSource is of one stream, and this dataset has {', '.join(streams.names)}: make a source of each, and "
            "mix them by the loader's weights="
        )
    settings = order.settings if isinstance(order, NativeOrder) else None
    given = {
        "batch_by": makes_batches(order),
        "partition_algo": settings is None or settings.partition.static,
        "shuffle": settings is not None and settings.shuffle != "none",
        "epoch_size": settings is not None and settings.epoch_size is not None,
        "batch_size": dataset.batch_size is not None,
        "on_bad_sample": dataset.epoch_reader.settings.bad_samples is not None,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name}= of the dataset has no meaning in a DatasetSource: leave it out, and give the loader what it needs"
            )
    if dataset.epoch_reader.quarantine is not None:
        raise ConfigError("a DatasetSource can not read a quarantine: leave its samples out by subset=SkipIds([...])")


def _reading(
    reader: EpochReader, column: str, tokenizer: Any, token_dtype: DTypeLike | None
) -> tuple[EpochReader, dict[str, Any]]:
    """A reader of the column of samples by id, and what decides its values besides the data."""
    settings, made = reader.settings, dict[str, Any]()
    chain = as_chain(settings.transform)
    if chain.unfit:
        raise ConfigError(
            f"a DatasetSource counts the tokens of each sample once, and {chain.unfit} may make more or fewer samples, or "
            "others in each epoch: choose samples by subset="
        )
    steps = chain.steps
    if steps:
        made["chain"] = [step.told for step in steps]
    else:
        columns = _columns(column, tokenizer if isinstance(tokenizer, ChatTokenizer) else None)
        if reader.pool.index.samples:
            must_know("the dataset's column", columns, reader.pool.index.columns)
        settings = replace(settings, columns=columns)
    if token_dtype is not None:
        made["token_dtype"] = np.dtype(token_dtype).str
    if isinstance(tokenizer, ChatTokenizer):
        made["tokenizer"] = tokenizer.identity
    elif tokenizer is not None:
        if getattr(tokenizer, "truncation", None):
            raise ConfigError(
                f"the tokenizer cuts texts ({tokenizer.truncation}), and what is cut would be lost without a word: call its "
                "no_truncation(); layout= of the loader says what becomes of long documents"
            )
        tokenize = as_function(tokenizer)
        made["tokenizer"] = _identity(tokenize)
        most = int(np.iinfo(np.int64).max)
        steps = (*steps, TokenizeColumn("tokenizer of a DatasetSource", tokenize, column, most))
    return reader.with_settings(replace(settings, transform=Chain(steps) if steps else None)), made


def _identity(tokenize: Tokenize) -> str:
    """A hash of the ids of the probe; of the code where a tokenizer takes no such text, as one of numbers."""
    try:
        found = tokenize(list(_PROBE))
    except BaseException as error:  # noqa: BLE001
        pass_exits(error)
        return hash_function(tokenize)
    check_tokenized(found, _PROBE)
    try:
        told = [np.asarray(ids, np.int64).tolist() for ids in found]
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"the tokenizer returned something else than a list of ids for each text: {error}") from error
    return xxhash.xxh3_128_hexdigest(repr(told).encode())


def _columns(column: str, chat: ChatTokenizer | None) -> tuple[str, ...]:
    return (column,) if chat is None or chat.tools is None else (column, chat.tools)

"""Reads samples by shard and row: from any shards, in the order asked for, as columns or one by one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeVar

import numpy as np

from stoker.concurrency.spans.recorder import Stage, begin_span, end_span, recorder, span
from stoker.concurrency.spans.sample_clock import SampleClock
from stoker.errors import FormatError
from stoker.formats.base import ShardReader
from stoker.formats.registry import get_format
from stoker.formats.unstacked import check_types, scatter
from stoker.reading.sample_errors import SampleLocation, apply_transform, decode_error
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids, Sample, Transform

# Up to so many shards a table of them is cheaper than sorting.
_TABLE = 1 << 16

_Values = TypeVar("_Values")


@dataclass(frozen=True, slots=True)
class SampleRun:
    """Samples to be taken one by one, and how many are left.

    Attributes:
        samples: the samples, each made when it is asked for.
        remaining: an iterator whose length hint is the number of samples not yet taken.
        gaps: whether something stands among them for samples that are left out, or that come several for one.
    """

    samples: Iterator[Any]
    remaining: Iterator[Any]
    gaps: bool = False

    @classmethod
    def of(cls, samples: list[Any], *, gaps: bool = False) -> SampleRun:
        """Samples that are all there already."""
        iterator = iter(samples)
        return cls(iterator, iterator, gaps)


def read_samples(
    pool: ShardPool, shards: Ids, rows: Ids, columns: Sequence[str] | None = None, *, named: bool = True
) -> Batch:
    """Decode the samples at ``(shards[i], rows[i])``, in that order.

    FormatError if the shards differ in columns, or in the type of one. ``shards``: shard numbers, int64, shape ``(n,)``, n ≥
    1. ``rows``: rows in those shards, int64, shape ``(n,)``. ``named``: whether an error of a decoder says which sample it is
    of, which takes reading each again.
    """
    readers, which = _open(pool, shards)
    parts: list[tuple[Ids, Batch]] = []
    try:
        if _alike(readers):
            with span(Stage.DECODE, len(rows)):
                whole = get_format(readers[0].format).read_many(readers, which, rows, columns)
            return _with_ids(whole, pool, shards, rows)
        kinds = list(_kinds(readers, which))
        with span(Stage.DECODE, len(rows)):
            for at, some, here in kinds:
                part = get_format(some[0].format).read_many(some, here, rows[at], columns)
                parts.append((at, _with_ids(part, pool, shards[at], rows[at])))
    except Exception as error:
        if not named:
            raise
        told, cause = decode_error(pool, shards, rows, columns, error)
        raise told from cause
    check_types([part for _, part in parts], [chosen[0].where for _, chosen, _ in kinds])
    return scatter(parts, len(rows))


def _with_ids(
    batch: dict[str, _Values], pool: ShardPool, shards: Ids, rows: Ids, *, one_by_one: bool = False
) -> dict[str, _Values | Any]:
    """Columns of the shards, and that of the ids where the dataset has one: an array, or Python's numbers one by one.

    FormatError if one has not as many values as there are samples; of an iterator, when the first is taken that it lacks.
    """
    made: dict[str, Any] = {}
    for name, column in batch.items():
        if isinstance(column, Sized) and len(column) != len(rows):
            raise FormatError(
                f"what reads its format gave {len(column)} values of column {name!r} for {len(rows)} samples"
            )
        made[name] = column if isinstance(column, Sized) else chain(column, iter(partial(_lacks, name), None))  # type: ignore[arg-type]
    if pool.ids is not None:
        ids = pool.index.table.ids(shards, rows)
        made[pool.ids] = ids.tolist() if one_by_one else ids
    return made


def _lacks(name: str) -> NoReturn:
    raise FormatError(f"what reads its format gave too few values of column {name!r}")


def read_sample(pool: ShardPool, shard: int, row: int, columns: Sequence[str] | None = None) -> Sample:
    """One sample, as :func:`iterate_samples` gives it; errors are the same."""
    reader = pool.get(shard)
    try:
        with span(Stage.DECODE, 1):
            sample = get_format(reader.format).read_one(reader, row, columns)
    except Exception as error:  # noqa: BLE001 - decoders and other packages' formats may raise anything
        named, cause = decode_error(pool, np.array([shard]), np.array([row]), columns, error)
        raise named from cause
    if pool.ids is not None:
        sample[pool.ids] = int(pool.index.table.starts[shard]) + row
    return sample


def make_all(
    run: SampleRun,
    transform: Transform | None,
    origin: Callable[[int], SampleLocation],
    clock: SampleClock | None = None,
) -> Iterator[Any]:
    """Samples, or what a transform makes of them; a trace shows how long that takes.

    TransformError if the transform raised an error; names the sample. ``origin``: where the n-th of these samples comes from.
    ``clock``: measures them; default, one of samples that are all taken one after the other, with nothing else in between.
    """
    recording, count = recorder(), operator.length_hint(run.remaining)
    apply = None
    if transform is not None:
        apply = partial(apply_transform, transform, remaining=run.remaining, origin=origin, count=count)
    if recording is not None:
        clock = clock or SampleClock(recording, together=True)
        return clock.made(run.samples, run.remaining, apply)
    return run.samples if apply is None else apply(run.samples)


def iterate_samples(
    pool: ShardPool, shards: Ids, rows: Ids, columns: Sequence[str] | None = None, clock: SampleClock | None = None
) -> SampleRun:
    """The samples at ``(shards[i], rows[i])``, in that order, as dicts, each decoded when it is asked for.

    Args and errors are those of :func:`read_samples`. Values of fixed-width array columns are views of larger arrays.
    ``clock``: measures them, for a trace.
    """

    def failed(number: int, error: Exception) -> tuple[Exception, BaseException | None]:
        return decode_error(pool, shards[number:], rows[number:], columns, error)

    readers, which = _open(pool, shards)
    remaining = iter(range(len(rows)))
    try:
        if _alike(readers):
            columnwise = _columnwise(pool, readers, which, shards, rows, columns)
            return SampleRun(make_dicts(columnwise, remaining, failed, clock), remaining)
        samples: list[Sample | None] = [None] * len(rows)
        with span(Stage.DECODE, 0 if clock is None else len(rows)):
            for here, chosen, which_of_them in _kinds(readers, which):
                part = get_format(chosen[0].format).iterate_many(chosen, which_of_them, rows[here], columns)
                part = _with_ids(part, pool, shards[here], rows[here], one_by_one=True)
                for number, sample in zip(here.tolist(), make_dicts(part, iter(range(len(here)))), strict=True):
                    samples[number] = sample
    except Exception as error:  # noqa: BLE001 - decoders and other packages' formats may raise anything
        named, cause = failed(0, error)
        raise named from cause
    return SampleRun.of(samples)


def iterate_columns(
    pool: ShardPool, shards: Ids, rows: Ids, columns: Sequence[str] | None = None
) -> dict[str, Iterable[Any]] | None:
    """The columns of which :func:`iterate_samples` makes samples, to be taken in place of them; ``None``: the shards are not
    laid out alike."""
    readers, which = _open(pool, shards)
    try:
        return _columnwise(pool, readers, which, shards, rows, columns) if _alike(readers) else None
    except Exception as error:  # noqa: BLE001 - as above
        named, cause = decode_error(pool, shards, rows, columns, error)
        raise named from cause


def _columnwise(
    pool: ShardPool,
    readers: list[ShardReader],
    which: Ids,
    shards: Ids,
    rows: Ids,
    columns: Sequence[str] | None,
) -> dict[str, Iterable[Any]]:
    begun = begin_span()
    found = get_format(readers[0].format).iterate_many(readers, which, rows, columns)
    end_span(Stage.DECODE, begun)  # samples are counted as they are taken
    return _with_ids(found, pool, shards, rows, one_by_one=True)


def distinct(shards: Ids, count: int) -> tuple[Ids, Ids]:
    """The different shard numbers, rising, and for each entry of ``shards`` the index of its number among them.

    ``shards``: shard numbers in ``[0, count)``, shape ``(n,)``.
    """
    if len(shards) and bool(shards[0] == shards[-1]) and bool((shards == shards[0]).all()):
        return shards[:1], np.zeros(len(shards), dtype=np.int64)  # as where samples come in their own order
    if count > _TABLE:
        return np.unique(shards, return_inverse=True)
    # Sorting, as np.unique does it, would cost more than all else that is done for a sample of a few kilobytes.
    present = np.zeros(count, dtype=np.bool_)
    present[shards] = True
    numbers = present.nonzero()[0]
    index = np.empty(count, dtype=np.int64)
    index[numbers] = np.arange(len(numbers))
    return numbers, index[shards]


def distinct_shards(shards: Ids, count: int) -> list[int]:
    """The different shard numbers, rising; args are those of :func:`distinct`."""
    numbers: list[int] = distinct(shards, count)[0].tolist()
    return numbers


def _open(pool: ShardPool, shards: Ids) -> tuple[list[ShardReader], Ids]:
    """Readers of the distinct shards, and for each sample the index of its reader."""
    numbers, which = distinct(shards, len(pool.index))
    return [pool.get(number) for number in numbers.tolist()], which


def _alike(readers: Sequence[ShardReader]) -> bool:
    first = readers[0].layout
    return all(reader.layout is first or reader.layout == first for reader in readers)


def _kinds(readers: Sequence[ShardReader], which: Ids) -> Iterator[tuple[Ids, list[ShardReader], Ids]]:
    """Group samples by schema and format: indices of a group's samples, its readers, and the reader of each sample."""
    groups: dict[object, list[int]] = {}
    for turn, reader in enumerate(readers):
        groups.setdefault(reader.layout, []).append(turn)
    for members in groups.values():
        number = np.full(len(readers), -1, dtype=np.int64)
        number[members] = np.arange(len(members))
        here = np.flatnonzero(number[which] >= 0)
        yield here, [readers[turn] for turn in members], number[which[here]]


def make_dicts(
    columns: dict[str, Iterable[Any]],
    remaining: Iterator[Any],
    failed: Callable[[int, Exception], tuple[Exception, BaseException | None]] | None = None,
    clock: SampleClock | None = None,
) -> Iterator[Sample]:
    """A dict a sample. ``remaining`` advances with each, and is asked first.

    ``failed`` is given the number of the sample that can not be made, and the error: it says what to raise, from what.
    """
    return _made(tuple(columns), zip(remaining, *columns.values(), strict=False), remaining, failed, clock)


def _made(
    names: tuple[str, ...],
    values: Iterator[tuple[Any, ...]],
    remaining: Iterator[Any],
    failed: Callable[[int, Exception], tuple[Exception, BaseException | None]] | None = None,
    clock: SampleClock | None = None,
) -> Iterator[Sample]:
    count = operator.length_hint(remaining)
    try:
        if clock is not None and not clock.all_alike(remaining):
            yield from clock.first_decoded(_made(names, values, remaining), remaining)
        # The widths that nearly all data sets have are spelled out: building the dict is most of what a sample costs here.
        if len(names) == 1:
            (a,) = names
            for _, x in values:
                yield {a: x}
        elif len(names) == 2:
            a, b = names
            for _, x, y in values:
                yield {a: x, b: y}
        elif len(names) == 3:
            a, b, c = names
            for _, x, y, z in values:
                yield {a: x, b: y, c: z}
        elif len(names) == 4:
            a, b, c, d = names
            for _, w, x, y, z in values:
                yield {a: w, b: x, c: y, d: z}
        elif len(names) == 5:
            a, b, c, d, e = names
            for _, v, w, x, y, z in values:
                yield {a: v, b: w, c: x, d: y, e: z}
        elif len(names) == 6:
            a, b, c, d, e, f = names
            for _, u, v, w, x, y, z in values:
                yield {a: u, b: v, c: w, d: x, e: y, f: z}
        else:
            for _, *row in values:
                yield dict(zip(names, row, strict=True))
    except Exception as error:
        if failed is None:
            raise
        named, cause = failed(max(0, count - operator.length_hint(remaining) - 1), error)
        raise named from cause
    finally:
        if clock is not None:
            clock.end(operator.length_hint(remaining))

"""Errors of single samples: which one it is, where it lies, and which column is to blame.

Samples are read many at a time, and nothing is noted of each. What failed is found when it has failed, by reading rows alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from stoker.concurrency.user_code import calls_user_code, pass_exits, step_of
from stoker.display import with_article
from stoker.errors import CorruptDataError, DatasetChangedError, DecodeError, SampleError, StokerError, TransformError
from stoker.formats.registry import get_format
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids, Sample, Transform

_Error = TypeVar("_Error", bound=SampleError)


@dataclass(frozen=True, slots=True)
class SampleLocation:
    """The origin of a sample; attributes are those of :class:`~stoker.errors.SampleError`.

    ``stream``: name of its stream, where :meth:`~stoker.StreamingDataset.where` was asked; errors leave it out. ``copy``:
    names the shard's copy in a cache, and the URL that it comes from; ``None``: there is none.
    """

    url: str | None
    shard: int | None
    row: int
    sample: int
    stream: str | None = None
    copy: str | None = field(default=None, repr=False, compare=False)

    @property
    def file(self) -> str | None:
        """The name of the file in errors."""
        return self.copy or self.url

    def __str__(self) -> str:
        lies = f"row {self.row}" if self.file is None else f"{self.file}, row {self.row}"
        return f"{lies} (sample {self.sample})"


def url_of_shard(pool: ShardPool, shard: int) -> str:
    """The URL of a shard."""
    return pool.cache_of(shard).url_of(pool.index.shards[shard])


def location_of(pool: ShardPool, shard: int, row: int) -> SampleLocation:
    """The location of the sample in a row of a shard."""
    cache, info = pool.cache_of(shard), pool.index.shards[shard]
    url, described = cache.url_of(info), cache.describe(info)
    sample = int(pool.index.table.starts[shard]) + row
    return SampleLocation(url, shard, row, sample, copy=None if described == url else described)


def location_at(pool: ShardPool, shards: Ids, rows: Ids, number: int) -> SampleLocation:
    """The location of the n-th of the samples at ``(shards[i], rows[i])``."""
    return location_of(pool, int(shards[number]), int(rows[number]))


@calls_user_code
def apply_transform(
    transform: Transform,
    samples: Iterator[Sample],
    remaining: Iterator[Any],
    origin: Callable[[int], SampleLocation],
    count: int | None = None,
) -> Iterator[Any]:
    """Samples as a transform makes them, each when it is asked for.

    TransformError if the transform raised an error; names the sample. ``samples``: what it is applied to. ``remaining``: an
    iterator whose length hint is the number of samples not yet taken. ``origin``: where the n-th of these samples comes from.
    ``count``: how many there were before the first was taken, where these are some of the samples that ``remaining`` counts.
    """
    count = operator.length_hint(remaining) if count is None else count
    for sample in samples:
        try:
            made = transform(sample)
        except BaseException as error:
            pass_exits(error)
            raise _raised(error, origin(count - operator.length_hint(remaining) - 1)) from error
        yield made


def _raised(error: BaseException, origin: SampleLocation) -> TransformError:
    """The error of a sample of which a transform, or a step of a chain, raised an error."""
    step = step_of(error)
    function = "the transform"
    if step is not None and step.calls_user_code and not step.own:
        function = f"{step.kind}({step.name})"
    told = str(error).removeprefix(f"{origin.file}: ")
    return transform_error(f"raised {type(error).__name__}: {told}", origin, function)


@calls_user_code
def apply_override(
    get: Callable[[int], Any], at_hand: MutableMapping[int, Any], ids: Iterable[int], samples: Iterator[Any]
) -> Iterator[Any]:
    """Samples as a user's method that takes an id gives them, each when it is asked for.

    TransformError if the method raised what would end an iteration as if there were no more samples. All other errors of it
    are raised as they are, with a note that names the sample. ``at_hand``: where it finds the sample that it is asked for, by
    id, read already. ``samples``: the samples of these ids.
    """
    for number, sample in zip(
        ids, samples, strict=False
    ):  # an iterator of samples may be asked for no more than it has
        at_hand[number] = sample
        try:
            made = get(number)
        except BaseException as error:
            pass_exits(error)
            if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
                error.add_note(f"raised for sample {number} of the dataset")
                raise
            raise TransformError(f"sample {number}: __getitem__ raised {_told(error)}", sample=number) from error
        finally:
            at_hand.pop(number, None)
        yield made


def override_error(error: BaseException, origin: SampleLocation) -> TransformError:
    """The error of a sample of which a method of a subclass raised an error; ``__cause__`` is that one."""
    named = transform_error(f"raised {_told(error)}", origin, "__getitem__() of the subclass")
    named.__cause__ = error
    return named


def returned_error(made: object, origin: SampleLocation) -> TransformError:
    """The error of a transform that returned something else than a dict where a batch of columns is made."""
    what = "None" if made is None else with_article(type(made).__name__)
    return transform_error(
        f"returned {what}: to make batches, return a dict of columns for each sample; to use other values, iterate over "
        "samples instead of batches",
        origin,
    )


def transform_error(
    what: str, origin: SampleLocation, function: str = "the transform", column: str | None = None
) -> TransformError:
    """The error of a function of the user, in words, for a sample. ``what``: what it did, such as ``returned None``."""
    return located(TransformError, f"{origin}: {function} {what}", origin, column)


def located(kind: type[_Error], text: str, origin: SampleLocation, column: str | None = None) -> _Error:
    """An error that tells which sample it is of."""
    return kind(text, url=origin.url, shard=origin.shard, row=origin.row, column=column, sample=origin.sample)


def beside(error: SampleError, origin: SampleLocation) -> SampleError:
    """The error of a sample, of one that another dataset's sample beside it has; itself where it is that sample's own."""
    if (error.sample, error.url) == (origin.sample, origin.url):
        return error
    told = located(type(error), f"{origin}: {error}", origin, error.column)
    told.__cause__ = error
    return told


def decode_error(
    pool: ShardPool, shards: Ids, rows: Ids, columns: Sequence[str] | None, error: Exception
) -> tuple[Exception, BaseException | None]:
    """The error to raise where reading samples raised ``error``, and its cause.

    Rows are read again one by one, in order, until one fails, and that column by column. Errors that are not of data
    (storage, missing packages), and those that do not come again, are returned as they are. ``shards``: shard numbers, int64,
    shape ``(n,)``. ``rows``: rows in those shards, int64, shape ``(n,)``.
    """
    if _is_known(error):
        return error, error.__cause__
    for shard, row in zip(shards.tolist(), rows.tolist(), strict=True):
        found = _failure(pool, shard, row, columns)
        if found is not None:
            column, why = found
            if _is_known(why):
                return why, why.__cause__
            origin = location_of(pool, shard, row)
            named = located(DecodeError, _message(origin, column, why), origin, column)
            return named, (why.__cause__ or why) if isinstance(why, CorruptDataError) else why
    return error, error.__cause__


def _is_known(error: Exception) -> bool:
    """Whether an error says all that there is to say: no column of that name, a package that is missing, the network, a
    dataset that was written anew."""
    return isinstance(error, StokerError) and (
        isinstance(error, DecodeError | DatasetChangedError) or not isinstance(error, CorruptDataError)
    )


def _failure(
    pool: ShardPool, shard: int, row: int, columns: Sequence[str] | None
) -> tuple[str | None, Exception] | None:
    """The first column of a sample that does not decode, ``None`` for none alone, and why; ``None`` where all do."""
    reader = pool.get(shard)
    read = get_format(reader.format).read_many
    which, rows = np.zeros(1, dtype=np.int64), np.array([row], dtype=np.int64)
    try:
        read([reader], which, rows, columns)
    except Exception as error:  # noqa: BLE001 - decoders and other packages' formats may raise anything
        together = error
    else:
        return None
    for name in reader.columns if columns is None else columns:
        try:
            read([reader], which, rows, [name])
        except Exception as error:  # noqa: BLE001 - as above
            return name, error
    return None, together


def _message(origin: SampleLocation, column: str | None, why: Exception) -> str:
    text = str(why)
    if isinstance(why, CorruptDataError) and text.startswith(str(origin.file)):
        return f"{text} ({_origin_text(origin, column)})"
    return f"{origin.file}, {_origin_text(origin, column)}: {_told(why)}"


def _origin_text(origin: SampleLocation, column: str | None) -> str:
    text = f"row {origin.row}, sample {origin.sample}"
    return text if column is None else f"{text}, column {column!r}"


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, CorruptDataError) else f"{type(error).__name__}: {error}"

"""From samples to the files of a shard: what a writer needs of a format.

A *record* is one sample's bytes in the shard's data. A writer collects the records of a shard one after the other and, when
the shard is full, has the encoder lay out the files around them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stoker.errors import EncodingError, MissingPackageError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.types import Ids

BytesLike = bytes | bytearray | memoryview


class Records(ABC):
    """The records of a batch, encoded and checked, not yet laid out.

    ``sizes``: bytes of each record; int64, shape ``(n,)``.
    """

    sizes: Ids

    @abstractmethod
    def fill(self, out: NDArray[np.uint8], start: int, stop: int) -> None:
        """Write records ``[start, stop)`` one after the other into ``out``, which they fill exactly."""


class LineRecords(Records):
    """Records that are whole in memory."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self.sizes = np.fromiter(map(len, lines), np.int64, len(lines))

    def fill(self, out: NDArray[np.uint8], start: int, stop: int) -> None:
        out[:] = np.frombuffer(b"".join(self._lines[start:stop]), np.uint8)


class RecordEncoder(ABC):
    """Encodes samples of fixed columns.

    Attributes:
        roles: what the files of a shard are called (``data``, ``meta``).
        settings: the keys of an index entry that all shards share.
        config: ``settings`` as the JSON that shards carry.
        shard_cost: bytes that an empty shard counts towards the size limit.
        sample_cost: bytes that a sample counts beyond its record.
        largest: most bytes of records and costs that a shard can hold.
        encode: a function from a sample to its record, in one piece or a list of pieces, which may be views of the
            sample's own memory. It raises whatever it likes for a sample that does not fit; :meth:`explain` tells why.
    """

    format: str
    roles: ClassVar[tuple[str, ...]]
    encode: Callable[[Mapping[str, Any]], BytesLike | list[BytesLike]]

    def __init__(self, settings: Mapping[str, Any], *, sample_cost: int, overhead: int) -> None:
        self.settings = {**settings, "version": 2}
        self.config = json.dumps(self.settings, sort_keys=True).encode()
        self.sample_cost = sample_cost
        self.shard_cost = 0
        self.largest = MAX_OFFSET - overhead

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Names of the columns, in the order of the file."""

    @abstractmethod
    def encode_column_value(self, column: str, value: Any) -> Any:
        """Encode one value alone, only to see whether it fits."""

    @abstractmethod
    def encode_batch(self, columns: Mapping[str, Any], first: int) -> Records:
        """The records of a batch: column name to n values.

        EncodingError if a column is missing or of another length, or a value does not fit. ``columns``: arrays or lists of
        equal length; columns that the writer does not know are ignored. ``first``: number of the batch's first sample, for
        messages.
        """

    @abstractmethod
    def files(self, body: memoryview, ends: Ids) -> list[list[BytesLike]]:
        """The shard's files, parallel to ``roles``, as pieces in a row.

        ``body``: the records, one after the other. ``ends``: where in ``body`` each record ends.
        """

    def explain(self, sample: Any, number: int, error: Exception) -> Exception:
        """The error for a sample that :meth:`encode` refused: which column, which sample, what was expected."""
        if isinstance(error, MissingPackageError):
            return error
        try:
            check_sample(sample, self.columns, number)
        except EncodingError as misfit:
            return misfit
        for name in self.columns:
            try:
                self.encode_column_value(name, sample[name])
            except Exception as found:  # noqa: BLE001 - whatever an encoding raises is the reason
                return blame(name, number, found)
        return EncodingError(f"sample {number} does not fit: {error}")

    def offsets(self, first: int, ends: Ids) -> bytes:
        """``u32 N | u32 offsets[N+1]`` for records of which the first starts at ``first``."""
        table = np.empty(len(ends) + 2, np.uint32)
        table[0] = len(ends)
        table[1] = first
        table[2:] = ends + first
        return table.tobytes()


def check_sample(sample: Any, columns: Sequence[str], number: int) -> None:
    """Check that a sample is a mapping that has these columns.

    EncodingError if it is not; tells its number and what it has.
    """
    if not isinstance(sample, Mapping):
        raise EncodingError(f"sample {number}: expected a mapping of columns, got {type(sample).__name__}")
    for name in columns:
        if name not in sample:
            known = ", ".join(map(repr, list(sample)[:20])) or "nothing"
            raise EncodingError(f"sample {number} has no value for column {name!r}; it has {known}")


def blame(column: str, number: int, error: Exception) -> EncodingError:
    """The error for a value that does not fit its column."""
    text = str(error) or type(error).__name__
    if not isinstance(error, UnfitValueError):
        text = f"{type(error).__name__}: {text}" if not isinstance(error, ValueError) else text
    result = EncodingError(f"column {column!r} of sample {number}: {text}")
    result.column = column
    result.__cause__ = error
    return result


def batch_length(columns: Mapping[str, Any], names: Sequence[str], first: int) -> int:
    """The number of samples in a batch.

    EncodingError if a column is missing, has no length, or another length than the first.
    """
    if not isinstance(columns, Mapping):
        raise EncodingError(f"expected a mapping of columns to values, got {type(columns).__name__}")
    lengths: dict[str, int] = {}
    for name in names:
        if name not in columns:
            raise EncodingError(f"the batch from sample {first} has no column {name!r}; it has {list(columns)}")
        values = columns[name]
        if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
            raise EncodingError(
                f"column {name!r} of the batch from sample {first}: expected an array or a list of values, got "
                f"{type(values).__name__}"
            )
        if isinstance(values, np.ndarray) and values.ndim == 0:
            raise EncodingError(f"column {name!r} of the batch from sample {first}: expected rows, got one value")
        lengths[name] = len(values)
    if len(set(lengths.values())) > 1:
        raise EncodingError(f"the columns of the batch from sample {first} differ in length: {lengths}")
    return next(iter(lengths.values()))

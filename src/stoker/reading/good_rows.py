"""Reads rows of which some are damaged: the good ones as columns, and the error of each bad one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.errors import DecodeError, SampleError
from stoker.formats.common.rows.merge import check_types
from stoker.formats.mds.encodings.images import last_left, loaded
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.sample_errors import beside, decode_error, located, location_of, override_error
from stoker.reading.sample_reader import SampleReader, SampleRows
from stoker.reading.samples import distinct_shards
from stoker.types import Batch, Ids


def load_columns(batch: Batch) -> None:
    """Load the images of columns; raises the error of one that does not load."""
    for column in batch.values():
        if isinstance(column, list):
            loaded(column)


class GoodRowReader:
    """Reads rows of shards, and finds those that are bad. ``overridden``: whether a method of a subclass changes samples."""

    def __init__(self, reader: SampleReader, *, overridden: bool = False) -> None:
        self.reader, self._overridden = reader, overridden
        self.pool, self._columns = reader.pool, reader.columns
        # Shards that can not be opened: each attempt fetches them again.
        self._damaged: dict[int, Exception] = {}
        self._numbers = np.arange(0)

    def parts(
        self, samples: SampleRows, *, whole: bool = True
    ) -> tuple[list[tuple[Ids, Batch]], dict[int, SampleError]]:
        """The good samples as columns, in parts with their numbers, and the errors of the bad ones, by number.

        StokerError if something is wrong that is not the samples' fault, such as storage. ``samples``: where they are. A
        sample's number is its index in them. ``whole``: whether all may be good, and are read together first.
        """
        shards, rows = samples.shards, samples.rows
        parts: list[tuple[Ids, Batch]] = []
        bad: dict[int, SampleError] = {}

        def read(at: Ids) -> None:
            here, there = shards[at], rows[at]
            try:
                if len(at) == 1:
                    self.open_shard(int(here[0]))
                parts.append((at, self.columns_of(SampleRows(here, there))))
            except Exception as error:
                if not is_of_sample(error):
                    raise
                if len(at) == 1:
                    bad[int(at[0])] = self.named(int(here[0]), int(there[0]), error)
                    return
                half = len(at) // 2
                read(at[:half])
                read(at[half:])

        everything = self._everything(len(rows))
        if whole:
            try:
                return [(everything, self.columns_of(samples))], bad
            except Exception as error:
                if not is_of_sample(error):
                    raise
        for shard in distinct_shards(shards, len(self.pool.index)):
            try:
                self.open_shard(shard)
            except Exception as error:
                if not is_of_sample(error):
                    raise
                for number in np.flatnonzero(shards == shard).tolist():
                    bad[number] = self.named(shard, int(rows[number]), error)
        left = np.setdiff1d(everything, np.fromiter(bad, np.int64, len(bad)))
        if len(left):
            read(left)
        return parts, bad

    def check_types(self, parts: Sequence[tuple[int, int, Batch]], *, alike: bool = True) -> None:
        """Check that a column holds values of one type in all parts, but for those of shards that are laid out alike.

        What such shards hold is of one type by their format. That may be the type of any value, as of a key of JSON lines
        with text and numbers, which parts of a batch need not both have. FormatError if it does not. ``parts``: shard and row
        of a sample of each, and its columns. ``alike``: whether all columns are of these shards.
        """
        kinds: dict[object, tuple[int, int, Batch]] = {}
        for number, part in enumerate(parts):
            kinds.setdefault(self.pool.get(part[0]).layout if alike else number, part)
        check_types(
            [batch for _, _, batch in kinds.values()],
            [str(location_of(self.pool, shard, row)) for shard, row, _ in kinds.values()],
        )

    def _everything(self, count: int) -> Ids:
        """The numbers of so many samples."""
        numbers = self._numbers
        if count > len(numbers):
            numbers = self._numbers = np.arange(count)
        return numbers[:count]

    def columns_of(self, samples: SampleRows) -> Batch:
        """The samples as columns, with their images loaded; errors of bad ones do not say which they are of."""
        before = last_left()
        batch = self.reader.batch(samples, named=False)
        if samples.own or last_left() is not before:
            load_columns(batch)
        return batch

    def open_shard(self, shard: int) -> None:
        """See that a shard can be opened. CorruptDataError if it can not, which is found out once."""
        if shard in self._damaged:
            raise self._damaged[shard]
        try:
            self.pool.get(shard)
        except Exception as error:
            if is_of_sample(error):
                self._damaged[shard] = error
            raise

    def named(self, shard: int, row: int, error: Exception, *, made: bool = False) -> SampleError:
        """The error of a sample that says which it is.

        ``error``, or what it comes from, is raised where it is not the sample's fault. ``shard``, ``row``: of the sample.
        ``made``: whether the functions of the user had a part in it.
        """
        if shard not in self._damaged and not isinstance(error, SampleError):
            named, cause = decode_error(self.pool, np.array([shard]), np.array([row]), self._columns, error)
            if not is_of_sample(named):
                raise named from cause
            named.__cause__ = cause
            error = named
        if not is_of_sample(error):
            raise error
        origin = location_of(self.pool, shard, row)
        if isinstance(error, SampleError):
            return beside(error, origin)
        if made and self._overridden and shard not in self._damaged:
            return override_error(error, origin)  # the sample can be read
        told = located(DecodeError, f"{origin}: {type(error).__name__}: {error}", origin)
        told.__cause__ = error
        return told

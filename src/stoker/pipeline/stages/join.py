"""Joining: columns of another dataset beside those of the samples, which belong together by id (``zip``) or by key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from stoker.errors import ConfigError, SampleError, TransformError
from stoker.formats.unstacked import rows_of, spread
from stoker.lazy import cached_property
from stoker.pipeline.chunks.chunk import Chunk, ChunkOthers
from stoker.pipeline.joins.leading import LeadingJoins
from stoker.pipeline.joins.other_reader import OtherReader, taken
from stoker.pipeline.stages.stage import ChunkStage, Numbered, SamplesStage
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.row_reader import Rows
from stoker.reading.sample_errors import SampleLocation, beside, transform_error
from stoker.reading.steps import BAD, LEFT_OUT, Beside, same_name
from stoker.types import Batch, Column, Ids


class Join(SamplesStage):
    """Puts the columns of another dataset beside those of the samples.

    Args:
        step: the zip or join.
        rows: of the dataset itself.
        reader: of the other dataset.
        key: the column of the samples that holds the key; empty of a zip.
        number: of the join among those that a chain begins with, whose ids may be known before; ``None``: it is none.
        keeps_dtypes: whether columns are made of the samples next: numbers of the other dataset keep their dtype.
    """

    def __init__(
        self, step: Beside, rows: Rows, reader: OtherReader, key: str, *, number: int | None, keeps_dtypes: bool = False
    ) -> None:
        self._step, self._rows, self._reader, self._key = step, rows, reader, key
        self._number, self._keeps_dtypes = number, keeps_dtypes
        self._checked = False

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class. ConfigError if two columns have one name, or keys are of different types."""
        if not isinstance(chunk.values, dict):
            return super().apply(chunk)
        return self._beside_columns(chunk) if len(chunk.places) else chunk

    # -- columns ---------------------------------------------------------------------------------------------------

    def _beside_columns(self, chunk: Chunk) -> Chunk:
        places, columns, missing = chunk.places, chunk.values, self._step.missing
        asked = columns[self._key] if self._key else None
        ids = self._ids(chunk, places, asked)
        bad: dict[int, SampleError] = {}
        there = np.flatnonzero(ids >= 0)
        if missing == "raise" and len(there) < len(ids):
            assert asked is not None
            for row in np.flatnonzero(ids < 0).tolist():
                bad[int(places[row])] = self._missing(_value(asked, row), self._origin(chunk, int(places[row])))
        other = self._reader.read(ids[there], taken(asked, there), columns=True)
        for number, error in other.bad.items():
            place = int(places[there[number]])
            bad[place] = beside(error, self._origin(chunk, place))
        got = there[other.places]
        if missing != "none":
            kept, beside_them = got, other.values
        else:
            kept = np.flatnonzero([place not in bad for place in places.tolist()]) if bad else np.arange(len(places))
            beside_them = other.values
            if len(got) < len(kept):
                at = np.searchsorted(kept, got).tolist()
                beside_them = {name: spread(column, at, len(kept)) for name, column in other.values.items()}
        if len(kept) == len(places):
            return replace(chunk, values={**columns, **beside_them})
        if not len(kept):
            return chunk.with_bad(bad, {}, places[:0])
        own = {name: rows_of(column, kept) for name, column in columns.items()}
        return chunk.with_bad(bad, {**own, **beside_them}, places[kept])

    # -- samples ---------------------------------------------------------------------------------------------------

    def columnwise(self, chunk: Chunk) -> Chunk | None:
        """See the base class. Columns of a join that comes first have names of their own."""
        columns, asked = chunk.values, None
        if self._key:
            asked = list(islice(columns[self._key], len(chunk)))
            columns = {**columns, self._key: asked}
        ids = self._ids(chunk, chunk.places, asked)
        there = np.flatnonzero(ids >= 0)
        if len(there) < len(ids) and self._step.missing != "none":
            return None
        beside_them = self._reader.columnwise(ids[there], taken(asked, there))
        if beside_them and len(there) < len(ids):
            self._check_keys()
            flags = (ids >= 0).tolist()
            beside_them = {name: _or_none(values, flags) for name, values in beside_them.items()}
        return None if beside_them is None else replace(chunk, values={**columns, **beside_them})

    def make(self, chunk: Chunk, samples: Sequence[Numbered], bad: dict[int, SampleError]) -> list[Any]:
        """See the base class."""
        step, key = self._step, self._key
        for place, sample in samples:
            if not isinstance(sample, dict) or (key and key not in sample):
                has = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
                what = f"needs a dict with a column {step.on[0]!r}" if key else "needs a dict"
                bad.setdefault(place, transform_error(f"{what}, got {has}", self._origin(chunk, place), step.told))
        asked: list[Any] | None = None
        if key:
            asked = [sample.get(key) if isinstance(sample, dict) else None for _, sample in samples]
        places = np.array([place for place, _ in samples], np.int64)
        ids = self._ids(chunk, places, asked)
        there = np.flatnonzero(ids >= 0)
        other = self._reader.read(ids[there], taken(asked, there), columns=False, keeps_dtypes=self._keeps_dtypes)
        for number, error in other.bad.items():
            place = int(places[there[number]])
            bad.setdefault(place, beside(error, self._origin(chunk, place)))
        beside_them: list[Any] = [None] * len(ids)
        for number, one in zip(there.tolist(), other.values, strict=True):
            beside_them[number] = one
        made: list[Any] = []
        for (place, sample), sample_id, one in zip(samples, ids.tolist(), beside_them, strict=True):
            if place in bad:
                made.append(BAD)
            elif sample_id < 0 and step.missing == "leave_out":
                self._check_keys()
                made.append(LEFT_OUT)
            elif sample_id < 0 and step.missing == "raise":
                bad[place] = self._missing(sample[key], self._origin(chunk, place))
                made.append(BAD)
            else:
                made.append(self._merged(sample, one))
        return made

    def _merged(self, sample: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
        step = self._step
        if other is None:
            self._check_keys()
            other = dict.fromkeys(self._names)
        elif self._reader.pairs is None:
            if step.on[1] in other and not _is_same(other[step.on[1]], sample[self._key]):
                raise self._changed(other[step.on[1]])
            other = self._renamed(other)
        made = {**sample, **other}
        if len(made) < len(sample) + len(other):
            raise same_name(step, next(name for name in other if name in sample))
        return made

    def _renamed(self, other: dict[str, Any]) -> dict[str, Any]:
        step = self._step
        return {step.prefix + name: value for name, value in other.items() if name != step.on[1]}

    def _check_keys(self) -> None:
        """Check, when a key is missing, that the first sample has the key that is stored: the join looks keys up there.

        ConfigError if it has another, as a function of the other dataset changes keys.
        """
        step, reader = self._step, self._reader
        if self._checked or reader.pairs is not None or not step.on[0] or not reader.other.samples:
            return
        self._checked = True
        with contextlib.suppress(SampleError):  # it is raised where this sample is asked for
            key = reader.first().get(step.on[1])
            if key is not None and int(reader.find(step.on[1], [key], f"{step.told}: what it makes")[0]):
                raise self._changed(key)

    def _changed(self, key: Any) -> ConfigError:
        step = self._step
        return ConfigError(
            f"{step.told}: a function of {step.name!r} changes its keys: one is {key!r} after it, and was stored as another. "
            f"Samples are found by what is stored: let the function leave {step.on[1]!r} as it is, or write the keys again"
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The columns of the other dataset. Where its functions make them, the first sample tells."""
        if self._reader.pairs is not None:
            return tuple(name for name, _ in self._reader.pairs)
        return tuple(self._renamed(self._reader.first())) if self._reader.other.samples else ()

    # -- which samples ---------------------------------------------------------------------------------------------

    def _ids(self, chunk: Chunk, places: Ids, asked: Column | None) -> Ids:
        """The ids of the other dataset's samples, -1 where there is none."""
        known = None if self._number is None else chunk.other_ids
        if known is not None and self._number is not None:
            return known[self._number][places]
        step = self._step
        if asked is None:
            return self._rows.table.ids(chunk.shards[places], chunk.rows[places])
        return self._reader.find(step.on[1], asked, f"{step.told}: column {step.on[0]!r}")

    def _missing(self, key: Any, origin: SampleLocation) -> TransformError:
        step = self._step
        return transform_error(
            f"no sample of {step.name!r} has the key {key!r}: missing='leave_out' leaves such samples out, 'none' gives None",
            origin,
            f"{step.told}:",
        )

    def _origin(self, chunk: Chunk, place: int) -> SampleLocation:
        return self._rows.origin(chunk.shards, chunk.rows, place)


class LeaveOutUnmatched(ChunkStage):
    """Drops samples, before they are read, that a join will leave out: their keys are read first."""

    def __init__(self, leading: LeadingJoins) -> None:
        self._leading, self._dropping = leading, leading.leave_out

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        if chunk.values is not None:  # which are left out is found as they are joined
            return chunk
        others = chunk.other_ids
        if others is None:
            try:
                others = self._leading.others(chunk.shards, chunk.rows)
            except Exception as error:
                if not is_of_sample(error):
                    raise
                return chunk  # which of them is bad is found where they are read
        gone = np.any([others[number] < 0 for number in self._dropping], axis=0)
        return replace(chunk, others=ChunkOthers(others), kept=np.flatnonzero(~gone) if gone.any() else None)


class Layout(ChunkStage):
    """Gives columns their names, and drops those that only a join needed.

    ``names``: pairs of name and the name before. ``before``: all names before, in the order that samples have them.
    """

    def __init__(self, names: Sequence[tuple[str, str]], before: Sequence[str]) -> None:
        self._names = tuple(names)
        self._same = self._names == tuple((name, name) for name in before)

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        values = chunk.values
        if isinstance(values, dict):
            return replace(chunk, values=self._named(values)) if values else chunk
        if self._same:
            return chunk
        return replace(chunk, values=[self._named(one) if isinstance(one, dict) else one for one in values])

    columnwise = apply

    def _named(self, values: Batch) -> Batch:
        return {name: values[before] for name, before in self._names}


def _or_none(values: Iterable[Any], flags: Sequence[bool]) -> Iterator[Any]:
    """Values where there is one, ``None`` elsewhere."""
    taken_in_turn = iter(values)
    return (next(taken_in_turn) if there else None for there in flags)


def _value(column: Column, row: int) -> Any:
    value = column[row]
    return value.item() if isinstance(value, np.generic) else value


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays
        return False

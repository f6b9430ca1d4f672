"""A zip or join after functions of samples: reads the other dataset's samples for all of a chunk at once."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from stoker.errors import ConfigError, SampleError
from stoker.lazy import cached_property
from stoker.pipeline.joins.chunk_stage import ChunkStage, Together
from stoker.pipeline.joins.joined_reader import missing_error, taken
from stoker.pipeline.joins.other_dataset import OtherReader
from stoker.reading.apply_chain import BAD, LEFT_OUT
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.chain_steps import Step, same_name
from stoker.reading.sample_errors import beside, transform_error
from stoker.types import Ids


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays
        return False


class JoinStage(ChunkStage):
    """Puts the columns of another dataset beside those of samples that functions have made.

    Args:
        step: the zip or join.
        reader: of the other dataset.
        as_columns: whether columns are made of the samples next: numbers of the other dataset keep their dtype.
    """

    def __init__(self, step: Step, reader: OtherReader, *, as_columns: bool) -> None:
        self._step, self._reader, self._as_columns = step, reader, as_columns
        self._checked = False

    def make(self, together: Together) -> list[Any]:
        """See the base class.

        Raises:
            ConfigError: two columns have one name, or keys are of different types.
        """
        ids, asked = self._ids(together)
        beside = self._read(ids, asked, together)
        made: list[Any] = []
        for (number, sample), sample_id, other in zip(together.samples, ids.tolist(), beside, strict=True):
            if number in together.failed:
                made.append(BAD)
            elif sample_id < 0 and self._step.missing == "leave_out":
                self._check_keys()
                made.append(LEFT_OUT)
            elif sample_id < 0 and self._step.missing == "raise":
                key = sample[self._step.on[0]]
                together.fail(number, missing_error(self._step, key, together.origin(number)))
                made.append(BAD)
            else:
                made.append(self._merged(sample, other))
        return made

    def _ids(self, together: Together) -> tuple[Ids, list[Any] | None]:
        """The ids of the other dataset's samples, -1 where there is none, and the keys that they were found by."""
        step = self._step
        for number, sample in together.samples:
            if not isinstance(sample, dict) or (step.kind == "join" and step.on[0] not in sample):
                has = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
                what = f"needs a dict with a column {step.on[0]!r}" if step.kind == "join" else "needs a dict"
                together.fail(number, transform_error(f"{what}, got {has}", together.origin(number), step.told))
        if step.kind == "zip":
            at = np.array([number for number, _ in together.samples], np.int64)
            ids: Ids = together.pool.index.table.starts[together.shards[at]] + together.rows[at]
            return ids, None
        keys = [sample.get(step.on[0]) if isinstance(sample, dict) else None for _, sample in together.samples]
        return self._reader.find(step.on[1], keys, f"{step.told}: column {step.on[0]!r}"), keys

    def _read(self, ids: Ids, asked: list[Any] | None, together: Together) -> list[dict[str, Any] | None]:
        """The other dataset's columns for each sample; ``None`` where there are none."""
        values: list[dict[str, Any] | None] = [None] * len(ids)
        there = np.flatnonzero(ids >= 0)
        try:
            for place, other in zip(
                there.tolist(),
                self._reader.iterate(ids[there], taken(asked, there), as_columns=self._as_columns),
                strict=True,
            ):
                values[place] = other
        except Exception as error:
            if together.strict or not is_of_sample(error):
                raise
            for place in there.tolist():
                try:
                    (values[place],) = self._reader.iterate(ids[place : place + 1], as_columns=self._as_columns)
                except SampleError as one:
                    number = together.samples[place][0]
                    together.fail(number, beside(one, together.origin(number)))
        return values

    def _merged(self, sample: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
        step = self._step
        if other is None:
            self._check_keys()
            other = dict.fromkeys(self._names)
        elif self._reader.pairs is None:
            if step.on[1] in other and not _is_same(other[step.on[1]], sample[step.on[0]]):
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

        Raises:
            ConfigError: it has another, as a function of the other dataset changes keys.
        """
        step, reader = self._step, self._reader
        if self._checked or reader.pairs is not None or step.kind != "join" or not reader.other.samples:
            return
        self._checked = True
        with contextlib.suppress(SampleError):  # it is raised where this sample is asked for
            key = next(reader.iterate(np.zeros(1, np.int64))).get(step.on[1])
            if key is not None and int(reader.find(step.on[1], [key], f"{step.told}: what it makes")[0]):
                raise self._changed(key)

    def _changed(self, key: Any) -> ConfigError:
        step = self._step
        return ConfigError(
            f"{step.told}: a function of {step.name!r} changes its keys: one is {key!r} after it, and was stored as another. "
            f"Samples are found by what is stored: let the function leave {step.on[1]!r} as it is, or write the keys anew"
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The columns of the other dataset. Where its functions make them, the first sample tells."""
        if self._reader.pairs is not None:
            return tuple(name for name, _ in self._reader.pairs)
        if not self._reader.other.samples:
            return ()
        return tuple(self._renamed(next(self._reader.iterate(np.zeros(1, np.int64)))))

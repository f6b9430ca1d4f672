"""One task of a conversion: a range of samples to its shards, and a record that they are complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.concurrency.shared.counters import Counts
from stoker.conversion.job import ConversionJob, dataset_store, put_note
from stoker.conversion.sinks import SampleSink
from stoker.conversion.source import ConversionSource
from stoker.conversion.values import ColumnPlan, SampleHandling, adapted, apply
from stoker.errors import (
    DecodeError,
    EncodingError,
    MissingPackageError,
    SampleError,
    StokerError,
    TooManyBadSamplesError,
)
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.formats.unstacked import rows_of
from stoker.reading.bad_samples import BadSampleLog, as_dict, is_of_sample
from stoker.types import Batch, Column, Ids, Sample

_CHUNK_BYTES: Final = 8 << 20
_CHUNK_SAMPLES: Final = 1 << 13
_SAMPLE: Final = re.compile(r"(?:the batch from )?sample ([0-9]+)")


def run_task(job: ConversionJob, number: int, advance: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Do a task, and record in the destination that it is done. Done again, it writes the same again.

    The note has ``identity``, ``task``, ``read``, for each split its ``entries``, ``files`` and ``samples``, and ``bad``, the
    samples that were left out, in order, each with its number in the task. Where there are more of them than allowed,
    whatever other tasks find, the task ends early: its note says ``exceeded``, and nothing is recorded. ``advance`` is told
    of samples that were read.
    """
    first, stop = int(job.bounds[number]), int(job.bounds[number + 1])
    shards, rows = job.arrangement.located(first, stop)
    split = job.arrangement.split_of(shards, rows)
    name = None if job.tasks == 1 else number
    step = max(1, min(_CHUNK_SAMPLES, _CHUNK_BYTES * job.arrangement.total // max(1, job.source.bytes)))
    sinks: list[SampleSink] = []
    bad: list[dict[str, Any]] = []
    note = {"identity": job.identity, "task": number, "read": stop - first, "splits": [], "bad": bad}
    log = None
    if job.handling.bad_samples is not None:
        log = BadSampleLog(job.handling.bad_samples, Counts(), silent=True)
        log.enter(first)
        log.enter(stop - first)
    with ExitStack() as stack:
        for split_name, _, _ in job.arrangement.splits:
            sink = SampleSink(job.settings, job.outputs, dataset_store(job, split_name), name, first)
            stack.callback(sink.abort)  # of no effect after finish()
            sinks.append(sink)
        for start in range(0, stop - first, step):
            here = slice(start, min(start + step, stop - first))
            job.source.expect(shards[start:], here.stop - start)
            chunk = _TaskChunk(job, shards[here], rows[here])
            chunk.convert(split[here], sinks)
            for row, error in sorted((chunk.bad or {}).items()):
                bad.append({"number": start + row, **as_dict(error)})
                assert log is not None
                try:
                    log.note(start + row, error)
                except TooManyBadSamplesError:
                    return {**note, "exceeded": True}
            advance(here.stop - start)
        note["splits"] = [
            {"name": split_name, **sink.finish()}
            for (split_name, _, _), sink in zip(job.arrangement.splits, sinks, strict=True)
        ]
    put_note(job, number, note)
    return note


class SourceChunk:
    """Some samples of a source, read and mapped together. A row is a sample's index among them.

    ``bad``: errors of the samples that are left out, by row; ``None`` where such errors are raised.
    """

    def __init__(
        self,
        source: ConversionSource,
        inputs: Sequence[ColumnPlan],
        decoded: Sequence[str],
        handling: SampleHandling,
        shards: Ids,
        rows: Ids,
    ) -> None:
        self._source, self._inputs, self._decoded, self._handling = source, inputs, decoded, handling
        self._shards, self._rows = shards, rows
        self.bad: dict[int, SampleError] | None = None if handling.bad_samples is None else {}

    def where(self, row: int) -> str:
        """Names a sample in errors."""
        return self._source.where(int(self._shards[row]), int(self._rows[row]))

    def taken(self, allowed: Collection[str] | None) -> tuple[Batch, Ids]:
        """The samples' columns, see :meth:`SampleHandling.prepared`, without the bad ones; and the row of each."""
        names = [plan.source for plan in self._inputs]
        if self.bad is None:
            batch, origin = self._source.read(self._shards, self._rows, names), np.arange(len(self._rows))
        else:
            batch, origin, bad = self._source.read_good(self._shards, self._rows, names)
            self.bad.update(bad)

        def make(raw: Batch) -> tuple[Batch, Ids | None]:
            values: Batch = {plan.name: _adapted(raw[plan.source], plan) for plan in self._inputs}
            return self._handling.prepared(values, allowed)

        return self._fitting(batch, origin, make)

    def mapped(
        self, batch: Batch, origin: Ids, needed: Sequence[str] = (), most: int | None = None
    ) -> tuple[list[Sample], list[int]]:
        """The samples that the transform returns, which have the ``needed`` columns, and the row that each was made of.

        ``most``: no more samples are mapped when there are so many.
        """
        transform = self._handling.transform
        assert transform is not None
        made: list[Sample] = []
        rows: list[int] = []
        columns = {
            name: self._images(values, name, origin) if name in self._decoded else _plain(values)
            for name, values in batch.items()
        }
        for row, values in zip(origin.tolist(), zip(*columns.values(), strict=True), strict=True):
            if self.bad is not None and row in self.bad:
                continue
            try:
                several = apply(transform, dict(zip(columns, values, strict=True)), partial(self.where, row))
                self._check_columns(several, needed, row)
            except (SampleError, EncodingError) as error:
                self._failed(row, error)
                continue
            made += several
            rows += [row] * len(several)
            if most is not None and len(made) >= most:
                break
        return made, rows

    def _images(self, files: Column, name: str, origin: Ids) -> list[Any]:
        """The images of files; ``None`` for a file that holds none, whose sample is bad."""
        decode = get_encoding("png").decode  # which opens what Pillow opens
        images: list[Any] = []
        for row, data in zip(origin.tolist(), files, strict=True):
            try:
                images.append(data if data is None else decode(bytes(data)))
            except ValueError as error:
                named = DecodeError(f"{self.where(row)}: column {name!r}: {error}", column=name)
                named.__cause__ = error
                self._failed(row, named)
                images.append(None)
        return images

    def _failed(self, row: int, error: Exception) -> None:
        """Note that a sample is bad.

        Where errors of samples are raised, or it is not the sample's fault, the error itself is.
        """
        if self.bad is None or not (isinstance(error, EncodingError) or is_of_sample(error)):
            raise error
        location = self._source.sample_location(int(self._shards[row]), int(self._rows[row]))
        if not isinstance(error, SampleError):
            error = _of_sample(error)
        error.url, error.shard, error.row, error.sample = location.url, location.shard, location.row, location.sample
        self.bad.setdefault(row, error)

    def _fitting(
        self, batch: Batch, origin: Ids, make: Callable[[Batch], tuple[Batch, Ids | None]]
    ) -> tuple[Batch, Ids]:
        """Columns made of columns, without the samples whose values do not fit, and the row of each."""
        good: list[tuple[Ids, tuple[Batch, Ids | None]]] = []

        def tried(at: Ids) -> None:
            try:
                good.append((at, make(_some(batch, at))))
            except UnfitValueError as error:
                raise self._unfit(error, origin[at]) from error

        if len(origin):
            self._halving(tried, np.arange(len(origin)), origin)
        if not good:
            return {}, origin[:0]
        left = np.concatenate([at for at, _ in good])
        made, kept = good[0][1] if len(good) == 1 else make(_some(batch, left))
        return made, origin[left] if kept is None else origin[left][kept]

    def _halving(self, do: Callable[[Ids], None], at: Ids, origin: Ids) -> None:
        """Do something with samples, in order; where it fails, with halves of what is left, down to those that are bad."""
        try:
            do(at)
        except (_UnwrittenError, EncodingError) as failure:
            error, done = (failure.error, failure.done) if isinstance(failure, _UnwrittenError) else (failure, 0)
            if self.bad is None or len(at) == 1:
                if error is not failure:
                    error.__cause__ = failure.__cause__
                self._failed(int(origin[at[0]]), error)
                return
            left = at[done:]
            half = (len(left) + 1) // 2
            self._halving(do, left[:half], origin)
            if half < len(left):
                self._halving(do, left[half:], origin)

    def _unfit(self, error: UnfitValueError, origin: Ids) -> EncodingError:
        return EncodingError(f"{self.where(int(origin[error.row or 0]))}: column {error.column!r}: {error}")

    def _check_columns(self, samples: Sequence[Sample], needed: Sequence[str], row: int) -> None:
        for sample in samples:
            for name in needed:
                if name not in sample:
                    raise EncodingError(
                        f"{self.where(row)}: the transform returned no {name!r}; it returned {', '.join(map(repr, sample))}"
                    )


class _TaskChunk(SourceChunk):
    """Samples of a task, which are written together."""

    def __init__(self, job: ConversionJob, shards: Ids, rows: Ids) -> None:
        super().__init__(job.source, job.inputs, job.decoded, job.handling, shards, rows)
        self._outputs = job.outputs

    def convert(self, split: Ids, sinks: list[SampleSink]) -> None:
        """Write the samples, each to the sink of its split."""
        outputs, maps = self._outputs, self._handling.transform is not None
        allowed = {plan.name for plan in outputs if plan.arrow is not None or plan.encoding in ("json", "pkl")}
        batch, origin = self.taken(None if maps else allowed)

        def given_out(made: Batch) -> tuple[Batch, Ids | None]:
            values: Batch = {plan.name: _adapted(made[plan.name], plan) for plan in outputs}
            return self._handling.prepared(values, allowed)

        if maps and len(origin):
            made, rows = self.mapped(batch, origin, [plan.name for plan in outputs])
            batch = {plan.name: [sample[plan.name] for sample in made] for plan in outputs}
            batch, origin = self._fitting(batch, np.array(rows, np.int64), given_out)
        split = split[origin]
        for number, sink in enumerate(sinks):
            chosen = np.flatnonzero(split == number)
            if len(chosen):
                self._write(sink, batch, origin, chosen)

    def _write(self, sink: SampleSink, batch: Batch, origin: Ids, chosen: Ids) -> None:
        """Write the chosen samples of a batch."""

        def written(at: Ids) -> None:
            before = sink.samples
            try:
                sink.write(_some(batch, at))
            except UnfitValueError as error:
                raise _UnwrittenError(self._unfit(error, origin[at]), sink.samples - before) from error
            except EncodingError as error:
                raise _UnwrittenError(_named(error, before, origin[at], self.where), sink.samples - before) from error

        self._halving(written, chosen, origin)


class _UnwrittenError(Exception):
    """A sample does not fit. ``error``: says which, and why. ``done``: samples before it that were written."""

    def __init__(self, error: StokerError, done: int) -> None:
        super().__init__(str(error))
        self.error, self.done = error, done


def _of_sample(error: Exception) -> SampleError:
    """The error of a sample with a value that does not fit; names the column where one of its causes does."""
    made = SampleError(str(error))
    cause: BaseException | None = error
    made.__cause__ = error
    while cause is not None and made.column is None:
        made.column = getattr(cause, "column", None)
        cause = cause.__cause__
    return made


def _some(batch: Batch, at: Ids) -> Batch:
    """Some of the samples of a batch, in order."""
    if len(at) == len(next(iter(batch.values()))):
        return batch
    return {name: rows_of(values, at) for name, values in batch.items()}


def _adapted(values: Any, plan: ColumnPlan) -> Any:
    try:
        return adapted(values, plan)
    except UnfitValueError as error:
        error.column = error.column or plan.name
        raise


def _plain(values: Column) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        items: list[Any] = values.tolist()
        return items
    return list(values)


def _named(error: EncodingError, before: int, origin: Ids, where: Callable[[int], str]) -> StokerError:
    """A writer's error, which counts the samples of its task, in terms of the source."""
    if isinstance(error.__cause__, MissingPackageError):
        return error.__cause__
    text = str(error)
    match = _SAMPLE.search(text)
    if match is None or not 0 <= int(match[1]) - before < len(origin):
        return EncodingError(f"{where(int(origin[0]))}, or one of the {len(origin) - 1} samples after it: {text}")
    origin_text = where(int(origin[int(match[1]) - before]))
    hint = "" if "columns=" in text else "; say another type with columns=, or make the value fit with transform="
    return EncodingError(f"{origin_text}: {text.replace(match[0], 'it')}{hint}")

"""One task of a conversion: a range of samples to its shards, and a record that they are complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.concurrency.shared.counters import Counts
from stoker.conversion.job import ConversionJob, dataset_store, put_note
from stoker.conversion.sinks import SampleSink
from stoker.conversion.values import ColumnPlan, Transform, adapted, apply
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

    The note has ``identity``, ``task``, ``read``, for each split its ``entries`` and ``samples``, and ``bad``, the samples
    that were left out, in order, each with its number in the task. Where there are more of them than allowed, whatever
    other tasks find, the task ends early: its note says ``exceeded``, and nothing is recorded. ``advance`` is told of
    samples that were read.
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
            chunk = _Chunk(job, shards[here], rows[here])
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
            {"name": split_name, "entries": sink.finish(), "samples": sink.samples}
            for (split_name, _, _), sink in zip(job.arrangement.splits, sinks, strict=True)
        ]
    put_note(job, number, note)
    return note


class _Chunk:
    """Some samples of a task, read, mapped and written together. A row is a sample's index among them.

    ``bad``: errors of the samples that are left out, by row; ``None`` where such errors are raised.
    """

    def __init__(self, job: ConversionJob, shards: Ids, rows: Ids) -> None:
        self._job, self._shards, self._rows = job, shards, rows
        self.bad: dict[int, SampleError] | None = None if job.handling.bad_samples is None else {}

    def convert(self, split: Ids, sinks: list[SampleSink]) -> None:
        """Write the samples, each to the sink of its split."""
        job, settings = self._job, self._job.handling
        batch, origin = self._read([plan.source for plan in job.inputs])
        allowed = {plan.name for plan in job.outputs if plan.arrow is not None or plan.encoding in ("json", "pkl")}

        def taken_in(raw: Batch) -> tuple[Batch, Ids | None]:
            values: Batch = {plan.name: _adapted(raw[plan.source], plan) for plan in job.inputs}
            return settings.prepared(values, allowed if settings.transform is None else None)

        def given_out(made: Batch) -> tuple[Batch, Ids | None]:
            values: Batch = {plan.name: _adapted(made[plan.name], plan) for plan in job.outputs}
            return settings.prepared(values, allowed)

        batch, origin = self._fitting(batch, origin, taken_in)
        if settings.transform is not None and len(origin):
            batch, origin = self._mapped(settings.transform, batch, origin)
            batch, origin = self._fitting(batch, origin, given_out)
        split = split[origin]
        for number, sink in enumerate(sinks):
            chosen = np.flatnonzero(split == number)
            if len(chosen):
                self._write(sink, batch, origin, chosen)

    def where(self, row: int) -> str:
        """Names a sample in errors."""
        return self._job.source.where(int(self._shards[row]), int(self._rows[row]))

    def _read(self, columns: Sequence[str]) -> tuple[Batch, Ids]:
        source = self._job.source
        if self.bad is None:
            return source.read(self._shards, self._rows, columns), np.arange(len(self._rows))
        batch, kept, bad = source.read_good(self._shards, self._rows, columns)
        self.bad.update(bad)
        return batch, kept

    def _failed(self, row: int, error: Exception) -> None:
        """Note that a sample is bad.

        Where errors of samples are raised, or it is not the sample's fault, the error itself is.
        """
        if self.bad is None or not (isinstance(error, EncodingError) or is_of_sample(error)):
            raise error
        location = self._job.source.sample_location(int(self._shards[row]), int(self._rows[row]))
        if not isinstance(error, SampleError):
            error = _of_sample(error)
        error.url, error.shard, error.row, error.sample = location.url, location.shard, location.row, location.sample
        self.bad.setdefault(row, error)

    def _fitting(
        self, batch: Batch, origin: Ids, make: Callable[[Batch], tuple[Batch, Ids | None]]
    ) -> tuple[Batch, Ids]:
        """Columns made of columns, without the samples whose values do not fit, and the row of each."""
        good: list[Ids] = []

        def tried(at: Ids) -> None:
            try:
                make(_some(batch, at))
            except UnfitValueError as error:
                raise self._unfit(error, origin[at]) from error
            good.append(at)

        if not len(origin):
            return {}, origin
        try:
            made, kept = make(batch)
        except UnfitValueError as error:
            if self.bad is None:
                raise self._unfit(error, origin) from error
            self._halving(tried, np.arange(len(origin)), origin)
            if not good:
                return {}, origin[:0]
            left = np.concatenate(good)
            origin = origin[left]
            made, kept = make(_some(batch, left))
        return made, origin if kept is None else origin[kept]

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

    def _mapped(self, transform: Transform, batch: Batch, origin: Ids) -> tuple[Batch, Ids]:
        """Columns of the samples that the transform returns, and for each the row of the sample that it was made of."""
        job, bad = self._job, self.bad

        def where(number: int) -> str:
            return self.where(int(origin[number]))

        def failed(number: int, error: Exception) -> None:
            self._failed(int(origin[number]), error)

        columns = items(batch, job.decoded, where, failed)
        names = tuple(columns)
        made: list[Sample] = []
        rows: list[int] = []
        for number, values in enumerate(zip(*columns.values(), strict=True)):
            row = int(origin[number])
            if bad is not None and row in bad:
                continue
            try:
                several = apply(transform, dict(zip(names, values, strict=True)), partial(where, number))
                self._check_columns(several, row)
            except (SampleError, EncodingError) as error:
                failed(number, error)
                continue
            made += several
            rows += [row] * len(several)
        return {plan.name: [sample[plan.name] for sample in made] for plan in job.outputs}, np.array(rows, np.int64)

    def _check_columns(self, samples: Sequence[Sample], row: int) -> None:
        for sample in samples:
            for plan in self._job.outputs:
                if plan.name not in sample:
                    raise EncodingError(
                        f"{self.where(row)}: the transform returned no {plan.name!r}; it returned "
                        f"{', '.join(map(repr, sample))}"
                    )


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


def items(
    batch: Batch,
    decoded: Collection[str],
    where: Callable[[int], str],
    failed: Callable[[int, Exception], None],
) -> dict[str, list[Any]]:
    """One value a sample for each column; images instead of their files' bytes for those that are ``decoded``.

    ``failed`` is told of each file that holds no image: its row, and a :class:`DecodeError`. Unless it raises an error, the
    image is ``None``.
    """
    return {
        name: _decoded(values, name, where, failed) if name in decoded else _plain(values)
        for name, values in batch.items()
    }


def _plain(values: Column) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        items: list[Any] = values.tolist()
        return items
    return list(values)


def _decoded(
    values: Column, name: str, where: Callable[[int], str], failed: Callable[[int, Exception], None]
) -> list[Any]:
    decode = get_encoding("png").decode  # which opens what Pillow opens
    images: list[Any] = []
    for row, value in enumerate(values):
        try:
            images.append(value if value is None else decode(bytes(value)))
        except ValueError as error:
            named = DecodeError(f"{where(row)}: column {name!r}: {error}", column=name)
            named.__cause__ = error
            failed(row, named)
            images.append(None)
    return images


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


def bad_of(notes: Mapping[int, Mapping[str, Any]]) -> int:
    """Bad samples that were left out, by the notes of all tasks."""
    return sum(len(note.get("bad", ())) for note in notes.values())


def totals(notes: Mapping[int, Mapping[str, Any]]) -> tuple[int, dict[str, int]]:
    """Samples read, and written to each split, by the notes of all tasks."""
    written: dict[str, int] = {}
    for note in notes.values():
        for split in note["splits"]:
            written[split["name"]] = written.get(split["name"], 0) + split["samples"]
    return sum(note["read"] for note in notes.values()), written

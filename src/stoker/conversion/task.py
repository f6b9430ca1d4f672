"""One task of a conversion: a range of samples to its shards, and a record that they are complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.conversion.job import ConversionJob
from stoker.conversion.sinks import SampleSink
from stoker.conversion.transform import apply
from stoker.conversion.values import ColumnPlan, adapted, taken, without_nulls
from stoker.conversion.work import dataset_store, put_note
from stoker.errors import DecodeError, EncodingError, MissingPackageError, StokerError
from stoker.formats.common.values import UnfitValueError
from stoker.formats.mds.encodings import get_encoding
from stoker.types import Batch, Column, Ids, Sample

_CHUNK_BYTES: Final = 8 << 20
_CHUNK_SAMPLES: Final = 1 << 13
_SAMPLE: Final = re.compile(r"(?:the batch from )?sample ([0-9]+)")


def run_task(job: ConversionJob, number: int, advance: Callable[[int], None]) -> dict[str, Any]:
    """Do a task, and record in the destination that it is done. Done again, it writes the same again.

    Args:
        job: the work.
        number: the task's.
        advance: told of samples that were read.

    Returns:
        The note: ``identity``, ``task``, ``read``, and for each split its ``entries`` and ``samples``.

    Raises:
        EncodingError: a sample does not fit; names it in the source.
        SampleError: a sample does not decode, or the transform raised an error for it; names it in the source.
        StorageError: something can not be read or written.
    """
    first, stop = int(job.bounds[number]), int(job.bounds[number + 1])
    shards, rows = job.arrangement.located(first, stop)
    split = job.arrangement.split_of(shards, rows)
    name = None if job.tasks == 1 else number
    step = max(1, min(_CHUNK_SAMPLES, _CHUNK_BYTES * job.arrangement.total // max(1, job.source.bytes)))
    sinks: list[SampleSink] = []
    with ExitStack() as stack:
        for split_name, _, _ in job.arrangement.splits:
            sink = SampleSink(job.settings, job.outputs, dataset_store(job, split_name), name, first)
            stack.callback(sink.abort)  # of no effect after finish()
            sinks.append(sink)
        for start in range(0, stop - first, step):
            here = slice(start, min(start + step, stop - first))
            job.source.expect(shards[start:], here.stop - start)
            _convert_chunk(job, shards[here], rows[here], split[here], sinks)
            advance(here.stop - start)
        made = [
            {"name": split_name, "entries": sink.finish(), "samples": sink.samples}
            for (split_name, _, _), sink in zip(job.arrangement.splits, sinks, strict=True)
        ]
    note = {"identity": job.identity, "task": number, "read": stop - first, "splits": made}
    put_note(job, number, note)
    return note


def _convert_chunk(job: ConversionJob, shards: Ids, rows: Ids, split: Ids, sinks: list[SampleSink]) -> None:
    """Read, map and write some samples."""

    def where(row: int) -> str:
        return job.source.where(int(shards[row]), int(rows[row]))

    raw = job.source.read(shards, rows, [plan.source for plan in job.inputs])
    origin = np.arange(len(rows))
    try:
        batch: Batch = {plan.name: _adapted(raw[plan.source], plan) for plan in job.inputs}
        if job.transform is not None:
            # A transform may well mend nulls: what it returns must have none.
            batch, _ = without_nulls(batch, job.fill, drop=False, allowed=batch)
            batch, origin = _mapped(job, batch, where)
            batch = {plan.name: _adapted(batch[plan.name], plan) for plan in job.outputs}
        allowed = {plan.name for plan in job.outputs if plan.arrow is not None or plan.encoding in ("json", "pkl")}
        batch, kept = without_nulls(batch, job.fill, drop=job.drop_nulls, allowed=allowed)
    except UnfitValueError as error:
        raise EncodingError(f"{where(int(origin[error.row or 0]))}: column {error.column!r}: {error}") from error
    origin = origin if kept is None else origin[kept]
    split = split[origin]
    for number, sink in enumerate(sinks):
        chosen = np.flatnonzero(split == number)
        if not len(chosen):
            continue
        part = batch if len(chosen) == len(split) else {name: taken(one, chosen) for name, one in batch.items()}
        before = sink.samples
        try:
            sink.write(part)
        except UnfitValueError as error:
            row = int(origin[chosen[error.row or 0]])
            raise EncodingError(f"{where(row)}: column {error.column!r}: {error}") from error
        except EncodingError as error:
            raise _named(error, before, origin[chosen], where) from error


def _adapted(values: Any, plan: ColumnPlan) -> Any:
    try:
        return adapted(values, plan)
    except UnfitValueError as error:
        error.column = error.column or plan.name
        raise


def _mapped(job: ConversionJob, batch: Batch, where: Callable[[int], str]) -> tuple[Batch, Ids]:
    """Columns of the samples that the transform returns, and for each the row of the sample that it was made of."""
    assert job.transform is not None
    columns = items(batch, job.decoded, where)
    names = tuple(columns)
    made: list[Sample] = []
    origin: list[int] = []
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        named = partial(where, row)
        for sample in apply(job.transform, dict(zip(names, values, strict=True)), named):
            for plan in job.outputs:
                if plan.name not in sample:
                    raise EncodingError(
                        f"{named()}: the transform returned no {plan.name!r}; it returned {', '.join(map(repr, sample))}"
                    )
            made.append(sample)
            origin.append(row)
    return {plan.name: [sample[plan.name] for sample in made] for plan in job.outputs}, np.array(origin, np.int64)


def items(batch: Batch, decoded: Collection[str], where: Callable[[int], str]) -> dict[str, list[Any]]:
    """One value a sample for each column; images instead of their files' bytes for those that are ``decoded``.

    Raises:
        DecodeError: a file holds no image; names the sample, as ``where`` does for a row.
    """
    return {
        name: _decoded(values, name, where) if name in decoded else _plain(values) for name, values in batch.items()
    }


def _plain(values: Column) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        items: list[Any] = values.tolist()
        return items
    return list(values)


def _decoded(values: Column, name: str, where: Callable[[int], str]) -> list[Any]:
    decode = get_encoding("png").decode  # which opens what Pillow opens
    images: list[Any] = []
    for row, value in enumerate(values):
        try:
            images.append(value if value is None else decode(bytes(value)))
        except ValueError as error:
            raise DecodeError(f"{where(row)}: column {name!r}: {error}", column=name) from error
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


def totals(notes: Mapping[int, Mapping[str, Any]]) -> tuple[int, dict[str, int]]:
    """Samples read, and written to each split, by the notes of all tasks."""
    written: dict[str, int] = {}
    for note in notes.values():
        for split in note["splits"]:
            written[split["name"]] = written.get(split["name"], 0) + split["samples"]
    return sum(note["read"] for note in notes.values()), written

"""The documents of which a step's rows are made, and where a document lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.order.sample_order import EpochPosition, Run
from stoker.order.step import runs_with_step
from stoker.reading.bad_samples import BadSampleNotes, OnBadSample
from stoker.reading.sample_errors import SampleLocation
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.block_builder import BlockBuilder
from stoker.tokens.layouts.good_rows import GoodRowBuilder
from stoker.tokens.sources.source import TokenSource
from stoker.types import Ids


def documents_of_step(
    builder: BlockBuilder,
    run_of: Callable[[EpochPosition, int], Run],
    ranks: Sequence[int],
    point: EpochPosition,
    step: int,
    batch_size: int,
    on_bad_sample: OnBadSample | None,
    *,
    since_resume: bool = False,
) -> Ids:
    """Numbers of the documents of which ranks have tokens in a step: the row groups of these batches are decoded.

    ``run_of``, ``ranks``, ``point``, ``step`` and ``since_resume`` are as of :func:`~stoker.order.step.samples_of_step`.
    Numbers rise within a rank, one rank after the other.
    """
    found = [
        np.unique(_batch(builder, run, before, batch_size, on_bad_sample).extents.documents)
        for _, run, before in runs_with_step(run_of, ranks, point, step, since_resume=since_resume)
    ]
    return np.concatenate(found)


def _batch(builder: BlockBuilder, run: Run, step: int, batch_size: int, on_bad_sample: OnBadSample | None) -> LMBatch:
    if on_bad_sample is None:
        with closing(builder.batch_lists(run, LoaderWorker(), step, batch_size, 1)) as batches:
            return next(batches)[0]
    # Nothing is delivered: what is bad is not counted.
    good = GoodRowBuilder(builder, on_bad_sample, BadSampleNotes())
    with closing(good.batch_lists(run, LoaderWorker(), step, batch_size, 1)) as batches:
        return next(batches)[0]


def document_location(source: TokenSource, document: int) -> SampleLocation:
    """The file of a document, the number of its row group among those of all files, and its row there."""
    groups = source.groups
    if document < 0 or not len(groups):
        raise IndexError(f"document {document}: documents are numbered from 0, among the rows of all files")
    group, row, _ = groups.find(document)
    # Of the last row group footers do not tell how many rows are empty.
    if group == len(groups) - 1 and row >= (rows := sum(len(part) for part in source.chunks(group))):
        raise IndexError(
            f"document {document} is not among the {int(groups.first_rows[group]) + rows} rows of all files"
        )
    return SampleLocation(source.groups.files[int(source.groups.file[group])], group, row, document)

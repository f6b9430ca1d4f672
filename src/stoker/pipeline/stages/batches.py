"""Rows of batches as samples again, for steps of a chain that come after a function of whole batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.formats.unstacked import stackable
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.stages.stage import ChunkStage
from stoker.reading.steps import BAD, GONE, SeveralSamples


class SamplesOfBatch(ChunkStage):
    """Makes samples of the rows of a batch. Row i has the place of sample i; further rows have that of the last one.

    ``columns``: makes the columns of a chunk, which is one batch, up to the function of the batch.
    """

    def __init__(self, columns: Callable[[Chunk], Chunk]) -> None:
        self._columns = columns

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        made = self._columns(chunk)
        entries: list[Any] = [GONE] * len(chunk)
        if isinstance(made.values, list):  # the iteration ends with the error of a bad one
            for place in made.bad:
                entries[place] = BAD
            return replace(made, values=entries, kept=None)
        names = tuple(made.values)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(stackable, made.values.values()), strict=True)]
        places = made.places.tolist()
        for number, row in enumerate(rows):
            place = places[min(number, len(places) - 1)]
            before = entries[place]
            if before is GONE:
                entries[place] = row
            elif isinstance(before, SeveralSamples):
                before.append(row)
            else:
                entries[place] = SeveralSamples((before, row))
        for one in entries:
            if isinstance(one, SeveralSamples):
                one.numbers = range(len(one))
        return replace(made, values=entries, kept=None)

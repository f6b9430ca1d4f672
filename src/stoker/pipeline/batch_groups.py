"""Batches that a DataLoader worker sends together, as one message: sending one costs more than reading a small batch.

A worker sends what it reads in one step: all columns one after the other in one block of memory. The main process cuts them
into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.concurrency.spans.recorder import Stage, span
from stoker.pipeline.columns import CutColumn, GroupColumn
from stoker.types import Array, Batch

_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Consecutive batches of one reader, as the columns of all their samples.

    ``columns``: column name to column of as many values as all batches have, or to the column of each batch; see
    :func:`~stoker.pipeline.columns.cut_columns`. ``lengths``: samples of each batch, in order.
    """

    columns: Mapping[str, GroupColumn]
    lengths: Sequence[int]

    def batches(self) -> list[Batch]:
        """The batches. Arrays are views."""
        columns = self.columns
        if len(self.lengths) == 1:
            return [{name: column[0] if isinstance(column, CutColumn) else column for name, column in columns.items()}]
        batches: list[Batch] = []
        start = 0
        for number, length in enumerate(self.lengths):
            end = start + length
            batches.append(
                {
                    name: column[number] if isinstance(column, CutColumn) else column[start:end]
                    for name, column in columns.items()
                }
            )
            start = end
        return batches


GroupMessage: TypeAlias = Sequence[Any]
"""A message of a group: lengths of batches, a tensor of bytes, and for each column its name, whether each batch has a column
of its own, and its offset in the bytes, dtype and shape, or the column itself where that is no array of numbers. Where each
batch has one of its own, there is an entry for each. Built-in types and tensors alone, of which torch pins the memory."""


def to_message(group: BatchGroup) -> GroupMessage:
    """A group as it is sent by the DataLoader worker that this process is."""
    from stoker.pipeline.collate import empty_tensor, makes_tensor

    columns: list[tuple[str, bool, Any, Any, Any]] = []
    arrays: list[tuple[int, Array]] = []
    size = 0
    for name, whole in group.columns.items():
        cut = isinstance(whole, CutColumn)
        for column in whole if isinstance(whole, CutColumn) else (whole,):
            if makes_tensor(column):
                columns.append((name, cut, size, column.dtype.str, column.shape))
                arrays.append((size, column))
                size += -(-column.nbytes // _ALIGNMENT) * _ALIGNMENT
            else:
                columns.append((name, cut, None, column, None))
    data = empty_tensor((max(size, _ALIGNMENT),), np.dtype(np.uint8))
    into = data.numpy()
    for offset, array in arrays:
        into[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return [list(group.lengths), data, columns]


def _batches_of(message: GroupMessage) -> list[dict[str, Any]]:
    """The batches of a group, their arrays as tensors that share its memory."""
    import torch

    from stoker.pipeline.collate import stack_tensors

    lengths, data, columns = message
    memory = data.numpy()
    batch: dict[str, GroupColumn] = {}
    cuts: dict[str, list[Any]] = {}
    numbers: set[str] = set()
    for name, cut, offset, column, shape in columns:
        found = column
        if offset is not None:
            dtype = np.dtype(column)
            size = int(np.prod(shape)) * dtype.itemsize
            found = memory[offset : offset + size].view(dtype).reshape(shape)
        if cut:
            batch.setdefault(name, [])  # columns keep their order
            cuts.setdefault(name, []).append(found if offset is None else torch.from_numpy(found))
            continue
        batch[name] = found
        if offset is not None:
            numbers.add(name)
    batch.update({name: CutColumn(parts) for name, parts in cuts.items()})
    return [
        {name: torch.from_numpy(column) if name in numbers else stack_tensors(column) for name, column in one.items()}
        for one in BatchGroup(batch, lengths).batches()
    ]


def ungroup(groups: Iterable[GroupMessage]) -> Iterator[dict[str, Any]]:
    """The batches of groups, in order."""
    for message in groups:
        with span(Stage.SEND):
            batches = _batches_of(message)
        del message
        batches.reverse()
        while batches:
            yield batches.pop()

"""Makes the sources of an order from opened streams: sizes, which samples belong, weights, labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.catalog.location import DataIdentity, DatasetLocation
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.order.by_length import Lengths
from stoker.order.partition import Partition
from stoker.order.selection import Everything, Selection, Split
from stoker.order.settings import StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.subsets import Condition, HashSplit, KeepIds, SkipIds, Subset
from stoker.streams.streams import Stream, Streams
from stoker.types import Nulls

if TYPE_CHECKING:
    from stoker.streams.labels import LabelKind


def needed_columns(
    columns: Sequence[str],
    subsets: Sequence[Subset],
    streams: Sequence[Stream],
    partition: Partition,
    batch_by: Lengths | None = None,
) -> tuple[str, ...]:
    """All columns that are read of any sample: those asked for, those that a subset or a partition looks at, and lengths."""
    subsets = [*subsets, *(subset for stream in streams for subset in stream.subsets)]
    others = [name for subset in subsets if isinstance(subset, Condition) for name in subset.columns]
    if partition.column is not None:
        others.append(partition.column)
    return tuple(dict.fromkeys([*columns, *others, *(() if batch_by is None else batch_by.needs)]))


def make_sources(
    streams: Streams, subsets: Sequence[Subset], partition: Partition, options: ReadOptions
) -> tuple[StreamSource, ...]:
    """The sources of an order, one a stream.

    Args:
        subsets: what holds for all of them; ids count through all streams.
        partition: where it needs a column, its labels are read, once.
        options: how columns are read.

    Raises:
        ConfigError: a subset or a partition that does not fit the data.
    """
    for subset in subsets:
        total = streams.index.samples
        if isinstance(subset, KeepIds | SkipIds) and len(subset.ids) and int(subset.ids[-1]) >= total:
            raise ConfigError(f"subset: id {int(subset.ids[-1])} is not in this dataset, which has {total} samples")
    sources = []
    first = 0
    for stream, name, location in zip(streams.streams, streams.names, streams.locations, strict=True):
        table = location.index.table
        chosen: list[Subset] = []
        selection: Selection = Everything(table)
        if subsets or stream.subset is not None:
            chosen = [*stream.subsets, *(_of_stream(subset, first, first + table.total) for subset in subsets)]
            selection = _selection(table, location, chosen, name, options)
        first += table.total
        sources.append(
            StreamSource(
                name=name,
                table=table,
                selection=selection,
                weight=stream.weight,
                fingerprint=location.index.fingerprint,
                labels=None if partition.column is None else _labels(location, partition, partition.column, options),
                url=location.url,
                about=partial(_about, location.identity, chosen),
                first=location.identity.about_first,
            )
        )
    return tuple(sources)


def _about(identity: DataIdentity, subsets: Sequence[Subset]) -> dict[str, Any]:
    """The description of a stream's data in a state, with its subsets as they are in it, whatever streams come before it."""
    about = {**identity.about(), "samples": identity.index.table.total}
    return about | {"subset": [subset.as_dict() for subset in subsets]} if subsets else about


def _labels(location: DatasetLocation, partition: Partition, column: str, options: ReadOptions) -> Any:
    from stoker.order.partition_strategies import Stratified
    from stoker.streams.labels import column_labels

    kind: LabelKind = "classes" if isinstance(partition, Stratified) else "hashes"
    return column_labels(location, column, kind, nulls=nulls_of(partition), options=options)


def nulls_of(partition: Partition) -> Nulls:
    """The partition's treatment of samples without a value; for a partition of the user's own they are an error."""
    from stoker.order.partition_strategies import HashBased, Stratified

    return partition.nulls if isinstance(partition, HashBased | Stratified) else "error"


def _of_stream(subset: Subset, first: int, end: int) -> Subset:
    """A subset of all streams as it is in the one whose samples are ``[first, end)`` of all."""
    if not isinstance(subset, KeepIds | SkipIds):
        return subset
    low, high = np.searchsorted(subset.ids, [first, end])
    return type(subset)(subset.ids[low:high] - first if first else subset.ids[low:high])


def _selection(
    table: ShardTable,
    location: DatasetLocation,
    subsets: Sequence[Subset],
    name: str,
    options: ReadOptions,
) -> Selection:
    splits = [subset for subset in subsets if isinstance(subset, HashSplit)]
    if len(splits) > 1:
        raise ConfigError(f"stream {name!r} has {len(splits)} hash splits: give one, with the bounds of what is wanted")
    base = Split(table, splits[0].low, splits[0].high, splits[0].seed) if splits else Everything(table)
    kept = [subset.ids for subset in subsets if isinstance(subset, KeepIds)]
    if conditions := [subset for subset in subsets if isinstance(subset, Condition)]:
        from stoker.streams.conditions import chosen_ids

        kept += [chosen_ids(location, one, options=options) for one in conditions]
    skipped = [subset.ids for subset in subsets if isinstance(subset, SkipIds)]
    if not kept and not skipped:
        return base
    from stoker.order.number_sets import Listed, Without

    if not kept:
        return Without(base, skipped[0] if len(skipped) == 1 else np.unique(np.concatenate(skipped)))
    ids = kept[0] if len(kept) == 1 else reduce(lambda a, b: np.intersect1d(a, b, assume_unique=True), kept)
    for some in skipped:
        ids = np.setdiff1d(ids, some, assume_unique=True)
    if len(ids) and int(ids[-1]) >= table.total:
        raise ConfigError(f"subset: id {int(ids[-1])} is not in stream {name!r}, which has {table.total} samples")
    return Listed(base, ids, checked=True)  # sorted and different, as all subsets' ids are

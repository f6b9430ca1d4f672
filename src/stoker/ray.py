"""Ray Data over every format that stoker reads: :func:`read` gives a ``ray.data.Dataset`` of a dataset's samples.

Each read task reads the samples of some whole shards, through the same readers and cache as a ``StreamingDataset``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from stoker.arguments import at_least, checked
from stoker.catalog.unindexed.files_location import Files
from stoker.cluster import LoaderWorker, World
from stoker.errors import ConfigError, MissingPackageError
from stoker.lazy import told
from stoker.loaders.dataset import StreamingDataset
from stoker.loaders.dataset_methods.opened import whole_batches_by
from stoker.order.global_batches import BatchPlan
from stoker.order.native import NativeOrder
from stoker.order.sample_order import Run
from stoker.order.selection import Selection, dense_starts
from stoker.types import Column, Ids

try:
    import pyarrow as pa
    import ray
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata
    from ray.data.extensions import ArrowPythonObjectArray, ArrowTensorArray
except ModuleNotFoundError as error:
    raise MissingPackageError(f"stoker.ray needs Ray Data ({error}): pip install 'stoker[ray]'") from error

__all__ = ["StokerDatasource", "read"]

_BLOCK_BYTES: Final = 16 << 20
_BLOCK_SAMPLES: Final = 4096
_DIVISION: Final = "Ray Data divides blocks among its workers"
_SHUFFLE: Final = "write read(...).random_shuffle(), or iter_batches(local_shuffle_buffer_size=...)"
_EPOCHS: Final = "it is for the epochs of a StreamingDataset"
_ORDER: Final = {
    "batch_size": "give it to iter_batches()",
    "epoch_size": "write limit=",
    "world": "read tasks go to all nodes of the cluster",
    **dict.fromkeys(("partition_algo", "remainder", "replication"), _DIVISION),
    **dict.fromkeys(("shuffle", "shuffle_algo", "shuffle_seed", "shuffle_block_size", "num_canonical_nodes"), _SHUFFLE),
    **dict.fromkeys(("batching_method", "sampling_method", "sampling_granularity"), _EPOCHS),
}
"""Arguments of a StreamingDataset that say which sample comes when, and what to write instead."""


@checked
def read(
    remote: Files | None = None,
    *,
    limit: int | None = None,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Read a dataset of any format by Ray Data: each sample once, as a row.

    Columns of numbers are Arrow's types, arrays are Ray's tensors, text and bytes are Arrow's; all other values, such as
    images and JSON, come back as the same Python objects.

    >>> stoker.ray.read("s3://bucket/train", columns=["tokens"])  # doctest: +SKIP

    Args:
        remote: what to read; see :class:`~stoker.loaders.dataset.StreamingDataset`. Directories must be the same on all
            nodes of the cluster.
        limit: read so many samples, from the first on.
        override_num_blocks, concurrency, ray_remote_args: see ``ray.data.read_datasource``. There are at most as many read
            tasks as shards.
        **options: arguments of a :class:`~stoker.loaders.dataset.StreamingDataset` that say what is read: ``local``,
            ``split``, ``streams``, ``format``, ``format_options``, ``storage_options``, ``columns``, ``subset``,
            ``transform``, ``read``, and those of the cache.

    Returns:
        A ``ray.data.Dataset``.

    Raises:
        ConfigError: arguments that make no sense, or that say in which order samples come.
        StorageError, IndexFileError: the dataset can not be opened.
    """
    source = StokerDatasource(remote, limit=limit, **options)
    return ray.data.read_datasource(
        source, override_num_blocks=override_num_blocks, concurrency=concurrency, ray_remote_args=ray_remote_args
    )


class StokerDatasource(Datasource):  # type: ignore[misc]  # untyped
    """A dataset as a source of Ray Data; see :func:`read`.

    Args:
        remote: what to read.
        limit: samples to read, from the first on; ``None``: all.
        **options: see :func:`read`.
    """

    @checked
    def __init__(self, remote: Files | None = None, *, limit: int | None = None, **options: Any) -> None:
        super().__init__()
        unfit = _ORDER.keys() & options.keys()
        if unfit:
            name = min(unfit)
            raise ConfigError(f"stoker.ray.read has no {name}=, for Ray Data has its own order: {_ORDER[name]}")
        at_least(0, limit=limit)
        dataset = StreamingDataset(remote, **options, world=World())
        if dataset.epoch_reader.quarantine is not None:
            raise ConfigError(
                "stoker.ray.read takes samples by their ids, and ReadOptions(quarantine=) leaves them out of epochs: name "
                "them by subset=SkipIds(...) instead"
            )
        changes = dataset.leaves_out or told(dataset, "chain").takes_batch
        if changes:
            raise ConfigError(
                f"{changes}: Ray Data is told how many samples there are before they are read: "
                + (
                    whole_batches_by(dataset.epoch_reader.settings)
                    if dataset.leaves_out
                    else "write read(...).map_batches()"
                )
            )
        order = dataset.epoch_reader.sample_order
        assert isinstance(order, NativeOrder)  # there is no way to ask for another
        for one in order.sources:
            if one.weight != type(one.weight)():
                raise ConfigError(
                    f"stream {one.name!r} has a weight, and Ray Data reads each sample once: leave out proportion, repeat "
                    "and choose, or mix datasets of Ray by union()"
                )
        self._dataset = dataset
        self._samples = _ChosenSamples([one.selection for one in order.sources])
        self._total = self._samples.total if limit is None else min(limit, self._samples.total)
        self._reference: Any = None

    def get_name(self) -> str:
        """The name of the read tasks."""
        return "Stoker"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of the samples to read, as their shards hold them."""
        return self._total * self._sample_bytes

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ARG002 - Ray's signature
    ) -> list[Any]:
        """At most so many read tasks; each reads whole shards."""
        if self._reference is None:
            self._reference = ray.put((self._dataset, self._samples))
        more = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
        tasks = []
        for begin, end in self._samples.ranges(self._total, max(1, parallelism)):
            shown = BlockMetadata(
                num_rows=end - begin, size_bytes=(end - begin) * self._sample_bytes, exec_stats=None, input_files=None
            )
            tasks.append(ReadTask(_task(self._reference, begin, end), shown, **more))
        return tasks

    @property
    def _sample_bytes(self) -> int:
        return max(1, self._dataset.epoch_reader.pool.index.total_bytes // max(1, self._dataset.size))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reference": None}  # of this process, which may end before the copy does


class _ChosenSamples:
    """The chosen samples of all streams, shard after shard, numbered from 0: an order for one reader.

    Args:
        selections: of each stream.
    """

    def __init__(self, selections: Sequence[Selection]) -> None:
        self._selections = tuple(selections)
        self._shards: Ids = np.cumsum([0, *(len(one.sizes) for one in selections)], dtype=np.int64)
        self._starts = [dense_starts(one) for one in selections]
        self._offsets: Ids = np.cumsum([0, *(int(one[-1]) for one in self._starts)], dtype=np.int64)
        self.total = int(self._offsets[-1])

    def locate(self, positions: Ids, /) -> tuple[Ids, Ids]:
        """Shards, which count through all streams, and rows."""
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        streams = np.searchsorted(self._offsets, positions, side="right") - 1
        for stream in np.unique(streams).tolist():
            here = streams == stream
            numbers = positions[here] - self._offsets[stream]
            inside = np.searchsorted(self._starts[stream], numbers, side="right") - 1
            rows[here] = self._selections[stream].rows(inside, numbers - self._starts[stream][inside])
            shards[here] = inside + self._shards[stream]
        return shards, rows

    def ranges(self, total: int, parts: int) -> Iterator[tuple[int, int]]:
        """The first ``total`` samples in at most so many ranges of about the same length, none of which divides a shard."""
        begins = np.unique(
            np.concatenate([starts[:-1] + offset for starts, offset in zip(self._starts, self._offsets, strict=False)])
        )
        even = np.arange(1, parts) * total // parts
        cuts = begins[np.minimum(np.searchsorted(begins, even), len(begins) - 1)] if len(begins) else even
        bounds = np.unique(np.concatenate([[0, total], cuts[cuts < total]])).tolist()
        yield from pairwise(bounds)


def _task(reference: Any, begin: int, end: int) -> Callable[[], Iterator[Any]]:
    """The function of a read task, with nothing in it but a reference to the dataset."""

    def read_samples() -> Iterator[Any]:
        dataset, samples = ray.get(reference)
        with dataset:
            yield from _blocks(dataset, samples, begin, end)

    return read_samples


def _blocks(dataset: StreamingDataset, samples: _ChosenSamples, begin: int, end: int) -> Iterator[Any]:
    """The samples ``[begin, end)`` as tables, in order."""
    each = max(1, dataset.epoch_reader.pool.index.total_bytes // max(1, dataset.size))
    plan = BatchPlan(begin, end, max(1, min(_BLOCK_SAMPLES, _BLOCK_BYTES // each)), 0, 1)
    # Tasks on the other processors of the node share its cache.
    pipeline = dataset.epoch_reader.pipeline(
        Run(samples, plan), LoaderWorker(), sharers=os.cpu_count() or 1, threads=0, as_columns=True, tune=False
    )
    for batch in pipeline.batches():
        yield pa.table({name: _arrow(name, values) for name, values in batch.items()})


_PLAIN: Final = {str: pa.string(), bytes: pa.binary(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


def _arrow(name: str, values: Column) -> Any:
    """A column as Arrow keeps it, and gives it back unchanged.

    Raises:
        ConfigError: Arrow has no such numbers.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        try:
            return pa.array(values) if values.ndim == 1 else ArrowTensorArray.from_numpy(values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise ConfigError(
                f"column {name!r} is an array of {values.dtype}, which Ray Data can not hold ({error}): leave it out with "
                "columns=, or make it something else with transform="
            ) from error
    kinds = {type(value) for value in values if value is not None}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _PLAIN:
        # A number of more than 64 bits, or text that is no Unicode, stays an object.
        with contextlib.suppress(pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            return pa.array(values, type=_PLAIN[kind])
    elif kind is np.ndarray and _are_tensors(values):
        ragged = np.empty(len(values), dtype=object)
        ragged[:] = values
        return ArrowTensorArray.from_numpy(ragged)
    elif kind is None and not kinds:
        return pa.nulls(len(values))
    return ArrowPythonObjectArray.from_objects(list(values))


def _are_tensors(values: Column) -> bool:
    """Whether all are arrays of numbers of one dtype and one number of dimensions."""
    first = values[0]
    if first is None or first.dtype.kind not in "biuf" or not first.ndim:
        return False
    return all(one is not None and one.dtype == first.dtype and one.ndim == first.ndim for one in values)

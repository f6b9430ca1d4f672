"""Batches as global ``jax.Array``: :func:`batches` of a dataset, with a sharding, in any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stoker.arguments import checked
from stoker.cluster import World
from stoker.display import with_article
from stoker.errors import ConfigError, MissingPackageError
from stoker.lazy import told
from stoker.loaders.dataset import StreamingDataset
from stoker.loaders.dataset_methods.opened import whole_batches_by
from stoker.order.global_batches import BatchPlan
from stoker.order.sample_order import Plan
from stoker.types import Array, Batch, Column

try:
    import jax
except ModuleNotFoundError as error:
    raise MissingPackageError(f"stoker.jax needs JAX ({error}): pip install 'stoker[jax]'") from error

__all__ = ["batches", "global_batch", "world"]


@checked
def batches(
    dataset: StreamingDataset, sharding: Any, batch_size: int | None = None, *, mask: str | None = None
) -> Iterator[dict[str, Any]]:
    """The next epoch's batches, each with the samples of all processes: column name to ``jax.Array``.

    States are the dataset's: ``dataset.state_dict()`` counts the batches that were taken.

    >>> for batch in stoker.jax.batches(dataset, NamedSharding(mesh, P("data"))): ...  # doctest: +SKIP

    Args:
        dataset: of columns that are arrays. Its world must be that of :func:`world`, as it is by itself where each process
            has data of its own.
        sharding: divides the first axis, such as ``NamedSharding(mesh, PartitionSpec("data"))``; the same in all processes.
        batch_size: samples a batch of each process (of each group that reads the same samples); default the dataset's.
        mask: name of a further column, bool of shape ``(global batch,)``: whether a row is a sample. With it, the last batch
            is filled up with rows that are not.

    Yields:
        Arrays of shape ``(batch_size * readers, ...)``, always the same. Integers of 64 bits become such of 32, and floats
        likewise, as everywhere in JAX unless ``jax_enable_x64`` is set.

    Raises:
        ConfigError: the epoch ends with a partial batch, and ``mask`` is not given; the dataset's ranks are not the
            sharding's; the batch can not be divided; a column is no array, or holds integers that do not fit 32 bits.
    """
    size = batch_size or dataset.batch_size
    if size is None:
        raise ConfigError("batches() needs batch_size, here or in StreamingDataset(batch_size=...)")
    if dataset.leaves_out:
        raise ConfigError(
            f"{dataset.leaves_out} changes the length of batches, and all arrays need one shape: "
            + whole_batches_by(dataset.epoch_reader.settings)
        )
    reader = dataset.epoch_reader
    found, wanted = reader.data_rank(size), world(sharding)
    if (found.rank, found.world_size) != (wanted.rank, wanted.world_size):
        raise ConfigError(
            f"by the sharding this process holds part {wanted.rank} of {wanted.world_size} of each batch, and the dataset is "
            f"data rank {found.rank} of {found.world_size}: give it world=stoker.jax.world(sharding)"
        )
    whole = size * wanted.world_size
    try:
        sharding.shard_shape((whole,))
    except ValueError as error:
        raise ConfigError(
            f"a batch of {size} samples on each of {wanted.world_size} readers can not be divided equally among the devices: "
            f"{error}. Make batch_size a multiple of the devices along the first axis that one reader has"
        ) from error
    plan = reader.plan(dataset.upcoming(), size)
    if mask is None and plan.end > plan.position_after(plan.full_steps):
        raise ConfigError(
            f"the epoch's last batch is smaller than {whole} samples, and all arrays need one shape: "
            'StreamingDataset(remainder="drop") leaves it out, mask="mask" fills it up and says which rows are samples'
        )
    if mask is not None:
        _check_mask(dataset, plan, mask)
    for number, batch in enumerate(dataset.batches(size)):
        if mask is not None:
            if mask in batch:
                raise ConfigError(f"mask={mask!r} is the name of a column: give another")
            real = len(next(iter(batch.values())))
            if plan.padding and number == plan.full_steps:
                # A sample for each rank, of which those of the last ranks are repeated.
                assert isinstance(plan, BatchPlan)
                real = int(plan.rank < plan.tail)
            batch = {name: _filled(values, size) for name, values in batch.items()}  # noqa: PLW2901
            batch[mask] = np.arange(size) < real
        yield global_batch(batch, sharding)


def _check_mask(dataset: StreamingDataset, plan: Plan, mask: str) -> None:
    if mask in (told(dataset, "columns") or told(dataset, "index").columns):
        raise ConfigError(f"mask={mask!r} is the name of a column: give another")
    if told(dataset, "remainder") == "uneven":
        raise ConfigError(
            'remainder="uneven" ends some processes before others, which then wait for ever: give the dataset "pad", of '
            "which the mask leaves out what is repeated"
        )
    if plan.padding and not isinstance(plan, BatchPlan):
        raise ConfigError(
            f"this partition repeats {plan.padding} samples, and does not say which: give the dataset "
            'remainder="drop", or leave its partition_algo= out'
        )


def _filled(values: Column, size: int) -> Column:
    """A column of ``size`` rows, which begins with the values there are."""
    if len(values) == size or not isinstance(values, np.ndarray):
        return values
    return values[np.arange(size) % len(values)]


def global_batch(batch: Mapping[str, Column] | Batch, sharding: Any) -> dict[str, Any]:
    """The rows of all processes as one ``jax.Array`` a column.

    Args:
        batch: this process's rows: column name to array of shape ``(n, ...)``, n the same in all processes.
        sharding: see :func:`batches`.

    Raises:
        ConfigError: a column is no array of numbers, or holds integers that do not fit the type that JAX makes of it.
    """
    return {
        name: jax.make_array_from_process_local_data(sharding, _fitting(name, values)) for name, values in batch.items()
    }


def _fitting(name: str, values: Column) -> Array:
    """The column, if JAX's array of it holds the same numbers, but for floats, which may be rounded."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufcV":
        kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else with_article(type(values).__name__)
        raise ConfigError(
            f"column {name!r} is {kind}, which is not a jax.Array: leave it out with columns=, or make arrays of one shape "
            "of its values with transform="
        )
    made = jax.dtypes.canonicalize_dtype(values.dtype)
    if made != values.dtype and values.dtype.kind in "iu" and values.size:
        bounds = np.iinfo(made)
        if int(values.min()) < bounds.min or int(values.max()) > bounds.max:
            raise ConfigError(
                f"column {name!r} has integers that do not fit {made}, of which JAX would cut off bits: set "
                'jax.config.update("jax_enable_x64", True), or make them something else with transform='
            )
    return values


def world(sharding: Any) -> World:
    """This process among those that hold different rows of a batch with this sharding, for ``StreamingDataset(world=)``.

    Processes that hold the same rows, as those of tensor parallelism, are one reader: they have the same rank.

    Raises:
        ConfigError: processes hold overlapping parts, or parts of unequal size, or this one holds none.
    """
    rows = len(sharding.device_set)
    parts: dict[int, set[int]] = {}
    for device, (where, *_) in sharding.devices_indices_map((rows,)).items():
        parts.setdefault(device.process_index, set()).update(range(rows)[where])
    readers = sorted({tuple(sorted(part)) for part in parts.values()})
    here = parts.get(jax.process_index())
    if here is None:
        raise ConfigError("no device of this process is in the sharding's mesh: it has no part in the batches")
    if sum(map(len, readers)) != rows or len({len(one) for one in readers}) != 1:
        raise ConfigError(
            "the sharding gives processes parts of the batch that overlap or differ in size: arrange the mesh so that each "
            "process holds whole parts, as jax.make_mesh does"
        )
    return World(readers.index(tuple(sorted(here))), len(readers), source="jax.sharding")

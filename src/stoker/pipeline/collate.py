"""Collating samples into torch tensors, and passing them from DataLoader workers, several times as fast as torch does.

Imports torch only when called, which is to say in processes that have imported it.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeGuard

import numpy as np

from stoker.concurrency.spans.recorder import Stage, span
from stoker.display import with_article
from stoker.errors import ConfigError, TransformError
from stoker.pipeline.batch_ring import Region, Ring, RingBlock, receive
from stoker.types import Array, Batch, Column


def collate(samples: list[Any]) -> Any:
    """Collate as torch's ``default_collate`` does, several times as fast for dicts of NumPy arrays.

    Columns of equally shaped arrays are stacked by NumPy, in a loader worker straight into the shared memory that carries
    them to the main process. Everything else is left to ``default_collate``; ``bytes`` and other objects that it refuses
    stay lists.

    ConfigError if samples have different columns, or a column's values make no tensor together: numbers or arrays with nulls
    among them, arrays or lists of different shapes. Names the column.
    """
    with span(Stage.COLLATE, len(samples)):
        return _collate(samples)


def _collate(samples: list[Any]) -> Any:
    first = samples[0]
    if not isinstance(first, dict):
        if any(sample is None or isinstance(sample, dict) for sample in samples):
            raise _unlike_samples(samples)
        return _collate_values(samples, "of samples")
    names = first.keys()
    if any(not isinstance(sample, dict) or sample.keys() != names for sample in samples):
        if not all(isinstance(sample, dict) for sample in samples):
            raise _unlike_samples(samples)
        raise ConfigError(f"samples of one batch have different columns, the first has {', '.join(map(str, names))}")
    return {name: _collate_values([sample[name] for sample in samples], repr(name)) for name in names}


def _unlike_samples(samples: list[Any]) -> TransformError:
    """The error of samples of which some are dicts and some are not, or that are ``None``."""
    number, found = next((i, sample) for i, sample in enumerate(samples) if not isinstance(sample, dict))
    what = "None" if found is None else with_article(type(found).__name__)
    return TransformError(
        f"sample {number} of a batch of {len(samples)}: the transform returned {what}: return the sample, a dict of its "
        "columns, for every sample"
    )


def as_tensors(batch: Batch) -> dict[str, Any]:
    """A batch with its arrays as tensors, and tensors of one shape stacked; columns of other things stay lists.

    In a loader worker arrays are copied into memory that the main process reads, elsewhere they share their memory.
    """
    return {
        name: _as_tensor(column) if isinstance(column, np.ndarray) else stack_tensors(column)
        for name, column in batch.items()
    }


def stack_tensors(column: Any) -> Any:
    """One tensor of a list of tensors, as ``default_collate`` makes it, if they have one shape and type; else the column."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(column, list) or not column or not isinstance(column[0], torch.Tensor):
        return column
    kind = (column[0].shape, column[0].dtype)
    if any(not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != kind for value in column):
        return column
    return torch.stack(column)


def speed_up_worker(ring: Ring) -> None:
    """In a DataLoader worker: let batches travel through ``ring``, and ``default_collate`` stack arrays right into it.

    A worker process serves one data set and ends with it. The two tables that this adds to, of collating functions by type
    and of pickling functions by type, are the means that torch and Python provide for it; results are the same.
    """
    if ring.maker == os.getpid():
        return  # a data set that was opened in this worker: the main process does not have it
    import torch
    from torch.multiprocessing.reductions import reduce_tensor
    from torch.utils.data._utils.collate import default_collate_fn_map

    _worker["region"] = ring.region()
    if "reduce" not in _worker:
        _worker["reduce"] = reduce_tensor
        ForkingPickler.register(torch.Tensor, _reduce_tensor)
        if np.ndarray in default_collate_fn_map:
            _worker["collate"] = default_collate_fn_map[np.ndarray]
            default_collate_fn_map[np.ndarray] = _collate_arrays


# What speed_up_worker keeps for this process: the ring's region, and torch's own functions.
_worker: dict[str, Any] = {}
# Address of each block that this worker has filled and not yet sent.
_filled: dict[int, tuple[RingBlock, int]] = {}


def _reduce_tensor(tensor: Any) -> Any:
    """Pickle a tensor on its way to the main process as the name of the block that holds it.

    A tensor that fills a block already is not touched again. Another plain one is copied into a block; torch would copy it
    too, into shared memory made for it.
    """
    import torch

    if type(tensor) is not torch.Tensor or not _is_plain(tensor):
        return _worker["reduce"](tensor)
    address, size = tensor.data_ptr(), tensor.nbytes
    found = _filled.pop(address, None)
    if found is not None and found[1] == size:
        return _receive_tensor, (found[0], size, tensor.dtype, tensor.shape)
    if found is not None:
        _filled[address] = found  # part of a block; the rest may yet be sent
    region = _worker["region"]
    taken = None if region is None else region.take(size)
    if taken is None:
        return _worker["reduce"](tensor)
    block, data = taken
    torch.from_numpy(data).view(tensor.dtype).reshape(tensor.shape).copy_(tensor)
    return _receive_tensor, (block, size, tensor.dtype, tensor.shape)


def _is_plain(tensor: Any) -> bool:
    """Whether the tensor is its bytes, dtype and shape, and nothing else."""
    import torch

    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel()
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_shared()
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _receive_tensor(block: RingBlock, size: int, dtype: Any, shape: Any) -> Any:
    import torch

    return torch.from_numpy(receive(block, size)).view(dtype).reshape(shape)


def _take(region: Region, size: int) -> Array | None:
    """Bytes of a free block, which is given back if they are let go without having been sent."""
    taken = region.take(size)
    if taken is None:
        return None
    block, data = taken
    address = data.ctypes.data
    _filled[address] = block, size
    weakref.finalize(data, _forget, region, address, block).atexit = False
    return data


def _forget(region: Region, address: int, block: RingBlock) -> None:
    found = _filled.get(address)
    if found is not None and found[0] == block:
        del _filled[address]
        region.drop(block)


def _collate_arrays(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    stacked = _stack(batch)
    return _worker["collate"](batch, collate_fn_map=collate_fn_map) if stacked is None else stacked


def _as_tensor(column: Array) -> Any:
    import torch

    if not makes_tensor(column):
        return column
    if _worker.get("region") is None or not column.size:
        # No tensor goes backwards.
        return torch.from_numpy(column if min(column.strides, default=0) >= 0 else column.copy())
    out = empty_tensor(column.shape, column.dtype)
    out.numpy()[...] = column
    return out


def makes_tensor(column: Column) -> TypeGuard[Array]:
    """Whether a column is an array of which torch makes a tensor without a copy."""
    return isinstance(column, np.ndarray) and column.dtype.kind in "biufc" and column.dtype.isnative


def _collate_values(values: list[Any], column: str) -> Any:
    first = values[0]
    kind = type(first)
    if isinstance(first, np.ndarray):
        stacked = _stack(values)
        if stacked is not None:
            return stacked
    elif isinstance(first, str | bytes | memoryview):
        if len(set(map(type, values))) > 1 and any(map(_is_numeric, values)):
            raise _unlike(values, column)
        return values
    elif kind is dict or kind is list or kind is tuple:
        # As default_collate does, but an error within names the field.
        if any(type(value) is not kind or len(value) != len(first) for value in values):
            raise _unlike(values, column)
        if kind is not dict:
            return [_collate_values(list(ones), f"{column}[{at}]") for at, ones in enumerate(zip(*values, strict=True))]
        if any(value.keys() != first.keys() for value in values):
            raise _unlike(values, column)
        return {name: _collate_values([value[name] for value in values], f"{column}.{name}") for name in first}
    from torch.utils.data import default_collate

    try:
        return default_collate(values)
    except Exception as error:
        # Whether a batch is refused must not depend on which of its values comes first.
        # Nulls alone stay a list: of a text column they are no fault, and of numbers nobody can take them for a tensor.
        if isinstance(error, TypeError) and not any(map(_is_numeric, values)):
            return values
        raise _unlike(values, column) from error


def _is_numeric(value: Any) -> bool:
    import torch

    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, int | float | torch.Tensor) or type(value) in (dict, list, tuple)


def _unlike(values: list[Any], column: str) -> ConfigError:
    shown = list(dict.fromkeys(map(_described, values)))
    return ConfigError(
        f"column {column}: a batch of {', '.join(shown[:4])}{', ...' if len(shown) > 4 else ''} cannot be made a tensor. "
        "StreamingDataLoader(columnar=True) returns such columns as lists, collate_fn= can pad values, and the dataset's "
        "transform= can fill or drop them"
    )


def _described(value: Any) -> str:
    shape = getattr(value, "shape", ())
    if shape and hasattr(value, "dtype"):
        return f"{value.dtype} arrays of shape {tuple(shape)}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}s of {len(value)}"
    if isinstance(value, dict):
        return f"dicts with {', '.join(map(str, value)) or 'no keys'}"
    return "None (null)" if value is None else type(value).__name__


def _stack(values: list[Any]) -> Any | None:
    """A tensor of equally shaped numeric arrays; ``None`` for anything else."""
    first = values[0]
    if first.dtype.kind not in "biufc" or not first.dtype.isnative:
        return None
    if any(
        type(value) is not np.ndarray or value.shape != first.shape or value.dtype != first.dtype for value in values
    ):
        return None
    out = empty_tensor((len(values), *first.shape), first.dtype)
    np.stack(values, out=out.numpy())
    return out


def empty_tensor(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An uninitialised tensor; in a loader worker, in memory that the main process reads too."""
    import torch
    from torch.utils.data import get_worker_info

    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    size = math.prod(shape) * dtype.itemsize
    region = _worker.get("region")
    data = None if region is None else _take(region, size)
    if data is not None:
        return torch.from_numpy(data).view(kind).reshape(shape)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=kind)
    # As default_collate does: what is in shared memory already is passed on without a copy.
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=kind).set_(storage, 0, shape)  # type: ignore[call-overload]

"""Types that every layer shares."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array of any dtype and shape."""

Ids: TypeAlias = NDArray[np.int64]
"""One-dimensional int64: sample ids, row numbers or positions."""

Column: TypeAlias = Array | list[Any]
"""One column of a batch: an array of shape ``(n, ...)`` for fixed-width columns, a list of n values for the rest."""

Batch: TypeAlias = dict[str, Column]
"""Column name to column; all columns have the same length."""

Sample: TypeAlias = dict[str, Any]
"""Column name to value: a batch of one without its first axis."""


Engine: TypeAlias = Literal["local", "ray"]
"""Name of the engine that runs tasks: processes or threads of this machine, or a Ray cluster."""


class PooledBuffer(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The bytes of a file, in memory that is used again. Slicing returns bytes; elsewhere it is a uint8 array.

    Attributes:
        shared: descriptor of the anonymous file that the memory is, and its first byte there; ``None`` of other memory.
    """

    shared: tuple[int, int] | None = None

    def __getitem__(self, where: Any) -> Any:
        found = memoryview(self)[where]
        return bytes(found) if isinstance(found, memoryview) else found

    if TYPE_CHECKING:  # which NumPy's stubs say of arrays from Python 3.12 on

        def __buffer__(self, flags: int, /) -> memoryview: ...


Buffer: TypeAlias = mmap.mmap | bytes | PooledBuffer
"""The bytes of a file. Slicing gives ``bytes`` in one copy; all support the buffer protocol."""

Transform: TypeAlias = Callable[[Sample], Any]

StorageOptions: TypeAlias = Mapping[str, Any]
"""Credentials and client settings of one storage root, by obstore's names (``access_key_id``, ``endpoint``, ...)."""

CacheKind: TypeAlias = Literal["disk", "memory"]
"""Storage of a remote's shards: files that all processes of a node share, or memory, which those share that read now."""

StartMethod: TypeAlias = Literal["spawn", "fork"]
"""The way to start a process: fresh, or as a copy of this one."""

Nulls: TypeAlias = Literal["error", "group"]
"""Treatment of samples without a value in the column by which they are divided: an error, or a group."""

"""Results of a process on their way to the process that it serves: arrays through shared memory, the rest pickled.

Large results lie in a block of a :class:`~stoker.pipeline.batch_ring.Ring`, where the receiver uses them in place: pickled
bytes first, then the buffers of arrays, which pickle hands over by themselves (protocol 5, PEP 574). Small results, and those
for which no block is free, go through the pipe.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.errors import SampleError, StokerError, picklable
from stoker.pipeline.batch_ring import Region, RingBlock, receive

_ALIGNMENT: Final = 64
_INLINE: Final = 32 << 10
"""Bytes of a result up to which it goes through the pipe, as it is copied twice as fast as memory is shared."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A result that is handed over.

    Attributes:
        pickled: the size of the pickled bytes.
        buffers: of each buffer its first byte, its size, and whether it may be written to.
        block: where it is; ``None``: all bytes come next through the pipe.
    """

    pickled: int
    buffers: Sequence[tuple[int, int, bool]]
    size: int
    block: RingBlock | None


def _view(buffer: Any) -> memoryview:
    return memoryview(buffer).toreadonly()


class _Pickler(pickle.Pickler):
    # Views of files are buffers, too.
    dispatch_table = copyreg.dispatch_table | {memoryview: lambda view: (_view, (pickle.PickleBuffer(view),))}


def pack(value: Any, region: Region | None) -> tuple[Parcel, memoryview | None]:
    """A result as a parcel, and its bytes where these are to go through the pipe.

    Exception if it can not be pickled; whatever its objects raise. ``value``: the result. ``region``: this process's memory
    for it; ``None``: there is none.
    """
    buffers: list[memoryview] = []
    stream = io.BytesIO()
    _Pickler(stream, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw())).dump(value)
    pickled = stream.getbuffer()
    places: list[tuple[int, int, bool]] = []
    size = _aligned(len(pickled))
    for buffer in buffers:
        places.append((size, buffer.nbytes, not buffer.readonly))
        size += _aligned(buffer.nbytes)
    taken = region.take(size) if region is not None and size > _INLINE else None
    into = np.empty(size, np.uint8) if taken is None else taken[1]
    into[: len(pickled)] = np.frombuffer(pickled, np.uint8)
    for (begin, length, _), buffer in zip(places, buffers, strict=True):
        if length:
            into[begin : begin + length] = np.frombuffer(buffer, np.uint8)
    parcel = Parcel(len(pickled), places, size, None if taken is None else taken[0])
    return parcel, into.data if taken is None else None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def unpack(parcel: Parcel, data: bytes | None) -> Any:
    """The result of a parcel. Arrays lie in its memory, which is used again when the last of them is gone.

    ``parcel``: of :func:`pack`. ``data``: what came through the pipe.
    """
    whole = np.frombuffer(bytearray(data), np.uint8) if parcel.block is None else receive(parcel.block, parcel.size)  # type: ignore[arg-type]
    buffers = []
    for begin, length, writable in parcel.buffers:
        buffer = whole[begin : begin + length].data
        buffers.append(buffer if writable else buffer.toreadonly())
    return pickle.loads(whole[: parcel.pickled].data, buffers=buffers)  # noqa: S301 - of our own process


def pack_error(error: BaseException) -> bytes:
    """An error and its cause on their way to another process: as they are, or if they refuse, one that says the same."""
    cause = None if isinstance(error, SampleError) else picklable(error.__cause__)  # a sample's takes its own along
    try:
        data = pickle.dumps((error, cause))
        pickle.loads(data)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - any class may refuse
        told = StokerError(f"{type(error).__name__}: {error}")
        told.add_note("".join(traceback.format_exception(error)))
        return pickle.dumps((told, cause))
    return data


def unpack_error(data: bytes) -> BaseException:
    """The error of :func:`pack_error`, with its cause."""
    error: BaseException
    error, cause = pickle.loads(data)  # noqa: S301 - of our own process
    if cause is not None:
        error.__cause__ = cause
    return error


def first_refused(values: Sequence[Any]) -> int | None:
    """The first of some values that can not be pickled."""
    for number, value in enumerate(values):
        try:
            pickle.dumps(value)
        except Exception:  # noqa: BLE001 - any class may refuse
            return number
    return None

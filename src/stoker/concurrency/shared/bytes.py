"""Bytes that never change, mapped by each process that has them: one copy for all that were forked or spawned.

Files of stoker's own that hold arrays are such bytes: written whole, checked by a digest when they are read.

    magic (8) | xxh3 of all that follows (16) | bytes of the header (8) | header, JSON, spaces up to a multiple of 8 | arrays

The last byte of the magic rises when the arrays change. The order of bytes in a number is in the header.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import reduction
from typing import Any, ClassVar, Final, Literal

import xxhash

from stoker.concurrency.forks import OpenFile
from stoker.concurrency.shared.file import spawning
from stoker.errors import StokerError
from stoker.policy import SHARED, most_shared

_CHECKED: Final = 24
_BEGIN: Final = 32
_BYTE_ORDER: Final = "byteorder"


class SharedBytes:
    """Read-only bytes of a file, which processes share. A spawned child is handed the file; any other copy has all bytes.

    ``data``: the bytes; or a descriptor of a file, which is taken over. Nobody may write to that file or cut it. ``view``:
    the bytes.
    """

    # All that are mapped in this process. Each map has another descriptor, a duplicate.
    _mapped: ClassVar[weakref.WeakSet[SharedBytes]] = weakref.WeakSet()

    def __init__(self, data: bytes | int) -> None:
        self._file = OpenFile(data if isinstance(data, int) else None)
        if isinstance(data, int):
            self._mapped.add(self)
            self._identity = _identity_of(data)
            self.view = memoryview(mmap.mmap(data, 0, access=mmap.ACCESS_READ))
        else:
            self.view = memoryview(data)

    @classmethod
    def of(cls, data: Sequence[bytes | memoryview]) -> SharedBytes:
        """Parts one after the other, in memory without a name.

        OSError if the process has too many files open, or memory is full.
        """
        if not _is_mapped(sum(map(len, data))):
            return cls(b"".join(data))
        file = os.memfd_create("stoker-bytes", os.MFD_CLOEXEC)
        try:
            with open(file, "wb", closefd=False) as out:
                out.writelines(data)
        except BaseException:
            os.close(file)
            raise
        return cls(file)

    @classmethod
    def of_file(cls, file: int, *, may_map: bool) -> SharedBytes:
        """The bytes of a file: mapped, or read where they are few or many files are mapped.

        OSError if it can not be read or mapped. ``file``: a descriptor, which is taken over. ``may_map``: whether it stays
        whole while it is mapped, whatever other machines do.
        """
        if may_map and _is_mapped(os.fstat(file).st_size):
            return cls(file)
        with open(file, "rb") as source:
            return cls.of([source.read()])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file.number >= 0 and spawning():
            return _received, (reduction.DupFd(self._file.number), self._identity)
        return SharedBytes.of, ([bytes(self.view)],)


def _is_mapped(size: int) -> bool:
    """Whether so many bytes are worth two of the descriptors that a process can have."""
    return size >= SHARED and len(SharedBytes._mapped) < most_shared()


def _identity_of(file: int) -> tuple[int, int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size


def _received(file: Any, identity: tuple[int, int, int]) -> SharedBytes:
    """The same bytes in a spawned child. StokerError if the parent closed the file, and its number is that of another one."""
    received: int = file.detach()
    if _identity_of(received) != identity:
        os.close(received)
        raise StokerError(
            "the file that holds a dataset's index is not the one that the parent process mapped: something closed files "
            "that it did not open. Open the dataset after that"
        )
    return SharedBytes(received)


def pack_arrays(magic: bytes, header: Mapping[str, Any], arrays: Sequence[bytes | memoryview]) -> list[Any]:
    """The parts of a file.

    ``magic``: 8 bytes that tell what it holds. ``header``: JSON values. ``arrays``: bytes of the arrays, one after the other.
    """
    text = json.dumps({**header, _BYTE_ORDER: sys.byteorder}).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    head = len(text).to_bytes(8, "little") + text
    digest = xxhash.xxh3_128(head)
    for array in arrays:
        digest.update(array)
    return [magic + digest.digest() + head, *arrays]


def unpack_arrays(magic: bytes, data: SharedBytes) -> tuple[dict[str, Any], int]:
    """The header of a file, and where its arrays begin: a multiple of 8.

    ValueError if it is damaged, of another kind, or of another machine.
    """
    view = data.view
    if bytes(view[:_CHECKED]) != magic + xxhash.xxh3_128_digest(view[_CHECKED:]):
        raise ValueError("it is damaged, or of another version of stoker")
    at = _BEGIN + int.from_bytes(view[_CHECKED:_BEGIN], "little")
    header = json.loads(bytes(view[_BEGIN:at]))
    if header.pop(_BYTE_ORDER) != sys.byteorder:
        raise ValueError("its numbers are of another order of bytes")
    return header, at


def cut_arrays(view: memoryview, at: int, columns: Sequence[tuple[Literal["q", "i"], int]]) -> Iterator[memoryview]:
    """Arrays that lie one after the other, and last the bytes after them.

    Single elements of a memory view take a fourth of the time that those of a NumPy array take. ValueError or TypeError if
    the memory is too short. ``view``: the memory. ``at``: where the first begins. ``columns``: of each array the type, as
    :mod:`struct` has it, and the number of its elements.
    """
    for kind, count in columns:
        end = at + (4 if kind == "i" else 8) * count
        if end > len(view):
            raise ValueError("the arrays are cut off")
        yield view[at:end].cast(kind)
        at = end
    yield view[at:]

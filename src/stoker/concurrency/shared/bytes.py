"""Bytes that never change, mapped by each process that has them: one copy for all that were forked or spawned."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any, ClassVar

from stoker.concurrency.shared.file import spawning
from stoker.errors import StokerError
from stoker.policy import SHARED, most_shared


class SharedBytes:
    """Read-only bytes of a file, which processes share. A spawned child is handed the file; any other copy has all bytes.

    Args:
        data: the bytes; or a descriptor of a file, which is taken over. Nobody may write to that file or cut it.

    Attributes:
        view: the bytes.
    """

    # Descriptors of all that are mapped in this process. Each map has another one, a duplicate.
    _mapped: ClassVar[set[int]] = set()

    def __init__(self, data: bytes | int) -> None:
        self._file = data if isinstance(data, int) else None
        if isinstance(data, int):
            self._mapped.add(data)
            self._identity = _identity_of(data)
            self.view = memoryview(mmap.mmap(data, 0, access=mmap.ACCESS_READ))
        else:
            self.view = memoryview(data)

    @classmethod
    def of(cls, data: Sequence[bytes | memoryview]) -> SharedBytes:
        """Parts one after the other, in memory without a name.

        Raises:
            OSError: the process has too many files open, or memory is full.
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

        Args:
            file: a descriptor, which is taken over.
            may_map: whether it stays whole while it is mapped, whatever other machines do.

        Raises:
            OSError: it can not be read or mapped.
        """
        if may_map and _is_mapped(os.fstat(file).st_size):
            return cls(file)
        with open(file, "rb") as source:
            return cls.of([source.read()])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is not None and spawning():
            return _received, (reduction.DupFd(self._file), self._identity)
        return SharedBytes.of, ([bytes(self.view)],)

    # Bound as defaults: at the interpreter's end a module's names are gone.
    def __del__(
        self, close: Callable[[int], None] = os.close, suppress: type[contextlib.suppress] = contextlib.suppress
    ) -> None:
        file = self.__dict__.get("_file")
        if file is not None:
            self._mapped.discard(file)
            with suppress(OSError):
                close(file)


def _is_mapped(size: int) -> bool:
    """Whether so many bytes are worth two of the descriptors that a process can have."""
    return size >= SHARED and len(SharedBytes._mapped) < most_shared()


def _identity_of(file: int) -> tuple[int, int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size


def _received(file: Any, identity: tuple[int, int, int]) -> SharedBytes:
    """The same bytes in a spawned child.

    Raises:
        StokerError: the parent closed the file, and its number is that of another one.
    """
    received: int = file.detach()
    if _identity_of(received) != identity:
        os.close(received)
        raise StokerError(
            "the file that holds a dataset's index is not the one that the parent process mapped: something closed files "
            "that it did not open. Open the dataset after that"
        )
    return SharedBytes(received)

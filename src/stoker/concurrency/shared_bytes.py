"""Bytes that never change, mapped by each process that has them: one copy for all that were forked or spawned."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any, Final

from stoker.concurrency.shared_file import spawning

SMALL: Final = 1 << 20
"""Bytes that are copied rather than shared: a process can have, and be handed, only so many files."""


class SharedBytes:
    """Read-only bytes of a file, which processes share. A spawned child is handed the file; any other copy has all bytes.

    Args:
        data: the bytes; or a descriptor of a file, which is taken over. Nobody may write to that file or cut it.

    Attributes:
        view: the bytes.
    """

    def __init__(self, data: bytes | int) -> None:
        self._file = data if isinstance(data, int) else None
        if isinstance(data, int):
            self.view = memoryview(mmap.mmap(data, 0, access=mmap.ACCESS_READ))
        else:
            self.view = memoryview(data)

    @classmethod
    def of(cls, data: Sequence[bytes | memoryview]) -> SharedBytes:
        """Parts one after the other, in memory without a name.

        Raises:
            OSError: the process has too many files open, or memory is full.
        """
        if sum(map(len, data)) < SMALL:
            return cls(b"".join(data))
        file = os.memfd_create("stoker-bytes", os.MFD_CLOEXEC)
        try:
            with open(file, "wb", closefd=False) as out:
                out.writelines(data)
        except BaseException:
            os.close(file)
            raise
        return cls(file)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is not None and spawning():
            return _received, (reduction.DupFd(self._file),)
        return SharedBytes.of, ([bytes(self.view)],)

    # Bound as defaults: at the interpreter's end a module's names are gone.
    def __del__(
        self, close: Callable[[int], None] = os.close, suppress: type[contextlib.suppress] = contextlib.suppress
    ) -> None:
        file = self.__dict__.get("_file")
        if file is not None:
            with suppress(OSError):
                close(file)


def _received(file: Any) -> SharedBytes:
    return SharedBytes(file.detach())

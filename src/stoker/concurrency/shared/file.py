"""Memory that a process shares with the children that it forks and spawns, with a lock for all of their threads.

The memory is an anonymous file (``memfd``): it has no name, is not limited by the size of ``/dev/shm``, and is gone with the
last process that has it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import current_process, parent_process, reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

from stoker.concurrency.forks import NO_FILE, OpenFile, ProcessFile, ProcessLock
from stoker.concurrency.shared.byte_locks import is_byte_locked, lock_byte
from stoker.errors import StokerError


def spawning() -> bool:
    """Whether what is pickled now goes to a child process that is being spawned, which can be handed a file itself."""
    return get_spawning_popen() is not None


def is_child() -> bool:
    """Whether :mod:`multiprocessing` started this process, also while it is handed what it is started with."""
    return parent_process() is not None or getattr(current_process(), "_inheriting", False)


class SharedFile:
    """An anonymous file, and the right to change it for one thread of one process at a time.

    Pickle it only where :func:`spawning` says so. StokerError if a limit of this process is below this size. ``name``: shown
    among the process's descriptors. ``size``: bytes; they are zeros, and take memory when they are written.
    """

    _file: OpenFile
    _threads: ProcessLock
    _lock_file: ProcessFile
    _holder: int

    def __init__(self, name: str, size: int) -> None:
        with _named_errors():
            self._attach(os.memfd_create(name, os.MFD_CLOEXEC))
        try:
            os.ftruncate(self._file.number, size)
        except OSError as error:
            raise StokerError(
                f"memory of {size} bytes that processes share can not be had ({error.strerror}): it counts as a file, so "
                "raise the limit on the size of files, ulimit -f"
            ) from error

    def map(self, size: int, offset: int = 0) -> mmap.mmap:
        """So many bytes of the file, writable. Changes are seen by all processes."""
        with _named_errors():  # a map takes a descriptor of its own
            return mmap.mmap(self._file.number, size, offset=offset)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other threads out, of this process and of all others. May be nested.

        StokerError if ``/proc`` is not mounted.
        """
        # The kernel's lock belongs to an open file description, which threads share: so a thread lock comes first.
        # A POSIX record lock (lockf) would not do. It belongs to the process, so where threads of two processes wait for
        # two files crosswise, the kernel sees a cycle that is none and answers EDEADLK.
        # The thread lock can be taken again by the thread that has it: a signal handler or a finaliser may run in here.
        with self._threads:
            if self._holder == os.getpid():
                yield
                return
            try:
                self._holder = os.getpid()
                fcntl.flock(self._own_description(), fcntl.LOCK_EX)
                yield
            finally:
                if self._lock_file.number >= 0:
                    fcntl.flock(self._lock_file.number, fcntl.LOCK_UN)
                self._holder = 0

    def claim(self, number: int) -> bool:
        """Claim a number for this process, until it ends; whether no other process has it. Nobody waits.

        StokerError if ``/proc`` is not mounted.
        """
        return lock_byte(self._own_description(), number, "exclusive")

    def hold(self, numbers: Iterable[int]) -> int:
        """A descriptor by which numbers are held, as long as any process has it: this one, or one that inherits it.

        OSError if ``/proc`` is not mounted, or this process can have no more files.
        """
        descriptor = os.open(f"/proc/self/fd/{self._file.number}", os.O_RDONLY | os.O_CLOEXEC)
        for number in numbers:
            lock_byte(descriptor, number, "shared")
        return descriptor

    def is_held(self, number: int) -> bool:
        """Whether any process holds a number."""
        return is_byte_locked(self._file.number, number)

    def _own_description(self) -> int:
        """A descriptor of an open file description that no other process has."""
        if self._lock_file.number < 0:
            try:
                path = f"/proc/self/fd/{self._file.number}"
                self._lock_file = ProcessFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            except FileNotFoundError as error:
                raise StokerError(
                    f"processes that share a dataset need /proc to lock their counters: {error}"
                ) from error
        return self._lock_file.number

    def _attach(self, file: int) -> None:
        self._file = OpenFile(file)
        self._threads, self._lock_file, self._holder = ProcessLock(), NO_FILE, 0

    def __getstate__(self) -> dict[str, Any]:
        return {"file": reduction.DupFd(self._file.number)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._attach(state["file"].detach())


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = ": raise the limit on open files, ulimit -n" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        raise StokerError(f"memory that processes share can not be had ({error.strerror}){remedy}") from error

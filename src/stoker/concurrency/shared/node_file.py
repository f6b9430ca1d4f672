"""An anonymous file that the processes of one user on this node find by a name, although they have no parent in common.

The first process makes the file (``memfd``) and listens on a Unix socket of that name in the abstract namespace. The others
connect to it: the kernel tells them which process listens, and they open the file among its descriptors in ``/proc``. Neither
the name nor the file is in a file system; both go with the processes that have them, however these end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import socket
import struct
import time
from typing import Final

from stoker.concurrency.forks import ProcessFile, close_in_children
from stoker.concurrency.shared.byte_locks import lock_byte, unlock_byte
from stoker.errors import StokerError, StorageError

_TRIES: Final = 100
_PAUSE: Final = 0.01
_BACKLOG: Final = 4096
_LIBC: Final = ctypes.CDLL(None)
_GET_DUMPABLE: Final = 3
_CREDENTIALS: Final = struct.Struct("3i")  # of the process that listens: pid, uid, gid


class NodeFile:
    """The file of a name, made if no process has it.

    Where the process that others ask ends, those that have the file keep it, and the next to :meth:`offer` it is asked.
    A process that :mod:`multiprocessing` started takes the file of its parent, even where another process listens by then.

    StokerError or OSError if it can not be shared here; says why. ``name``: of the file; processes of one user and one PID
    namespace find each other by it. ``size``: bytes of a new file; they are zeros, and take memory when they are written.
    """

    def __init__(self, name: str, size: int) -> None:
        _check_visible()
        self._name, self._address = name, f"\0{name}-{os.geteuid()}-{_pid_namespace()}"
        self._listening: socket.socket | None = None
        for _ in range(_TRIES):
            file = _of_parent(name)
            if file is None:
                file = self._make(size)
            if file is None:
                file = _find(name, self._address)
            if file is not None:
                break
            time.sleep(_PAUSE)  # its maker has just ended, or listens in a moment
        else:
            raise StokerError(
                f"the process that listens on the Unix socket @{self._address[1:]} does not give its file"
            )
        self._file = ProcessFile(file)  # a child asks for the name itself, for claims of its own

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the file; none in a child that was forked since."""
        return b"" if self._file.number < 0 else os.pread(self._file.number, size, start)

    def write(self, start: int, data: bytes) -> None:
        """Change bytes of the file."""
        if self._file.number >= 0:
            os.pwrite(self._file.number, data, start)
        self._forget_connections()

    def claim(self, number: int) -> bool:
        """Claim a number for this process until it releases it or ends; whether no other process has it. Nobody waits."""
        return self._file.number < 0 or lock_byte(self._file.number, number, "exclusive")

    def release(self, number: int) -> None:
        """Give up a claim."""
        if self._file.number >= 0:
            unlock_byte(self._file.number, number)

    def offer(self) -> None:
        """Let other processes have the file from this one, if they can ask no other."""
        self._forget_connections()
        if self._listening is not None or self._file.number < 0:
            return
        with contextlib.suppress(OSError):  # the next call may have a descriptor for it
            listening = self._bound()
            if listening is not None:
                self._listen(listening)

    def _make(self, size: int) -> int | None:
        """A new file; ``None`` where another process has the name."""
        listening = self._bound()
        if listening is None:
            return None
        with contextlib.ExitStack() as undo:
            undo.enter_context(listening)
            file = os.memfd_create(self._name, os.MFD_CLOEXEC)
            undo.callback(os.close, file)
            os.ftruncate(file, size)
            self._listen(listening)
            undo.pop_all()
        return file

    def _listen(self, listening: socket.socket) -> None:
        listening.listen(_BACKLOG)
        self._listening = listening
        close_in_children(listening)

    def _bound(self) -> socket.socket | None:
        """A socket of the name; ``None`` where another process has it."""
        found = _socket()
        try:
            found.bind(self._address)
        except OSError as error:
            found.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        return found

    def _forget_connections(self) -> None:
        """Take those that have connected from the queue: they wanted nothing but to know who listens."""
        if self._listening is None:
            return
        for _ in range(_BACKLOG):  # any user's processes can connect, faster than they are forgotten
            try:
                self._listening.accept()[0].close()
            except OSError:
                return

    def __del__(self) -> None:
        listening = self.__dict__.get("_listening")
        if listening is not None:
            listening.close()


def path_for_others(number: int) -> str:
    """The path by which other processes, and this one, open a file of this process.

    StorageError if ``/proc`` is not that of this process: what is there under its number may be another process, whose files
    are not to be touched. ``number``: its descriptor.
    """
    process = os.getpid()
    if os.readlink("/proc/self") != str(process):
        raise StorageError(
            "/proc is that of another PID namespace, where this process is not found (unshare --mount-proc mounts its own)"
        )
    return f"/proc/{process}/fd/{number}"


def open_file_of(process: int, number: int, name: str) -> int:
    """A descriptor of an anonymous file of another process of this user, opened for reading and writing.

    OSError if there is no such file. ``process``: its process id. ``number``: its descriptor. ``name``: of the file.
    """
    wanted = f"/memfd:{name} (deleted)"
    path = f"/proc/{'self' if process == os.getpid() else process}/fd/{number}"
    if os.readlink(path) != wanted:  # which opens nothing that waits
        raise FileNotFoundError(path)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    # The number may be that of another file by now.
    if os.readlink(f"/proc/self/fd/{file}") == wanted and os.fstat(file).st_uid == os.geteuid():
        return file
    os.close(file)
    raise FileNotFoundError(path)


def _find(name: str, address: str) -> int | None:
    """The file of the process that listens; ``None`` where it has just ended, or does not listen yet.

    StokerError or OSError if it is another user's or container's, or may not be looked at.
    """
    with _socket() as asking:
        try:
            asking.connect(address)
        except (ConnectionRefusedError, BlockingIOError):
            return None
        found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    if user != os.geteuid() or not process:
        raise StokerError(f"the Unix socket @{address[1:]} is that of another user or container")
    return _file_among_those_of(process, name)


def _of_parent(name: str) -> int | None:
    """The file of the process that started this one by :mod:`multiprocessing`; ``None`` where it has none."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return None
    try:
        return _file_among_those_of(parent.pid, name)
    except OSError:  # it may not be looked at, or the limit of descriptors is met, which the next try tells
        return None


def _file_among_those_of(process: int, name: str) -> int | None:
    try:
        numbers = os.listdir(f"/proc/{process}/fd")
    except FileNotFoundError:
        return None
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            return open_file_of(process, int(number), name)
    return None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)


def _check_visible() -> None:
    """Check that others can open files of this process by way of ``/proc``. StokerError if they can not; says why."""
    path_for_others(0)
    if _LIBC.prctl(_GET_DUMPABLE, 0, 0, 0, 0) != 1:
        raise StokerError(
            "the files of this process are hidden in /proc, as of one that changed its user without a new program, or "
            "called prctl(PR_SET_DUMPABLE)"
        )


def _pid_namespace() -> str:
    """Text that differs between containers whose processes do not see each other."""
    return os.readlink("/proc/self/ns/pid")

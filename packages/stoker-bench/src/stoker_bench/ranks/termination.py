"""SIGTERM as an interrupt that leaves results as Ctrl-C does, and the end of processes that this one has started."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from stoker.display import error_text


class TerminatedError(KeyboardInterrupt):
    """SIGTERM.

    Attributes:
        code: exit code of a command that it ends.
        word: what has happened to the command.
    """

    code: Final = 128 + signal.SIGTERM
    word: Final = "terminated"


def end_reason(error: BaseException) -> str:
    """The reason for the end of a run that an error or a signal has ended."""
    return getattr(error, "word", "interrupted") if isinstance(error, KeyboardInterrupt) else error_text(error)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Have SIGTERM raise :class:`TerminatedError` in the block, once; another one does not disturb what is being saved.

    Nothing is changed where the program has a handler of its own, nor in a thread other than the main one.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _Interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Interrupt:
    """The handler of this process, and of no other that is forked from it."""

    def __init__(self) -> None:
        self._owner = os.getpid()

    def __call__(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a process that was forked from this one ends as it would have
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signal.signal(number, signal.SIG_IGN)
        raise TerminatedError


def ignore_sigterm() -> None:
    """From now on let no SIGTERM disturb what is being saved, until the block of :func:`sigterm_interrupts` ends.

    For a run that ends for another reason: ranks may have told of the signal before this process gets it.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and isinstance(signal.getsignal(signal.SIGTERM), _Interrupt):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def kill_descendants(root: int) -> None:
    """Kill all processes that a process has started, and those that they have; not the process itself."""
    for pid in _descendants(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP, and does nothing until it is continued or killed."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def end_process() -> NoReturn:
    """End this process at once, whatever its threads do, and all that it has started."""
    kill_descendants(os.getpid())
    os._exit(1)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, ahead = [], [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found

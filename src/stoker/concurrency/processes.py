"""Processes that work for this one: they leave Ctrl-C to it, end when it ends, and are never waited for when they are gone.

Each has a pipe of its own, of which this process holds one end only. So the end of a process is seen even where it was killed
in the middle of an answer; an executor of :mod:`concurrent.futures` would wait for the rest of it.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing import connection, get_context, parent_process, resource_tracker
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeAlias, TypeVar

from stoker.concurrency.forks import close_in_children
from stoker.errors import StokerError

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")

StartMethod: TypeAlias = Literal["spawn", "fork"]
"""The way to start a process: fresh, or as a copy of this one."""

_STOPPING_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0


class WorkerProcess:
    """A process that serves this one.

    Args:
        name: of the process.
        serve: what it does, a function of a module: called with its end of the pipe and with ``args``, which are pickled for
            a fresh process.
        args: the rest of the arguments.
        start_method: ``"spawn"``: a fresh process; ``"fork"``: a copy of this one.
    """

    def __init__(self, name: str, serve: Callable[..., None], *args: Any, start_method: StartMethod = "spawn") -> None:
        context: Any = get_context(start_method)
        self._pid = os.getpid()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_begin, args=(serve, theirs, args, self._pid), daemon=True, name=name)
        self.name, self.start_method, self.started = name, start_method, time.monotonic()
        # The worker may be a forked child itself, and would wait for ever for an end of the pipe that it holds.
        close_in_children(self._pipe)
        try:
            with _uninterrupted():
                self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int | None:
        """The system's number of the process."""
        pid: int | None = self._process.pid
        return pid

    @property
    def processor_time(self) -> int | None:
        """Nanoseconds of processors that the process has had; ``None``: it has ended.

        The number of a process's clock is that of Linux, as ``clock_getcpuclockid(3)`` gives it.
        """
        if self._process.pid is None:
            return None
        try:
            return time.clock_gettime_ns(~self._process.pid << 3 | 2)
        except OSError:
            return None

    @property
    def ends(self) -> tuple[Any, Any]:
        """The handles to wait for: a message, or the end of the process."""
        return self._pipe, self._process.sentinel

    def join(self, seconds: float = _STOPPING_SECONDS) -> int | None:
        """Wait for the end of the process, so many seconds at most; its exit code, which is below 0 for a signal."""
        self._process.join(seconds)
        code: int | None = self._process.exitcode
        return code

    def send(self, data: bytes) -> None:
        """Send what ``recv_bytes`` is to get. A process that is gone is noticed when it is waited for."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(data)

    def receive(self) -> Any:
        """The next message; ``None`` at the end of the process."""
        try:
            if not self._pipe.poll() and not self._process.is_alive() and not self._pipe.poll():
                return None
            return self._pipe.recv()
        except (EOFError, OSError):
            return None

    def has_sent(self) -> bool:
        """Whether a message is there, or the process has ended."""
        try:
            return bool(self._pipe.poll())
        except OSError:
            return True

    def await_sign(self, seconds: float) -> bool:
        """True once a message is there or the process has ended; False if neither came so long after its start."""
        while not self.has_sent() and self._process.is_alive():
            if time.monotonic() > self.started + seconds:
                return False
            # A look now and then, as a process that is forked meanwhile may hold the other end of the sentinel.
            connection.wait(list(self.ends), _LOOK_SECONDS)
        return True

    def receive_bytes(self) -> bytes | None:
        """The next message that was sent as bytes; waits for it. ``None`` at the end of the process."""
        self.await_sign(math.inf)
        try:
            data: bytes | None = self._pipe.recv_bytes() if self._pipe.poll() else None
            return data
        except (EOFError, OSError):
            return None

    def finish(self) -> None:
        """Tell the process that nothing more will be sent."""
        self._pipe.close()

    def stop(self, *, wait: bool = True) -> None:
        """End the process in the middle of what it does; files that it was writing do not appear.

        In a child that was forked meanwhile it does nothing: the process serves the parent.
        """
        if self._pid != os.getpid():
            return
        if self._process.is_alive():
            self._process.terminate()
        if not wait:
            return
        self._process.join(_STOPPING_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        self._process.close()


def stop_workers(workers: Sequence[WorkerProcess]) -> None:
    """End all of them at once."""
    for worker in workers:
        worker.stop(wait=False)
    for worker in workers:
        worker.stop()


def in_processes(
    function: Callable[[S, A], R],
    shared: S,
    arguments: Iterable[A],
    processes: int,
    *,
    ahead: int,
    does: str,
    call: str,
    remedy: str,
) -> Generator[R]:
    """Results of a function for each argument, in order, found by other processes.

    Where the generator is closed, or left by an exception, Ctrl-C too, the processes are ended in the middle of what they do.

    Args:
        function: of a module; called in the processes with ``shared`` and an argument.
        shared: goes to each process once.
        arguments: taken as processes get to them.
        processes: how many there are at most. One is started when all others are busy.
        ahead: how many arguments a process has at once, so that it need not wait.
        does: what a process does, for messages: ``"tokenizes"``.
        call: the function that wants it, for messages: ``"tokenize()"``.
        remedy: what to do when one was killed, for messages.

    Raises:
        StokerError: a process has ended before its work was done, or the function raised what can not be sent.
        Exception: what the function raised.
    """
    workers: list[WorkerProcess] = []
    busy: list[deque[int]] = []  # for each worker the numbers of what it has
    done: dict[int, R] = {}
    waiting = iter(arguments)
    sent = given = 0
    more = True
    try:
        while True:
            while more and sent - given < processes * ahead:
                try:
                    argument = next(waiting)
                except StopIteration:
                    more = False
                    break
                least = min(range(len(busy)), key=lambda number: len(busy[number]), default=None)
                if least is None or (busy[least] and len(workers) < processes):
                    workers.append(WorkerProcess(f"stoker-{call[:-2]}", _serve, function, shared))
                    busy.append(deque())
                    least = len(workers) - 1
                busy[least].append(sent)
                workers[least].send(pickle.dumps(argument, protocol=5))
                sent += 1
            if given in done:
                yield done.pop(given)
                given += 1
                continue
            if given == sent:
                break
            for number in _ready(workers):
                message = workers[number].receive()
                if message is None:
                    raise StokerError(
                        f"a process that {does} has ended: killed, for want of memory perhaps, or the script that calls "
                        f'{call} lacks `if __name__ == "__main__"`. {remedy}'
                    )
                well, value = message
                if not well:
                    raise value
                done[busy[number].popleft()] = value
        for worker in workers:
            worker.finish()
        for worker in workers:
            worker.join()
    finally:
        stop_workers(workers)


def _ready(workers: Sequence[WorkerProcess]) -> Iterator[int]:
    """Numbers of the workers that have sent something, or have ended; waits for one."""
    ends = {end: number for number, worker in enumerate(workers) for end in worker.ends}
    yield from {ends[end] for end in connection.wait(list(ends))}


def sendable(error: Exception) -> Exception:
    """The error itself, if it is stoker's and survives the way to another process; else one that says the same."""
    if not isinstance(error, StokerError):
        told = StokerError(f"{type(error).__name__}: {error}")
        told.add_note("".join(traceback.format_exception(error)))  # which does not survive it otherwise
        return told
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - any class may refuse
        return StokerError(str(error))
    return error


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A process that is started in here gets no Ctrl-C, not even before it can say so; this one gets it afterwards."""
    resource_tracker.ensure_running()  # else the first start of a process makes it run, and lets signals in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the process ------------------------------------------------------------------------------------------------------


def _begin(serve: Callable[..., None], pipe: Any, args: tuple[Any, ...], starter: int) -> None:
    # A terminal sends Ctrl-C to all of its processes; only the parent knows what is to be told.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a copy of the parent has its handler
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel, starter), name="stoker-parent", daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        serve(pipe, *args)


def _end_with(sentinel: int, parent: int) -> None:
    """End at once where the parent does, however it ends: another run may do our task already."""
    # A process that was forked later may hold the sentinel, too.
    while not connection.wait([sentinel], _LOOK_SECONDS) and os.getppid() == parent:
        pass
    os._exit(1)


def _serve(pipe: Any, function: Callable[[Any, Any], Any], shared: Any) -> None:
    """Call the function for what comes, until nothing comes."""
    # Received by a thread, so that the parent can always send: it would wait for us while we wait for it to receive.
    arrived: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, arrived), name="stoker-receive", daemon=True).start()
    while (data := arrived.get()) is not None:
        try:
            answer = True, function(shared, pickle.loads(data))  # noqa: S301 - of our own parent
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = False, sendable(error)
        pipe.send(answer)


def _receive(pipe: Any, arrived: SimpleQueue[bytes | None]) -> None:
    try:
        while True:
            arrived.put(pipe.recv_bytes())
    except (EOFError, OSError):
        arrived.put(None)

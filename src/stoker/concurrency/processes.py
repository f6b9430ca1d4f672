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
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing import connection, get_context, parent_process, resource_tracker
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from stoker.concurrency.forks import close_in_children
from stoker.errors import ConfigError, StokerError
from stoker.types import StartMethod

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")

_STOPPING_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0


class WorkerProcess:
    """A process that serves this one.

    ``name``: of the process. ``serve``: what it does, a function of a module: called with its end of the pipe and with
    ``args``, which are pickled for a fresh process. ``args``: the rest of the arguments. ``start_method``: ``"spawn"``: a
    fresh process; ``"fork"``: a copy of this one.
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
        data = self.receive_bytes()
        return None if data is None else pickle.loads(data)  # noqa: S301 - of our own child

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


class _TaskProcess(WorkerProcess):
    """A process that calls a function, its tasks by number and argument, and how much of the first of them is done."""

    def __init__(self, name: str, function: Callable[..., Any], shares: str) -> None:
        super().__init__(name, _serve, function, shares)
        self.tasks: deque[tuple[int, Any]] = deque()
        self.done = 0
        self._has_work = False

    def give(self, number: int, argument: Any, work: bytes) -> None:
        """Give it a task, before the first one what all have in common."""
        if not self._has_work:
            self.send(work)
            self._has_work = True
        self.tasks.append((number, argument))
        self.send(pickle.dumps(argument, protocol=5))


class TaskProcesses(Generic[S, A, R]):
    """Processes that call a function of a module with something that all calls share, and an argument.

    ``function``: loaded by the processes while they start. ``count``: how many there are at most. For messages: ``does``:
    what a process does (``"tokenizes"``); ``call``: the function that wants it (``"tokenize()"``); ``remedy``: what to do
    when one was killed; ``shares``: what it is that may not be sent or loaded. ``attempts``: a task of which so many
    processes were killed is an error; before that, another one begins it again.

    ``lost``: processes that ended before their tasks did.
    """

    def __init__(
        self,
        function: Callable[..., R],
        count: int,
        *,
        does: str,
        call: str,
        remedy: str,
        shares: str = "the work",
        attempts: int = 1,
    ) -> None:
        self.count, self.lost = count, 0
        self._function, self._attempts = function, attempts
        self._does, self._call, self._remedy, self._shares = does, call, remedy, shares
        self._workers: list[_TaskProcess] = []

    def start(self) -> None:
        """Start all of them before there is work, as they take a moment to begin; otherwise they start as they are needed."""
        while len(self._workers) < self.count:
            self._start_one()

    def keep(self, most: int) -> None:
        """Have no more than so many, as there is not more to do."""
        self.count = min(self.count, most)
        spare, self._workers = self._workers[self.count :], self._workers[: self.count]
        stop_workers(spare)

    def close(self) -> None:
        """End those that are left."""
        stop_workers(self._workers)
        self._workers = []

    def run(
        self,
        shared: S,
        arguments: Iterable[A],
        *,
        ahead: int = 1,
        in_order: bool = True,
        advance: Callable[[int], None] | None = None,
        where: Callable[[A], str] = lambda _: "",
    ) -> Generator[tuple[A, R]]:
        """Arguments and what the function returns for them.

        Where the generator is closed, or left by an exception, Ctrl-C too, the processes are ended in the middle of what they
        do.

        Args:
            shared: goes to each process once.
            arguments: taken as processes get to them.
            ahead: how many arguments a process has at once, so that it need not wait.
            in_order: give results in the order of the arguments, not as they are found.
            advance: is told what the function tells a third argument, which it gets then; what a task had told, below 0,
                where it is begun again.
            where: names an argument, for messages: ``" at samples 3 to 4"``.

        Raises:
            ConfigError: ``shared`` can not be sent.
            StokerError: a process has ended before its work was done, or the function raised what can not be sent.
            Exception: what the function raised.
        """
        try:
            work = pickle.dumps((shared, advance is not None), protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{self._shares} can not be sent to another process ({error}): define it at the top of a module, or work in "
                "one process with processes=1"
            ) from error
        waiting = enumerate(arguments)
        again: deque[tuple[int, A]] = deque()
        killed: Counter[int] = Counter()
        done: dict[int, tuple[A, R]] = {}
        given = 0
        try:
            while True:
                while again or self._tasks + len(done) < self.count * ahead:
                    task = again.popleft() if again else next(waiting, None)
                    if task is None:
                        break
                    self._least_busy().give(*task, work)
                turn = given if in_order else next(iter(done), given)
                if turn in done:
                    yield done.pop(turn)
                    given += 1
                    continue
                if not self._tasks:
                    break
                for worker in self._ready():
                    message = worker.receive()
                    if message is None:
                        if advance is not None:
                            advance(-worker.done)
                        if worker.tasks:
                            number, argument = worker.tasks[0]
                            killed[number] += 1
                            self._check_end(worker, killed[number], where(argument))
                        again.extendleft(reversed(worker.tasks))
                        self._drop(worker)
                        continue
                    kind, value = message
                    if kind == "failed":
                        raise value
                    if kind == "advanced":
                        worker.done += value
                        if advance is not None:
                            advance(value)
                    else:
                        number, argument = worker.tasks.popleft()
                        worker.done = 0
                        done[number] = argument, value
            for worker in self._workers:
                worker.finish()
            for worker in self._workers:
                worker.join()
        finally:
            self.close()

    @property
    def _tasks(self) -> int:
        """Tasks that processes have."""
        return sum(len(worker.tasks) for worker in self._workers)

    def _start_one(self) -> _TaskProcess:
        self._workers.append(_TaskProcess(f"stoker-{self._call[:-2]}", self._function, self._shares))
        return self._workers[-1]

    def _least_busy(self) -> _TaskProcess:
        least = min(self._workers, key=lambda worker: len(worker.tasks), default=None)
        if least is None or (least.tasks and len(self._workers) < self.count):
            return self._start_one()
        return least

    def _ready(self) -> list[_TaskProcess]:
        """Processes that have sent something, or have ended; waits for one."""
        ends = {end: worker for worker in self._workers for end in worker.ends}
        return list(dict.fromkeys(ends[end] for end in connection.wait(list(ends))))

    def _check_end(self, worker: _TaskProcess, killed: int, where: str) -> None:
        """See whether the task of a process that has ended may be begun again."""
        code = worker.join()
        if code is not None and code >= 0:  # not killed: it could not even begin
            raise StokerError(
                f"a process that {self._does} ended with code {code}: does the script that calls {self._call} lack "
                '`if __name__ == "__main__"`? See what it wrote on stderr'
            )
        if killed >= self._attempts:
            signalled = f"signal {-(code or 0)}"
            told = f"{killed} processes were killed{where}, the last by {signalled}"
            if killed == 1:
                told = f"a process that {self._does} was killed{where} by {signalled}"
            raise StokerError(f"{told}: perhaps memory was short. {self._remedy}")

    def _drop(self, worker: _TaskProcess) -> None:
        self.lost += 1
        self._workers.remove(worker)
        worker.stop()


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


def _serve(pipe: Any, function: Callable[..., Any], shares: str) -> None:
    """Call the function for what comes, until nothing comes."""
    # Received by a thread, so that the parent can always send: it would wait for us while we wait for it to receive.
    arrived: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, arrived), name="stoker-receive", daemon=True).start()
    work = arrived.get()
    if work is None:
        return
    try:
        shared, advances = pickle.loads(work)  # noqa: S301 - of our own parent
    except (ImportError, AttributeError) as error:
        pipe.send(("failed", ConfigError(f"{shares} can not be loaded in another process: {error}")))
        return
    tell = [lambda done: pipe.send(("advanced", done))] if advances else []
    while (data := arrived.get()) is not None:
        try:
            answer = "done", function(shared, pickle.loads(data), *tell)  # noqa: S301 - of our own parent
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = "failed", sendable(error)
        pipe.send(answer)


def _receive(pipe: Any, arrived: SimpleQueue[bytes | None]) -> None:
    try:
        while True:
            arrived.put(pipe.recv_bytes())
    except (EOFError, OSError):
        arrived.put(None)

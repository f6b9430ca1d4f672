"""Running a worker's protocol over an engine: in a thread of its own, so that it is never on the samples' way."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from stoker.concurrency.forks import ProcessLock, alive
from stoker.coordination.engines.store import CoordinationStore
from stoker.coordination.errors import EngineError, WaitTimeoutError, engine_timeout_error
from stoker.coordination.membership import ProtocolClock
from stoker.coordination.records import Get, Sleep, Steps, Unanswered
from stoker.coordination.run import perform
from stoker.errors import ConfigError

_Answer = TypeVar("_Answer")

_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def until_answered(ask: Callable[[], _Answer], url: str, patience: float) -> _Answer:
    """Call an engine, again until it answers, as it may be restarting; the call must be one that may be repeated."""
    begun = time.monotonic()
    while True:
        try:
            return ask()
        except EngineError as error:
            if time.monotonic() >= begun + patience:
                raise engine_timeout_error(error.url or url, begun, patience, error) from error
            time.sleep(0.1)


class Driver:
    """A thread that carries out what a protocol asks for. The run knows its process, and hears nothing of a forked child.

    ``changed``: the lock of the protocol's state: hold it to read or change that. It is released during calls of the engine,
    and notified after each step.
    """

    def __init__(self, store: CoordinationStore, clock: ProtocolClock, patience: float) -> None:
        self.clock = clock
        self._store = store
        self._patience = patience
        self.changed = threading.Condition(ProcessLock())
        self._home = os.getpid()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._woken = False
        # Since when reads, or writes, get no answer: an engine may answer the ones and not the others, as SQLite does whose
        # file another process has locked.
        self._silent: dict[str, tuple[float, EngineError]] = {}
        self._abandoned = False
        _drivers.add(self)

    @property
    def forked(self) -> bool:
        """Whether this process was forked from that of the driver."""
        return self._home != os.getpid()

    def _check_process(self) -> None:
        if self.forked:
            raise ConfigError("a Coordination does not cross a fork: make one in the child process")

    @property
    def failed(self) -> bool:
        """Whether the protocol has ended with an error, or is another process's."""
        return self.forked or self._error is not None

    def start(self, steps: Steps) -> None:
        """Run a protocol in a new thread."""
        self._woken = False
        self._silent.clear()
        self._thread = threading.Thread(target=self._work, args=(steps,), name="stoker-coordination", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Wait for the protocol's end, and raise the error that it ended with, if any."""
        if self._thread is None:
            return
        begun = time.monotonic()
        self._thread.join(timeout)
        if self._thread.is_alive():
            last = max(self._silent.copy().values(), key=lambda one: one[0], default=(begun, None))[1]
            raise engine_timeout_error(self._store.url, begun, timeout, last)
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def run(self, make: Callable[[], Steps], timeout: float) -> None:
        """Run a short protocol to its end in the caller's thread, again while the engine does not answer."""
        self._check_process()
        until_answered(lambda: self._run_once(make()), self._store.url, timeout)

    def abandon(self) -> None:
        """Stop where it is, as the process ends; nothing is told to the engine."""
        with self.changed:
            self._abandoned = True
            self.wake()
        if self._thread is not None and self._thread.is_alive():  # an interrupt may have come before it ran
            self._thread.join(2.0)

    def insist(self, ask: Callable[[], _Answer]) -> _Answer:
        """Call the engine as :func:`until_answered` does, with the driver's patience."""
        self._check_process()
        return until_answered(ask, self._store.url, self._patience)

    def wake(self) -> None:
        """Have the protocol look what there is to do. ``changed`` must be held."""
        self._woken = True
        self.changed.notify_all()

    def wait(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Wait until the protocol's state is as the caller wants.

        ``ready`` is asked with ``changed`` held and the clock set, after each step. Without ``timeout`` it waits for as
        long as the engine answers, or is silent for no longer than the driver's patience.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while True:
                self.raise_if_failed()
                now = self.clock.now = time.monotonic()
                if ready():
                    self.wake()
                    return
                for begun, error in self._silent.copy().values():
                    if now - begun > self._patience:
                        raise engine_timeout_error(self._store.url, begun, self._patience, error)
                if deadline is not None and now >= deadline:
                    raise WaitTimeoutError(f"{what} did not come within {timeout:g} s")
                rest = self._patience / 8 if deadline is None else min(self._patience / 8, deadline - now)
                self.changed.wait(rest)

    def raise_if_failed(self) -> None:
        """Raise the error that the protocol has ended with, if any."""
        self._check_process()
        if self._error is not None:
            raise self._error

    def _perform(self, operation: Any) -> Any:
        kind = "reads" if isinstance(operation, Get) else "writes"
        begun = time.monotonic()
        try:
            answer = perform(self._store, operation)
        except EngineError as error:
            self._silent[kind] = self._silent.get(kind, (begun, error))[0], error
            raise Unanswered from error
        self._silent.pop(kind, None)
        return answer

    def _run_once(self, steps: Steps) -> None:
        answer: Any = None
        while True:
            self.clock.now = time.monotonic()
            try:
                operation = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(operation, Sleep):
                time.sleep(max(0.0, operation.until - time.monotonic()))
            else:
                answer = perform(self._store, operation)

    def _work(self, steps: Steps) -> None:
        answer: Any = None
        failure: Unanswered | None = None
        try:
            while True:
                with self.changed:
                    if self._abandoned:
                        return
                    self.clock.now = time.monotonic()
                    operation = steps.send(answer) if failure is None else steps.throw(failure)
                    self.changed.notify_all()
                    answer, failure = None, None
                    if isinstance(operation, Sleep):
                        rest = operation.until - time.monotonic()
                        if rest > 0 and not self._woken:
                            self.changed.wait_for(lambda: self._woken, rest)
                        self._woken = False
                        continue
                try:
                    answer = self._perform(operation)
                except Unanswered as error:
                    failure = error
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by whatever the worker calls next
            self._error = error
        finally:
            with self.changed:
                self.changed.notify_all()


def _abandon_all() -> None:
    # A thread that is inside an engine's client while the interpreter is taken down can crash it.
    for driver in alive(_drivers):
        driver.abandon()


atexit.register(_abandon_all)

"""A rank's connection to where the ranks meet: gathering, barriers, and word of another rank's end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from stoker.errors import StokerError
from stoker_bench.ranks.control.messages import MOST_LINE, Channel, tune
from stoker_bench.ranks.control.silence import SilenceClock, poll_seconds
from stoker_bench.ranks.termination import end_process

_GRACE: Final = 30.0
"""Seconds after another rank's failure after which a rank that is still busy ends itself."""


class RankFailedError(StokerError):
    """A rank of the run has failed or is gone, so that the run can not go on."""


class Link:
    """A rank's connection.

    Args:
        address: finds the server's host, port and token; asked again while nobody answers there.
        rank: this rank.
        digest: of its settings.
        join_seconds: for which the server may be missing.
        fatal: whether this process ends itself where it does not react to another rank's failure.
        grace: seconds that it gives itself.
        silence: seconds without a sign of the server after which it is gone; 0 for ever. This rank gives signs, too.

    Attributes:
        waiting: whether this rank waits for others.

    Raises:
        RankFailedError: nobody answers, or the run has failed already.
    """

    def __init__(
        self,
        address: Callable[[], tuple[str, int, str] | None],
        rank: int,
        digest: str,
        *,
        join_seconds: float = 300.0,
        fatal: bool = False,
        grace: float = _GRACE,
        silence: float = 0.0,
    ) -> None:
        self.rank = rank
        self._condition = threading.Condition()
        self._answers: dict[str, list[Any]] = {}
        self._turns: dict[str, int] = {}
        self._failure: str | None = None
        self._seen = threading.Event()
        self._done = self._lost = self.waiting = False
        self._silence = SilenceClock(silence)
        self._fatal, self._grace = fatal, grace
        self._connection, token = self._connect(address, join_seconds)
        self._channel = Channel(self._connection)
        process = f"{socket.gethostname()}, process {os.getpid()}"
        self._write({"rank": rank, "token": token, "digest": digest, "place": process})
        self._listener = threading.Thread(target=self._listen, daemon=True, name="stoker-bench-link")
        self._listener.start()
        if silence > 0:
            self._silence.heard("server")
            threading.Thread(target=self._beat, daemon=True, name="stoker-bench-beat").start()

    def _beat(self) -> None:
        poll = poll_seconds(self._silence.limit)
        while not self._seen.wait(poll) and self._failure is None:
            if self._silence.look() is not None:
                self._lost = True
                silent = f"{self._silence.limit:g} s"
                self._fail(f"the process that the ranks meet at gave no sign for {silent}: it is stopped, or hangs")
                return
            self._write({"op": "beat"})

    def _connect(self, address: Callable[[], tuple[str, int, str] | None], seconds: float) -> tuple[socket.socket, str]:
        deadline, last = time.monotonic() + seconds, "its address is not known"
        while True:
            found = address()
            if found is not None:
                try:
                    connection = socket.create_connection(found[:2], timeout=10)
                    connection.settimeout(None)
                    tune(connection)
                    return connection, found[2]
                except OSError as error:
                    last = f"{found[0]}:{found[1]}: {error}"
            if time.monotonic() > deadline:
                raise RankFailedError(f"rank {self.rank}: rank 0 did not answer for {seconds:g} s ({last})")
            time.sleep(0.05)

    def _write(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the listener finds what the server said last, or that it is gone
            self._channel.send(message)

    def _listen(self) -> None:
        said = "the process that the ranks meet at is gone: killed, or its host?"
        told = False
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            while line := lines.readline(MOST_LINE):
                message = json.loads(line)
                self._silence.heard("server")
                if "beat" in message:
                    continue
                if "failed" in message:
                    said, told = str(message["failed"]), True
                    break
                with self._condition:
                    self._answers[message["name"]] = message["values"]
                    self._condition.notify_all()
        if self._done:
            return
        self._lost = not told
        self._fail(said)

    def _fail(self, said: str) -> None:
        """Wake those that wait, and end this process where it does not react."""
        with self._condition:
            self._failure = self._failure or said
            self._condition.notify_all()
        if self._fatal and not self._seen.wait(self._grace):
            sys.stderr.write(
                f"rank {self.rank}: {self._failure}; this rank was busy for {self._grace:g} s more, and is ended\n"
            )
            sys.stderr.flush()
            end_process()

    @property
    def lost(self) -> bool:
        """Whether the process that the ranks meet at ended without a word, so that it will not write the results."""
        if self._failure is not None:
            self._listener.join(5)
        return self._lost

    def check(self) -> None:
        """Raise where the run has failed; costs next to nothing where not.

        Raises:
            RankFailedError: says which rank, and what.
        """
        if self._failure is not None:
            self._seen.set()
            raise RankFailedError(self._failure)

    def gather(self, name: str, value: Any = None) -> list[Any]:
        """Wait until all ranks are here; all ranks' values by rank.

        Raises:
            RankFailedError: one will never come.
        """
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        full = f"{name}#{turn}"
        self._write({"op": "gather", "name": full, "value": value})
        with self._condition:
            self.waiting = True
            try:
                while full not in self._answers and self._failure is None:
                    self._condition.wait()
            finally:
                self.waiting = False
            if full in self._answers:
                return self._answers.pop(full)
        self.check()
        raise RankFailedError("the run has failed")

    def barrier(self, name: str = "barrier") -> None:
        """Wait until all ranks are here; see :meth:`gather`."""
        self.gather(name)

    def leave(self, record: dict[str, Any]) -> None:
        """Send what this rank has measured, which ends early: its results may have nowhere to be written."""
        self._write({"op": "record", "record": record})

    def fail(self, said: str) -> None:
        """Tell all ranks that this one has failed."""
        self._seen.set()
        self._write({"op": "fail", "said": said})

    def close(self) -> None:
        """Say goodbye."""
        self._done = True
        self._seen.set()
        self._write({"op": "bye"})
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

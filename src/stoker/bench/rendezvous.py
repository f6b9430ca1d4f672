"""Ranks meet without MPI: one of them, or the process that started them, listens on TCP; the others hold a connection.

A connection that ends without a goodbye is a rank that died. All others are told at once, those that wait and those that
work, so that nothing waits for what will never come. Messages are JSON, a line each.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from stoker.errors import StokerError

__all__ = ["Link", "RankFailedError", "Server"]

_MOST_LINE: Final = 1 << 26
_GRACE: Final = 30.0
"""Seconds after another rank's failure after which a rank that is still busy ends itself."""


class RankFailedError(StokerError):
    """A rank of the run has failed or is gone, so that the run can not go on."""


def _tune(connection: socket.socket) -> None:
    """No delays, and a host that vanishes without a word is noticed within half a minute."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


class Server:
    """Where ranks meet.

    Args:
        world_size: how many there are.
        token: what they must know.
        digest: of the settings, which must be the same everywhere.
        host: address to listen on.
        port: 0 for any.
        join_seconds: for which ranks may be missing.

    Attributes:
        failure: what went wrong first; ``None`` so far.
    """

    def __init__(
        self,
        world_size: int,
        token: str,
        digest: str,
        host: str = "127.0.0.1",
        port: int = 0,
        join_seconds: float = 300.0,
    ) -> None:
        self._size, self._token, self._digest = world_size, token, digest
        self._lock = threading.Lock()
        self._ranks: dict[int, socket.socket] = {}
        self._places: dict[int, str] = {}
        self._gone: set[int] = set()
        self._parts: dict[str, dict[int, Any]] = {}
        self.failure: str | None = None
        self.failed = threading.Event()
        self._listener = socket.create_server((host, port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, daemon=True, name="stoker-bench-server").start()
        self._late = threading.Timer(join_seconds, self._missing, [join_seconds])
        self._late.daemon = True
        self._late.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _missing(self, seconds: float) -> None:
        missing = sorted(set(range(self._size)) - set(self._places))
        if missing:
            self.fail(f"after {seconds:g} s rank {missing[0]} has not started, nor {len(missing) - 1} others")

    def _serve(self, connection: socket.socket) -> None:
        rank: int | None = None
        with connection, connection.makefile("rb") as lines:
            try:
                _tune(connection)
                rank = self._hello(connection, json.loads(lines.readline(_MOST_LINE)))
                while rank is not None:
                    line = lines.readline(_MOST_LINE)
                    if not line:
                        break
                    if self._take(rank, json.loads(line)):
                        return
            except (OSError, ValueError, KeyError, TypeError):
                pass
        if rank is not None and not self._closed:
            self.fail(f"rank {rank} ({self._places[rank]}) ended without a word: killed, or out of memory?")

    def _hello(self, connection: socket.socket, message: dict[str, Any]) -> int | None:
        if not hmac.compare_digest(str(message.get("token", "")), self._token):
            return None
        rank = int(message["rank"])
        with self._lock:
            if not 0 <= rank < self._size or rank in self._places:
                said = (
                    f"rank {rank} came twice, or is none of {self._size}: is another run using this results directory?"
                )
            elif message.get("digest") != self._digest:
                said = f"rank {rank} ({message.get('place')}) was started with other settings than the rest"
            else:
                said = self.failure or ""
            if not said:
                self._places[rank] = str(message.get("place"))
                self._ranks[rank] = connection
        if said:
            _send(connection, {"failed": said})
            self.fail(said)
            return None
        return rank

    def _take(self, rank: int, message: dict[str, Any]) -> bool:
        """Handle a message; whether it was the last."""
        if message.get("op") == "bye":
            with self._lock:
                self._gone.add(rank)
                self._ranks.pop(rank, None)
                waiting = next((name for name, parts in self._parts.items() if parts), None)
            if waiting is not None:
                self.fail(f"rank {rank} ended while others wait for it in {waiting!r}")
            return True
        if message.get("op") == "fail":
            self.fail(f"rank {rank} ({self._places[rank]}): {message.get('said')}")
            return False
        name = str(message["name"])
        with self._lock:
            parts = self._parts.setdefault(name, {})
            parts[rank] = message.get("value")
            ended = bool(self._gone)
            if len(parts) < self._size:
                done = None
                stuck = sorted(name for name, some in self._parts.items() if some)
                stuck = stuck if sum(map(len, self._parts.values())) == self._size else []
            else:
                done = [self._parts[name][one] for one in range(self._size)]
                del self._parts[name]
                connections = list(self._ranks.values())
        if done is not None:
            for connection in connections:
                with contextlib.suppress(OSError):
                    _send(connection, {"name": name, "values": done})
        elif stuck:
            first, second = ((one, min(self._parts[one])) for one in stuck[:2])
            self.fail(
                f"rank {first[1]} waits in {first[0]!r} and rank {second[1]} in {second[0]!r}: they took different "
                "numbers of steps. Set train.steps, so that all take as many"
            )
        elif ended:
            self.fail(f"rank {min(self._gone)} ended while others wait for it in {name!r}")
        return False

    @property
    def ended(self) -> frozenset[int]:
        """Ranks that have said goodbye."""
        with self._lock:
            return frozenset(self._gone)

    def fail(self, said: str) -> None:
        """End the run for all ranks; the first reason holds."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = said
            connections = list(self._ranks.values())
        self.failed.set()
        for connection in connections:
            with contextlib.suppress(OSError):
                _send(connection, {"failed": said})

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._late.cancel()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Link:
    """A rank's connection.

    Args:
        address: finds the server's host, port and token; asked again while nobody answers there.
        rank: this rank.
        digest: of its settings.
        join_seconds: for which the server may be missing.
        fatal: whether this process ends itself where it does not react to another rank's failure.
        grace: seconds that it gives itself.

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
    ) -> None:
        self.rank = rank
        self._condition = threading.Condition()
        self._answers: dict[str, list[Any]] = {}
        self._turns: dict[str, int] = {}
        self._failure: str | None = None
        self._seen = threading.Event()
        self._done = False
        self._fatal, self._grace = fatal, grace
        self._connection, token = self._connect(address, join_seconds)
        place = f"{socket.gethostname()}, process {os.getpid()}"
        self._write({"rank": rank, "token": token, "digest": digest, "place": place})
        threading.Thread(target=self._listen, daemon=True, name="stoker-bench-link").start()

    def _connect(self, address: Callable[[], tuple[str, int, str] | None], seconds: float) -> tuple[socket.socket, str]:
        deadline, last = time.monotonic() + seconds, "its address is not known"
        while True:
            found = address()
            if found is not None:
                try:
                    connection = socket.create_connection(found[:2], timeout=10)
                    connection.settimeout(None)
                    _tune(connection)
                    return connection, found[2]
                except OSError as error:
                    last = f"{found[0]}:{found[1]}: {error}"
            if time.monotonic() > deadline:
                raise RankFailedError(f"rank {self.rank}: rank 0 did not answer for {seconds:g} s ({last})")
            time.sleep(0.05)

    def _write(self, message: dict[str, Any]) -> None:
        try:
            _send(self._connection, message)
        except OSError as error:
            with self._condition:
                self._failure = self._failure or f"the connection to the other ranks is lost: {error}"

    def _listen(self) -> None:
        said = "the process that the ranks meet at is gone"
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            while line := lines.readline(_MOST_LINE):
                message = json.loads(line)
                if "failed" in message:
                    said = str(message["failed"])
                    break
                with self._condition:
                    self._answers[message["name"]] = message["values"]
                    self._condition.notify_all()
        if self._done:
            return
        with self._condition:
            self._failure = self._failure or said
            self._condition.notify_all()
        if self._fatal and not self._seen.wait(self._grace):
            sys.stderr.write(
                f"rank {self.rank}: {self._failure}; this rank was busy for {self._grace:g} s more, and is ended\n"
            )
            sys.stderr.flush()
            os._exit(1)

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
            while full not in self._answers and self._failure is None:
                self._condition.wait()
            if full in self._answers:
                return self._answers.pop(full)
        self.check()
        raise RankFailedError("the run has failed")

    def barrier(self, name: str = "barrier") -> None:
        """Wait until all ranks are here; see :meth:`gather`."""
        self.gather(name)

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

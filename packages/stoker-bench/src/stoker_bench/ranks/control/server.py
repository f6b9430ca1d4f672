"""The server at which ranks meet without MPI: rank 0, or the process that started them, listens on TCP; the others connect.

A connection that ends without a goodbye is a rank that died. All others are told at once, those that wait and those that
work, so that nothing waits for what will never come. :mod:`stoker_bench.ranks.control.client` is a rank's side of it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
from collections.abc import Collection
from typing import Any

from stoker_bench.ranks.control.messages import MOST_LINE, Channel, tune
from stoker_bench.ranks.control.silence import SilenceClock, poll_seconds


class Server:
    """The server at which ranks meet.

    Args:
        world_size: how many there are.
        token: what they must know.
        digest: of the settings, which must be the same everywhere.
        host: address to listen on.
        port: 0 for any.
        join_seconds: for which ranks may be missing.
        silence: seconds without a sign after which a rank, which gives signs all the time, hangs; 0 for ever.

    Attributes:
        failure: what went wrong first; ``None`` so far.
        records: of ranks that ended early, and may have found no space to write them.
    """

    def __init__(
        self,
        world_size: int,
        token: str,
        digest: str,
        host: str = "127.0.0.1",
        port: int = 0,
        join_seconds: float = 300.0,
        silence: float = 0.0,
    ) -> None:
        self._size, self._token, self._digest = world_size, token, digest
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._ranks: dict[int, Channel] = {}
        self._processes: dict[int, str] = {}
        self._gone: set[int] = set()
        self._parts: dict[str, dict[int, Any]] = {}
        self.failure: str | None = None
        self.records: dict[int, dict[str, Any]] = {}
        self.failed = threading.Event()
        self._listener = socket.create_server((host, port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, daemon=True, name="stoker-bench-server").start()
        self._late = threading.Timer(join_seconds, self._missing, [join_seconds])
        self._late.daemon = True
        self._late.start()
        self._silence = SilenceClock(silence)
        self._ending = threading.Event()
        if silence > 0:
            threading.Thread(target=self._look, daemon=True, name="stoker-bench-signs").start()

    def _look(self) -> None:
        """Name the ranks whose processes are stopped, or hang in code that lets no other thread run."""
        while not self._ending.wait(poll_seconds(self._silence.limit)):
            rank = self._silence.look()
            if isinstance(rank, int):
                self._silence.left(rank)
                self.fail(
                    f"rank {rank} ({self._processes[rank]}) hangs: it gave no sign for {self._silence.limit:g} s. It is "
                    "stopped, or stuck in code that lets no other thread run. train.step_timeout sets the time"
                )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _missing(self, seconds: float) -> None:
        missing = sorted(set(range(self._size)) - set(self._processes))
        if missing:
            self.fail(f"after {seconds:g} s rank {missing[0]} has not started, nor {len(missing) - 1} others")

    def _serve(self, connection: socket.socket) -> None:
        rank: int | None = None
        with connection, connection.makefile("rb") as lines:
            try:
                tune(connection)
                rank = self._hello(Channel(connection), json.loads(lines.readline(MOST_LINE)))
                while rank is not None:
                    line = lines.readline(MOST_LINE)
                    if not line:
                        break
                    if self._take(rank, json.loads(line)):
                        break
            except (OSError, ValueError, KeyError, TypeError):
                pass
        if rank is None:
            return
        with self._lock:
            self._ranks.pop(rank, None)
            self._left.notify_all()
        self._silence.left(rank)
        if rank not in self._gone and not self._closed:
            self.fail(f"rank {rank} ({self._processes[rank]}) ended without a word: killed, or out of memory?")

    def _hello(self, connection: Channel, message: dict[str, Any]) -> int | None:
        if not hmac.compare_digest(str(message.get("token", "")), self._token):
            return None
        rank = int(message["rank"])
        with self._lock:
            if not 0 <= rank < self._size or rank in self._processes:
                said = (
                    f"rank {rank} came twice, or is none of {self._size}: is another run using this results directory?"
                )
            elif message.get("digest") != self._digest:
                said = f"rank {rank} ({message.get('place')}) was started with other settings than the rest"
            else:
                said = self.failure or ""
            if not said:
                self._processes[rank] = str(message.get("place"))
                self._ranks[rank] = connection
                self._silence.heard(rank)
        if said:
            connection.send({"failed": said})
            self.fail(said)
            return None
        return rank

    def _take(self, rank: int, message: dict[str, Any]) -> bool:
        """Handle a message; whether it was the last."""
        self._silence.heard(rank)
        if message.get("op") == "beat":
            with contextlib.suppress(OSError, KeyError):
                self._ranks[rank].send({"beat": True})
            return False
        if message.get("op") == "bye":
            with self._lock:
                self._gone.add(rank)
                waiting = next((name for name, parts in self._parts.items() if parts), None)
            if waiting is not None:
                self.fail(f"rank {rank} ended while others wait for it in {waiting!r}")
            return True
        if message.get("op") == "record":
            self.records[rank] = message["record"]
            return False
        if message.get("op") == "fail":
            self.fail(f"rank {rank} ({self._processes[rank]}): {message.get('said')}")
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
                    connection.send({"name": name, "values": done})
        elif stuck:
            first, second = ((one, min(self._parts[one])) for one in stuck[:2])
            self.fail(
                f"rank {first[1]} waits in {first[0]!r} and rank {second[1]} in {second[0]!r}: they took different "
                "numbers of steps. Set train.steps, so that all take as many"
            )
        elif ended:
            self.fail(f"rank {min(self._gone)} ended while others wait for it in {name!r}")
        return False

    def await_leaving(self, seconds: float, *, but: Collection[int] = ()) -> None:
        """Wait until no rank is connected, except for some; so long at most."""
        with self._lock:
            self._left.wait_for(lambda: self._ranks.keys() <= set(but), seconds)

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
                connection.send({"failed": said})

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._ending.set()
        self._late.cancel()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

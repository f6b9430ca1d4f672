"""A Ray actor as an engine, for jobs that run on Ray: nothing to set up, reachable from all its nodes.

The actor has a name and outlives the job's processes. It keeps the records in an SQLite file on the node of the
worker that made it, and Ray restarts it there if it dies: what it had acknowledged is in the file. If that node is lost, so
is the file: where that must not be, use a ``redis://`` engine. A call takes about a millisecond.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from stoker.coordination.engines.sqlite import SqliteStore
from stoker.coordination.engines.store import Stored, options_of
from stoker.coordination.errors import EngineReplacedError, no_answer
from stoker.errors import ConfigError, import_option

_READS = frozenset(["get", "scan", "opened"])


class _Keeper:
    """The actor: an SQLite engine behind Ray's calls."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path = path
        self._store = SqliteStore(f"sqlite://{path}", timeout=timeout)

    def opened(self) -> tuple[str, int]:
        """The file, and which records are in it."""
        return self._path, self._store.generation()

    def call(self, generation: int, name: str, *arguments: Any) -> Any:
        """A call for the records of a generation. An actor that was started anew may have found no file, and made one."""
        if self._store.generation() != generation:
            raise EngineReplacedError(
                f"{self._path}, in which the engine's actor keeps its records, was lost and created again: the run's "
                "records are lost. End all workers of the run, and start it again, or resume from a checkpoint"
            )
        return getattr(self._store, name)(*arguments)


class RayStore:
    """The records, kept by a named actor.

    ``url``: ``ray://NAME?path=FILE&namespace=NAMESPACE``: the actor's name, the file on its node, and the namespace of Ray in
    which the name is unique (default: ``stoker``). ``timeout``: seconds a call may take.
    """

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        options = options_of(url, {"path": "", "namespace": "stoker"})
        name, path, namespace = urlsplit(url).netloc, options["path"], options["namespace"]
        self._ray = import_option("ray", f"the engine ray://{name} needs Ray", "stoker[ray]")
        if not name or not path:
            raise ConfigError("a Ray engine needs a name and a file: ray://NAME?path=/FOLDER/FILE")
        self.url = f"ray://{name}"
        self._timeout = timeout
        if not self._ray.is_initialized():
            raise ConfigError(f"the engine {self.url}: this process is not connected to Ray: call ray.init() before")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        keeper = self._ray.remote(num_cpus=0)(_Keeper)
        self._actor = keeper.options(
            name=name,
            namespace=namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            scheduling_strategy=here,
        ).remote(path, timeout / 2)
        known, self._generation = self._ask("opened")
        if known != path:
            raise ConfigError(
                f"the engine {self.url} keeps its records in {known}, this URL has {path}: use one of the two"
            )

    def get(self, keys: Sequence[str]) -> list[Stored | None]:
        found: list[Stored | None] = self._ask("get", list(keys))
        return found

    def create(self, key: str, value: bytes) -> int | None:
        version: int | None = self._ask("create", key, value)
        return version

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        fresh: int | None = self._ask("swap", key, value, version)
        return fresh

    def delete(self, key: str, version: int) -> bool:
        return bool(self._ask("delete", key, version))

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Stored]]:
        found: list[tuple[str, Stored]] = self._ask("scan", prefix, after, limit)
        return found

    def close(self) -> None:
        """Nothing to close; the actor stays."""

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Have the actor call a method of its SQLite engine, while the time limit allows; reads are repeated."""
        begun = time.monotonic()
        deadline = begun + self._timeout
        ray = self._ray
        while True:
            left = max(0.01, deadline - time.monotonic())
            try:
                if name == "opened":
                    return ray.get(self._actor.opened.remote(), timeout=left)
                return ray.get(self._actor.call.remote(self._generation, name, *arguments), timeout=left)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            except (ray.exceptions.RayError, TimeoutError) as error:
                # The actor is being started anew, or is gone. A write may have been done: it is not repeated here.
                if name not in _READS or time.monotonic() + 0.05 > deadline:
                    reason = f"{type(error).__name__}: {error}".rstrip(": ")
                    raise no_answer(self.url, begun, reason, "see whether its node lives") from error
            time.sleep(0.05)

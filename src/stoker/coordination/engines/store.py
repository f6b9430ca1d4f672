"""``CoordinationStore``: the interface of an engine, which stores the records of a run and changes them by compare-and-set.

An engine must be durable and linearizable: what it has acknowledged stays, and every read that is sent after that sees
it. It needs nothing else: no clock, no expiry, no locks, no notifications, no transactions over records.
:class:`stoker.testing.EngineTests` checks an engine. A new one is a module next to this one and a line of :data:`ENGINES`;
:class:`MemoryStore` is the simplest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import ClassVar, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from stoker.arguments import must_be, must_know
from stoker.concurrency.forks import ProcessLock
from stoker.display import redact_url
from stoker.errors import ConfigError
from stoker.lazy import load_plugin, plugins

ENGINES: Final[dict[str, str]] = {
    "sqlite": "stoker.coordination.engines.sqlite:SqliteStore",
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix"), "stoker.coordination.engines.redis:RedisStore"),
    "ray": "stoker.coordination.engines.ray:RayStore",
    "memory": "stoker.coordination.engines.store:MemoryStore",
}
"""Schemes of URLs and the engines that open them, called with the URL and ``timeout=`` in seconds."""

GROUP: Final = "stoker.engines"
"""Entry points of other packages' engines, called likewise."""


class Stored(NamedTuple):
    """A record's bytes and the version of the write that made it."""

    value: bytes
    version: int


class CoordinationStore(Protocol):
    """An engine. Every call ends within the time limit that the engine was opened with; calls from several threads are safe.

    A version is a number in ``[1, 2**63)`` that no other write of any record has, ever: so a compare-and-set that comes
    late, or after the engine has lost writes, can never succeed by accident.

    Every call raises :class:`~stoker.coordination.errors.EngineError` where no answer came in time; a write may
    then have been done, or not.
    """

    url: str

    def get(self, keys: Sequence[str]) -> list[Stored | None]:
        """Records in the order of ``keys``, ``None`` for those that are not there. Not all of one moment."""

    def create(self, key: str, value: bytes) -> int | None:
        """Write a record that is not there. Returns its version, or ``None`` if it is there already."""

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        """Write a record over one of this version. Returns the new version, or ``None`` if it has another or is not there."""

    def delete(self, key: str, version: int) -> bool:
        """Remove a record of this version. Returns whether it did."""

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Stored]]:
        """Records whose keys begin with ``prefix`` and are larger than ``after``, sorted by key (in code points), at most
        ``limit``."""

    def close(self) -> None:
        """Close connections. What is stored stays."""


def fresh_version() -> int:
    """A version unlike any other: 63 random bits, but for 0."""
    return (int.from_bytes(os.urandom(8)) >> 1) | 1


def open_store(url: str, *, timeout: float = 10.0) -> CoordinationStore:
    """Open an engine.

    Args:
        url: ``sqlite://PATH``, ``redis://HOST:PORT/DB`` (also ``rediss``, ``valkey``, ``valkeys``, ``unix``),
            ``ray://NAME?path=PATH``, or ``memory://NAME`` (this process alone, for tests); or of an engine that another
            package has as an entry point of ``stoker.engines``, named by its scheme.
        timeout: seconds after which a call that has no answer raises ``EngineError``.

    Raises:
        ConfigError: no such engine, or a URL that it can not use.
        MissingPackageError: the engine's client is not installed.
        EngineError: it can not be reached.
    """
    must_be("above 0", timeout > 0, timeout=timeout)
    return _engine_of(urlsplit(url).scheme, url)(url, timeout=timeout)


def _engine_of(scheme: str, url: str) -> Callable[..., CoordinationStore]:
    """The class that opens URLs of a scheme."""
    engine: Callable[..., CoordinationStore]
    if scheme in ENGINES:
        module, name = ENGINES[scheme].split(":")
        engine = getattr(import_module(module), name)
        return engine
    others = plugins(GROUP)
    if scheme not in others:
        known = ", ".join([*ENGINES, *others])
        raise ConfigError(f"no engine is called {scheme!r} (in {redact_url(url)!r}); known: {known}")
    engine = load_plugin(others[scheme], f"engine {scheme!r}")
    return engine


def options_of(url: str, known: Mapping[str, str]) -> dict[str, str]:
    """Options after the question mark, with defaults for those that are not given."""
    given = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    must_know("option", given, known, f"{redact_url(url)!r}: ")
    return {**known, **given}


class MemoryStore:
    """Records in a dict. Stores of one URL share it."""

    _all: ClassVar[dict[str, dict[str, Stored]]] = {}
    _lock = ProcessLock()

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:  # noqa: ARG002 - nothing takes time
        options_of(url, {})
        self.url = url
        with self._lock:
            self._records = self._all.setdefault(url, {})

    def get(self, keys: Sequence[str]) -> list[Stored | None]:
        with self._lock:
            return [self._records.get(key) for key in keys]

    def create(self, key: str, value: bytes) -> int | None:
        with self._lock:
            return None if key in self._records else self._put(key, value)

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        with self._lock:
            old = self._records.get(key)
            return None if old is None or old.version != version else self._put(key, value)

    def delete(self, key: str, version: int) -> bool:
        with self._lock:
            old = self._records.get(key)
            if old is None or old.version != version:
                return False
            del self._records[key]
            return True

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Stored]]:
        with self._lock:
            found = sorted([item for item in self._records.items() if item[0].startswith(prefix) and item[0] > after])
            return found[:limit]

    def close(self) -> None:
        """Nothing to close."""

    def _put(self, key: str, value: bytes) -> int:
        version = fresh_version()
        self._records[key] = Stored(bytes(value), version)
        return version

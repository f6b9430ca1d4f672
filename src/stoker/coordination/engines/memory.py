"""An engine in this process's memory, for tests: gone with the process, and seen by no other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

from stoker.coordination.engines.store import Stored, fresh_version, options_of


class MemoryStore:
    """Records in a dict. Stores of one URL share it."""

    _all: ClassVar[dict[str, dict[str, Stored]]] = {}
    _lock = threading.Lock()

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

"""An engine whose calls are carried out elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stoker.coordination.engines.store import Stored

__all__ = ["ForwardingStore"]


class ForwardingStore(ABC):
    """Base of engines that hand each call on, as its name and arguments."""

    url: str

    @abstractmethod
    def ask(self, name: str, *arguments: Any) -> Any:
        """Have a method of :class:`~stoker.coordination.engines.store.CoordinationStore` called; its answer."""

    def get(self, keys: Sequence[str]) -> list[Stored | None]:
        found: list[Stored | None] = self.ask("get", list(keys))
        return found

    def create(self, key: str, value: bytes) -> int | None:
        version: int | None = self.ask("create", key, value)
        return version

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        fresh: int | None = self.ask("swap", key, value, version)
        return fresh

    def delete(self, key: str, version: int) -> bool:
        return bool(self.ask("delete", key, version))

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Stored]]:
        found: list[tuple[str, Stored]] = self.ask("scan", prefix, after, limit)
        return found

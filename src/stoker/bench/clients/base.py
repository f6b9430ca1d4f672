"""What a storage client is: whole files or objects by key, as the loader ``torch`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, Protocol, TypeAlias

__all__ = ["Client", "ClientMaker", "Data", "ClientLocation"]

Data: TypeAlias = bytes | memoryview | mmap
"""What a client reads."""


@dataclass(frozen=True, slots=True)
class ClientLocation:
    """Where a client reads.

    Attributes:
        url: a directory, or ``s3://bucket/prefix`` and the like.
        options: credentials and settings by obstore's names.
        connections: how many reads there may be at once.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)
    connections: int = 1

    @property
    def bucket(self) -> str:
        """Of an object store."""
        return self.url.partition("://")[2].partition("/")[0]

    def key(self, name: str) -> str:
        """Of an object below the place."""
        prefix = self.url.partition("://")[2].partition("/")[2].strip("/")
        return f"{prefix}/{name}" if prefix else name

    def option(self, name: str) -> Any:
        """A setting, under its name or with obstore's prefix ``aws_``; ``None`` where it is not given."""
        return self.options.get(name, self.options.get(f"aws_{name}"))


class Client(Protocol):
    """Reads from one place. Made in the process that reads."""

    def read(self, name: str) -> Data:
        """All bytes of a file or object.

        Raises:
            StokerError: it is not there, or can not be read this way.
        """

    def close(self) -> None:
        """Let go of connections."""


class ClientMaker(Protocol):
    """A kind of client."""

    def available(self) -> str | None:
        """``None`` where it can be used, else what is missing and how to get it. Imports nothing that takes long."""

    def reads(self, url: str) -> bool:
        """Whether it can read there at all."""

    def open(self, place: ClientLocation) -> Client:
        """Open it."""

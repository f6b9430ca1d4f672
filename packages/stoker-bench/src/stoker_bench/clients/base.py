"""The base of storage clients, which read whole files or objects for the loader ``torch``."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, ClassVar, TypeAlias

from stoker.storage import is_local

Data: TypeAlias = bytes | memoryview | mmap
"""The bytes of a file or object."""


@dataclass(frozen=True, slots=True)
class ClientLocation:
    """The location that a client reads.

    Attributes:
        url: a directory, or ``s3://bucket/prefix`` and the like.
        options: credentials and settings by obstore's names.
        part_bytes: most bytes of a request; ``None``: as the client has it.
        part_requests: requests of an object at once; ``None``: as the client has it.
        attempts: tries of a request in all; ``None``: as the client has it.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)
    part_bytes: int | None = None
    part_requests: int | None = None
    attempts: int | None = None

    @property
    def bucket(self) -> str:
        """Of an object store."""
        return self.url.partition("://")[2].partition("/")[0]

    def key(self, name: str) -> str:
        """The key of an object below the location."""
        prefix = self.url.partition("://")[2].partition("/")[2].strip("/")
        return f"{prefix}/{name}" if prefix else name

    def option(self, name: str) -> Any:
        """A setting, under its name or with obstore's prefix ``aws_``; ``None`` where it is not given."""
        return self.options.get(name, self.options.get(f"aws_{name}"))


class Client(ABC):
    """Reads whole files or objects below one URL. Made in the process that reads.

    Attributes:
        package: that does the work, whose version is recorded; empty for Python itself.
        counts_requests: whether it reads through a store of stoker's, which counts the requests that it makes.
        heeds: settings of requests that it can be told, of ``part_bytes``, ``part_requests`` and ``attempts``.
        location: where it reads.
    """

    package: ClassVar[str] = ""
    counts_requests: bool = False
    heeds: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, location: ClientLocation) -> None:
        self.location = location

    @classmethod
    def available(cls) -> str | None:
        """``None`` where it can be used, else what is missing and how to get it. Imports nothing that takes long."""
        if not cls.package or importlib.util.find_spec(cls.package):
            return None
        return f"{cls.package} is not installed: pip install {cls.package}"

    @classmethod
    def reads(cls, url: str) -> bool:
        """Whether it can read at such a URL: files where it needs no package, else S3."""
        return url.startswith("s3://") if cls.package else is_local(url) is not None

    @abstractmethod
    def read(self, name: str) -> Data:
        """All bytes of a file or object.

        Raises:
            StokerError: it is not there, or can not be read this way.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close connections."""

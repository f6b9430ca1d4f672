"""Files of this machine: read through the page cache, around it, or mapped."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path

from stoker.errors import ObjectNotFoundError
from stoker.storage.files.mapped import map_file
from stoker.storage.files.regular import read_regular
from stoker_bench.clients.base import Client, ClientLocation, Data
from stoker_bench.clients.file_store import CalledStore, aligned_memory


class _Files(Client):
    def read(self, name: str) -> Data:
        path = Path(self.location.url.removeprefix("file://")) / name
        try:
            return self._read(path, name)
        except (FileNotFoundError, ObjectNotFoundError):
            raise ObjectNotFoundError(f"{path} is not there: generate the data first", url=str(path)) from None

    @abstractmethod
    def _read(self, path: Path, name: str) -> Data: ...


class Buffered(_Files):
    """``read()``: through the page cache, with a copy."""

    def _read(self, path: Path, name: str) -> Data:  # noqa: ARG002
        return read_regular(path)


class Mapped(_Files):
    """Maps the file: pages are read as they are touched, by decoding, or by the copy of bytes that are not decoded."""

    def _read(self, path: Path, name: str) -> Data:  # noqa: ARG002
        return map_file(path)


class Direct(_Files):
    """``O_DIRECT`` into aligned memory: around the page cache, by several calls at once where that is asked for."""

    heeds = frozenset({"part_bytes", "part_requests"})
    counts_requests = True

    @classmethod
    def available(cls) -> str | None:
        return None if hasattr(os, "O_DIRECT") else "this operating system has no O_DIRECT: use buffered"

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        given = {"part_size": location.part_bytes, "part_requests": location.part_requests}
        options = {name: value for name, value in given.items() if value is not None}
        self._store = CalledStore(location.url, {"read_by": "direct", **options})

    def _read(self, path: Path, name: str) -> Data:
        memory = aligned_memory(os.stat(path).st_size)
        self._store.read_into(name, memory, start=0)
        return memory.toreadonly()

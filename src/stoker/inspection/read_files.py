"""Files of a store as buffers: mapped where they lie, or fetched into a file that has no name any more."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.errors import CorruptDataError
from stoker.storage import Store, is_local
from stoker.storage.files.mapped import map_file, map_open_file
from stoker.storage.files.regular import open_regular
from stoker.types import Buffer


class FileReader:
    """Whole files of one store, one at a time in each thread. They take disk space of ``scratch``, and no memory.

    Args:
        scratch: a directory for files of remote stores. Each is unlinked as soon as it is mapped.
    """

    def __init__(self, store: Store, scratch: Path) -> None:
        self.store = store
        self._directory = is_local(store.url)
        self._scratch: Path | None = scratch

    def __getstate__(self) -> dict[str, Any]:
        # On another node the scratch directory is not there.
        return {**self.__dict__, "_scratch": None}

    def read(self, key: str) -> Buffer:
        """All of a file."""
        if self._directory is not None:
            return map_file(self._directory / key)
        return self.fetched(lambda path: self.store.download(key, path))

    def window(self, key: str, start: int, end: int, *, version: str = "") -> Buffer:
        """Bytes ``[start, end)`` of a file; of a local one ``start`` is a multiple of :data:`mmap.ALLOCATIONGRANULARITY`.

        Args:
            version: of the file, if another is an error.

        Raises:
            StorageError, OSError, ValueError: they can not be read.
        """
        if start == end:
            return b""
        if self._directory is None:
            return self.fetched(lambda path: self.store.download_range(key, path, start, end, version=version))
        path = self._directory / key
        descriptor, status = open_regular(path)
        try:
            if end > status.st_size:
                raise CorruptDataError(f"{path} has {status.st_size} bytes: there are none from {start} to {end}")
            return map_open_file(descriptor, start, end, str(path), status)
        finally:
            os.close(descriptor)

    def fetched(self, fetch: Callable[[Path], object]) -> Buffer:
        """The bytes that ``fetch`` writes into the file that it is given."""
        path = (self._scratch or Path(tempfile.gettempdir())) / secrets.token_hex(8)
        try:
            fetch(path)
            return map_file(path)
        finally:
            path.unlink(missing_ok=True)


class Budget:
    """Bytes of memory that threads share. What needs more than all of it waits until it is alone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait for room for so many bytes, and give it back in the end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= self._size)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()

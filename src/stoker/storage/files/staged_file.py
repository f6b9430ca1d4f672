"""A file that is written piece by piece, and stored when it is whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import IO

from stoker.concurrency.shared.node_file import path_for_others
from stoker.storage.files.file_errors import file_errors
from stoker.storage.local import TEMPORARY
from stoker.storage.store import Store
from stoker.storage.url import is_local


class StagedFile:
    """A file to be stored once it is whole, of any size: it lies on a disk meanwhile.

    For a local directory it lies there, under a name that no listing shows, and is renamed in the end. For other stores it is
    a temporary file without a name, which is uploaded.

    ``file``: the file, to be written to. ``size``: its bytes, once it is stored.
    """

    def __init__(self, store: Store, key: str) -> None:
        folder = is_local(store.url)
        self._path: Path | None = None
        self.size = 0
        if folder is None:
            import tempfile  # here, as each writer would wait for its compression modules

            with file_errors(_temporary()):
                self.file: IO[bytes] = tempfile.TemporaryFile(prefix="stoker-")  # noqa: SIM115
            return
        parent = (folder / key).parent
        self._path = parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        with file_errors(folder):
            parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self._path, "xb")  # noqa: SIM115 - closed by store()

    def store(self, store: Store, key: str) -> None:
        """Store the file, which is written to no more."""
        target = f"{store.url}/{key}" if self._path is not None else _temporary()
        with file_errors(target):
            self.file.flush()
        self.size = os.fstat(self.file.fileno()).st_size
        if self._path is None:
            store.put_file(key, Path(path_for_others(self.file.fileno())))
            self.file.close()
            return
        with file_errors(target):
            os.fsync(self.file.fileno())
            self.file.close()
            os.replace(self._path, target)

    def discard(self) -> None:
        """Remove the file. Does nothing where it was stored."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _temporary() -> str:
    import tempfile

    return tempfile.gettempdir()

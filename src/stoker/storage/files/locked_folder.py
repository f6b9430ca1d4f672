"""A folder for as long as its process lives: removed at its end, or by the next of its name.

It is called a prefix and eight random letters. A file in it has an ``flock``, which the kernel drops with the process and
those that it forked meanwhile. So a folder whose lock is free is that of a process that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

from stoker.errors import ConfigError
from stoker.storage.files.part_files import claim

_LOCK: Final = "lock"
_RANDOM: Final = re.compile("[a-z0-9_]{8}")


class LockedFolder:
    """A folder that nobody takes for one of a killed process while this object's process lives.

    ``prefix``: how its name begins. Folders of this prefix that killed processes left are removed. ``path``: the folder.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        left: list[Path] = []
        with contextlib.suppress(PermissionError), os.scandir(parent) as entries:  # a /tmp that nobody may list
            left = [
                Path(entry.path)
                for entry in entries
                if entry.name.startswith(prefix) and _RANDOM.fullmatch(entry.name, len(prefix))
            ]
        for folder in left:
            _remove_unless_locked(folder)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            with contextlib.suppress(FileNotFoundError):  # another process that has just begun has removed the folder
                if (descriptor := claim(self.path / _LOCK)) is not None:
                    self._descriptor = descriptor
                    return

    @classmethod
    def in_temp(cls, prefix: str) -> Self:
        """Make it in the system's folder for temporary files."""
        where = "no folder for temporary files"
        try:
            parent = tempfile.gettempdir()
            where = f"{parent}, the folder for temporary files"
            return cls(Path(parent), prefix)
        except OSError as error:
            raise ConfigError(
                f"{where}: {error.strerror or error}. Free some space there, make it writable, or set TMPDIR to another "
                "folder"
            ) from error

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _remove_unless_locked(folder: Path) -> None:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # of a process that was killed before it had its lock, or tries again
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)

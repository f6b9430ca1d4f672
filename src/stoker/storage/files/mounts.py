"""File systems: on which one a path lies, and whether what lies there can be mapped by all processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from stoker.concurrency.shared.bytes import SharedBytes
from stoker.errors import StokerError
from stoker.storage.files.regular import open_regular

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOCAL_FILE_SYSTEMS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "zfs", "bcachefs"})
"""Kinds of file systems of one machine alone, which keep the times of folders."""

UNREADABLE: Final = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    StokerError,
)
"""Errors that parsing a damaged file of stoker's own may raise: the file is made anew."""


def read_shared(path: Path, read: Callable[[SharedBytes], T]) -> T | None:
    """The result of ``read`` for a file of our own; ``None`` where there is none, or it is damaged or of another version.

    It is replaced by others of its name, and never written to. Where another machine may replace it, none of it is mapped:
    touching what is gone would kill the process (SIGBUS).
    """
    try:
        return read(SharedBytes.of_file(open_regular(path)[0], may_map=file_system_of(path) in LOCAL_FILE_SYSTEMS))
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        logger.debug("%s is not used: %r", path, error)
        return None


def file_system_of(path: str | os.PathLike[str]) -> str:
    """Kind of the file system that a path is on, as the kernel calls it; empty where that can not be told."""
    return mount_of(path)[1]


def mount_of(path: str | os.PathLike[str]) -> tuple[str, str, str]:
    """Mount point, kind and device of the file system that a path is on; empty where that can not be told."""
    try:
        with open("/proc/self/mountinfo") as file:
            lines = file.read().splitlines()
    except OSError:
        return "", "", ""
    real = os.path.realpath(path)
    best, kind, device = "", "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = fields.split(" ")[4].encode().decode("unicode_escape")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        # Of several mounts at one path the last one counts.
        if inside and len(mount) >= len(best):
            best, kind, device = mount, *rest.split(" ")[:2]
    return best, kind, device

"""Versions of files: text that tells a file from one that replaces it."""

from __future__ import annotations

import os
import re
from typing import Final

_LOCAL: Final = re.compile(r"(?P<time>.*file:-?\d+):(?P<change>-?\d+)(?::(?P<inode>\d+))?", re.DOTALL)


def local_version(status: os.stat_result) -> str:
    """The version of a local file: the times of its last write and of its last change of status, and its inode.

    Tools set the time of the last write as they like (``cp -p``, rsync, reproducible builds), but none can set the time of
    the last change of status, which every write and nearly every rename moves.
    """
    return version_text(status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def version_text(written: int, changed: int, inode: int) -> str:
    """The version of a local file by the times of its last write and change of status, in nanoseconds, and its inode."""
    return f"file:{written}:{changed}:{inode}"


def is_local_version(version: str) -> bool:
    """Whether a version is one that :func:`local_version` gave."""
    return _LOCAL.fullmatch(version) is not None


def stable_version(version: str) -> str:
    """A version without the inode, for names and records that outlive a run: mounted again, a file may have another inode."""
    found = _LOCAL.fullmatch(version)
    return version if found is None else f"{found['time']}:{found['change']}"


def written_version(version: str) -> str:
    """A version without what changes when a file is copied with its time of writing: a state must resume from a copy, too."""
    found = _LOCAL.fullmatch(version)
    return version if found is None else found["time"]


def same_version(before: str, now: str) -> bool:
    """Whether a file is still the one that was opened, by its versions.

    A local file is the same where its time of the last write is, and its time of the last change of status or its inode.
    So ``chmod`` and hard links, which backups make, do not count as changes, nor inodes that a mounted file system makes up.
    """
    if before == now:
        return True
    old, new = _LOCAL.fullmatch(before), _LOCAL.fullmatch(now)
    if old is None or new is None or old["time"] != new["time"]:
        return False
    return old["change"] == new["change"] or (old["inode"] is not None and old["inode"] == new["inode"])

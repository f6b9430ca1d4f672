"""The page cache: let files leave it, without privileges, and tell how much of them is in it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from stoker.storage.files.mounts import mount_of

FROM_DEVICE: Final = 0.95
"""The part of what was read from storage that must have come from the device, for it to have been measured."""
TELLING_BYTES: Final = 16 << 20
"""Bytes below which what the kernel counts may be anything else that the processes read: their code, say."""
_MOST_PAGES: Final = 1 << 20
"""Pages that are asked about, of all files: 4 GiB."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_RAM_DISK: Final = re.compile(r"z?ram\d+")
"""Block devices whose bytes are in memory."""
_COUNTED: Final = frozenset({"overlay", "nfs", "nfs4"})
"""File systems without a device of their own whose reads Linux counts for the process that reads, as those of devices."""
_NFS_UNCOUNTED: Final = ((5, 18), (6, 4))
"""Versions of Linux, from the first to before the second, that did not count buffered reads of NFS."""
_IN_PAGES: Final = frozenset({"nfs", "nfs4", "lustre", "ceph", "cifs", "smb3"})
"""Network file systems of whose files this host has in memory what is in its page cache, and no more."""


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Files, and how much of them the page cache holds.

    Attributes:
        files: how many there are.
        bytes: their size.
        resident: part of their pages, of the first 4 GiB, that are in the cache, 0 to 1; ``None`` where nobody tells.
    """

    files: int
    bytes: int
    resident: float | None


def cached_files(folder: str | os.PathLike[str], *, drop: bool = False) -> CachedFiles:
    """Ask how many pages of all files below a folder are in the page cache.

    Args:
        folder: where they are.
        drop: let them leave it before, with ``posix_fadvise``. What a process still has mapped stays, which the answer shows.
    """
    files = size = held = examined = 0
    synced: set[int] = set()
    for path in _files(folder):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                there = os.fstat(descriptor)
                length, most = there.st_size, min(there.st_size, _MOST_PAGES << 12)
                files, size = files + 1, size + length
                if drop:
                    # What was just written leaves the cache only once it is on the device. Asking that of each file takes a
                    # millisecond, also where nothing was written: minutes before each epoch over many small files.
                    if there.st_dev not in synced:
                        synced.add(there.st_dev)
                        _LIBC.syncfs(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                if examined < _MOST_PAGES and length:
                    pages = resident_pages(descriptor, most)
                    if drop and pages is not None and pages[0]:  # FUSE, say, does not wait in syncfs
                        os.fdatasync(descriptor)
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                        pages = resident_pages(descriptor, most)
                    if pages is not None:
                        held, examined = held + pages[0], examined + pages[1]
            finally:
                os.close(descriptor)
    return CachedFiles(files, size, held / examined if examined else None)


def resident_pages(descriptor: int, length: int) -> tuple[int, int] | None:
    """Pages of a file that are in the cache, and pages; ``None`` where Linux does not tell.

    By ``mincore``, which does not touch them. (A read with ``RWF_NOWAIT`` starts reading ahead what it does not find.)
    """
    # Of files that this user could not write, mincore says that all pages are there.
    if not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        return None
    with mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        code = _LIBC.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(pages.ctypes.data)
        )
        del view  # which keeps the mapping
    return (int((pages & 1).sum()), len(pages)) if code == 0 else None


def _files(folder: str | os.PathLike[str]) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(parent, name)


def existing_path(path: str | os.PathLike[str]) -> str:
    """The path, or the nearest of its parent directories that exists: where it would be made. Absolute."""
    found = os.path.abspath(path)
    while not os.path.exists(found) and found != os.path.dirname(found):
        found = os.path.dirname(found)
    return found


def file_system(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """The kind of file system that holds a path, and whether that is memory; ``("unknown", False)`` where nobody says.

    One whose block device lies in memory is, too: ``("ext4 on tmpfs", True)`` of a loop device over a file in ``tmpfs``.
    """
    _, kind, device = mount_of(path)
    kind = kind or "unknown"
    if kind in _MEMORY:
        return kind, True
    below = _memory_below(device)
    return (kind, False) if below is None else (f"{kind} on {below}", True)


def _memory_below(device: str) -> str | None:
    """The memory that a block device, or one that it is made of, keeps its bytes in; ``None`` where it is none."""
    name = os.path.basename(os.path.realpath(device))
    if not device.startswith("/dev/") or not name:
        return None
    below = Path("/sys/class/block", name).resolve()
    if (below / "partition").exists():
        below = below.parent
    if _RAM_DISK.fullmatch(below.name):
        return below.name
    with contextlib.suppress(OSError):
        kind, memory = file_system((below / "loop" / "backing_file").read_text().rstrip("\n"))
        return kind if memory else None
    with contextlib.suppress(OSError):
        found = (_memory_below(f"/dev/{one}") for one in sorted(os.listdir(below / "slaves")))
        return next((one for one in found if one is not None), None)
    return None


def _file_below(device: str) -> bool:
    """Return whether a device, or one below it, is a loop device that reads its file through the page cache."""
    below = Path("/sys/class/block", os.path.basename(os.path.realpath(device))).resolve()
    if (below / "partition").exists():
        below = below.parent
    with contextlib.suppress(OSError):
        return (below / "loop" / "dio").read_text().strip() == "0"
    with contextlib.suppress(OSError):
        return any(_file_below(f"/dev/{one}") for one in os.listdir(below / "slaves"))
    return False


@functools.cache
def counts_device_reads(path: str) -> bool:
    """Whether the kernel counts for a process what it reads of a path's file system from the device, or over the network.

    Not so where another process reads it (FUSE, virtiofs), where the file system does not tell (Lustre, Ceph, 9P), or counts
    what its own cache had, too (ZFS). Nor where the device is a file that this host's page cache may hold (a loop device).
    """
    _, kind, device = mount_of(path)
    if kind in {"nfs", "nfs4"}:
        version = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
        return not _NFS_UNCOUNTED[0] <= version < _NFS_UNCOUNTED[1]
    return kind in _COUNTED or (device.startswith("/dev/") and kind != "fuseblk" and not _file_below(device))


def cached_in_pages(kind: str) -> bool:
    """Whether this host has of a network file system's files in memory what its page cache holds, and no more."""
    return kind in _IN_PAGES


def memory_bytes() -> int:
    """Memory of this host, or of its control group where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text()))
    return total

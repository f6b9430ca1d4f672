"""Which pages of a file the kernel holds."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np


def resident_pages(descriptor: int, length: int) -> tuple[int, int]:
    """Pages of a file that are in the page cache, and pages; of a file that may be written, or Linux says that all are."""
    with mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        address, count, found = (
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(length),
            ctypes.c_void_p(pages.ctypes.data),
        )
        code = ctypes.CDLL(None).mincore(address, count, found)
        del view  # which keeps the mapping
    assert code == 0
    return int((pages & 1).sum()), len(pages)


def drop_pages(folder: Path) -> None:
    """Take the files of a folder out of the page cache, as far as its file system does that."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

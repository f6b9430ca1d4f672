"""HDF5 files whose structure h5py lays out, and whose values the caller inserts."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import traceback
from collections.abc import Iterator, Sequence, Sized
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from stoker.concurrency.threads import call_at_end
from stoker.errors import import_option
from stoker.formats.common.inspect_header import SeekableFile

Part = TypeVar("Part", bound=Sized)


@cache
def load_h5py() -> ModuleType:
    """h5py. MissingPackageError if it is not installed."""
    found = import_option("h5py", "HDF5 needs h5py", "stoker[hdf5]")
    call_at_end(partial(_end, os.getpid()))
    return found


def _end(pid: int) -> None:
    """Have HDF5 call no functions of Python's after the end of the interpreter, which is a crash.

    h5py sees to it at exit, but for what a thread imports when that has begun, as after an error of the first shards, and for
    files that a thread has open, or is opening, which is not there: one of the parent, in a forked child, where users open
    them without :func:`hdf5_file`. ``pid``: of the process that imported h5py.
    """
    h5py = load_h5py()
    importlib.import_module("h5py._conv").unregister_converters()
    for file in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):
        with contextlib.suppress(Exception):  # whatever h5py makes of a file that is closed already
            if file.get_access_plist().get_driver() == h5py.h5fd.fileobj_driver:  # read by Python
                for kind in (~h5py.h5f.OBJ_FILE, h5py.h5f.OBJ_FILE):
                    file._close_open_objects(h5py.h5f.OBJ_LOCAL | kind)
    for one in gc.get_objects() if os.getpid() != pid else ():  # the properties that such a file is opened with
        if type(one) is h5py.h5p.PropFAID and one.valid and one.get_driver() == h5py.h5fd.fileobj_driver:
            one.close()


@contextlib.contextmanager
def hdf5_file(file: Any, mode: str = "r", **options: Any) -> Iterator[Any]:
    """A Python file object as an open ``h5py.File``. Meanwhile no other thread uses HDF5, and this process does not fork.

    HDF5 calls back into Python when it releases the last thing that refers to ``file``. It must not do so at the end of a
    process, when the interpreter is gone, which is a crash. There are two that would leave it such a thing:

    * A child that is forked while another thread has a file open, or is about to have: nobody closes it there. h5py holds its
      lock, for which a fork waits, during each call; here it is held until the file is closed.
    * Who keeps an exception: its frames refer to what they worked with. One that leaves here has empty frames.

    So what may wait for a store had better be read beforehand.
    """
    h5py = load_h5py()
    with h5py._objects.phil:
        try:
            with h5py.File(file, mode, **options) as opened:
                yield opened
        except BaseException as error:
            cause: BaseException | None = error
            while cause is not None:
                traceback.clear_frames(cause.__traceback__)
                cause = cause.__context__
            raise


def make_dataset(
    file: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], chunk: tuple[int, ...] | None = None
) -> Any:
    """Make a dataset that has its space in the file, and no values: its ``h5py.h5d.DatasetID``.

    Nothing in it tells when it was made, so that the same datasets are the same bytes. ``file``: an ``h5py.File`` that is
    written. ``name``: the path of the dataset; groups are made as needed. ``shape``: of all of it. ``chunk``: shape of a
    chunk; ``None`` for values that lie in one piece.
    """
    h5py = load_h5py()
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk is None:
        created.set_layout(h5py.h5d.CONTIGUOUS)
    else:
        created.set_chunk(chunk)
    created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    created.set_obj_track_times(False)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    space, kind = h5py.h5s.create_simple(shape), h5py.h5t.py_create(dtype, logical=True)
    return h5py.h5d.create(file.id, name.encode(), kind, space, created, lcpl=links)


class Skeleton(SeekableFile):
    """A file in memory that remembers what HDF5 wrote and where: all of the file but the values."""

    def __init__(self) -> None:
        super().__init__()
        self._writes: list[tuple[int, bytes]] = []

    def open(self) -> contextlib.AbstractContextManager[Any]:
        """The file to make datasets in, an ``h5py.File``; closed, it is laid out."""
        return hdf5_file(self, "w", track_order=False)

    def writable(self) -> bool:
        return True

    def truncate(self, size: int | None = None) -> int:
        self.size = self.at if size is None else size
        return self.size

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._writes.append((self.at, chunk))
        self.at += len(chunk)
        self.size = max(self.size, self.at)
        return len(chunk)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self.size - self.at))
        view[:count] = self._between(self.at, self.at + count)
        self.at += count
        return count

    def around(self, located: Sequence[tuple[int, Part]]) -> list[bytearray | Part]:
        """The file's bytes as consecutive chunks, with the values inserted.

        ``located``: where values begin, and what stands for them: its length is their bytes.
        """
        chunks: list[bytearray | Part] = []
        at = 0
        for start, values in sorted(located, key=lambda part: part[0]):
            chunks += [self._between(at, start), values]
            at = start + len(values)
        return [chunk for chunk in [*chunks, self._between(at, self.size)] if len(chunk)]

    def _between(self, at: int, stop: int) -> bytearray:
        between = bytearray(stop - at)
        for first, chunk in self._writes:
            low, high = max(first, at), min(first + len(chunk), stop)
            if low < high:
                between[low - at : high - at] = chunk[low - first : high - first]
        return between

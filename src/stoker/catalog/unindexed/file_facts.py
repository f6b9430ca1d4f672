"""The side file of a dataset without an index: what its files hold, so that the next start opens none that is still the same.

Its layout is that of :mod:`stoker.concurrency.shared.bytes`. The file is there by rename, whole or not at all. A file
that is damaged, or that another version of stoker wrote, is ignored and replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.directory import make_private
from stoker.concurrency.shared.bytes import SharedBytes, cut_arrays, pack_arrays, unpack_arrays
from stoker.errors import StokerError, StorageError
from stoker.formats.common.file_shards import UnindexedFile
from stoker.storage import ObjectInfo
from stoker.storage.files.mounts import UNREADABLE
from stoker.storage.files.own import PRIVATE, open_own
from stoker.storage.files.part_files import new_part, part_name, release, remove_unlocked, try_lock
from stoker.storage.files.regular import read_regular
from stoker.types import Ids

logger = logging.getLogger(__name__)

# The number at its end rises when the arrays change, and when a format tells more of a file.
_MAGIC: Final = b"stokfct\1"
_TURN: Final = "turn"
_MOST_WAITING: Final = 300.0
_POLL: Final = 0.05


def load_facts(directories: Sequence[Path], name: str) -> dict[str, UnindexedFile]:
    """Files by key, from the first of the directories that knows them; empty where none does."""
    for directory in directories:
        with contextlib.suppress(OSError):
            found = parse_facts(read_regular(directory / PRIVATE / name))
            if found:
                return found
    return {}


def parse_facts(data: bytes) -> dict[str, UnindexedFile]:
    """Files by key; empty where the file is not whole, as its digest tells, or of another version."""
    try:
        return _unpack(SharedBytes(data))
    except UNREADABLE as error:
        logger.info("what was recorded of files without an index can not be read, and is collected again: %s", error)
        return {}


@contextlib.contextmanager
def taking_turns(directories: Sequence[Path], url: str, name: str) -> Iterator[bool]:
    """Let one process of this machine at a time find out what files hold: the next ones take it from the side file.

    After five minutes, and where no directory can be written to, they do not wait: that costs requests, no more. Yields
    whether another process had its turn meanwhile, or may have.
    """
    descriptor = None
    for directory in directories:
        with contextlib.suppress(OSError, StorageError):
            path = make_private(directory, url) / part_name(name, _TURN)
            descriptor = open_own(path)
            break
    if descriptor is None:
        yield False
        return
    try:
        end, waited = time.monotonic() + _MOST_WAITING, False
        while not try_lock(descriptor, fcntl.LOCK_EX) and time.monotonic() < end:
            waited = True
            time.sleep(_POLL)
        yield waited
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        release(descriptor)


def save_facts(directories: Sequence[Path], url: str, name: str, files: Sequence[UnindexedFile]) -> None:
    """Keep what is known of files below ``url`` in the first of the directories that can be written to; else nowhere."""
    packed = _pack(files)
    any(keep_side_file(directory, url, name, packed) for directory in directories)


def keep_side_file(directory: Path, url: str, name: str, parts: Iterable[bytes | memoryview]) -> bool:
    """Keep what was found out about a dataset in a directory of caches; whether it could be kept."""
    try:
        save_side_file(make_private(directory, url), name, parts)
    except (OSError, StokerError) as error:
        logger.debug("what is known of %s can not be kept in %s: %s", url, directory, error)
        return False
    return True


def save_side_file(private: Path, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Put a file into a cache's private directory, whole, in place of one that may be there.

    What processes that were killed left of such files is removed.
    """
    for left in private.glob(part_name(name, "[0-9a-f]" * 16)):
        remove_unlocked(left)
    with new_part(private, name) as (part, held):
        with open(held, "wb", closefd=False) as handle:
            handle.writelines(parts)
        os.rename(part, private / name)


def _pack(files: Sequence[UnindexedFile]) -> list[Any]:
    specs: dict[int, tuple[int, Mapping[str, Any]]] = {}
    numbers = [specs.setdefault(id(one.spec), (len(specs), one.spec))[0] for one in files]
    header = {
        "specs": [spec for _, spec in specs.values()],
        "keys": [one.key for one in files],
        "versions": [one.file.version for one in files],
        "beside": {one.key: [(it.key, it.size, it.version) for it in one.beside] for one in files if one.beside},
        "unpacked": {one.key: one.unpacked for one in files if one.unpacked is not None},
    }
    columns = [[one.file.size for one in files], [one.samples for one in files], numbers]
    shapes = [length for one in files for length in one.spans.shape]
    arrays = [np.array(column, np.int64) for column in (*columns, shapes)]
    return pack_arrays(_MAGIC, header, [array.tobytes() for array in (*arrays, *(one.spans for one in files))])


def _unpack(data: SharedBytes) -> dict[str, UnindexedFile]:
    header, at = unpack_arrays(_MAGIC, data)
    count = len(header["keys"])
    *arrays, shapes, rest = cut_arrays(data.view, at, [("q", count), ("q", count), ("q", count), ("q", 2 * count)])
    shape: Ids = np.ndarray((count, 2), np.int64, shapes)
    pieces: Ids = np.ndarray(len(rest) // 8, np.int64, rest)
    ends = shape.prod(axis=1).cumsum()
    if (shape < 0).any() or int(ends[-1] if count else 0) != len(pieces):
        raise ValueError("the arrays do not go together")
    specs, beside, unpacked = header["specs"], header["beside"], header["unpacked"]
    found: dict[str, UnindexedFile] = {}
    first = 0
    for key, version, size, samples, spec, lengths, end in zip(
        header["keys"], header["versions"], *arrays, shape.tolist(), ends.tolist(), strict=True
    ):
        found[key] = UnindexedFile(
            ObjectInfo(key, size, version),
            samples,
            specs[spec],
            pieces[first:end].reshape(lengths),
            tuple(ObjectInfo(*one) for one in beside.get(key, ())),
            unpacked.get(key),
        )
        first = end
    return found

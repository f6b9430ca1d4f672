"""The side file of a dataset without an index: what its files hold, so that the next start opens none that is still the same.

Arrays as :func:`numpy.savez` writes them, without pickles, and a JSON text for the rest; behind them a digest, for the
archive's own checksums tell little of an archive whose directory is damaged. The file is there by rename, whole or not at
all. One that is damaged, or that another version of stoker wrote, is ignored and made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import secrets
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.disk.quota import part_name, release, remove_unlocked, try_lock
from stoker.cache.origin import make_private
from stoker.errors import StorageError
from stoker.formats.common.file_shards import UnindexedFile
from stoker.storage import ObjectInfo
from stoker.storage.files.mounts import UNREADABLE
from stoker.storage.files.own import PRIVATE, open_own
from stoker.storage.files.regular import read_regular
from stoker.types import Array

logger = logging.getLogger(__name__)

# 1 to 3 were two layouts: one of Parquet files, and one in JSON of all others. 6 knows encodings of Parquet's columns. 9 has
# shapes of tensors, microseconds of INT96, and the whole chunks of old writers. 10 has Spark's old calendar.
_VERSION: Final = 10
_DIGEST: Final = 16
_TURN: Final = "turn"
_MOST_WAITING: Final = 300.0
_POLL: Final = 0.05
# What NumPy and zipfile make of damaged archives.
_UNREADABLE: Final = (*UNREADABLE, EOFError, zipfile.BadZipFile)


def load_facts(directories: Sequence[Path], name: str) -> dict[str, UnindexedFile]:
    """Files by key, from the first of the directories that knows them; empty where none does."""
    for directory in directories:
        with contextlib.suppress(OSError):
            found = parse_facts(read_regular(directory / PRIVATE / name))
            if found:
                return found
    return {}


def parse_facts(data: bytes) -> dict[str, UnindexedFile]:
    """Files by key; empty where the archive is not whole, as its digest tells, or of another version."""
    whole = memoryview(data)[: max(0, len(data) - _DIGEST)]
    if _digest(whole) != data[len(whole) :]:
        logger.info("what was known of files without an index is damaged, and is found out anew")
        return {}
    try:
        with np.load(io.BytesIO(whole), allow_pickle=False) as arrays:
            return _unpack({key: arrays[key] for key in arrays.files})
    except _UNREADABLE as error:
        logger.info("what was known of files without an index can not be read, and is found out anew: %s", error)
        return {}


@contextlib.contextmanager
def taking_turns(directories: Sequence[Path], url: str, name: str) -> Iterator[bool]:
    """Let one process of this machine at a time find out what files hold: the next ones take it from the side file.

    After five minutes, and where no directory can be written to, they do not wait: that costs requests, no more.

    Yields:
        Whether another process had its turn meanwhile, or may have.
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
    packed = io.BytesIO()
    np.savez(packed, **_pack(files))  # type: ignore[arg-type]
    for directory in directories:
        try:
            data = packed.getbuffer()
            save_side_file(make_private(directory, url), name, [data, _digest(data)])
            return
        except OSError as error:
            logger.debug("can not keep what is known of files in %s: %s", directory, error)


def _digest(whole: bytes | memoryview) -> bytes:
    return hashlib.blake2b(whole, digest_size=_DIGEST).digest()


def save_side_file(private: Path, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Put a file into a cache's private directory, whole, in place of one that may be there.

    What processes that were killed left of such files is removed.
    """
    for left in private.glob(part_name(name, "[0-9a-f]" * 16)):
        remove_unlocked(left)
    part = private / part_name(name, secrets.token_hex(8))
    descriptor = open_own(part, os.O_EXCL)
    try:
        try_lock(descriptor, fcntl.LOCK_EX)  # so that it is not taken for debris
        with open(descriptor, "wb", closefd=False) as handle:
            handle.writelines(parts)
        os.rename(part, private / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        release(descriptor)


def _pack(files: Sequence[UnindexedFile]) -> dict[str, Array]:
    specs: dict[int, tuple[int, Mapping[str, Any]]] = {}
    numbers = [specs.setdefault(id(one.spec), (len(specs), one.spec))[0] for one in files]
    text = {
        "version": _VERSION,
        "specs": [spec for _, spec in specs.values()],
        "keys": [one.key for one in files],
        "versions": [one.file.version for one in files],
        "beside": {one.key: [(it.key, it.size, it.version) for it in one.beside] for one in files if one.beside},
        "unpacked": {one.key: one.unpacked for one in files if one.unpacked is not None},
    }
    shapes = [one.spans.shape for one in files]
    return {
        "text": np.frombuffer(json.dumps(text).encode(), dtype=np.uint8),
        "spec": np.array(numbers, dtype=np.int64),
        "size": np.array([one.file.size for one in files], dtype=np.int64),
        "samples": np.array([one.samples for one in files], dtype=np.int64),
        "shape": np.array(shapes, dtype=np.int64).reshape(len(files), 2),
        "pieces": np.concatenate([np.zeros(0, dtype=np.int64), *(one.spans.ravel() for one in files)]),
    }


def _unpack(arrays: Mapping[str, Array]) -> dict[str, UnindexedFile]:
    for name, array in arrays.items():  # what is no array, NumPy hands out as bytes
        if not isinstance(array, np.ndarray) or array.dtype != (np.uint8 if name == "text" else np.int64):
            raise ValueError(f"{name!r} is no array of whole numbers")
    text = json.loads(arrays["text"].tobytes())
    if text["version"] != _VERSION:
        raise ValueError(f"it is of version {text['version']}, and this one reads version {_VERSION}")
    specs, beside, unpacked = text["specs"], text["beside"], text["unpacked"]
    numbers, ends = arrays["pieces"], arrays["shape"].prod(axis=1).cumsum()
    if (arrays["shape"] < 0).any() or int(ends[-1] if len(ends) else 0) != len(numbers):
        raise ValueError("the arrays do not go together")
    found: dict[str, UnindexedFile] = {}
    first = 0
    columns = [arrays[name].tolist() for name in ("size", "samples", "spec", "shape")]
    for key, version, size, samples, spec, shape, end in zip(
        text["keys"], text["versions"], *columns, ends.tolist(), strict=True
    ):
        found[key] = UnindexedFile(
            ObjectInfo(key, size, version),
            samples,
            specs[spec],
            numbers[first:end].reshape(shape),
            tuple(ObjectInfo(*one) for one in beside.get(key, ())),
            unpacked.get(key),
        )
        first = end
    return found

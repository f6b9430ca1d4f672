"""What is known of files that others wrote, kept in a file, so that the next start opens none that is still the same.

A line with a digest, and JSON. The file is there by rename, whole or not at all; one that was damaged is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.cache.origin import make_private
from stoker.cache.quota import part_name, release, try_lock
from stoker.catalog.unindexed.found_files import FoundFile
from stoker.storage.files import PRIVATE, open_own, read_regular

__all__ = ["UnindexedFile", "load_facts", "parse_facts", "save_facts"]

logger = logging.getLogger(__name__)

_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class UnindexedFile:
    """A file of a dataset that has no index.

    Attributes:
        key: relative to the dataset's root.
        size: bytes.
        version: what changes when the file is replaced; empty where the store does not tell.
        samples: how many it holds.
        spec: what its format needs to read it; files that are alike share one.
        pieces: first byte, end and samples of the shards that it is read as; empty for one shard.
        beside: files that belong to it, as its format has them; the last of them holds the data, then.
        unpacked: bytes of what comes out of a compressed file, which ``pieces`` are of; ``None`` for others.
    """

    key: str
    size: int
    version: str
    samples: int
    spec: Mapping[str, Any]
    pieces: tuple[tuple[int, int, int], ...] = ()
    beside: tuple[FoundFile, ...] = ()
    unpacked: int | None = None

    @property
    def mark(self) -> tuple[tuple[str, int, str], ...]:
        """What tells the file, and those beside it, from files that replace them between two runs."""
        return FoundFile(self.key, self.size, self.version).mark, *(one.mark for one in self.beside)


def load_facts(directories: Sequence[Path], name: str) -> dict[str, UnindexedFile]:
    """Files by key, from the first of the directories that knows them; empty where none does."""
    for directory in directories:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            found = parse_facts(read_regular(directory / PRIVATE / name))
            if found:
                return found
    return {}


def parse_facts(data: bytes) -> dict[str, UnindexedFile]:
    """Files by key; empty where the text is not whole, as its digest tells, or of another version."""
    digest, _, text = data.partition(b"\n")
    if digest != _digest(text):
        return {}
    kept = json.loads(text)
    if kept["version"] != _VERSION:
        return {}
    specs = kept["specs"]
    columns = (kept["keys"], kept["sizes"], kept["versions"], kept["samples"], kept["spec"])
    pieces = {key: tuple((a, b, n) for a, b, n in given) for key, given in kept["pieces"].items()}
    beside = {key: tuple(FoundFile(*one) for one in given) for key, given in kept["beside"].items()}
    unpacked: dict[str, int] = kept["unpacked"]
    return {
        key: UnindexedFile(
            key,
            size,
            version,
            samples,
            specs[spec],
            pieces.get(key, ()),
            beside.get(key, ()),
            unpacked.get(key),
        )
        for key, size, version, samples, spec in zip(*columns, strict=True)
    }


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()


def save_facts(directories: Sequence[Path], url: str, name: str, files: Sequence[UnindexedFile]) -> None:
    """Keep facts of files below ``url`` in the first of the directories that can be written to; else nowhere."""
    specs: dict[int, tuple[int, Mapping[str, Any]]] = {}
    numbers = [specs.setdefault(id(one.spec), (len(specs), one.spec))[0] for one in files]
    kept = {
        "version": _VERSION,
        "specs": [spec for _, spec in specs.values()],
        "keys": [one.key for one in files],
        "sizes": [one.size for one in files],
        "versions": [one.version for one in files],
        "samples": [one.samples for one in files],
        "spec": numbers,
        "pieces": {one.key: one.pieces for one in files if one.pieces},
        "beside": {
            one.key: [(other.key, other.size, other.version) for other in one.beside] for one in files if one.beside
        },
        "unpacked": {one.key: one.unpacked for one in files if one.unpacked is not None},
    }
    text = json.dumps(kept).encode()
    data = _digest(text) + b"\n" + text
    for directory in directories:
        try:
            _save(make_private(directory, url), name, data)
            return
        except OSError as error:
            logger.debug("can not keep the index of files in %s: %s", directory, error)


def _save(private: Path, name: str, data: bytes) -> None:
    part = private / part_name(name, secrets.token_hex(8))
    descriptor = open_own(part, os.O_EXCL)
    try:
        try_lock(descriptor, fcntl.LOCK_EX)  # so that it is not taken for debris
        with open(descriptor, "wb", closefd=False) as handle:
            handle.write(data)
        os.rename(part, private / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        release(descriptor)

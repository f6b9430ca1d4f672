"""The note in a cache directory that says which dataset its files are copies of: without it, nobody removes any of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.cache.disk.quota import PART
from stoker.digests import sha256
from stoker.errors import CacheError
from stoker.storage.files.own import CACHE_MARK, PRIVATE, make_own_directory, open_own
from stoker.storage.files.regular import read_regular


@dataclass(frozen=True, slots=True)
class CacheOrigin:
    """The dataset that the files of a cache are copies of.

    Attributes:
        url: URL of the dataset, or the real path of its directory.
        endpoint: the server or account, where the URL does not name it; see :meth:`stoker.storage.Store.endpoint`.
        version: of the dataset, as :meth:`stoker.index.version.IndexVersion.as_dict` gives it; empty for files without an
            index, whose names in the cache have a version each.
    """

    url: str
    endpoint: str = ""
    version: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Text that is another for another dataset, whatever its version."""
        return f"{self.url}\n{self.endpoint}"

    @property
    def prefix(self) -> str:
        """12 hex digits that all versions of a dataset have in common."""
        return sha256(self.text.encode(errors="surrogatepass")).hexdigest()[:12]

    def same_dataset(self, other: CacheOrigin) -> bool:
        """Whether both are versions of one dataset."""
        return (self.url, self.endpoint) == (other.url, other.endpoint)


def read_origin(private: Path) -> CacheOrigin | None:
    """Read a cache's note; ``None`` where there is none. ``private``: the cache's directory ``.stoker``."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(private / CACHE_MARK))
        if isinstance(found, dict) and isinstance(found.get("url"), str) and found["url"]:
            version = found.get("version")
            return CacheOrigin(
                found["url"], str(found.get("endpoint", "")), version if isinstance(version, dict) else {}
            )
    return None


def write_origin(private: Path, origin: CacheOrigin) -> None:
    """Write the note unless it is there; it appears whole, and is never replaced, for processes hold locks on it.

    CacheError if the note is there, and is of another dataset. OSError if it can not be written. ``private``: the cache's
    directory ``.stoker``, which is there.
    """
    path = private / CACHE_MARK
    if not path.exists():
        beside = private / f"{CACHE_MARK}.{os.urandom(8).hex()}{PART}"
        text = {"url": origin.url, "endpoint": origin.endpoint, "version": dict(origin.version)}
        try:
            with open(open_own(beside, os.O_EXCL), "wb") as file:
                file.write(json.dumps(text).encode())
            try:
                os.link(beside, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                os.rename(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    found = read_origin(private)
    if found is not None and not found.same_dataset(origin):
        raise CacheError(
            f"the cache {private.parent} is one of {found.url}, not of {origin.url}: choose another local="
        )


def remove_origin_part(path: Path) -> bool:
    """Remove a file in which a note was made, if it is a second name of the note; whether it was one.

    A process that was killed leaves it so. Processes that use the cache have the note locked, and with it this name of it.
    """
    note = path.parent / CACHE_MARK
    with contextlib.suppress(OSError):
        if path.name.startswith(f"{CACHE_MARK}.") and os.path.samestat(os.lstat(path), os.lstat(note)):
            os.unlink(path)
            return True
    return False


def make_private(directory: Path, url: str) -> Path:
    """The private directory for what is computed from a dataset, made if need be; marked unless it lies in the dataset."""
    private = directory / PRIVATE
    make_own_directory(private)
    if read_origin(private) is None and os.path.realpath(url) != os.path.realpath(directory):
        write_origin(private, CacheOrigin(url))
    return private

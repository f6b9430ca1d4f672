"""The mark of unfinished output: a file next to the others, which names those that count.

Every writer and every job stores the mark before its first file and removes it when all files are there, after the index of
formats that have one. While the mark lies there, stoker finds by listing only the files that it names: those of before, where
a writer adds to a dataset. A dataset with an index is read by that index, whatever else is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import CorruptDataError, ObjectNotFoundError
from stoker.storage.store import Store
from stoker.storage.types import ObjectInfo

MARK: Final = "_stoker_unfinished.json"
"""Name of the mark, which programs that read directories pass over."""
STAGE: Final = "_stoker_unfinished/"
"""Folder of a local directory that files without an index lie in until all are there. Such programs pass it over, too."""
_VERSION: Final = 1
_MOST: Final = 1 << 30
_REPLACING: Final = "replacing"


@dataclass(frozen=True, slots=True)
class UnfinishedOutput:
    """The content of a mark.

    Attributes:
        identity: settings of the writer; only a writer of the same settings can continue.
        files: names of the files that count, relative to the mark's folder.
        writer: random text of the writer that stored the mark, by which it notices another one; may be empty.
    """

    identity: Mapping[str, Any]
    files: tuple[str, ...] = ()
    writer: str = ""

    @classmethod
    def replaced(cls, names: Iterable[str]) -> UnfinishedOutput:
        """The mark of output whose files are being removed, so that others can take their place."""
        return cls({_REPLACING: sorted(names)})

    @property
    def doomed(self) -> list[str] | None:
        """Names of the files that are being removed; ``None`` where a writer has begun."""
        if set(self.identity) != {_REPLACING}:
            return None
        names = self.identity[_REPLACING]
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def to_json(self) -> bytes:
        """The mark as it is stored."""
        told = {"version": _VERSION, "identity": self.identity, "files": self.files}
        return json.dumps(told | ({"writer": self.writer} if self.writer else {})).encode()


def read_mark(store: Store, key: str = MARK) -> UnfinishedOutput | None:
    """The mark of a store; ``None`` where there is none, as its files are all there."""
    try:
        found = json.loads(store.get(key, max_bytes=_MOST))
        names, identity = found["files"], found["identity"]
        good = found["version"] == _VERSION and isinstance(identity, dict) and all(type(one) is str for one in names)
    except ObjectNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise CorruptDataError(
            f"{store.url_of(key)} is damaged, so that it is not known which files next to it are finished. Remove it if all "
            "of them are"
        )
    return UnfinishedOutput(identity, tuple(names), str(found.get("writer", "")))


def counted_files(files: Sequence[ObjectInfo], marks: Iterable[str], store: Store) -> list[ObjectInfo]:
    """Files of a listing without those of unfinished writers, which are all below a mark that it does not name.

    ObjectNotFoundError if there are marks, and no file counts. CorruptDataError if a mark is damaged.
    """
    counted: dict[str, frozenset[str]] = {}
    for key in marks:
        mark = read_mark(store, key)
        if mark is not None:  # or it was finished meanwhile
            counted[key.removesuffix(MARK)] = frozenset(mark.files)
    left = [
        file
        for file in files
        if all(file.key[len(at) :] in names for at, names in counted.items() if file.key.startswith(at))
    ]
    if counted and not left:
        raise ObjectNotFoundError(
            f"{store.url_of(min(counted))}: its files are being written, or their writer was stopped before its end. A "
            "writer with resume=True finishes them; then they can be read",
            url=store.url,
        )
    return left

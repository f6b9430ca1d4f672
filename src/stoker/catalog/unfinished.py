"""What says of files without an index that their writer is not done: a note beside them, which names those that count.

Where a dataset has an index, its writer stores that last. Where its files are found by a listing, this note takes that place:
it is stored before the first file, and removed when all are there. While it lies there, stoker reads only the files that it
names: those of before, where a writer adds to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from stoker.errors import CorruptDataError, ObjectNotFoundError
from stoker.storage import Store

__all__ = ["NOTE", "UnfinishedOutput", "counted_files", "read_note"]

NOTE: Final = "_stoker_unfinished.json"
"""Name of the note, which is hidden to engines that read Parquet."""
_VERSION: Final = 1
_MOST: Final = 1 << 28


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


_File = TypeVar("_File", bound=_Keyed)


@dataclass(frozen=True, slots=True)
class UnfinishedOutput:
    """What a note says.

    Attributes:
        identity: settings of the writer; only one of the same can go on.
        files: names of the files that count, beside the note.
    """

    identity: Mapping[str, Any]
    files: tuple[str, ...]

    def to_json(self) -> bytes:
        """The note."""
        return json.dumps({"version": _VERSION, "identity": self.identity, "files": self.files}).encode()


def read_note(store: Store, key: str = NOTE) -> UnfinishedOutput | None:
    """The note of a place; ``None`` where there is none, as its files are all there.

    Raises:
        CorruptDataError: it is damaged.
    """
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
            f"{store.url_of(key)} is damaged: it says which files of an unfinished writer count. Remove it if all of them do"
        )
    return UnfinishedOutput(identity, tuple(names))


def counted_files(files: Sequence[_File], notes: Iterable[str], store: Store) -> list[_File]:
    """Files of a listing without those of unfinished writers.

    Args:
        files: the files, by keys.
        notes: keys of the notes that lie there.
        store: where they are.

    Raises:
        ObjectNotFoundError: there are files, and none counts.
        CorruptDataError: a note is damaged.
    """
    hidden: dict[str, frozenset[str]] = {}
    for key in notes:
        note = read_note(store, key)
        if note is not None:  # or it was finished meanwhile
            hidden[key.removesuffix(NOTE)] = frozenset(note.files)
    if not hidden:
        return list(files)
    left = []
    for file in files:
        folder, slash, name = file.key.rpartition("/")
        counted = hidden.get(folder + slash)
        if counted is None or name in counted:
            left.append(file)
    if files and not left:
        raise ObjectNotFoundError(
            f"{store.url_of(min(hidden))}: its files are being written, or their writer was stopped before its end. A writer "
            "with resume=True goes on; stoker reads the files when it is done",
            url=store.url,
        )
    return left

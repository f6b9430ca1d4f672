"""Which files a dataset without an index has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final

from stoker.catalog.splits import refuse_splits
from stoker.catalog.unindexed.found_files import FilesLocation, FoundFile, is_hidden, list_files, look_at
from stoker.catalog.unindexed.huggingface import DICT_NAME, STATE_NAME, saved_files
from stoker.errors import IndexFileError, ObjectNotFoundError
from stoker.formats.common.checks import check_basename
from stoker.index.index import INDEX_NAME
from stoker.storage import Store, is_local
from stoker.storage.unfinished import MARK, counted_files

__all__ = ["find_format_files"]

# Formats with a sample a file, whose names may say anything.
_SAMPLE_FILES: Final = ("files", "images", "jpeg", "png")


def find_format_files(
    source: FilesLocation,
    open_root: Callable[[str], Store],
    suffixes: Sequence[str],
    name: str,
    beside: Sequence[str] = (),
) -> tuple[FilesLocation, Store, list[FoundFile], dict[str, tuple[FoundFile, ...]]]:
    """The files, in the order of their keys; a list's in its own.

    In directories and by patterns, hidden files are passed over: names that begin with ``_`` or ``.``, in any directory below
    the root. So is an ``index.json`` at the root, and files of a writer that is not done (:mod:`stoker.storage.unfinished`).
    In directories that ``datasets`` saved, only the files that their ``state.json`` lists count.

    Args:
        source: where.
        open_root: opens a root.
        suffixes: ends of the names that count in directories; none for all files.
        name: the format's, for messages.
        beside: ends that replace a file's own, of files that belong to it.

    Returns:
        The source, which may turn out to be a single file; a store of its root; the files, with their sizes; and by key
        those that belong to each.

    Raises:
        ObjectNotFoundError: there are none; says what is there.
        IndexFileError: a file's name leaves the root.
        ConfigError: a directory holds several splits (:mod:`stoker.catalog.splits`); says how to choose one.
    """
    store = open_root(source.root)
    if source.keys is not None:
        named = [_sized(store, look_at(source, key)) for key in source.keys]
        return source, store, named, _beside(named, beside, lambda key: _sized(store, look_at(source, key)))
    matches = re.compile(source.pattern).fullmatch if source.pattern is not None else None
    found: list[FoundFile] = []
    more: dict[str, FoundFile] = {}
    others = 0
    notes: list[str] = []
    saved: list[str] = []
    for file in list_files(source, store):
        if file.key.endswith(MARK):
            notes.append(file.key)
        if file.key.endswith((DICT_NAME, STATE_NAME)):
            saved.append(file.key)
        counts = matches(file.key) if matches else not suffixes or file.key.lower().endswith(tuple(suffixes))
        if file.key.lower().endswith(tuple(beside)):
            more[file.key] = file
        if is_hidden(file.key) or not counts or file.key == INDEX_NAME:
            others += 1
            continue
        if problem := check_basename(file.key):
            raise IndexFileError(f"{source.root}: a file has the unsafe name {file.key!r}: {problem}")
        found.append(file)
    found = counted_files(sorted(found, key=lambda file: file.key), notes, store)
    if found:
        if matches is None:
            found = saved_files(found, saved, store) if name == "arrow" else found
            refuse_splits((file.key for file in found), source.root, folders_only=name in _SAMPLE_FILES)
        # A pattern may match the files alone, and not what belongs to them.
        return (
            source,
            store,
            found,
            _beside(found, beside, lambda key: more.get(key) or _sized(store, look_at(source, key))),
        )
    if source.pattern is None and not others and is_local(source.root) is None:
        # Only a listing tells a file from a directory that is named like one.
        head, _, last = source.root.rpartition("/")
        if not head.endswith("/") and (not suffixes or last.lower().endswith(tuple(suffixes))):
            alone = FilesLocation(head, keys=(last,))
            above = open_root(head)
            named = [_sized(above, FoundFile(last, -1, ""))]
            return alone, above, named, _beside(named, beside, lambda key: _sized(above, FoundFile(key, -1, "")))
    what = f"match {source.given!r}" if source.pattern is not None else f"end with {', '.join(suffixes) or 'anything'}"
    raise ObjectNotFoundError(
        f"{source.root}: no files of format {name!r} there: of its {others} files, none does {what}, or it is hidden "
        "(beginning with _ or a dot)",
        url=source.root,
    )


def _beside(
    files: Sequence[FoundFile], ends: Sequence[str], look_at: Callable[[str], FoundFile]
) -> dict[str, tuple[FoundFile, ...]]:
    """What belongs to each file, by its key."""
    if not ends:
        return {}
    return {file.key: tuple(look_at(os.path.splitext(file.key)[0] + end) for end in ends) for file in files}


def _sized(store: Store, file: FoundFile) -> FoundFile:
    if file.size >= 0:
        return file
    info = store.head(file.key)
    return FoundFile(file.key, info.size, getattr(info, "version", ""))

"""Which files a dataset without an index has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from stoker.dataset.parquet_files import FoundFile, Source, _is_hidden, _list, _look_at
from stoker.errors import IndexFileError, ObjectNotFoundError
from stoker.formats.checks import check_basename
from stoker.storage import Store, is_local

__all__ = ["find_foreign"]


def find_foreign(
    source: Source, open_root: Callable[[str], Store], suffixes: Sequence[str], name: str
) -> tuple[Source, Store, list[FoundFile]]:
    """The files, in the order of their keys; a list's in its own.

    In directories and by patterns, hidden files are passed over: names that begin with ``_`` or ``.``, in any directory below
    the root.

    Args:
        source: where.
        open_root: opens a root.
        suffixes: ends of the names that count in directories; none for all files.
        name: the format's, for messages.

    Returns:
        The source, which may turn out to be a single file; a store of its root; and the files, with their sizes.

    Raises:
        ObjectNotFoundError: there are none; says what is there.
        IndexFileError: a file's name leaves the root.
    """
    store = open_root(source.root)
    if source.keys is not None:
        return source, store, [_sized(store, _look_at(source, key)) for key in source.keys]
    matches = re.compile(source.pattern).fullmatch if source.pattern is not None else None
    found: list[FoundFile] = []
    others = 0
    for file in _list(source, store):
        counts = matches(file.key) if matches else not suffixes or file.key.lower().endswith(tuple(suffixes))
        if _is_hidden(file.key) or not counts:
            others += 1
            continue
        if problem := check_basename(file.key):
            raise IndexFileError(f"{source.root}: a file has the unsafe name {file.key!r}: {problem}")
        found.append(file)
    if found:
        return source, store, sorted(found, key=lambda file: file.key)
    if source.pattern is None and not others and is_local(source.root) is None:
        # Only a listing tells a file from a directory that is named like one.
        head, _, last = source.root.rpartition("/")
        if not head.endswith("/") and (not suffixes or last.lower().endswith(tuple(suffixes))):
            alone = Source(head, keys=(last,))
            above = open_root(head)
            return alone, above, [_sized(above, FoundFile(last, -1, ""))]
    what = f"match {source.given!r}" if source.pattern is not None else f"end with {', '.join(suffixes) or 'anything'}"
    raise ObjectNotFoundError(
        f"{source.root}: no files of format {name!r} there: of its {others} files, none does {what}, or it is hidden "
        "(beginning with _ or a dot)",
        url=source.root,
    )


def _sized(store: Store, file: FoundFile) -> FoundFile:
    if file.size >= 0:
        return file
    info = store.head(file.key)
    return FoundFile(file.key, info.size, getattr(info, "version", ""))

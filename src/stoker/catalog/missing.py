"""Errors for what is not there: an index, or a split's directory. They say what lies there instead, and how to open that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeVar

from stoker.catalog.detect import detect_listed, detect_named
from stoker.catalog.splits import files_of_split
from stoker.catalog.unindexed.find_files import is_hidden
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError
from stoker.index.index import INDEX_NAME
from stoker.storage import ObjectInfo, Store, is_local, join_url, open_store
from stoker.storage.unfinished import MARK
from stoker.types import StorageOptions

__all__ = ["index_in", "split_explained"]

_PEEK: Final = 5000
_MOST_NAMED: Final = 5

_T = TypeVar("_T")


def index_in(store: Store, load: Callable[[Store], _T]) -> _T:
    """The index in a store, as ``load`` reads it.

    Raises:
        ObjectNotFoundError: there is none; names the datasets in its folders, or the format of the files that lie there.
    """
    try:
        return load(store)
    except ObjectNotFoundError as error:
        told = _told(store)
        if not told:
            raise
        raise ObjectNotFoundError(f"{store.url} has no {INDEX_NAME}{told}", url=store.url) from error


@contextlib.contextmanager
def split_explained(given: object, split: str | None, options: StorageOptions | None) -> Iterator[None]:
    """Add to the error of a split that has no directory a pattern of the files that are the split's by their names.

    Args:
        given: the directory or URL that the split is sought in.
        split: the split's name, if one is asked for.
        options: as :func:`stoker.storage.open_store` has them.
    """
    try:
        yield
    except ObjectNotFoundError as error:
        if split is None or not isinstance(given, str | os.PathLike):
            raise
        store = open_store(given, options if is_local(given) is None else None)
        pattern = files_of_split((item.key for item in _listing(store) if not is_hidden(item.key)), split)
        if not pattern:
            raise
        raise ObjectNotFoundError(
            f"{error}. Files there are of the split {split!r} by their names: name them by the pattern "
            f"{join_url(given, pattern)} without split=",
            url=error.url,
        ) from error


def _listing(store: Store) -> list[ObjectInfo]:
    with contextlib.suppress(StokerError, OSError):  # what can not be listed
        return list(islice(store.list(), _PEEK))
    return []


def _told(store: Store) -> str:
    """What lies there instead of an index; empty where nothing tells."""
    listing = _listing(store)
    if any(item.key == MARK for item in listing):
        return (
            ": its files are being written, or their writer was stopped before its end. A writer with resume=True goes on; "
            f"`stoker index {store.url}` makes a dataset of the shards that are there"
        )
    end = f"/{INDEX_NAME}"
    below = sorted(item.key.removesuffix(end) for item in listing if item.key.endswith(end))
    if below:
        more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
        return (
            f", but folders in it have: {', '.join(below[:_MOST_NAMED])}{more}. Choose one, as by "
            f'split="{below[0]}", open each as a Stream, or make one index of all by merge_index'
        )
    try:
        found = detect_named(store.url.rstrip("/")) or (detect_listed(listing, store.url) if listing else None)
    except ConfigError as error:
        return f": {error}" if listing else ""
    if found is None:
        return ""
    if found.kind == "shards":
        return (
            f": it holds shards whose index is lost, or that a writer has not finished. `stoker index {store.url}` makes "
            'the index anew; format="mds" reads MDS shards without one'
        )
    return (
        f': there are files of format {found.format!r}. Read them with format="{found.format}", or make a dataset of them '
        "(stoker convert)"
    )

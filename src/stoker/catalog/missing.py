"""Errors for a missing index: they name what is there instead, and how to open it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from stoker.catalog.detect import detect_listed, detect_named, detect_object, refuse_shard_files
from stoker.catalog.unindexed.files_location import check_exists, no_files
from stoker.errors import ConfigError, IndexFileError, ObjectNotFoundError, StokerError
from stoker.index.index import INDEX_NAME
from stoker.index.shard_files import find_shards
from stoker.storage import ObjectInfo, Store, is_local, open_store
from stoker.storage.unfinished import MARK, counted_files
from stoker.types import StorageOptions

_PEEK: Final = 5000
_MOST_NAMED: Final = 5
# What each worker of litdata's optimize leaves, of which an index.json is made at its end.
_PART_INDEX: Final = re.compile(r"[0-9]+(?:-[0-9]+)?\.index\.json")


def format_instead(url: str | os.PathLike[str], options: StorageOptions | None, error: ObjectNotFoundError) -> str:
    """The format of the files at a URL that has no index.

    Args:
        url: the directory or URL.
        options: as :func:`stoker.storage.open_store` has them.
        error: what the index was missed with.

    Raises:
        ObjectNotFoundError: they are of no one format; says what is there: datasets in folders, shards without their index,
            files that are being written, or files of several formats or of none.
    """
    check_exists(url)
    store = open_store(url, options if is_local(url) is None else None)
    listed = _listing(store)
    listing, rest = listed or ([], iter(()))
    told = _told(store, listing)
    if not told:
        try:
            url = store.url.rstrip("/")
            found = detect_named(url) or (detect_listed(listing, rest, url, store) if listing else detect_object(url))
        except ConfigError as unclear:
            told = f": {unclear}" if listing else ""
        else:
            if found is not None and found.format is not None:
                return found.format
            if found is not None:
                told = (
                    f": it holds shards whose index is lost, or that a writer has not finished. `stoker index {store.url}` "
                    "makes the index anew"
                )
                if all(shard.format == "mds" for shard in find_shards(listing).values()):
                    told += '; format="mds" reads the shards without one'
    if not told and listed and not listing:
        refuse_shard_files(url)
        raise ObjectNotFoundError(no_files(os.fspath(url)), url=store.url) from error
    if not told:
        raise error
    raise ObjectNotFoundError(f"{store.url} has no {INDEX_NAME}{told}", url=store.url) from error


def _listing(store: Store) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]] | None:
    """The first files at a URL, and the others; ``None`` where they can not be listed.

    Raises:
        StorageError: of a local directory: a link leads out of it, or it can not be read.
        IndexFileError: of a store: one of the keys can not be asked for.
    """
    rest = store.list()
    try:
        return list(islice(rest, _PEEK)), rest
    except StokerError as error:
        if is_local(store.url) is not None or isinstance(error, IndexFileError):
            raise
        return None


def _told(store: Store, listing: Sequence[ObjectInfo]) -> str:
    """A description of a directory or URL that has no index and holds neither files nor shards; empty where it holds them."""
    if any(item.key == MARK for item in listing):
        told = ": its files are being written, or their writer was stopped before its end. A writer with resume=True goes on"
        if find_shards(listing):
            return f"{told}; `stoker index {store.url}` makes a dataset of the shards that are there"
        before = counted_files(listing, [MARK], store)[0].key
        return f"{told}; with format=, the files that were complete before, such as {before}, are read"
    if any(_PART_INDEX.fullmatch(item.key) for item in listing):
        return f": litdata's optimize did not end there: litdata.complete_dataset({store.url!r}) makes its {INDEX_NAME}"
    end = f"/{INDEX_NAME}"
    below = sorted(item.key.removesuffix(end) for item in listing if item.key.endswith(end))
    if not below:
        return ""
    more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
    return (
        f", but folders in it have: {', '.join(below[:_MOST_NAMED])}{more}. Choose one, as by "
        f'split="{below[0]}", open each as a Stream, or make one index of all by merge_index'
    )

"""Errors for a missing index or split directory: they name what is there instead, and how to open it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from stoker.catalog.detect import detect_listed, detect_named, detect_object
from stoker.catalog.splits import files_of_split
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError
from stoker.index.index import INDEX_NAME
from stoker.storage import ObjectInfo, Store, is_local, join_url, open_store
from stoker.storage.unfinished import MARK, is_hidden
from stoker.types import StorageOptions

__all__ = ["format_instead", "split_explained"]

_PEEK: Final = 5000
_MOST_NAMED: Final = 5


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
    store = open_store(url, options if is_local(url) is None else None)
    listing, rest = _listing(store)
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
                    'makes the index anew; format="mds" reads MDS shards without one'
                )
    if not told:
        raise error
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
        pattern = files_of_split((item.key for item in _listing(store)[0] if not is_hidden(item.key)), split)
        if not pattern:
            raise
        raise ObjectNotFoundError(
            f"{error}. Files there are of the split {split!r} by their names: name them by the pattern "
            f"{join_url(given, pattern)} without split=",
            url=error.url,
        ) from error


def _listing(store: Store) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]]:
    """The first files at a URL, and the others; none where they can not be listed."""
    with contextlib.suppress(StokerError, OSError):
        rest = store.list()
        return list(islice(rest, _PEEK)), rest
    return [], iter(())


def _told(store: Store, listing: Sequence[ObjectInfo]) -> str:
    """A description of a directory or URL that has no index and holds neither files nor shards; empty where it holds them."""
    if any(item.key == MARK for item in listing):
        return (
            ": its files are being written, or their writer was stopped before its end. A writer with resume=True goes on; "
            f"`stoker index {store.url}` makes a dataset of the shards that are there"
        )
    end = f"/{INDEX_NAME}"
    below = sorted(item.key.removesuffix(end) for item in listing if item.key.endswith(end))
    if not below:
        return ""
    more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
    return (
        f", but folders in it have: {', '.join(below[:_MOST_NAMED])}{more}. Choose one, as by "
        f'split="{below[0]}", open each as a Stream, or make one index of all by merge_index'
    )

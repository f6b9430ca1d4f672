"""Repairs what can be fetched again from elsewhere, without a moment in which there is less than before."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from stoker.cache.base import ShardCache
from stoker.errors import ObjectNotFoundError, StokerError
from stoker.formats.base import ShardInfo
from stoker.index.index import INDEX_NAME, MOST_BYTES
from stoker.index.rebuild import rebuild_index
from stoker.storage import Store
from stoker.storage.files.own import PRIVATE, make_own_directory
from stoker.types import StorageOptions


def rebuild(store: Store, options: StorageOptions | None) -> tuple[str, ...]:
    """Rebuild a dataset's index from its shards. An existing index is renamed and stays next to the new one.

    Returns:
        What was done.

    Raises:
        StokerError: it can not be made; then all is as before.
    """
    old: bytes | None = None
    aside = ""
    with contextlib.suppress(ObjectNotFoundError):
        old = store.get(INDEX_NAME, max_bytes=MOST_BYTES)
    if old is not None:
        number = 0
        while store.exists(aside := f"{INDEX_NAME}.damaged" + (f".{number}" if number else "")):
            number += 1
        store.put(aside, old)
    try:
        index = rebuild_index(store.url, exist_ok=True, storage_options=options)
    except BaseException:
        if old is not None:
            store.delete(aside)
        raise
    kept = f"; the old one is now {store.url_of(aside)}" if old is not None else ""
    said = f"{store.url_of(INDEX_NAME)} was made anew from {len(index)} shards with {index.samples} samples{kept}"
    return (f"{said}. Shards that are missing at the end can not be noticed",)


def fetch_again(
    cache: ShardCache, shards: Sequence[ShardInfo], is_whole: Callable[[], Sequence[str]]
) -> tuple[bool, str]:
    """Fetch what a cache holds of some shards anew. The old files come back where that fails or helps nothing.

    Args:
        cache: the cache, with a remote.
        shards: shards, all of the same files.
        is_whole: checks what the cache now holds of them; what is still wrong.

    Returns:
        Whether they are whole now, and a sentence about it.
    """
    info = shards[0]
    private = cache.root / PRIVATE
    moved: list[tuple[Path, Path]] = []

    def put_back() -> None:
        for path, aside in moved:
            os.replace(aside, path)

    try:
        make_own_directory(private)
        for file in (*info.raw, *info.zip):
            path = cache.root / file.basename
            aside = private / f"{quote(file.basename, safe='')[:200]}.{secrets.token_hex(8)}.aside"
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, aside)
                moved.append((path, aside))
        cache.fetch(info)
        wrong = is_whole()
    except (StokerError, OSError) as error:
        put_back()
        return False, f"{cache.describe(info)} could not be fetched again: {error}"
    except BaseException:
        put_back()
        raise
    if wrong:
        put_back()
        return False, f"{cache.describe(info)} was fetched again, and is no better: {wrong[0]}"
    for _, aside in moved:
        aside.unlink(missing_ok=True)
    return True, f"{cache.describe(info)} was fetched again"

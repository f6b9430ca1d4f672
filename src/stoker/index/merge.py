"""One index for datasets that were written in parallel into sub-directories."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import PurePosixPath

from stoker.arguments import checked
from stoker.concurrency.threads import map_in_order
from stoker.errors import ConfigError, IndexFileError, ObjectNotFoundError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.entries import identity_of
from stoker.index.index import INDEX_NAME, MOST_BYTES, Index, collector_paused, sizes_in
from stoker.index.parse_index import EntryPattern, framed, in_frame, parse_index, pattern_of, read_regular_entries
from stoker.policy import INDEXES_AT_ONCE
from stoker.storage import Store, is_local, open_store
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)

Url = str | os.PathLike[str]
UrlOrPair = Url | tuple[Url, Url]


@checked
def merge_index(
    urls: Sequence[UrlOrPair] | UrlOrPair,
    out: UrlOrPair | None = None,
    keep_local: bool = True,
    download_timeout: float = 60.0,
    *,
    storage_options: StorageOptions | None = None,
) -> Index:
    """Write one index for the datasets in sub-directories, so that they are read as one dataset.

    Call it with the root alone, or with the sub-datasets' indexes and the root::

        merge_index("s3://bucket/data")
        merge_index(["s3://bucket/data/00/index.json", "s3://bucket/data/01/index.json"], out="s3://bucket/data")

    Shards stay where they are; only indexes are read. The merged index is written at once and whole, over an older one.

    Args:
        urls: the root: its sub-directories' indexes are merged in the order of their names. Or a list of indexes, or
            of the directories that they lie in, merged in the order given; a ``(local, remote)`` pair stands for
            the local one if it is there, else for the remote one.
        out: the root that the merged index goes to; a ``(local, remote)`` pair gets it twice.
        keep_local: with a pair as root, also write the index to the local one.
        download_timeout: seconds without progress after which reading an index fails.
        storage_options: credentials and settings of remote stores, by obstore's names.

    Returns:
        The merged index.

    Raises:
        ConfigError: nothing to merge, or an index that does not lie below the root.
        IndexFileError: an index is not valid, or two use the same file.
    """
    with collector_paused():
        roots, parts = _parts_of(urls, out, storage_options, download_timeout)
        local = all(is_local(url) is not None for url in {store.url for _, store, _ in parts})
        where = roots[-1].url_of(INDEX_NAME)
        alike = _merge_alike(parts, where) if local else None
        if alike is not None:
            merged, data = alike
        else:
            shards = map_in_order(_shards_of, parts, at_hand=local, most=INDEXES_AT_ONCE, name="merge")
            merged = Index(chain.from_iterable(shards), where=where)
            _warn_if_mixed(merged, roots[-1])
            data = merged.to_json()
    for store in roots if keep_local else roots[-1:]:
        store.put(INDEX_NAME, data)
    return merged


def _parts_of(
    urls: Sequence[UrlOrPair] | UrlOrPair, out: UrlOrPair | None, options: StorageOptions | None, timeout: float
) -> tuple[list[Store], list[_Part]]:
    """The roots that the merged index goes to, and what is merged."""
    if isinstance(urls, list) or (isinstance(urls, Sequence) and not isinstance(urls, str | tuple)):
        if out is None:
            raise ConfigError("merge_index of a list of indexes needs out=, the root that the merged index goes to")
        roots = _stores(out, options, timeout)
        parts = _listed(list(dict.fromkeys(urls)), roots, options, timeout)
    else:
        if out is not None:
            raise ConfigError("merge_index(root) writes to the root itself; leave out= away")
        roots = _stores(urls, options, timeout)
        parts = _found(roots)
    if not parts:
        raise ConfigError(f"found no {INDEX_NAME} to merge in sub-directories of {roots[-1].url}")
    return roots, parts


def _stores(out: UrlOrPair, options: StorageOptions | None, timeout: float) -> list[Store]:
    urls = out if isinstance(out, tuple) else (out,)
    if not urls:
        raise ConfigError("merge_index: the root is empty, (): give a directory or URL, or a pair of both")
    return [_open(url, options, timeout) for url in urls]


def _open(url: Url, options: StorageOptions | None, timeout: float) -> Store:
    return open_store(url, None if is_local(url) is not None else options, stall_timeout=timeout)


_Part = tuple[str, Store, str]
"""A sub-dataset: its directory below the root, and the store and key of its index."""


def _found(roots: list[Store]) -> list[_Part]:
    """The sub-directories of the root that hold an index; not those inside of others."""
    store = roots[-1]
    ending = f"/{INDEX_NAME}"
    folders = {key.removesuffix(ending) for key in store.keys_named(INDEX_NAME) if key != INDEX_NAME}
    # What lies inside of a sub-dataset was merged into its index.
    outermost = sorted(folder for folder in folders if folders.isdisjoint(map(str, PurePosixPath(folder).parents)))
    return [(folder, store, f"{folder}/{INDEX_NAME}") for folder in outermost]


def _listed(urls: list[UrlOrPair], roots: list[Store], options: StorageOptions | None, timeout: float) -> list[_Part]:
    def find(url: UrlOrPair) -> _Part:
        last: Exception | None = None
        for choice in url if isinstance(url, tuple) else (url,):
            folder_url = os.fspath(choice).strip().rstrip("/").removesuffix(INDEX_NAME).rstrip("/")
            store = _open(folder_url, options, timeout)
            try:
                exists = store.exists(INDEX_NAME)
            except ObjectNotFoundError as error:  # no such bucket
                last, exists = error, False
            if exists:
                return _below(store, roots), store, INDEX_NAME
        raise ObjectNotFoundError(f"there is no index at {url!r}; write its dataset first") from last

    local = all(is_local(one) is not None for url in urls for one in (url if isinstance(url, tuple) else (url,)))
    return map_in_order(find, urls, at_hand=local, most=INDEXES_AT_ONCE, name="merge")


def _below(store: Store, roots: list[Store]) -> str:
    """The directory of a sub-dataset below the root."""
    for root in roots:
        if store.url.startswith(f"{root.url.rstrip('/')}/"):
            return store.url[len(root.url.rstrip("/")) + 1 :]
    # Copied to elsewhere for merging, it will lie below the root by its own name.
    name = store.url.rstrip("/").rpartition("/")[2]
    if not name:
        raise ConfigError(f"{store.url} does not lie below {roots[-1].url}")
    return name


def _merge_alike(parts: Sequence[_Part], where: str) -> tuple[Index, bytes] | None:
    """The merged index and its file, where all entries differ in files and samples alone; ``None`` where they do not.

    Text of the parts is put together, and checked as a whole. What may be refused is read again, shard by shard.
    """
    patterns: list[EntryPattern] = []

    def entries(part: _Part) -> bytes:
        folder, store, key = part
        data = store.get(key, max_bytes=MOST_BYTES)
        begin, end = framed(data)
        if not patterns:
            patterns.append(pattern_of(data, begin, end, where))
        return patterns[0].moved(data[begin:end], folder, INDEX_NAME)

    try:
        texts = map_in_order(entries, parts, at_hand=True, most=INDEXES_AT_ONCE, name="merge")
        if not patterns[0].as_written:
            return None
        data = in_frame(texts)
        found = read_regular_entries(data, where, INDEX_NAME)
    except ValueError:
        return None
    return None if found is None else (Index.checked(found.shards, {}, found.fingerprint, found.content), data)


def _shards_of(part: _Part) -> list[ShardInfo]:
    """The shards of a sub-dataset, as they are from the root."""
    folder, store, key = part
    where = store.url_of(key)
    shards, _ = parse_index(store.get(key, max_bytes=MOST_BYTES), where, partial(sizes_in, store, key))

    def moved(files: tuple[FileInfo, ...]) -> tuple[FileInfo, ...]:
        return tuple([replace(one, basename=f"{folder}/{one.basename}") for one in files])

    found = []
    for shard in shards:
        if any(one.basename == INDEX_NAME for one in (*shard.raw, *shard.zip)):
            raise IndexFileError(f"{where}: a shard's file is called {INDEX_NAME!r}, which is the index")
        found.append(replace(shard, raw=moved(shard.raw), zip=moved(shard.zip)))
    return found


def _warn_if_mixed(index: Index, store: Store) -> None:
    specs = {id(shard.spec): shard for shard in index.shards}.values()
    kinds = map(identity_of, specs)
    first = next(kinds, None)
    if any(one != first for one in kinds):
        logger.warning(
            "%s: the merged datasets have different columns or formats; read what they share with columns=", store.url
        )

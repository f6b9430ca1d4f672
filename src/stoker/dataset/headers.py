"""The index of a dataset of stoker's own shards that has none: by the headers of its shards."""

from __future__ import annotations

from stoker.dataset.index import Index, load_index
from stoker.dataset.shardfiles import find_shards, read_shards
from stoker.dataset.splits import refuse_splits
from stoker.errors import FormatError, ObjectNotFoundError
from stoker.storage import Store

__all__ = ["index_or_headers"]


def index_or_headers(store: Store) -> Index:
    """A dataset's index; where there is none, what its shards say of themselves, in the order of their names.

    Only headers are read, but of compressed shards all. Hashes are not computed, and shards missing at the end not noticed.

    Raises:
        ObjectNotFoundError: there is no index and there are no shards.
        ConfigError: the shards are of several splits (:mod:`stoker.dataset.splits`).
        CorruptDataError: a shard is torn.
        IndexFileError: the index is not valid.
    """
    try:
        return load_index(store)
    except ObjectNotFoundError as error:
        shards = list(find_shards(store.list()).values())
        if not shards:
            raise ObjectNotFoundError(f"{store.url} holds neither an index.json nor shards", url=store.url) from error
    keys = (shard.key("data", None) for shard in shards)
    refuse_splits(keys, store.url.rstrip("/"), whole="each as a Stream")
    infos = []
    for info in read_shards(store, shards, hashes=False):
        if isinstance(info, FormatError):
            raise info
        infos.append(info)
    return Index(infos, where=store.url)

"""The index of a dataset of stoker's own shards that has none: by the headers of its shards."""

from __future__ import annotations

from stoker.catalog.splits import refuse_splits
from stoker.errors import FormatError, ObjectNotFoundError
from stoker.index.index import Index
from stoker.index.shard_files import find_shards, read_shards
from stoker.index.side_index import SideIndex
from stoker.index.version import LoadedIndex, read_index, version_of_listing
from stoker.storage import Store
from stoker.storage.unfinished import MARK, counted_files


def index_or_headers(store: Store, side: SideIndex | None = None) -> LoadedIndex:
    """A dataset's index; where there is none, what its shards say of themselves, in the order of their names.

    Only headers are read, but of compressed shards all. Hashes are not computed, and shards missing at the end not noticed.

    Args:
        store: where the dataset is.
        side: keeps the parsed index, if there is one.

    Raises:
        ObjectNotFoundError: there is no index and there are no shards, or those that are there are unfinished output.
        ConfigError: the shards are of several splits (:mod:`stoker.catalog.splits`).
        CorruptDataError: a shard is torn.
        IndexFileError: the index is not valid.
    """
    try:
        return read_index(store, side)
    except ObjectNotFoundError as error:
        found = list(store.list())
        counted = counted_files(found, [item.key for item in found if item.key.endswith(MARK)], store)
        listing = {item.key: item for item in counted}
        shards = list(find_shards(listing.values()).values())
        if not shards:
            raise ObjectNotFoundError(f"{store.url} holds neither an index.json nor shards", url=store.url) from error
    keys = (shard.key("data", None) for shard in shards)
    refuse_splits(keys, store.url.rstrip("/"), whole="each as a Stream")
    infos = []
    for info in read_shards(store, shards, hashes=False):
        if isinstance(info, FormatError):
            raise info
        infos.append(info)
    index = Index(infos, where=store.url)
    return LoadedIndex(index, version_of_listing(index, listing))

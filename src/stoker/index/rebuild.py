"""Make a lost index anew from what the shards' own headers say."""

from __future__ import annotations

import logging
import os

from stoker.arguments import checked
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import ShardInfo
from stoker.index.index import INDEX_NAME, Index
from stoker.index.shard_files import ShardFiles, find_shards, read_shards
from stoker.storage import Store, is_local, open_store
from stoker.storage.unfinished import MARK
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)


@checked
def rebuild_index(
    url: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    exist_ok: bool = False,
    storage_options: StorageOptions | None = None,
) -> Index:
    """Write the index of a dataset whose index is lost.

    Every shard's header tells its columns and samples; compressed shards are decompressed to see it, and the
    hashes that the header asks for are computed from the file. Shards in sub-directories come after each other as
    after :func:`merge_index`. Shards missing at the very end can not be noticed.

    Args:
        url: the dataset's root.
        skip_damaged: leave out torn shards and go past missing numbers, instead of failing.
        exist_ok: replace an index that is there.
        storage_options: credentials and settings of a remote store, by obstore's names.

    Returns:
        The index that was written.

    Raises:
        ConfigError: there is an index already, or there are no shards.
        CorruptDataError: a shard is torn or a number is missing; nothing was written.
    """
    store = open_store(url, None if is_local(url) is not None else storage_options)
    if not exist_ok and store.exists(INDEX_NAME):
        raise ConfigError(f"{store.url_of(INDEX_NAME)} exists: pass exist_ok=True to make it anew all the same")
    shards = list(find_shards(store.list()).values())
    if not shards:
        raise ConfigError(
            f"{store.url} holds no shards, of which an index could be made: give the directory that they lie in; files of "
            "other formats need no index"
        )
    if not skip_damaged:
        _refuse_gaps(store, shards)
    infos: list[ShardInfo] = []
    for shard, info in zip(shards, read_shards(store, shards), strict=True):
        if not isinstance(info, FormatError):
            infos.append(info)
        elif skip_damaged:
            logger.warning("left out of the index: %s", info)
        else:
            raise CorruptDataError(
                f"{info}. Write shard {shard.number} again, or pass skip_damaged=True to leave it out"
            ) from info
    index = Index(infos, where=store.url_of(INDEX_NAME))
    store.put(INDEX_NAME, index.to_json())
    store.delete(MARK)  # of the writer that was stopped before its index
    return index


def _refuse_gaps(store: Store, shards: list[ShardFiles]) -> None:
    following: dict[tuple[str, str], int] = {}
    for shard in shards:
        series = (shard.folder, shard.format)
        expected = following.get(series, 0)
        if shard.number != expected:
            raise CorruptDataError(
                f"{store.url_of(shard.folder)}: shard {expected} is missing, for the next one there is "
                f"{shard.key('data', None)}. Write it again, or pass skip_damaged=True to do without"
            )
        following[series] = expected + 1

"""Where a writer's files go, and what may lie there already."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from stoker.errors import ConfigError, FormatError, ObjectNotFoundError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import check_basename
from stoker.formats.common.entries import identity_of
from stoker.index.index import INDEX_NAME, MOST_BYTES, Index, load_index
from stoker.index.shard_files import find_shards, read_shards
from stoker.storage import RetryPolicy, Store, is_local, open_store
from stoker.storage.local import remove_unfinished
from stoker.storage.types import PutData
from stoker.types import StorageOptions

__all__ = ["Destination", "OutPath", "open_destination"]

logger = logging.getLogger(__name__)

_REPLACING = "none: a writer with exist_ok=True is replacing this dataset"
"""In place of an index's version: nobody reads it, and whoever tries gets to read this."""

_PEEK = 5000
_THREADS = 8


class Destination:
    """The one or two places that get every file of a dataset.

    Args:
        stores: the places; the last one is the one that counts when looking for what is there.

    Attributes:
        blank: whether a writer begins there without a look at what lies there, and writes over what it left before.
    """

    blank: ClassVar[bool] = False

    def __init__(self, stores: Iterable[Store]) -> None:
        self.stores = tuple(stores)
        self.main = self.stores[-1]

    def put(self, key: str, data: PutData) -> None:
        """Write a file to all places."""
        for store in self.stores:
            store.put(key, data)

    def refuse_existing(self) -> None:
        """Check that nothing of a dataset is there.

        Raises:
            ConfigError: there is an index, or shards without one.
        """
        for store in self.stores:
            if store.exists(INDEX_NAME):
                raise ConfigError(
                    f"{store.url_of(INDEX_NAME)} exists: write elsewhere, pass exist_ok=True to replace the dataset, "
                    "or append=True to add to it"
                )
            left = [shard for shard in find_shards(islice(store.list(), _PEEK)).values() if not shard.folder]
            if left:
                raise ConfigError(
                    f"{store.url} holds shards without an index ({len(left)} or more), as an unfinished writer leaves "
                    "them: pass resume=True to continue it, or exist_ok=True to replace them"
                )

    def clear(self) -> None:
        """Remove the dataset that is there, so that at no moment old and new shards mix.

        First an index that nobody can read takes the place of the old one. Wherever we are killed after that, a writer
        that resumes knows that the shards which are left are not its own.
        """
        for store in self.stores:
            names = _condemned(store)
            if names is None:
                names = set()
                try:
                    names.update(load_index(store).file_entries())
                except ObjectNotFoundError:
                    pass
                except FormatError as error:
                    logger.warning("replacing a dataset whose index can not be read: %s", error)
            for shard in find_shards(store.list()).values():
                if not shard.folder:  # what lies in sub-directories may be datasets of their own
                    names.update(shard.paths)
            if names:
                store.put(INDEX_NAME, json.dumps({"files": sorted(names), "version": _REPLACING}).encode())
            _remove_unfinished(store)
            self._delete(store, names)
            store.delete(INDEX_NAME)

    def existing(self, settings: Mapping[str, Any]) -> Index | None:
        """The dataset that is there, to be continued by shards of these settings; ``None`` if there is none.

        Raises:
            ConfigError: its columns are others.
        """
        if _condemned(self.main) is not None:
            self.clear()
        try:
            index = load_index(self.main)
        except ObjectNotFoundError:
            return None
        for shard in {id(shard.spec): shard for shard in index.shards}.values():
            _check_same(identity_of(shard), settings, self.main.url_of(INDEX_NAME))
        return index

    def unfinished(self, settings: Mapping[str, Any], first: int) -> list[ShardInfo]:
        """The whole shards that a killed writer of the same settings left, numbered from ``first`` without a gap.

        Shards after a gap and torn ones are removed, for their place in the dataset is not known to be right.

        Raises:
            ConfigError: the shards were written with other settings.
        """
        found = find_shards(self.main.list())
        mine = [
            shard
            for shard in found.values()
            if not shard.folder and shard.format == settings["format"] and shard.number >= first
        ]
        whole: list[ShardInfo] = []
        kept: set[str] = set()
        for shard, info in zip(mine, read_shards(self.main, mine), strict=True):
            if isinstance(info, FormatError) or shard.number != first + len(whole):
                logger.info("%s is not continued from: %s", shard.key("data", None), info)
                break
            _check_settings(info, settings, self.main.url_of(info.stored[0].basename))
            whole.append(info)
            kept.update(file.basename for file in info.stored)
        doomed = {path for shard in mine for path in shard.paths} - kept
        for store in self.stores:
            _remove_unfinished(store)
            self._delete(store, doomed)
        return whole

    def complete(self, shards: list[ShardInfo]) -> None:
        """Copy files of these shards from the place that counts to those that lack them."""
        for store in self.stores[:-1]:
            there = {item.key: item.size for item in store.list()}
            for shard in shards:
                for file in shard.stored:
                    if there.get(file.basename) != file.bytes:
                        store.put(file.basename, self.main.get(file.basename, max_bytes=file.bytes))

    def _delete(self, store: Store, keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-delete") as pool:
            for _ in pool.map(store.delete, sorted(keys)):
                pass


OutPath: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | Destination
"""A directory, a URL, or a ``(directory, URL)`` pair; or a destination of the caller's own."""


def open_destination(
    out: OutPath,
    remote: str | os.PathLike[str] | None,
    keep_local: bool,
    storage_options: StorageOptions | None,
    retry: int,
) -> Destination:
    """Work out where ``out``, ``remote`` and ``keep_local`` say that files should go.

    With a remote and without ``keep_local``, files go to the remote straight from memory.

    Raises:
        ConfigError: the arguments contradict each other.
    """
    if isinstance(out, Destination):
        return out
    if isinstance(out, tuple):
        if len(out) != 2 or remote is not None:
            raise ConfigError("out is a directory, a URL or a (directory, URL) pair; with a pair leave remote out")
        local: str | os.PathLike[str] | None = out[0]
        target: str | os.PathLike[str] | None = out[1]
    elif remote is None and is_local(out) is None:
        local, target = None, out
    else:
        local, target = out, remote
    if local is not None and is_local(local) is None:
        raise ConfigError(f"{os.fspath(local)!r} should be a directory, for the dataset goes to {target!r} as well")
    if keep_local and local is None:
        raise ConfigError("keep_local=True needs a directory to keep the files in: out=(directory, URL)")
    if retry < 0:
        raise ConfigError(f"retry={retry}: the number of times an upload is tried again, not negative")
    policy = RetryPolicy(attempts=retry + 1)
    stores = []
    if local is not None and (keep_local or target is None):
        stores.append(open_store(local, storage_options if target is None else None, retry=policy))
    if target is not None:
        stores.append(open_store(target, storage_options, retry=policy))
    return Destination(stores)


def _condemned(store: Store) -> set[str] | None:
    """Files of a dataset that :meth:`Destination.clear` was removing when it was killed; ``None`` if there is none."""
    try:
        data = store.get(INDEX_NAME, max_bytes=MOST_BYTES)
        if _REPLACING.encode() not in data:  # spares parsing it
            return None
        index = json.loads(data)
        if index["version"] != _REPLACING:
            return None
        return {name for name in index["files"] if check_basename(name) is None}
    except (ObjectNotFoundError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _remove_unfinished(store: Store) -> None:
    folder = is_local(store.url)
    if folder is not None:
        remove_unfinished(folder)


def _check_same(identity: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> None:
    wanted = _plain({key: settings.get(key) for key in identity})
    if _plain(identity) != wanted:
        raise ConfigError(
            f"{where} has other columns: {json.dumps(identity)}, but this writer has {json.dumps(wanted)}"
        )


def _check_settings(info: ShardInfo, settings: Mapping[str, Any], where: str) -> None:
    _check_same(identity_of(info), settings, where)
    found = _plain({**info.spec, "compression": info.compression})
    for key in ("compression", "hashes", "size_limit"):
        if found.get(key) != _plain(settings[key]):
            raise ConfigError(
                f"{where} was written with {key}={found.get(key)!r}, but this writer has {settings[key]!r}: resume "
                "with the same settings, or pass exist_ok=True to start anew"
            )


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(value))

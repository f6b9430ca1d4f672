"""Shard files by their names, and what their own bytes say where there is no index, or to make a lost one anew."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker.arguments import checked
from stoker.digests import hash_hex
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import most_unpacked
from stoker.formats.common.compression import compression_names, parse_compression
from stoker.formats.registry import format_names, get_format
from stoker.index.index import INDEX_NAME, Index
from stoker.storage import ObjectInfo, Store, is_local, open_store
from stoker.storage.unfinished import MARK
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"(?P<folder>(?:.*/)?)shard\.(?P<number>[0-9]{5,10})"
    rf"\.(?P<format>{'|'.join(format_names())})(?P<meta>\.meta)?(?:\.(?P<codec>{'|'.join(compression_names())}))?"
)
_THREADS = 8


def shard_name(number: int, format_name: str, role: str) -> str:
    """A shard's file name, without what compression adds to it."""
    return f"shard.{number:05}.{format_name}" + ("" if role == "data" else f".{role}")


@dataclass(slots=True)
class ShardFiles:
    """The files of one shard that a listing found.

    Attributes:
        folder: where they lie below the root, with a slash at the end, or empty.
        sizes: role and codec (``None`` for a raw file) to size in bytes.
    """

    folder: str
    number: int
    format: str
    sizes: dict[tuple[str, str | None], int] = field(default_factory=dict)

    def key(self, role: str, codec: str | None) -> str:
        """A file's path below the root."""
        name = shard_name(self.number, self.format, role)
        return self.folder + (f"{name}.{codec}" if codec else name)

    @property
    def paths(self) -> list[str]:
        """All files' paths below the root."""
        return [self.key(role, codec) for role, codec in self.sizes]

    @property
    def codec(self) -> str | None:
        """The codec that all files are there with; raw files only count where there is none."""
        roles = get_format(self.format).roles
        for codec in (*compression_names(), None):
            if all((role, codec) in self.sizes for role in roles):
                return codec
        raise CorruptDataError(f"{self.key('data', None)}: of its files only {', '.join(self.paths)} is there")


def find_shards(listing: Iterable[ObjectInfo]) -> dict[tuple[str, int, str], ShardFiles]:
    """The shards among the objects of a listing, by folder, number and format."""
    found: dict[tuple[str, int, str], ShardFiles] = {}
    for item in listing:
        match = _NAME.fullmatch(item.key)
        if match is None or (match["meta"] and "meta" not in get_format(match["format"]).roles):
            continue
        key = (match["folder"], int(match["number"]), match["format"])
        shard = found.setdefault(key, ShardFiles(*key))
        shard.sizes["meta" if match["meta"] else "data", match["codec"]] = item.size
    return dict(sorted(found.items()))


def read_shards(
    store: Store, shards: Iterable[ShardFiles], *, hashes: bool = True
) -> Iterator[ShardInfo | FormatError]:
    """Read each shard's own header, verified against its size and structure; an error for a torn one.

    Only headers are fetched, unless a shard is compressed or its header asks for hashes, and ``hashes`` allows them.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-read-headers") as pool:
        yield from pool.map(lambda shard: _try_read(store, shard, hashes), shards)


def _try_read(store: Store, shard: ShardFiles, hashes: bool) -> ShardInfo | FormatError:
    try:
        return read_shard(store, shard, hashes)
    except FormatError as error:
        return error


def read_shard(store: Store, shard: ShardFiles, hashes: bool = True) -> ShardInfo:
    """Read a shard's own header; see :func:`read_shards`. FormatError if it is torn."""
    codec = shard.codec
    main = get_format(shard.format).roles[-1]  # the file with the offsets and the configuration
    where = store.url_of(shard.key(main, codec))
    header = _Content(store, shard, main, codec)
    count = int(header.words(0, 1, where)[0])
    offsets = header.words(4, count + 1, where)
    start = 4 + 4 * (count + 1)
    end = int(offsets[0]) if main == "data" else header.size
    if end < start or end > header.size or (np.diff(offsets) < 0).any():
        raise CorruptDataError(f"{where}: its sample offsets run backwards or leave the file")
    config = _parse_config(header.read(start, end), where)
    if not hashes:
        config["hashes"] = []
    contents = {main: header}
    for role in get_format(shard.format).roles[:-1]:
        contents[role] = _Content(store, shard, role, codec)
    if int(offsets[-1]) != contents["data"].size:
        raise CorruptDataError(f"{where}: torn, for its samples end at byte {offsets[-1]} of {contents['data'].size}")
    return _describe(shard, config, codec, count, contents, where)


def _describe(
    shard: ShardFiles,
    config: Mapping[str, Any],
    codec: str | None,
    samples: int,
    contents: Mapping[str, _Content],
    where: str,
) -> ShardInfo:
    if config.get("format") != shard.format:
        raise CorruptDataError(f"{where}: its header names the format {config.get('format')!r}")
    compression = config.get("compression")
    if codec is None:
        compression = None  # stored raw, whatever it was written as
    elif not isinstance(compression, str) or parse_compression(compression).extension != codec:
        compression = codec
    entry: dict[str, Any] = {**config, "compression": compression, "samples": samples}
    hashes = config.get("hashes")
    names = hashes if isinstance(hashes, list) else []
    for role, content in contents.items():
        entry[f"raw_{role}"] = {
            "basename": shard.key(role, None),
            "bytes": content.size,
            "hashes": {name: hash_hex(name, content.read(0, content.size)) for name in names},
        }
        entry[f"zip_{role}"] = codec and {
            "basename": shard.key(role, codec),
            "bytes": len(content.stored),
            "hashes": {name: hash_hex(name, content.stored) for name in names},
        }
    return get_format(shard.format).parse_shard(entry, where)


class _Content:
    """The uncompressed bytes of one file, fetched no further than needed."""

    def __init__(self, store: Store, shard: ShardFiles, role: str, codec: str | None) -> None:
        self._store = store
        self._key = shard.key(role, codec)
        self.stored: bytes = b""
        self._whole: memoryview | None = None
        if codec is None:
            self.size = shard.sizes[role, None]
        else:
            self.stored = store.get(self._key, max_bytes=shard.sizes[role, codec])
            try:
                self._whole = parse_compression(codec).decompress_unsized(self.stored, most_unpacked(len(self.stored)))
            except CorruptDataError as error:
                raise CorruptDataError(f"{store.url_of(self._key)}: {error}") from error
            self.size = len(self._whole)

    def read(self, start: int, end: int) -> bytes | memoryview:
        if self._whole is None and (start, end) == (0, self.size):
            self._whole = memoryview(self._store.get(self._key, max_bytes=self.size))
        if self._whole is not None:
            return self._whole[start:end]
        return self._store.get_range(self._key, start, end) if end > start else b""

    def words(self, start: int, count: int, where: str) -> Any:
        """``count`` u32 at ``start``, as int64."""
        end = start + 4 * count
        if end > self.size:
            raise CorruptDataError(f"{where}: torn, its header needs {end} bytes and {self.size} are there")
        return np.frombuffer(self.read(start, end), "<u4").astype(np.int64)


def _parse_config(data: bytes | memoryview, where: str) -> dict[str, Any]:
    try:
        config = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{where}: the configuration in its header is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CorruptDataError(f"{where}: the configuration in its header is not an object")
    return config


@checked
def rebuild_index(
    url: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    exist_ok: bool = False,
    storage_options: StorageOptions | None = None,
) -> Index:
    """Rebuild the lost index of a dataset from its shards.

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
        raise ConfigError(f"{store.url_of(INDEX_NAME)} exists: pass exist_ok=True to rebuild it")
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

"""What files that others wrote hold: their headers are read from the store, or all of them once, side by side."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from stoker.cache.base import ShardCache
from stoker.catalog.unindexed.file_facts import UnindexedFile
from stoker.catalog.unindexed.file_shards import packed_file, whole_file
from stoker.catalog.unindexed.found_files import FoundFile, read_listed
from stoker.catalog.unindexed.header_walk import HeaderWalk, ShortStepsError
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import ShardInfo
from stoker.formats.common.byte_source import ByteSource, MappedSource, check_range
from stoker.formats.common.compression import codec_of
from stoker.formats.format import Format
from stoker.storage import Store

__all__ = ["FetchedFiles", "StoreSource", "inspect_headers"]

_THREADS: Final = 16
_BLOCK: Final = 1 << 16
_HELD: Final = 8


def inspect_headers(
    reader: Format,
    files: Sequence[FoundFile],
    beside: Mapping[str, tuple[FoundFile, ...]],
    known: Mapping[str, UnindexedFile],
    settings: Mapping[str, Any],
    fetched: FetchedFiles,
    store: Store,
) -> list[UnindexedFile]:
    """What all files hold, in their order; those that are known are not opened again.

    Args:
        reader: their format.
        files: the files.
        beside: files that belong to each, by its key.
        known: what is known of files, by key.
        settings: of the format.
        fetched: maps files where all of a file is read.
        store: where they are.

    Raises:
        CorruptDataError, FormatError: a file is damaged, or needs what is not supported; names it.
        ConfigError: the settings do not fit a file.
    """

    steps = HeaderWalk(store)

    def header(file: FoundFile) -> UnindexedFile:
        old, more = known.get(file.key), beside.get(file.key, ())
        if old is not None and old.mark == (file.mark, *(one.mark for one in more)):
            return old
        where = store.url_of(file.key)
        source: ByteSource = StoreSource(store, file.key, file.size, where)
        codec = codec_of(file.key) if reader.packed else None
        chosen = settings
        unpacked = None
        stepping = None
        if reader.steps and not fetched.in_place and codec is None:
            stepping = steps.source(file.key, file.size, where)
        if stepping is not None:
            source = stepping
        elif fetched.in_place or reader.whole or codec is not None:
            source = MappedSource(fetched.open(reader.name, file, codec), where)
        if codec is not None:
            unpacked = source.size
            if "piece_bytes" in reader.settings:  # whoever reads a part of it has all of it fetched
                chosen = {"piece_bytes": max(1, unpacked), **settings}
        try:
            try:
                found = reader.inspect_header(source, chosen)
            except ShortStepsError:
                source = MappedSource(fetched.open(reader.name, file), where)
                found = reader.inspect_header(source, chosen)
        except (ConfigError, FormatError):
            raise
        except ValueError as error:  # of another package's format
            raise CorruptDataError(f"{where}: {error}") from error
        finally:
            del source
            fetched.let_go(file, unpacked)
        pieces = tuple((piece.start, piece.end, piece.samples) for piece in found.pieces)
        return UnindexedFile(file.key, file.size, file.version, found.samples, found.spec, pieces, more, unpacked)

    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="stoker-headers") as pool:
        futures = [pool.submit(header, file) for file in files]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


class FetchedFiles:
    """Files that are mapped whole to see what they hold: where they lie, or in the cache, as far as it may be filled."""

    def __init__(self, cache: ShardCache, limit: int | None, *, in_place: bool) -> None:
        self.in_place = in_place
        self._cache = cache
        self._left = limit
        self._fresh: set[str] = set()
        self._lock = threading.Lock()

    def open(self, name: str, file: FoundFile, codec: str | None = None) -> Any:
        """All of a file, or of what comes out of a compressed one."""
        if codec is None:
            info = ShardInfo(name, 0, (whole_file(file, in_place=self.in_place),), (), None, {})
        else:
            raw, packed = packed_file(file)
            info = ShardInfo(name, 0, (raw,), (packed,), codec, {})
        for _ in range(100):
            data = self._cache.open(info)
            if data is not None:
                return data[0]
            self._cache.fetch(info)
            self._fresh.add(file.key)
        raise CorruptDataError(
            f"{self._cache.describe(info)} disappears as often as it is fetched: is another process removing it?"
        )

    def let_go(self, file: FoundFile, unpacked: int | None = None) -> None:
        """Remove a file that was fetched here from the cache, if there is no room for it.

        Args:
            file: the file.
            unpacked: of a compressed one, bytes of what came out of it.
        """
        if self._left is None or file.key not in self._fresh:
            return
        with self._lock:
            size = file.size if unpacked is None else unpacked
            if stays := size <= self._left:
                self._left -= size
        if not stays:
            with contextlib.suppress(OSError):
                name = packed_file(file)[0] if unpacked is not None else whole_file(file, in_place=False)
                os.unlink(self._cache.root / name.basename)


class StoreSource:
    """A file of a store, of which a few blocks are kept: headers are read in small pieces that lie close."""

    def __init__(self, store: Store, key: str, size: int, where: str) -> None:
        self.where = where
        self.size = size
        self._store = store
        self._key = key
        self._blocks: deque[tuple[int, bytes]] = deque(maxlen=_HELD)

    def read(self, start: int, end: int) -> bytes:
        """See :class:`~stoker.formats.common.byte_source.ByteSource`."""
        check_range(self, start, end)
        if end - start > _BLOCK:  # of a file that is read through
            return read_listed(self._store, lambda: self._store.get_range(self._key, start, end))
        for first, block in self._blocks:
            if first <= start and end <= first + len(block):
                return block[start - first : end - first]
        stop = min(self.size, max(end, start + _BLOCK))
        begin = max(0, min(start, stop - _BLOCK))
        block = b""
        if stop > begin:
            block = read_listed(self._store, lambda: self._store.get_range(self._key, begin, stop))
        self._blocks.append((begin, block))
        return block[start - begin : end - begin]

"""The cache on disk: whole, verified shard files, shared by every process of a node.

A shard's file is in the cache by rename, whole and verified, or it is not there. All coordination is between files:

* ``<root>/.stoker/<name>.part`` is a download under way. The process that writes it holds an exclusive ``flock``; the kernel
  drops that with the process, so a killed download is taken over, or removed by the next process that opens the cache.
* ``<root>/.stoker/claims`` has locks of the small files that are being fetched, see :mod:`.small_fetches`; each is in
  memory until it is whole and verified, and has a part file but for a moment.
* ``<root>/.stoker/room``, only with a limit, counts the bytes that files have or will have; see :mod:`.quota`.
* ``<root>/<basename>`` is a shard file. A process that has it mapped holds a lock that stands for it, see
  :mod:`.in_use`; eviction passes over files in use. A file that is unlinked while mapped stays readable to
  those who mapped it.

Readers of present shards take no lock that anyone waits for.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stoker.cache.base import CacheSettings, IfFull, ShardCache
from stoker.cache.directory import CacheDirectory, DirectoryFiles, not_opened
from stoker.cache.disk.in_use import held, hold
from stoker.cache.disk.quota import CacheQuota
from stoker.cache.range_fetch import check_file, fetch_part
from stoker.cache.small_files import SmallFileReader
from stoker.concurrency.request_observer import fetched_by_thread, observer
from stoker.concurrency.shared.counters import Count
from stoker.digests import fastest_hash
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError, StokerError
from stoker.formats.base import UNKNOWN, FileInfo, ShardInfo
from stoker.index.version import VersionWatch
from stoker.lazy import cached_property
from stoker.storage import ObjectInfo, Store
from stoker.storage.files.copying import write_all
from stoker.storage.files.mapped import MappedFile, map_open_file
from stoker.storage.files.own import open_own
from stoker.storage.files.part_files import PartWatch, claim, new_part, part_name, release, unlink
from stoker.storage.files.regular import open_regular, read_regular
from stoker.storage.local import file_info
from stoker.storage.types import Arrival
from stoker.types import Buffer, PooledBuffer

if TYPE_CHECKING:
    from stoker.cache.disk.small_fetches import SmallFetches

logger = logging.getLogger(__name__)

# Assumed ratio of decompressed to compressed bytes where it is not known: text gives three to five.
_USUAL_RATIO = 4


class DiskCache(ShardCache):
    """Shard files of one dataset under one directory: mapped, and fetched into it within its limit.

    ``root``, ``store``, ``settings``, ``watch``: see :class:`~stoker.cache.base.ShardCache`. Without a store nothing is ever
    evicted. ``known``: basename to size of every file of the dataset, for eviction; called only where there is a limit.
    ``directory``: makes and holds the root; ``None`` where there is no store.

    ``files``: the files below the root. ConfigError if there is a limit, and no store: shards are read where they lie.
    """

    def __init__(
        self,
        root: Path,
        store: Store | None,
        settings: CacheSettings,
        known: Callable[[], Mapping[str, int]] | None = None,
        watch: VersionWatch | None = None,
        directory: CacheDirectory | None = None,
    ) -> None:
        super().__init__(root, store, settings, watch)
        self.directory = directory
        self.files = DirectoryFiles(root, directory)
        self.small_files = SmallFileReader(self.files.folder, watch) if store is None else None
        self._quota: CacheQuota | None = None
        self._warned = False
        # Other processes' downloads that this one waits for: if a process is stopped, all its downloads stall.
        self._watches: dict[Path, PartWatch] = {}
        if settings.limit is not None and store is None:
            raise ConfigError(
                f"cache_limit= is for shards that are copied to a cache, and those of {root} are read where they lie: leave "
                "it out, or, for a copy on a faster disk, give remote= this directory and local= another"
            )
        if settings.limit is not None and known is not None:
            self._quota = CacheQuota(root, self.files.private, settings.limit, settings.stall_timeout, known)
            if directory is not None:
                self._quota.others = directory.others

    @cached_property
    def _small(self) -> SmallFetches:
        # Of a store: a dataset that is read where it lies fetches nothing.
        from stoker.cache.disk.small_fetches import SmallFetches

        return SmallFetches(self.files, self.settings.stall_timeout)

    @property
    def for_others(self) -> int:
        return 0 if self.store is None or self.settings.limit is not None else sys.maxsize

    # -- reading ---------------------------------------------------------------------------------------------------

    def open_cut(self, info: ShardInfo) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: files that are read where they lie."""
        return None if self.store is not None or info.zip else self.open(info, cut=True)

    def open(self, info: ShardInfo, *, cut: bool = False) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: the files are mapped."""
        files: list[Buffer] = []
        for file in info.raw:
            path = f"{self.files.folder}/{file.basename}"
            found = self._map(path, file, cut=cut)
            if found is None:
                return None
            data, status = found
            if self.store is None and not info.zip and self.watch is not None:
                self._check_opened(file, data, file_info(file.basename, status, path))
            files.append(data)
        if self.store is None and self.watch is not None and info.zip:
            self.watch.look()
        return files

    def read_ahead(self, files: Sequence[Buffer]) -> None:
        """Have the kernel read whole mapped files from disk in the background, before their pages are needed."""
        for data in files:
            if isinstance(data, MappedFile):
                counted = observer() is not None
                before = fetched_by_thread() if counted else 0
                with contextlib.suppress(OSError):
                    data.madvise(mmap.MADV_WILLNEED)
                data.fetched = counted and fetched_by_thread() > before

    def validate(self, info: ShardInfo, files: Sequence[Buffer]) -> None:
        if isinstance(self.settings.validate_hash, str) or self.settings.validate_hash is True:
            for file, data in zip(info.raw, files, strict=True):
                self._check(file, data, self.root / file.basename)

    def describe(self, info: ShardInfo) -> str:
        url = self.url_of(info)
        # The name of a part's copy tells users nothing.
        if self.store is None or not info.raw or info.stored[0].part is not None:
            return url
        return f"{self.files.folder}/{info.raw[0].basename} (from {url})"

    def discard(self, info: ShardInfo) -> bool:
        if self.store is None and not info.zip:
            return False
        self._remove(info.raw)
        return True

    def evict(self, info: ShardInfo) -> None:
        """See :class:`~stoker.cache.base.ShardCache`; with ``keep_zip`` there are compressed files, too."""
        self._remove((*info.raw, *info.zip))

    def _remove(self, files: Iterable[FileInfo]) -> None:
        for file in files:
            self.files.stay_inside(self.root / file.basename)
            with self.files.named_errors("remove a corrupt shard from"), contextlib.suppress(FileNotFoundError):
                os.unlink(self.root / file.basename)

    def used(self, shards: Iterable[ShardInfo]) -> int:
        found = 0
        for name in {file.basename for info in shards for file in info.raw} if self.store is not None else ():
            with contextlib.suppress(OSError):
                found += (self.root / name).stat().st_size
        return found

    def _map(self, path: str, file: FileInfo, *, cut: bool = False) -> tuple[Buffer, os.stat_result] | None:
        """A file's bytes and status; ``None`` if it is missing or has a wrong size. One that is ``cut`` may be too short."""
        try:
            descriptor, status = open_regular(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, StokerError) and self.store is None:  # it exists, but is no regular file
                raise
            return None
        except OSError as error:
            raise not_opened(error, path) from error
        try:
            first, end = 0, status.st_size
            if file.part is not None and file.part.in_place and self.store is None:
                try:
                    check_file(path, status, file.part)
                except CorruptDataError as error:
                    raise self._since_listed(path, error) from error
            elif file.whole not in (end, UNKNOWN) and not (cut and end < file.whole):
                return None
            if file.part is not None and file.part.in_place and file.whole != UNKNOWN:
                first, end = file.part.window
            if end <= first:
                return b"", status
            if self.store is None:
                return map_open_file(descriptor, first, end, path, status), status
            mapped = MappedFile(descriptor, first, end, path, status)
            mapped.copied = True
            hold(self.root, file.basename, mapped)
            if self.settings.limit is not None:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)  # eviction sorts by this time
            return mapped, status
        except OSError as error:
            if isinstance(error, StokerError):
                raise
            raise not_opened(error, path) from error
        finally:
            os.close(descriptor)

    def _since_listed(self, path: str, error: CorruptDataError) -> CorruptDataError:
        """The error for a file in place that is not the one that was indexed. A remembered listing that has it is removed."""
        if self.remembered is None:
            return error
        with contextlib.suppress(OSError):
            listed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.stat(self.remembered).st_mtime))
            os.unlink(self.remembered)
            return CorruptDataError(
                f"{path} was written to after its directory was listed, which was at {listed}. The listing was "
                f"remembered in {self.remembered}, and used because no folder has changed since; it is removed now. Open "
                "the dataset again, and the files are listed again; a run that began with the old file can not continue "
                "with the new one. Rename new files into place: then a start sees that they changed"
            )
        return error

    # -- fetching --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self, info: ShardInfo) -> Iterator[None]:
        if self._quota is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            with self.files.named_errors("write to"):
                for file in info.raw:
                    self.files.have_directories(file.basename)
                stack.enter_context(held(self.root, [file.basename for file in info.raw]))
            yield

    def fetch(self, info: ShardInfo, *, wait: bool = True, if_full: IfFull = "exceed") -> bool:
        """See :class:`~stoker.cache.base.ShardCache`; it waits for other processes of this node."""
        missing = [k for k, file in enumerate(info.raw) if not self.files.has(file)]
        if not missing:
            return True
        return all(self._fetch_file(info, k, wait=wait, if_full=if_full) for k in missing)

    def is_small(self, info: ShardInfo) -> bool:
        """See :class:`~stoker.cache.base.ShardCache`; not where there is a limit."""
        return self.settings.limit is None and super().is_small(info)

    def claim_small(self, infos: Sequence[ShardInfo]) -> Sequence[bool]:
        return self._small.claim_each([info.raw[0] for info in infos])

    def take_small(
        self, infos: Sequence[ShardInfo], answers: Sequence[Arrival | Exception | None]
    ) -> list[Buffer | Exception | None]:
        found: list[Buffer | Exception | None] = []
        try:
            for info, answer in zip(infos, answers, strict=True):
                found.append(None if answer is None else self._take_small(info.raw[0], answer))
                self._small.claims.release(info.raw[0].basename)
        finally:
            for info in infos[len(found) :]:  # none but for an interrupt
                self._small.claims.release(info.raw[0].basename)
        return found

    def _take_small(self, file: FileInfo, answer: Arrival | Exception) -> Buffer | Exception:
        try:
            data = self._checked(file, answer)
            try:
                self._small.put(file.basename, data)
            except FileNotFoundError:  # someone has removed the cache, or leftovers of others
                self.keep(file.basename, bytes(data))
        except OSError as error:
            return error if isinstance(error, StokerError) else self.files.named(error, "write to")
        except Exception as error:  # noqa: BLE001 - it belongs to the shard
            return error
        return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8).view(PooledBuffer)

    def sweep(self) -> None:
        self.files.sweep()

    def _fetch_file(self, info: ShardInfo, number: int, *, wait: bool, if_full: IfFull) -> bool:
        """Claim a missing file and fetch it; or wait for the process that does."""
        if not self.is_small(info):
            return self._fetch_part_file(info, number, wait=wait, if_full=if_full)
        file = info.raw[number]
        delay = 0.001
        while not (mine := self._small.claim(file)):
            if self.files.has(file):
                return True
            if not wait:
                return False
            if self._small.claims.is_stalled(file.basename):  # its holder is alive but stopped: fetch it here, too
                break
            time.sleep(delay)
            delay = min(delay * 1.5, 0.05)
        try:
            return self._fetch_part_file(info, number, wait=wait, if_full=if_full)
        finally:
            if mine:
                self._small.claims.release(file.basename)

    def _fetch_part_file(self, info: ShardInfo, number: int, *, wait: bool, if_full: IfFull) -> bool:
        """Lock the part file of a missing file and fill it; or wait for the process that does."""
        file = info.raw[number]
        part = self.files.private / part_name(file.basename)
        fill = self._decompress if info.zip else self._download
        delay = 0.001
        while True:
            held = self.files.claimed(file.basename, partial(claim, part))
            if held is None and self._watches.setdefault(part, PartWatch(part, self.settings.stall_timeout)).stalled():
                # Its holder is alive but stopped: fetch it here too. Both write the same bytes, and each rename is whole.
                part = self.files.private / part_name(file.basename, os.urandom(8).hex())
                continue
            if held is not None:
                self._watches.pop(part, None)
                return self._fill(info, number, part, held, if_full, partial(fill, info, number, part))
            if self.files.has(file):
                self._watches.pop(part, None)
                return True
            if not wait:
                return False
            time.sleep(delay)
            delay = min(delay * 1.5, 0.05)

    def _fill(
        self, info: ShardInfo, number: int, part: Path, held: int, if_full: IfFull, fill: Callable[[], None]
    ) -> bool:
        """Fill a part file that we hold, and rename it into place; ``False`` where there is no space."""
        file = info.raw[number]
        try:
            if self.files.has(file):
                unlink(part)
                return True
            if not self._reserve(info, number, if_full):
                unlink(part)
                return False
            self._attempted(fill)
            with self.files.named_errors("write to"):
                os.rename(part, f"{self.files.folder}/{file.basename}")
            return True
        except BaseException:
            unlink(part)
            raise
        finally:
            release(held)

    def _reserve(self, info: ShardInfo, number: int, if_full: IfFull) -> bool:
        """Reserve space for a file whose part file we hold; ``False`` where it must not be fetched."""
        quota = self._quota
        if quota is None:
            return True
        size = info.raw[number].whole
        if size == UNKNOWN:
            size = info.zip[number].bytes * _USUAL_RATIO
        with self.files.named_errors("write to"):
            if quota.take(size, evict=if_full != "give up"):
                return True
        exceed = if_full == "exceed"
        if exceed and not self._warned:
            self._warned = True
            logger.warning("cache_limit=%d is too small for what is read at once from %s", quota.limit, self.root)
        return exceed

    def _download(self, info: ShardInfo, number: int, part: Path) -> None:
        file, store = info.raw[number], self.store
        if store is None:
            path = self.root / file.basename
            if path.is_file():
                raise CorruptDataError(
                    f"{path} has {path.stat().st_size} bytes, the index says {file.bytes}, and there is no remote to fetch "
                    "it from: copy it or write the dataset again"
                )
            raise _no_remote(path)
        if file.part is not None:
            with self.files.named_errors("write to"):
                fetch_part(store, file.part, part)
            self._count(Count.BYTES_FETCHED, sum(file.part.ends) - sum(file.part.starts))
            return
        with self.files.named_errors("write to"):
            self._received(file, partial(store.download, file.basename, part, max_bytes=file.bytes))

    def _decompress(self, info: ShardInfo, number: int, part: Path) -> None:
        file, packed = info.raw[number], info.zip[number]
        if packed.part is not None and self.store is not None and info.compression is not None:
            from stoker.cache.decompress import unpack_file

            with self.files.named_errors("write to"), new_part(self.files.private, packed.basename) as (scratch, _):
                fetched = unpack_file(self.store, packed.part, info.compression, file.whole, part, scratch)
            self._count(Count.BYTES_FETCHED, fetched)
            return
        stored = self.root / packed.basename
        data = self._read_stored_zip(stored, packed)
        where: str | Path = stored
        arrived: ObjectInfo | None = None
        if data is None:
            if self.store is None:
                raise _no_remote(stored)
            where = self.store.url_of(packed.basename)
            data, arrived = self.store.read(packed.basename, max_bytes=packed.bytes)
            self._count(Count.BYTES_FETCHED, len(data))
        elif self.store is None:
            with self.files.named_errors("read from"):  # after it was read, so that a replacement is noticed
                arrived = file_info(packed.basename, os.stat(stored), stored)
        try:
            raw = self._decompressed(info, number, data, where, bytearray)
        except CorruptDataError:
            if self.store is not None:
                unlink(stored)
            raise
        if arrived is not None:
            self._check_version(packed if fastest_hash(packed.hashes) else file, arrived)
        with self.files.named_errors("write to"), open(open_own(part, os.O_TRUNC), "wb", buffering=0) as handle:
            write_all(handle.fileno(), memoryview(raw))
        if self.settings.keep_zip and self.store is not None and not stored.exists():
            self.keep(packed.basename, data, limited=True)

    def _read_stored_zip(self, stored: Path, packed: FileInfo) -> bytes | None:
        """A compressed file that is in the cache. With a remote, one of a wrong size does not count."""
        with self.files.named_errors("read from"), contextlib.suppress(FileNotFoundError):
            if self.store is None or stored.stat().st_size == packed.bytes:
                return read_regular(stored)
        return None

    def keep(self, name: str, data: bytes, *, limited: bool = False) -> None:
        target = self.root / name
        with self.files.named_errors("write to"):
            self.files.make_directories(target)
            with new_part(self.files.private, name) as (part, held):
                if not limited or self._quota is None or self._quota.take(len(data)):
                    write_all(held, data)
                    os.rename(part, target)


def _no_remote(path: Path) -> ObjectNotFoundError:
    return ObjectNotFoundError(
        f"{path} is missing, and there is no remote to fetch it from: pass the dataset's source as remote=, or copy "
        "the file again; `stoker verify` lists all missing files",
        url=str(path),
    )


def make_cache(
    root: Path | CacheDirectory,
    store: Store | None,
    settings: CacheSettings,
    known: Callable[[], Mapping[str, int]] | None = None,
    watch: VersionWatch | None = None,
) -> ShardCache:
    """The cache that the settings ask for; files that are read where they lie (no ``store``) are mapped in any case.

    ``root``: the directory of files that are read where they lie, or of the cache.
    """
    directory, path = (root, root.path) if isinstance(root, CacheDirectory) else (None, root)
    if settings.in_memory and store is not None:
        from stoker.cache.memory import MemoryCache

        return MemoryCache(path, store, settings, watch)
    if store is not None and store.transfer.read_by is not None:
        raise ConfigError(
            f"storage_options['read_by'] of {store.url} needs ReadOptions(cache='memory'), which files are read into"
        )
    return DiskCache(path, store, settings, known, watch, directory)


def check_memory(remote: object, local: object, keep_zip: bool = False) -> None:
    """Check that nothing is asked to be kept, as shards are held in memory."""
    if remote is not None and (local is not None or keep_zip):
        given = f"local={os.fspath(local)!r}" if isinstance(local, str | os.PathLike) else "keep_zip=True"
        raise ConfigError(
            f"{given} says where shards are kept, and ReadOptions(cache='memory') keeps none: leave out one of them"
        )

"""The cache on disk: whole, verified shard files, shared by every process of a node.

A shard's file is in the cache by rename, whole and verified, or it is not there. All coordination is between files:

* ``<root>/.stoker/<name>.part`` is a download under way. The process that writes it holds an exclusive ``flock``; the kernel
  drops that with the process, so a killed download is taken over, or removed by the next process that opens the cache.
* ``<root>/.stoker/claims`` has locks of the small files that are being fetched, see :mod:`stoker.cache.claims`; each is in
  memory until it is whole and verified, and has a part file but for a moment.
* ``<root>/.stoker/room``, only with a limit, counts the bytes that files have or will have; see :mod:`stoker.cache.quota`.
* ``<root>/<basename>`` is a shard file. A process that has it mapped holds a lock that stands for it, see
  :mod:`stoker.cache.in_use`; eviction passes over files in use. A file that is unlinked while mapped stays readable to
  those who mapped it.

Readers of present shards take no lock that anyone waits for.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.base import CacheSettings, IfFull, ShardCache
from stoker.cache.claims import Claims
from stoker.cache.decompress import unpack_file
from stoker.cache.directory import CacheDirectory
from stoker.cache.in_use import hold, lock_offset
from stoker.cache.origin import PRIVATE, remove_origin_part
from stoker.cache.quota import PART, CacheQuota, claim, part_name, release, remove_unlocked
from stoker.cache.range_fetch import check_file, fetch_part
from stoker.cache.small_files import SmallFileReader
from stoker.concurrency.request_observer import fetched_by_thread, observer
from stoker.concurrency.shared_counters import Count
from stoker.errors import (
    CacheError,
    ConfigError,
    CorruptDataError,
    ObjectNotFoundError,
    StokerError,
    StorageFullError,
)
from stoker.formats.base import UNKNOWN, FileInfo, ShardInfo
from stoker.formats.common.hashing import fastest_hash, new_hash
from stoker.index.version import VersionWatch
from stoker.storage import ObjectInfo, Store
from stoker.storage.files.copying import write_all
from stoker.storage.files.mapped import MappedFile, map_open_file
from stoker.storage.files.own import make_own_directory, open_own
from stoker.storage.files.regular import exists_at_once, open_regular, read_regular
from stoker.storage.local import file_info
from stoker.storage.types import Arrival, BufferLike
from stoker.types import Buffer, HeldBytes

logger = logging.getLogger(__name__)

# Seconds for which the directories of a cache that were there are taken to be there.
_TRUSTED: Final = 1.0
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# Assumed ratio of decompressed to compressed bytes where it is not known: text gives three to five.
_USUAL_RATIO = 4


class DiskCache(ShardCache):
    """Shard files of one dataset under one directory.

    Args:
        root: the directory; made when first written to.
        store: where shards come from; ``None`` if the directory itself is the dataset. Then nothing is ever evicted.
        settings: see :class:`~stoker.cache.base.CacheSettings`.
        known: basename to size of every file of the dataset, for eviction; called only where there is a limit.
        watch: see :class:`~stoker.cache.base.ShardCache`.
        directory: makes and holds the root; ``None`` where there is no store.
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
        # As text: making a Path takes longer than all else that opening a small file takes.
        self._folder = str(root)
        self.small_files = SmallFileReader(self._folder, watch) if store is None else None
        self._quota: CacheQuota | None = None
        self._warned = False
        self._seen = False
        # Until when the directories for files are taken to be there, by that of the file itself.
        self._made_until: dict[str, float] = {}
        self._claims = Claims(str(self._private), settings.stall_timeout)
        # Whether the small shard that was looked for last was not here: then the next is claimed before it is looked for.
        self._lacks = False
        self._random = os.urandom(4).hex()
        # Other processes' downloads that this one waits for: if a process is stopped, all its downloads stall.
        self._watches: dict[Path, _Watch] = {}
        if settings.limit is not None and known is not None:
            self._quota = CacheQuota(
                root, self._private, settings.limit, settings.stall_timeout, known, settings.eviction
            )
            if directory is not None:
                self._quota.others = directory.others
        if settings.limit is not None and store is None:
            raise ConfigError(
                f"cache_limit= is for shards that are copied to a cache, and those of {root} are read where they lie: leave "
                "it out, or, for a copy on a faster disk, give remote= this directory and local= another"
            )

    @cached_property
    def _private(self) -> Path:
        return self.root / PRIVATE

    def __getstate__(self) -> dict[str, Any]:
        # The copy holds the directory by itself, and its part files have names of their own.
        return {**self.__dict__, "_made_until": {}, "_random": os.urandom(4).hex()}

    # -- reading ---------------------------------------------------------------------------------------------------

    def open_cut(self, info: ShardInfo) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: files that are read where they lie."""
        return None if self.store is not None or info.zip else self.open(info, cut=True)

    def open(self, info: ShardInfo, *, cut: bool = False) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: the files are mapped."""
        files: list[Buffer] = []
        for file in info.raw:
            path = f"{self._folder}/{file.basename}"
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
        if not info.raw:  # nothing of it comes here
            return str(info.detail)
        path = f"{self._folder}/{info.raw[0].basename}"
        if self.store is None:
            return path
        part = info.stored[0].part
        if part is not None:  # the file of the cache has a name that tells users nothing
            return self.store.url_of(part.key)
        return f"{path} (from {self.store.url_of(info.stored[0].basename)})"

    def discard(self, info: ShardInfo) -> bool:
        if self.store is None and not info.zip:
            return False
        for file in info.raw:
            self._stay_inside(self.root / file.basename)
            with self._named_errors("remove a corrupt shard from"), contextlib.suppress(FileNotFoundError):
                os.unlink(self.root / file.basename)
        return True

    def used(self, shards: Iterable[ShardInfo]) -> int:
        found = 0
        for name in {file.basename for info in shards for file in info.raw} if self.store is not None else ():
            with contextlib.suppress(OSError):
                found += (self.root / name).stat().st_size
        return found

    # -- fetching --------------------------------------------------------------------------------------------------

    @property
    def for_others(self) -> int:
        return 0 if self.store is None or self.settings.limit is not None else sys.maxsize

    def fetch(self, info: ShardInfo, *, wait: bool = True, if_full: IfFull = "exceed") -> bool:
        """See :class:`~stoker.cache.base.ShardCache`; it waits for other processes of this node."""
        missing = [k for k, file in enumerate(info.raw) if not self._present(file)]
        if not missing:
            return True
        return all(self._fetch_file(info, k, wait=wait, if_full=if_full) for k in missing)

    def is_small(self, info: ShardInfo) -> bool:
        """See :class:`~stoker.cache.base.ShardCache`; not where there is a limit."""
        return self.settings.limit is None and super().is_small(info)

    def claim_small(self, infos: Sequence[ShardInfo]) -> Sequence[bool]:
        """See :class:`~stoker.cache.base.ShardCache`."""
        found: list[bool] = []
        try:
            for info in infos:
                found.append(self._claim_small(info.raw[0]))  # noqa: PERF401 - those claimed are released after an error
        except BaseException:
            for info, mine in zip(infos, found, strict=False):
                if mine:
                    self._claims.release(info.raw[0].basename)
            raise
        return found

    def _claim_small(self, file: FileInfo) -> bool:
        if not self._lacks and self._present(file):
            return False
        with self._named_errors("write to"):
            self._have_directories(file.basename)
            try:
                mine = self._claims.take(file.basename)
            except FileNotFoundError:  # someone has removed the cache
                self._make_directories(self.root / file.basename)
                mine = self._claims.take(file.basename)
        lacks = mine and not (self._may_be_there(file.basename) and self._present(file))
        if mine and not lacks:  # another process has just fetched it
            self._claims.release(file.basename)
        self._lacks = lacks
        return lacks

    def take_small(
        self, infos: Sequence[ShardInfo], answers: Sequence[Arrival | Exception | None]
    ) -> list[Buffer | Exception | None]:
        """See :class:`~stoker.cache.base.ShardCache`."""
        found: list[Buffer | Exception | None] = []
        try:
            for info, answer in zip(infos, answers, strict=True):
                found.append(None if answer is None else self._take_small(info.raw[0], answer))
                self._claims.release(info.raw[0].basename)
        finally:
            for info in infos[len(found) :]:  # none but for an interrupt
                self._claims.release(info.raw[0].basename)
        return found

    def _take_small(self, file: FileInfo, answer: Arrival | Exception) -> Buffer | Exception:
        try:
            data = self._checked(file, answer)
            try:
                self._write_small(file.basename, data)
            except FileNotFoundError:  # someone has removed the cache, or leftovers of others
                self.keep(file.basename, bytes(data))
        except OSError as error:
            return error if isinstance(error, StokerError) else self._named(error, "write to")
        except Exception as error:  # noqa: BLE001 - it belongs to the shard
            return error
        return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8).view(HeldBytes)

    def _write_small(self, name: str, data: BufferLike) -> None:
        """Put a file that is claimed into its place. A killed process leaves a part file, which nobody else writes to."""
        self._have_directories(name)
        part = f"{self._private}/{lock_offset(name):016x}.{os.getpid():x}{self._random}{PART}"
        descriptor = os.open(part, _NEW_FILE, 0o666)
        try:
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)
            os.rename(part, f"{self._folder}/{name}")
        except BaseException:
            _unlink(part)
            raise

    def _claim(self, name: str, part: Path) -> int | None:
        """Create and lock the part file of a file; see :func:`~stoker.cache.quota.claim`."""
        with self._named_errors("write to"):
            self._have_directories(name)
            try:
                return claim(part)
            except FileNotFoundError:  # someone has removed the cache
                self._make_directories(self.root / name)
                return claim(part)

    def _fetch_file(self, info: ShardInfo, number: int, *, wait: bool, if_full: IfFull) -> bool:
        """Claim a missing file and fetch it; or wait for the process that does."""
        if not self.is_small(info):
            return self._fetch_part_file(info, number, wait=wait, if_full=if_full)
        file = info.raw[number]
        delay = 0.001
        while not (mine := self._claim_small(file)):
            if self._present(file):
                return True
            if not wait:
                return False
            if self._claims.is_stalled(file.basename):  # its holder is alive but stopped: fetch it here, too
                break
            time.sleep(delay)
            delay = min(delay * 1.5, 0.05)
        try:
            return self._fetch_part_file(info, number, wait=wait, if_full=if_full)
        finally:
            if mine:
                self._claims.release(file.basename)

    def _fetch_part_file(self, info: ShardInfo, number: int, *, wait: bool, if_full: IfFull) -> bool:
        """Lock the part file of a missing file and fill it; or wait for the process that does."""
        file = info.raw[number]
        part = self._private / part_name(file.basename)
        fill = self._decompress if info.zip else self._download
        delay = 0.001
        while True:
            held = self._claim(file.basename, part)
            if held is None and self._watches.setdefault(part, _Watch(part, self.settings.stall_timeout)).stalled():
                # Its holder is alive but stopped: fetch it here too. Both write the same bytes, and each rename is whole.
                part = self._private / part_name(file.basename, os.urandom(8).hex())
                continue
            if held is not None:
                self._watches.pop(part, None)
                return self._fill(info, number, part, held, if_full, partial(fill, info, number, part))
            if self._present(file):
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
            if self._present(file):
                _unlink(part)
                return True
            if not self._reserve(info, number, if_full):
                _unlink(part)
                return False
            self._attempted(fill)
            with self._named_errors("write to"):
                os.rename(part, f"{self._folder}/{file.basename}")
            return True
        except BaseException:
            _unlink(part)
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
        with self._named_errors("write to"):
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
            raise ObjectNotFoundError(f"{path} is missing, and there is no remote to fetch it from", url=str(path))
        if file.part is not None:
            with self._named_errors("write to"):
                fetch_part(store, file.part, part)
            self._count(Count.BYTES_FETCHED, sum(file.part.ends) - sum(file.part.starts))
            return
        name = self._hash_of(file)
        hashing = None if name is None else new_hash(name)
        with self._named_errors("write to"):
            arrived = store.download(file.basename, part, max_bytes=file.bytes, new_hash=hashing)
        self._count(Count.BYTES_FETCHED, arrived.size)
        self._check_size(file, arrived.size)
        if name is not None:
            self._check_digest(file, name, arrived.digest, store.url_of(file.basename))
        self._check_version(file, arrived)

    def _decompress(self, info: ShardInfo, number: int, part: Path) -> None:
        file, packed = info.raw[number], info.zip[number]
        if packed.part is not None and self.store is not None and info.compression is not None:
            scratch = self._private / part_name(packed.basename, os.urandom(8).hex())
            with self._named_errors("write to"):
                fetched = unpack_file(self.store, packed.part, info.compression, file.whole, part, scratch)
            self._count(Count.BYTES_FETCHED, fetched)
            return
        stored = self.root / packed.basename
        data = self._read_stored_zip(stored, packed)
        where: str | Path = stored
        arrived: ObjectInfo | None = None
        if data is None:
            if self.store is None:
                raise ObjectNotFoundError(
                    f"{stored} is missing, and there is no remote to fetch it from", url=str(stored)
                )
            where = self.store.url_of(packed.basename)
            data, arrived = self.store.read(packed.basename, max_bytes=packed.bytes)
            self._count(Count.BYTES_FETCHED, len(data))
        elif self.store is None:
            with self._named_errors("read from"):  # after it was read, so that a replacement is noticed
                arrived = file_info(packed.basename, os.stat(stored), stored)
        try:
            raw = self._decompressed(info, number, data, where, bytearray)
        except CorruptDataError:
            if self.store is not None:
                _unlink(stored)
            raise
        if arrived is not None:
            self._check_version(packed if fastest_hash(packed.hashes) else file, arrived)
        with self._named_errors("write to"):
            _write(part, raw)
        if self.settings.keep_zip and self.store is not None and not stored.exists():
            self.keep(packed.basename, data, limited=True)

    def _read_stored_zip(self, stored: Path, packed: FileInfo) -> bytes | None:
        """A compressed file that is in the cache. With a remote, one of a wrong size does not count."""
        with self._named_errors("read from"), contextlib.suppress(FileNotFoundError):
            if self.store is None or stored.stat().st_size == packed.bytes:
                return read_regular(stored)
        return None

    def keep(self, name: str, data: bytes, *, limited: bool = False) -> None:
        target = self.root / name
        held = None
        with self._named_errors("write to"):
            self._make_directories(target)
            while held is None:  # another process that removes leftovers may have it locked for a moment
                beside = self._private / part_name(name, os.urandom(8).hex())
                held = claim(beside)
        try:
            with self._named_errors("write to"):
                if limited and self._quota is not None and not self._quota.take(len(data)):
                    _unlink(beside)
                    return
                _write(beside, data)
                os.rename(beside, target)
        except BaseException:
            _unlink(beside)
            raise
        finally:
            release(held)

    # -- files -----------------------------------------------------------------------------------------------------

    def _may_be_there(self, name: str) -> bool:
        """Whether a file may be there. Where the kernel can tell, Python's lock is kept, which other threads would take."""
        return not self._claims.is_local or exists_at_once(f"{self._folder}/{name}")

    def _present(self, file: FileInfo) -> bool:
        try:
            status = os.stat(f"{self._folder}/{file.basename}")
            return stat.S_ISREG(status.st_mode) and file.whole in (status.st_size, UNKNOWN)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _map(self, path: str, file: FileInfo, *, cut: bool = False) -> tuple[Buffer, os.stat_result] | None:
        """A file's bytes and status; ``None`` if it is missing or has a wrong size. One that is ``cut`` may be too short."""
        try:
            descriptor, status = open_regular(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, StokerError) and self.store is None:  # it exists, but is no regular file
                raise
            return None
        except OSError as error:
            raise _not_opened(error, path) from error
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
            raise _not_opened(error, path) from error
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
                f"{path} was written to after its directory was listed, which was at {listed}. The listing was remembered in "
                f"{self.remembered}, and taken as no folder has changed since; it is removed now. Open the dataset again, "
                "and the files are listed anew; a run that began with the old file can not continue with the new one. Rename "
                "new files into place: then a start sees that they changed"
            )
        return error

    def _have_directories(self, name: str) -> None:
        """Make the directories for a file, unless they were there a moment ago."""
        if time.monotonic() > self._made_until.get(os.path.dirname(name), 0.0):
            self._make_directories(self.root / name)
            self._made_until[os.path.dirname(name)] = time.monotonic() + _TRUSTED

    def _make_directories(self, target: Path) -> None:
        there = self._private.is_dir()
        if not (there and self._seen):
            make_own_directory(self._private)
            self._seen = True
        if not there:
            self.sweep()
        if self.directory is not None:
            self.directory.make()
        self._stay_inside(target)
        target.parent.mkdir(parents=True, exist_ok=True)

    def _stay_inside(self, path: Path) -> None:
        """Check that no symbolic link on the way to a file of the cache leads out of it, before it is written or removed."""
        parent = path.parent
        if parent == self.root:
            return
        top, found = os.path.realpath(self.root), os.path.realpath(parent)
        if os.path.commonpath([top, found]) != top:
            raise CacheError(
                f"{path} would be in {found}, out of the cache {self.root}, by a symbolic link: remove the link, or choose "
                "another local="
            )

    @contextlib.contextmanager
    def _named_errors(self, doing: str) -> Iterator[None]:
        """Convert local file errors to stoker's own, with the remedy."""
        try:
            yield
        except StorageFullError as error:
            raise self._full() from error
        except StokerError:
            raise
        except OSError as error:
            raise self._named(error, doing) from error

    def _named(self, error: OSError, doing: str) -> StokerError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return self._full()
        message = (
            f"can not {doing} the cache {self.root}: {error.strerror}; choose another local= or mend its permissions"
        )
        return CacheError(message)

    def _full(self) -> StorageFullError:
        message = f"no space left in the cache {self.root}: free some, set cache_limit=, or put local= elsewhere"
        return StorageFullError(message, url=str(self.root))

    def sweep(self) -> None:
        """Remove part files whose process is gone."""
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self._private)):
                if entry.name.endswith(PART) and not remove_origin_part(self._private / entry.name):
                    remove_unlocked(self._private / entry.name)


class _Watch:
    """Notices when a part file has stopped growing."""

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._seen: tuple[int, int, int] | None = None
        self._since = time.monotonic()

    def stalled(self) -> bool:
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            seen = (0, 0, 0)
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > self._patience


def _not_opened(error: OSError, path: str) -> CacheError:
    remedy = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = ": something keeps all file descriptors that this process may have; raise the limit (ulimit -n)"
    elif error.errno == errno.ENOMEM:
        remedy = ": this process has no memory for it, or more maps than it may have; raise vm.max_map_count (sysctl)"
    return CacheError(f"can not open {path}: {os.strerror(error.errno or 0)}{remedy}")


def _write(path: Path, data: bytes | bytearray | memoryview) -> None:
    with open(open_own(path, os.O_TRUNC), "wb", buffering=0) as handle:
        view = memoryview(data)
        while view:
            view = view[handle.write(view) :]


def _unlink(path: str | Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)

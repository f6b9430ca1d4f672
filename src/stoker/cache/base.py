"""The base of caches, from which shards are read: it opens those that are present, and fetches and checks the others."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias, TypeVar

from stoker.cache.directory import CacheDirectory
from stoker.cache.range_fetch import check_whole, request_whole
from stoker.cache.small_files import SmallFileReader
from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.spans.recorder import Stage, span
from stoker.digests import fastest_hash, hash_hex, new_hash
from stoker.errors import ConfigError, CorruptDataError, DatasetChangedError, StorageError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.index.version import VersionWatch
from stoker.policy import SMALL_OBJECT
from stoker.storage import ObjectInfo, Store
from stoker.storage.types import Arrival, BufferLike
from stoker.types import Buffer, PooledBuffer

_T = TypeVar("_T")
_B = TypeVar("_B", bytearray, PooledBuffer)

logger = logging.getLogger(__name__)

# From 100,000 bytes on xxhash lets go of Python's lock, for which it then waits longer than it works.
_HASHED_AT_ONCE: Final = 96 << 10

ATTEMPTS: Final = 2
"""Number of times that a shard is fetched before a corrupt one is an error."""

IfFull: TypeAlias = Literal["exceed", "evict", "give up"]
"""Treatment of a new file that exceeds a cache's limit. ``"exceed"``: remove files that are not in use; where that is not
enough, exceed the limit. ``"evict"``: remove files that are not in use; where that is not enough, do not fetch the file.
``"give up"``: remove nothing, and do not fetch the file."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of a cache.

    Attributes:
        validate_hash: ``None``: check each download against the fastest hash that the index has, if any. A hash's name:
            check downloads, and shards found in the cache when they are first opened, against it; the index must have it.
            ``False``: never.
        keep_zip: keep compressed files next to the decompressed ones.
        limit: most bytes of shard files to keep; ``None`` for no limit.
        stall_timeout: seconds without progress after which another process's download is no longer waited for.
        in_memory: shards of a remote are held in memory, while processes of the node read them.
    """

    validate_hash: str | bool | None = None
    keep_zip: bool = False
    limit: int | None = None
    stall_timeout: float = 60.0
    in_memory: bool = False


class ShardCache(ABC):
    """Shard files of one dataset.

    ``root``: the directory that they are read from, or would be. ``store``: where shards come from; ``None`` if the directory
    itself is the dataset. ``watch``: tells whether what is fetched, or read in place, is of the version that was opened;
    ``None`` where names of files have versions.

    Attributes:
        keeps: whether shards that nobody reads stay.
        directory: makes and holds the root, where that is a directory of one version; otherwise ``None``.
        counts: where downloads are counted, if anywhere.
        early: bytes of the downloads that nobody counted, each; what opens the dataset may fetch before anything is read.
        small_files: reads small files, where they are read in place; otherwise ``None``.
        remembered: file with the listing of a directory that is read in place, which is removed when a file is found to
            have been written to since; ``None`` where there is none.
    """

    keeps: ClassVar[bool] = True

    def __init__(
        self, root: Path, store: Store | None, settings: CacheSettings, watch: VersionWatch | None = None
    ) -> None:
        self.root = root
        self.watch = watch
        self.store = store
        self.settings = settings
        self.directory: CacheDirectory | None = None
        self.counts: Counts | None = None
        self.early: list[int] = []
        self.small_files: SmallFileReader | None = None
        self.remembered: Path | None = None

    # -- reading ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, info: ShardInfo) -> list[Buffer] | None:
        """A shard's raw files if all are present with the right size; ``None`` if not.

        A file of a wrong size is not an error here: fetching replaces it. CorruptDataError if a file that is read in place,
        in part, was replaced after it was indexed.
        """

    def open_cut(self, info: ShardInfo) -> list[Buffer] | None:  # noqa: ARG002 - see below
        """A shard's raw files where one is shorter than the index says and no other copy is to be had; otherwise ``None``."""
        return None

    def read_ahead(self, files: Sequence[Buffer]) -> None:  # noqa: B027 - there may be nothing to do
        """Begin to read opened files into memory, before they are needed."""

    def validate(self, info: ShardInfo, files: Sequence[Buffer]) -> None:  # noqa: B027
        """Check files found in the cache where ``validate_hash`` names a hash. CorruptDataError if a hash differs."""

    def url_of(self, info: ShardInfo) -> str:
        """The URL of a shard where it is stored; its path where that is here."""
        if not info.raw:  # nothing of it comes here
            return str(info.detail)
        if self.store is None:
            return f"{self.root}/{info.raw[0].basename}"
        file = info.stored[0]
        return self.store.url_of(file.basename if file.part is None else file.part.key)

    def describe(self, info: ShardInfo) -> str:
        """Names a shard in errors: its URL, and the path of its copy where one is read."""
        return self.url_of(info)

    @abstractmethod
    def discard(self, info: ShardInfo) -> bool:
        """Remove a shard's raw files, which turned out to be corrupt. ``False`` where that would lose the only copy."""

    def evict(self, info: ShardInfo) -> None:
        """Remove all files of a shard that the store has, too."""
        self.discard(info)

    @abstractmethod
    def used(self, shards: Iterable[ShardInfo]) -> int:
        """Bytes that copies of these shards' raw files take here; 0 where they are read where they lie."""

    # -- fetching --------------------------------------------------------------------------------------------------

    def held(self, info: ShardInfo) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002 - where none is removed
        """Have no file of a shard removed to make room for another, until this ends: it is to be fetched, and then opened.

        CacheError if the cache can not be written to.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def fetch(self, info: ShardInfo, *, wait: bool = True, if_full: IfFull = "exceed") -> bool:
        """Bring a shard's raw files into the cache; whether the shard is now present.

        ObjectNotFoundError if neither remote nor cache has it. CorruptDataError if what was fetched, twice, is not what the
        index describes. StorageFullError, CacheError or StorageError if writing or reading failed. ``wait``: wait for
        another process or thread that is fetching it; otherwise it is not present in that case. ``if_full``: what to do
        where the cache is at its limit; see :data:`IfFull`.
        """

    def is_small(self, info: ShardInfo) -> bool:
        """Whether a shard is one small object of the store, which :meth:`fetch_small` may fetch."""
        if self.store is None or info.zip or len(info.raw) != 1:
            return False
        file, part = info.raw[0], info.raw[0].part
        if not 0 < file.bytes <= SMALL_OBJECT or (self.store.transfer.part_size or SMALL_OBJECT) < SMALL_OBJECT:
            return False
        # A whole file, of which only the version is known that it must have.
        return part is None or (file.bytes == part.size and len(part.starts) == 1 and not (part.head or part.in_place))

    def fetch_small(self, info: ShardInfo) -> Buffer | None:
        """Bring a shard for which :meth:`is_small` holds into the cache, and give its bytes: it need not be opened there.

        ``None`` where :meth:`fetch` must handle it, as where another process is fetching it. Errors are those of
        :meth:`fetch`.
        """
        if not self.claim_small([info])[0]:
            return None
        found = self.take_small([info], [self.try_request(info)])[0]
        if isinstance(found, Exception):
            raise found
        return found

    # Many small objects are fetched in three steps: claimed together, requested by as many threads, and taken together.

    def claim_small(self, infos: Sequence[ShardInfo]) -> Sequence[bool]:
        """Say of small shards whether this process is to fetch each now: :meth:`take_small` must follow for those.

        The others are here, or another process or thread is fetching them. CacheError if the cache can not be written to.
        """
        return [True] * len(infos)

    def try_request(self, info: ShardInfo) -> Arrival | Exception:
        """Ask for a small shard that was claimed: the answer, which is not checked yet, or why there is none."""
        try:
            return self._request(info.raw[0])
        except Exception as error:  # noqa: BLE001 - it belongs to the shard, whose claim must end
            return error

    @abstractmethod
    def take_small(
        self, infos: Sequence[ShardInfo], answers: Sequence[Arrival | Exception | None]
    ) -> list[Buffer | Exception | None]:
        """Check small shards that were claimed, and put them into the cache; their claims end.

        ``answers``: what :meth:`try_request` gave for each; ``None`` where it was not asked. Gives for each its bytes, or its
        error, as of :meth:`fetch`; ``None`` where it was not asked.
        """

    def keep(self, name: str, data: bytes, *, limited: bool = False) -> None:  # noqa: B027 - where nothing is kept
        """Put a file into the cache, whole, in place of one that may be there.

        StorageFullError or CacheError if it can not be written. ``limited``: count the file toward the limit, and do not
        write it where eviction does not free enough space.
        """

    def share(self, processes: int, limit: int | None) -> None:  # noqa: B027 - files are shared in any case
        """Say how many processes of this node read this dataset at once.

        ``limit``: bytes that its shards of all streams may take together, or ``None``.
        """

    @property
    def for_others(self) -> int:
        """Bytes of shards that this process may fetch for other processes of its node, before they ask."""
        return 0

    def fetch_for_others(self, info: ShardInfo) -> None:
        """Fetch a shard that this process does not read, unless another process does."""
        self.fetch(info, wait=False)

    def trim(self) -> None:  # noqa: B027
        """Let go of what is in memory beyond that, after an iteration."""

    def close(self) -> None:  # noqa: B027
        """Let go of all that is in memory."""

    def sweep(self) -> None:  # noqa: B027
        """Remove what killed processes left."""

    # -- what arrives ----------------------------------------------------------------------------------------------

    def _count(self, what: Count, number: int) -> None:
        if self.counts is not None:
            self.counts.add(what, number)
        elif what is Count.BYTES_FETCHED:
            self.early.append(number)

    def _attempted(self, fetch: Callable[[], _T]) -> _T:
        """Run a fetch, and again where its checks on arrival find what came corrupt; its result."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return fetch()
            except (CorruptDataError, StorageError) as error:
                if self.watch is not None:
                    self.watch.explain(error)
                corrupt = isinstance(error, CorruptDataError) and not isinstance(error, DatasetChangedError)
                if attempt == ATTEMPTS or self.store is None or not corrupt:
                    raise
                self._count(Count.RETRIES, 1)
                logger.warning("%s; fetching it again", error)
        raise AssertionError("unreachable")

    def _request(self, file: FileInfo) -> Arrival:
        assert self.store is not None
        if file.part is not None:
            return request_whole(self.store, file.part)
        return self.store.request(file.basename, max_bytes=file.bytes)

    def _checked(self, file: FileInfo, answer: Arrival | Exception) -> BufferLike:
        """The bytes of a small file that has arrived. One that is corrupt is asked for again."""
        first = [answer]

        def fetch() -> BufferLike:
            given = first.pop() if first else self._request(file)
            if isinstance(given, Exception):
                raise given
            return self._arrived(file, *given())

        return self._attempted(fetch)

    def _received(self, file: FileInfo, receive: Callable[..., ObjectInfo]) -> None:
        """Have a whole file of the store arrive, and check it. ``receive`` takes ``new_hash=`` as a store's methods do."""
        assert self.store is not None
        name = self._hash_of(file)
        arrived = receive(new_hash=None if name is None else new_hash(name))
        self._count(Count.BYTES_FETCHED, min(arrived.size, file.bytes))
        self._check_size(file, arrived.size)
        if name is not None:
            self._check_digest(file, name, arrived.digest, self.store.url_of(file.basename))
        self._check_version(file, arrived)

    def _arrived(self, file: FileInfo, data: BufferLike, arrived: ObjectInfo) -> BufferLike:
        """A small file that has arrived whole, checked."""
        assert self.store is not None
        self._count(Count.BYTES_FETCHED, len(data))
        if file.part is not None:
            return check_whole(self.store, file.part, data, arrived)
        self._check_size(file, len(data))
        name = self._hash_of(file)
        if name is not None:
            view = memoryview(data)
            parts = [view[first : first + _HASHED_AT_ONCE] for first in range(0, len(view), _HASHED_AT_ONCE)]
            self._check_digest(file, name, hash_hex(name, parts), self.store.url_of(file.basename))
        self._check_version(file, arrived)
        return data

    def _decompressed(
        self, info: ShardInfo, number: int, data: bytes, where: str | Path, memory: Callable[[int], _B]
    ) -> _B:
        """The raw file that a compressed one holds, both checked; ``memory`` gives a buffer of so many bytes for it."""
        file, packed = info.raw[number], info.zip[number]
        if len(data) != packed.bytes:
            raise CorruptDataError(f"{where} has {len(data)} bytes, the index says {packed.bytes}")
        self._check(packed, data, where)
        assert info.compression is not None
        from stoker.formats.common.compression import parse_compression

        try:
            with span(Stage.DECOMPRESS, file.bytes):
                raw = parse_compression(info.compression).decompress_in(data, file.bytes, memory)
        except CorruptDataError as error:
            raise CorruptDataError(f"{where}: {error}") from error
        self._check(file, raw, where)
        return raw

    def _check_version(self, file: FileInfo, info: ObjectInfo) -> None:
        """Check that a file that arrived is of the version that was opened, unless its hash tells."""
        if self.watch is not None and self._hash_of(file) is None:
            self.watch.check_fetched(info)

    def _check_opened(self, file: FileInfo, data: Buffer, info: ObjectInfo) -> None:
        """Check that a file that was just mapped in place is of the version that was opened."""
        if self.watch is None:
            return
        name = fastest_hash(file.hashes)
        if name is None or self.watch.is_older(info.modified):
            self.watch.check_fetched(info)
            return
        # Its bytes may be the same, as after chmod or a hard link: the hash tells.
        where = self.root / file.basename
        try:
            self._check_digest(file, name, hash_hex(name, data), where)
        except CorruptDataError as error:
            self.watch.changed(info.key, "was written after the dataset was opened", error)
        self.watch.look()

    def _check_size(self, file: FileInfo, size: int) -> None:
        """Check a whole file of the store by its size."""
        assert self.store is not None
        if size != file.bytes:
            raise CorruptDataError(f"{self.store.url_of(file.basename)} has {size} bytes, the index says {file.bytes}")

    def _hash_of(self, file: FileInfo) -> str | None:
        """Name of the hash that a whole file is checked against; ``None`` for none."""
        name = self.settings.validate_hash
        if file.part is not None or name is False:  # hashes are of whole files; the format checks its own
            return None
        if not isinstance(name, str):
            return fastest_hash(file.hashes)
        if name not in file.hashes:
            raise ConfigError(
                f"validate_hash={name!r}, but the index has "
                + (f"only {', '.join(sorted(file.hashes))}" if file.hashes else "no hashes")
                + f" for {file.basename}"
            )
        return name

    def _check(self, file: FileInfo, data: Buffer | bytearray, where: str | Path) -> None:
        name = self._hash_of(file)
        if name is not None:
            self._check_digest(file, name, hash_hex(name, data), where)

    def _check_digest(self, file: FileInfo, name: str, found: str, where: str | Path) -> None:
        expected = file.hashes[name]
        if found != expected:
            raise CorruptDataError(
                f"{where}: its {name} is {found}, the index says {expected}. It is damaged, or the dataset was rewritten "
                "after it was opened"
            )

"""The index of a dataset: which shards it has, how many samples they hold and what their files should be."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stoker.digests import blake2b, fastest_hash
from stoker.errors import IndexFileError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.entries import Sizes, column_names, entry_of, identity_line, identity_text
from stoker.index.columnar_shards import FEW, ArrayShards, LazyShards, sample_counts, to_columnar
from stoker.index.parse_index import parse_index, read_regular_entries
from stoker.lazy import cached_property
from stoker.types import Ids

if TYPE_CHECKING:
    from stoker.order.shuffle.shard_table import ShardTable
    from stoker.storage import Store

INDEX_NAME: Final = "index.json"
"""Name of the index below a dataset's root."""
INDEXED: Final = "mds"
"""The name in ``format=`` of shards with an index, of any format."""

MOST_BYTES: Final = 1 << 30
"""Bytes of an index at most: those of about two million shards."""

# An index of less is parsed in little time.
_LARGE: Final = 1 << 18


class ShardList:
    """Shards in order, and what they hold together. Immutable.

    ``shards``: a description each; of many shards, each is made when it is asked for. ``sizes``: samples in each shard;
    int64, shape ``(shards,)``, read-only.
    """

    def __init__(self, shards: Iterable[ShardInfo]) -> None:
        self._set_shards(shards if isinstance(shards, LazyShards) else tuple(shards))

    def _set_shards(self, shards: Sequence[ShardInfo]) -> None:
        self.shards = shards
        self.sizes: Ids = sample_counts(shards)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("sizes", "table")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_shards(self.shards)

    @cached_property
    def table(self) -> ShardTable:
        """The first sample of each shard, computed once for all who ask."""
        from stoker.order.shuffle.shard_table import ShardTable  # a writer, which has an index too, needs no order

        return ShardTable(self.sizes)

    @property
    def distinct_shards(self) -> Sequence[ShardInfo]:
        """Shards among which are all formats, specs, compressions and sets of hashes, with samples and without, in order."""
        shards = self.shards
        return shards.distinct if isinstance(shards, ArrayShards) else shards

    @property
    def samples(self) -> int:
        """Number of samples in all shards."""
        return int(self.sizes.sum())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that every shard has, in the order of the first shard."""
        specs = {id(shard.spec): shard for shard in self.distinct_shards}
        names = [column_names(shard) for shard in specs.values()]
        if not names:
            return ()
        common = set.intersection(*map(set, names))
        return tuple(name for name in names[0] if name in common)

    @property
    def same_columns(self) -> bool:
        """Whether every shard has all of the columns that any has."""
        return all(set(column_names(shard)) == set(self.columns) for shard in self.distinct_shards)

    @property
    def compressed(self) -> bool:
        """Whether any shard is stored compressed."""
        return any(shard.zip for shard in self.distinct_shards)

    @property
    def total_bytes(self) -> int:
        """Bytes of all raw files, and of files that are read in part, of these parts."""
        if isinstance(self.shards, ArrayShards):
            return int(self.shards.raw_bytes.sum())
        return sum(shard.size for shard in self.shards)

    @property
    def largest_shard(self) -> int:
        """Bytes of the raw files of the largest shard, 0 without shards."""
        if isinstance(self.shards, ArrayShards):
            return int(self.shards.raw_bytes.max(initial=0))
        return max((sum(file.bytes for file in shard.raw) for shard in self.shards), default=0)

    def __len__(self) -> int:
        return len(self.shards)


class Index(ShardList):
    """The shards of a dataset, in order. Immutable.

    IndexFileError if two shards share a file, or a file would hide the index. ``shards``: descriptions that a format's
    ``parse_shard`` has checked. ``extra``: top-level keys of the index file beyond ``shards`` and ``version``, kept as they
    are. ``where``: names the index in errors.
    """

    def __init__(
        self, shards: Iterable[ShardInfo], *, extra: Mapping[str, Any] | None = None, where: str = INDEX_NAME
    ) -> None:
        super().__init__(shards)
        self.extra: Mapping[str, Any] = dict(extra or {})
        self._fingerprint: str | None = None
        self._content: dict[str, str] | None = None
        self._check_names(where)

    @classmethod
    def checked(
        cls, shards: LazyShards, extra: Mapping[str, Any], fingerprint: str | None, content: dict[str, str]
    ) -> Index:
        """An index of shards that were checked, and whose :attr:`content` is known.

        ``fingerprint``: ``None`` where it is not known yet.
        """
        made = cls.__new__(cls)
        ShardList.__init__(made, shards)
        made.extra, made._fingerprint, made._content = extra, fingerprint, content
        return made

    @classmethod
    def from_json(cls, data: bytes, where: str, *, sizes: Sizes | None = None, block_size: int | None = None) -> Index:
        """Parse and check an index file: stoker's own, mosaicml-streaming's or litdata's.

        Args:
            data: the file.
            where: names it in errors, such as its URL.
            sizes: asked for the bytes of compressed files, which litdata's index does not tell.
            block_size: of litdata's tokens; see :func:`stoker.formats.litdata.shards_of`.

        Raises:
            IndexFileError: not an index, not version 2, or an entry is incomplete, contradictory or unsafe.
            CorruptDataError: a shard of 0 samples is too large to have none.
            FormatError: a shard's format or a column's encoding is unknown.
        """
        with collector_paused():
            regular = read_regular_entries(data, where, INDEX_NAME) if len(data) >= _LARGE else None
            if regular is not None and len(regular.shards) >= FEW:
                return cls.checked(regular.shards, {}, regular.fingerprint, regular.content)
            shards, extra = parse_index(data, where, sizes, block_size)
            index = cls(shards, extra=extra, where=where)
            columnar = to_columnar(index.shards) if len(index) >= FEW else None
        return index if columnar is None else cls.checked(columnar, index.extra, index.fingerprint, index.content)

    def to_json(self) -> bytes:
        """The index file, keys sorted; for what the reference implementation wrote, the same bytes."""
        shards = [entry_of(shard) for shard in self.shards]
        return json.dumps({**self.extra, "shards": shards, "version": 2}, sort_keys=True).encode()

    @property
    def fingerprint(self) -> str:
        """A hash of what the samples are: names, samples, sizes and columns of the shards, in order.

        The same wherever the dataset lies, and whether or not its shards are compressed or hashed.
        """
        if self._fingerprint is None:
            digest = blake2b(b"", 16)
            told = self.shards.identity() if isinstance(self.shards, ArrayShards) else None
            for text in self._identity() if told is None else told:
                digest.update(text.encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _identity(self) -> Iterator[str]:
        """The text that the fingerprint is a hash of: of each kind of shards how they are read, then a line a shard."""
        kinds: dict[str, int] = {}
        kind_of: dict[int, int] = {}
        lines: list[str] = []
        for shard in self.shards:
            if id(shard.spec) not in kind_of:
                text = identity_text(shard)
                if text not in kinds:
                    kinds[text] = len(kinds)
                    yield text
                kind_of[id(shard.spec)] = kinds[text]
            if shard.detail is not None:
                files = shard.detail.identity
            else:
                # A file of a cache has another name in the data set.
                names = [file.basename if file.part is None else file.part.key for file in shard.raw]
                files = "/".join([f"{name}\0{file.bytes}" for name, file in zip(names, shard.raw, strict=True)])
            lines.append(identity_line(files, shard.samples, kind_of[id(shard.spec)]))
        yield "".join(lines)

    @property
    def content(self) -> dict[str, str]:
        """Name of a hash that every raw file has, and a digest of all these hashes, in order; empty where there is none.

        Tells datasets apart that have the same fingerprint but other samples. A copy has the same, compressed or not.
        """
        if self._content is None:
            self._content = self._digest_hashes()
        return dict(self._content)

    def _digest_hashes(self) -> dict[str, str]:
        files = [file for shard in self.shards for file in shard.raw]
        kinds = {tuple(file.hashes) for file in files}
        name = fastest_hash(set.intersection(*map(set, kinds))) if kinds else None
        if name is None:
            return {}
        return {name: blake2b("".join(file.hashes[name] for file in files).encode(), 16).hexdigest()}

    def file_entries(self) -> dict[str, FileInfo]:
        """Basename to description of every file, raw and compressed."""
        return {file.basename: file for shard in self.shards for file in (*shard.raw, *shard.zip)}

    def file_sizes(self) -> dict[str, int]:
        """Basename to bytes of every file, raw and compressed."""
        return {file.basename: file.whole for shard in self.shards for file in (*shard.raw, *shard.zip)}

    def _check_names(self, where: str) -> None:
        # Parts of files belong to files that several shards share, and so do files of the cache that hold such parts.
        whole = [file.basename for shard in self.shards for file in (*shard.raw, *shard.zip) if file.part is None]
        names = set(whole)
        if len(names) != len(whole):
            seen: set[str] = set()
            for number, shard in enumerate(self.shards):
                for file in (*shard.raw, *shard.zip):
                    if file.part is None and file.basename in seen:
                        raise IndexFileError(f"{where}: shard {number} uses {file.basename!r}, as another shard does")
                    seen.add(file.basename)
        if INDEX_NAME in names:
            raise IndexFileError(f"{where}: a shard's file is called {INDEX_NAME!r}, which is the index")

    def __repr__(self) -> str:
        return f"<Index of {len(self.shards)} shards, {self.samples} samples>"


def load_index(store: Store) -> Index:
    """Read and check a dataset's index.

    ObjectNotFoundError if there is none. StorageError if it has more than 1 GiB. IndexFileError if it is not a valid index.
    """
    data = store.get(INDEX_NAME, max_bytes=MOST_BYTES)
    return Index.from_json(data, store.url_of(INDEX_NAME), sizes=partial(sizes_in, store, INDEX_NAME))


def sizes_in(store: Store, key: str, names: Sequence[str]) -> Mapping[str, int]:
    """The bytes of files that lie beside an index of this key."""
    folder = key.removesuffix(INDEX_NAME)
    found = {
        item.removeprefix(folder): info.size for item, info in store.infos(folder + name for name in names).items()
    }
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise IndexFileError(f"{store.url_of(folder + missing)} is missing, which {store.url_of(key)} lists")
    return found


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection: an index makes many objects and no cycles; collecting would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

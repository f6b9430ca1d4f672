"""The files of a kind of writer, as they lie at a destination: how they are told from others, and what they hold."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.digests import hash_hex
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import identity_of
from stoker.formats.registry import get_format
from stoker.index.shard_files import find_shards, read_shard
from stoker.storage import ObjectInfo, Store
from stoker.storage.url import is_hidden

Look = Callable[[Store, str, Mapping[str, int]], tuple[int, Mapping[str, Any]]]
"""Samples and identity of the files of a number, by their store, the last one's key, and the sizes by their ends."""

_SETTINGS: Final = ("compression", "hashes", "size_limit")


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files of one number that a listing found: a shard, an image, or a file and those that belong to it.

    Attributes:
        sizes: their keys, and bytes.
        whole: whether all files of the number are there, as far as a listing tells.
        own: whether they are of the writer's format.
        source: for :meth:`OutputFiles.inspect`.
    """

    number: int
    sizes: Mapping[str, int]
    whole: bool = True
    own: bool = True
    source: Any = None


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files of one number that are part of the output.

    ``sizes``: their keys, and bytes. ``shard``: the index's description, for formats that have an index.
    """

    number: int
    sizes: Mapping[str, int]
    samples: int
    shard: ShardInfo | None = None

    @classmethod
    def of_shard(cls, number: int, shard: ShardInfo) -> WrittenFiles:
        """The files of a shard."""
        return cls(number, {file.basename: file.bytes for file in shard.stored}, shard.samples, shard)


class OutputFiles(ABC):
    """The files of one kind of writer.

    A writer of other settings can not continue them.

    Attributes:
        settings: see above, as JSON gives them back.
        indexed: whether an index names the files that count; otherwise a listing finds them.
        what: names the files in errors.
    """

    indexed = True
    what = "shards"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = as_json(settings)

    @abstractmethod
    def find(self, listing: Iterable[ObjectInfo], store: Store) -> list[FoundFiles]:
        """The files in a listing that such a writer may have written, by number.

        Files that would be read with what is written are an error.
        """

    @abstractmethod
    def inspect(self, store: Store, found: FoundFiles, keys: Mapping[str, str]) -> WrittenFiles:
        """Read the samples and settings of some files.

        ``keys``: where each of them lies. Files that are damaged or incomplete are a :class:`FormatError`, other columns or
        settings a :class:`ConfigError`.
        """

    def check_columns(self, shard: ShardInfo, where: str) -> None:
        """Check that a shard that is there has the columns of the writer."""
        found = as_json(identity_of(shard))
        wanted = {key: self.settings.get(key) for key in found}
        if found != wanted:
            raise ConfigError(
                f"{where} has other columns: {json.dumps(found)}, but this writer has {json.dumps(wanted)}"
            )


class ShardOutput(OutputFiles):
    """Shards ``shard.00000.mds`` and so on."""

    def find(self, listing: Iterable[ObjectInfo], store: Store) -> list[FoundFiles]:  # noqa: ARG002 - overrides
        """See :class:`OutputFiles`. Sub-directories may hold datasets of their own."""
        return [
            FoundFiles(
                shard.number,
                {shard.key(*role): size for role, size in shard.sizes.items()},
                own=shard.format == self.settings["format"],
                source=shard,
            )
            for shard in find_shards(listing).values()
            if not shard.folder
        ]

    def inspect(self, store: Store, found: FoundFiles, keys: Mapping[str, str]) -> WrittenFiles:  # noqa: ARG002
        info = read_shard(store, found.source)
        where = store.url_of(info.stored[0].basename)
        self.check_columns(info, where)
        theirs = as_json({**info.spec, "compression": info.compression})
        for key in _SETTINGS:
            if theirs.get(key) != self.settings[key]:
                raise ConfigError(
                    f"{where} was written with {key}={theirs.get(key)!r}, but this writer has {self.settings[key]!r}: resume "
                    "with the same settings, or pass exist_ok=True to start again"
                )
        return WrittenFiles.of_shard(found.number, info)


class ImageFiles(OutputFiles):
    """Images ``000000017.jpeg``, in folders that are their labels."""

    what = "images"

    def find(self, listing: Iterable[ObjectInfo], store: Store) -> list[FoundFiles]:  # noqa: ARG002 - overrides
        name = re.compile(rf"(?:[^/]+/)?([0-9]{{9,10}})\.{self.settings['format']}")
        found = [
            FoundFiles(int(match[1]), {item.key: item.size})
            for item in listing
            if (match := name.fullmatch(item.key)) is not None
        ]
        return sorted(found, key=lambda image: image.number)

    def inspect(self, store: Store, found: FoundFiles, keys: Mapping[str, str]) -> WrittenFiles:  # noqa: ARG002
        ((key, size),) = found.sizes.items()
        hashes = {name: hash_hex(name, store.get(key, max_bytes=size)) for name in self.settings["hashes"]}
        entry = {**self.settings, "raw_data": {"basename": key, "bytes": size, "hashes": hashes}}
        info = get_format(self.settings["format"]).parse_shard(entry, store.url_of(key))
        return WrittenFiles.of_shard(found.number, info)


class NumberedFiles(OutputFiles):
    """Files without an index: ``part-00000.parquet``, or a pair ``part-00000.bin`` and ``part-00000.idx``, and so on.

    ``identity`` is what the files are, as ``look`` finds it, and what other files can not be added to.
    """

    indexed = False
    what = "files"

    def __init__(
        self, identity: Mapping[str, Any], settings: Mapping[str, Any], stem: str, ends: Sequence[str], look: Look
    ) -> None:
        super().__init__({**identity, **settings})
        self._identity = as_json(identity)
        self._stem = stem
        self._ends = tuple(ends)
        self._look = look

    def name(self, number: int, end: str) -> str:
        """A file's name."""
        return f"{self._stem}-{number:05}{end}"

    def find(self, listing: Iterable[ObjectInfo], store: Store) -> list[FoundFiles]:
        wanted = re.compile(rf"{self._stem}-([0-9]{{5,10}})(?:{'|'.join(map(re.escape, self._ends))})")
        found: dict[int, dict[str, int]] = {}
        for item in listing:
            match = wanted.fullmatch(item.key)
            if match is not None:
                found.setdefault(int(match[1]), {})[item.key] = item.size
            elif item.key.lower().endswith(self._ends) and not is_hidden(item.key):
                raise ConfigError(
                    f"{store.url_of(item.key)} would be read with what is written here: write to a directory of its own"
                )
        return [FoundFiles(at, sizes, len(sizes) == len(self._ends)) for at, sizes in sorted(found.items())]

    def inspect(self, store: Store, found: FoundFiles, keys: Mapping[str, str]) -> WrittenFiles:
        if not found.whole:
            raise CorruptDataError(f"{store.url_of(min(found.sizes))}: what belongs to it is missing")
        key = self.name(found.number, self._ends[-1])
        sizes = {end: found.sizes[self.name(found.number, end)] for end in self._ends}
        samples, identity = self._look(store, keys[key], sizes)
        if as_json(identity) != self._identity:
            raise ConfigError(
                f"{store.url_of(key)} has other columns: {json.dumps(as_json(identity))}, but this writer has "
                f"{json.dumps(self._identity)}"
            )
        return WrittenFiles(found.number, found.sizes, samples)


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain

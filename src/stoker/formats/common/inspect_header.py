"""What formats share whose files are read without an index: each file says of itself what it holds.

A file may be read in *pieces*, each a shard: lines of text, say, of which a large file is neither fetched nor shuffled
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from stoker.arguments import check_argument, nearest, unknown_name
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import FilePart, ShardInfo
from stoker.formats.common.byte_source import ByteSource
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.common.compression import PACKED
from stoker.types import Array
from stoker.units import parse_bytes

__all__ = [
    "ShardSpan",
    "PieceDetail",
    "HeaderFacts",
    "UnindexedFormat",
    "check_count",
    "file_suffixes",
    "only_settings",
    "piece_bytes",
    "piece_of",
]


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """A part of a file that is a shard of its own.

    Attributes:
        start: its first byte.
        end: the byte after its last.
        samples: how many it holds, at least 1.
    """

    start: int
    end: int
    samples: int


@dataclass(frozen=True, slots=True)
class PieceDetail:
    """Which piece of a file a shard is; see :class:`stoker.formats.base.ShardDetail`.

    Attributes:
        bytes: of the piece.
        identity: tells it from other pieces of other files.
        first: number of its first sample in the file.
    """

    bytes: int
    identity: str
    first: int


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What a file that others wrote says of itself.

    Attributes:
        samples: how many it holds.
        spec: what its shard's description holds: ``columns`` (name to a word for its type), and what else the format
            needs to read it. Plain JSON values.
        pieces: the shards that its data is read as; empty where the file is one shard.
    """

    samples: int
    spec: Mapping[str, Any]
    pieces: Sequence[ShardSpan] = ()


class UnindexedFormat:
    """Base of formats whose files are read as they are.

    Attributes:
        name: what the index and ``format=`` call it.
        suffixes: ends of names of files that count, in lower case.
        beside: ends that replace a file's own, of files that belong to it; the last of them is the one with the data.
        whole: whether :meth:`inspect_header` reads about all of a file, so that it had better be fetched first.
        steps: whether it goes from head to head, so that of a file of large members it reads only the heads.
        packed: whether compressed files of the format are read, too: names that end with one of the suffixes and then one
            of :data:`~stoker.formats.common.compression.PACKED`. They are decompressed once, into the cache.
        settings: names of the settings that :meth:`inspect_header` understands.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    whole: ClassVar[bool] = False
    steps: ClassVar[bool] = False
    packed: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:  # noqa: ARG002
        """What a file holds that stoker has no index of.

        Args:
            source: the file.
            settings: what the caller chose, by name; see :attr:`settings`.

        Raises:
            CorruptDataError, FormatError: it is not of this format, or needs what is not supported; names it.
            ConfigError: the settings do not fit the file.
        """
        raise FormatError(f"{source.where}: files of format {self.name!r} are read only with an index.json")

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of two files together.

        Raises:
            ValueError: they can not be read together; says why.
        """
        if first == other:
            return first
        for name in dict.fromkeys((*first["columns"], *other["columns"])):
            one, two = first["columns"].get(name, "missing"), other["columns"].get(name, "missing")
            if one != two:
                raise ValueError(f"{name!r} is {one} in the first and {two} in the second")
        raise ValueError("they differ in layout")


def piece_of(info: ShardInfo, data: Array, where: str) -> Array:
    """The bytes of a shard that is a piece, from what was opened: the piece itself, or the window that it is mapped in.

    Args:
        info: the shard's description; its last file is the one that has pieces.
        data: what was opened of that file; uint8.
        where: names the shard in errors.

    Raises:
        CorruptDataError: it is not as long as it should be.
    """
    part: FilePart | None = info.raw[-1].part
    skip = part.starts[0] - part.window[0] if part is not None and part.in_place else 0
    found = data[skip:]
    if len(found) != info.raw[-1].bytes:
        raise CorruptDataError(f"{where}: {len(found)} bytes where {info.raw[-1].bytes} were indexed")
    return found


def piece_bytes(settings: Mapping[str, Any], usual: int) -> int:
    """The setting ``piece_bytes``: after how many bytes a piece ends with the sample that ends next.

    Raises:
        ConfigError: it is no size, or less than 1.
    """
    size = parse_bytes(settings.get("piece_bytes", usual))
    if size < 1:
        raise ConfigError(f"piece_bytes={size}: at least 1")
    return size


def file_suffixes(reader: Any) -> tuple[str, ...]:
    """Ends of the names of files that a format reads as they are, in lower case: also of compressed ones."""
    plain: tuple[str, ...] = getattr(reader, "suffixes", ())
    return (*plain, *(one + end for one in plain for end in PACKED)) if getattr(reader, "packed", False) else plain


def check_count(count: int, where: str) -> int:
    """A file's number of samples, if it can be one.

    Raises:
        CorruptDataError: it can not.
    """
    if not 0 <= count <= MAX_OFFSET:
        raise CorruptDataError(f"{where}: {count} samples is impossible")
    return count


# What a setting of this name is, in whichever format has it.
_KINDS: Final[Mapping[str, Any]] = {
    "column": str,
    "columns": Sequence[str] | Mapping[str, str] | None,
    "decode": bool,
    "encodings": Mapping[str, str] | None,
    "header": bool,
    "raw": bool | None,
}


def only_settings(settings: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """See that a format understands all settings.

    Raises:
        ConfigError: it does not, or one is of the wrong type.
    """
    for one, value in settings.items():
        if one not in known:
            raise ConfigError(
                f"format {name!r} has no setting {one!r}{nearest(one, known) or ';'} it has {', '.join(known) or 'none'}"
            )
        if one in _KINDS:
            check_argument(f"format {name!r}", one, _KINDS[one], value)


def check_names(settings: Mapping[str, Any], specs: Iterable[Mapping[str, Any]], where: str) -> None:
    """See that the columns for which a format's settings are exist in any of the files.

    Raises:
        ConfigError: one does not; names it, and the one that was probably meant.
    """
    columns = dict.fromkeys(name for spec in specs for name in spec.get("columns", ()))
    if not columns:
        return
    for setting in ("columns", "encodings"):
        for name in settings.get(setting) or ():
            if name not in columns:
                raise ConfigError(f"{where}: {unknown_name(f'{setting}: column', name, columns)}")

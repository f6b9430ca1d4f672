"""Facts that a file's header tells of a file without an index, and helpers of the formats that read headers.

A file may be read in *spans*, each a shard: lines of text, say, of which a large file is neither fetched nor shuffled
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stoker.arguments import check_argument
from stoker.display import nearest, unknown_name
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.types import Ids
from stoker.units import parse_bytes

Partition = tuple[tuple[str, Any], ...]
"""Names and values of columns that the folders of a file tell, such as ``(("year", 2024),)`` for ``year=2024/``."""


class ShardSpan(NamedTuple):
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
class HeaderFacts:
    """Facts that the header of a file without an index tells.

    Attributes:
        samples: how many it holds.
        spec: what its shard's description holds: ``columns`` (name to a word for its type), and what else the format
            needs to read it. Plain JSON values.
        spans: the shards that its data is read as; empty where the file is one shard. A format with a
            ``describe_shards`` of its own gives the numbers that this needs: int64, one row a shard.
    """

    samples: int
    spec: Mapping[str, Any]
    spans: Sequence[ShardSpan] | Ids = ()


def piece_bytes(settings: Mapping[str, Any], usual: int) -> int:
    """The setting ``piece_bytes``: after how many bytes a span ends with the sample that ends next.

    ConfigError if it is no size, or less than 1.
    """
    size = parse_bytes(settings.get("piece_bytes", usual))
    if size < 1:
        raise ConfigError(f"piece_bytes={size}: must be at least 1")
    return size


def check_count(count: int, where: str) -> int:
    """A file's number of samples, if it can be one. CorruptDataError if it can not."""
    if not 0 <= count <= MAX_OFFSET:
        raise CorruptDataError(f"{where}: {count} samples is impossible")
    return count


# The type of a setting of this name, the same in all formats.
_KINDS: Final[Mapping[str, Any]] = {
    "column": str,
    "columns": Sequence[str] | Mapping[str, str] | None,
    "decode": bool,
    "encodings": Mapping[str, str] | None,
    "header": bool,
    "hive": bool,
    "raw": bool | None,
    "url": bool,
}


def only_settings(settings: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """Check that a format understands all settings. ConfigError if it does not, or one is of the wrong type."""
    for one, value in settings.items():
        if one not in known:
            raise ConfigError(
                f"format {name!r} has no setting {one!r}{nearest(one, known) or ';'} it has {', '.join(known) or 'none'}"
            )
        if one in _KINDS:
            check_argument(f"format {name!r}", one, _KINDS[one], value)


def check_names(settings: Mapping[str, Any], specs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Check that the columns for which a format's settings are exist in any of the files.

    ConfigError if one does not; names it, and the one that was probably meant.
    """
    columns = dict.fromkeys(name for spec in specs for name in spec.get("columns", ()))
    if not columns:
        return
    for setting in ("columns", "encodings", "media"):
        given = settings.get(setting) or ()
        for name in () if isinstance(given, str) else given:
            if name not in columns:
                raise ConfigError(f"{where}: {unknown_name(f'{setting}: column', name, columns)}")

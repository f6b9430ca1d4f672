"""The report of :func:`stoker.inspection.inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stoker.inspection.render import Shown


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column.

    Attributes:
        name: its name.
        type: encoding or type, as the format calls it.
        shape: of a value, where all have the same and the type tells it; ``()`` for single numbers.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """A dataset, as its index or its files' headers tell.

    Attributes:
        url: where it is.
        format: of its shards; several with commas between.
        indexed: whether it has an ``index.json``.
        files: files of the dataset, indexes not counted.
        shards: shards; of Parquet, row groups. ``None`` where that would take reading whole files.
        samples: samples; ``None`` likewise.
        columns: the columns that all shards have.
        stored_bytes: bytes of the files as they are stored.
        raw_bytes: bytes of the decompressed shards, or of Parquet's uncompressed pages; ``None`` where nothing tells.
        compression: codecs, with levels where the index tells.
        hashes: names of the hashes that the index has of its files.
        smallest_shard: stored bytes of the smallest shard; of files without an index, of the smallest file.
        largest_shard: likewise.
        notes: what is to be known beside that.
        preview: the first samples: column to what is shown of its value.
    """

    url: str
    format: str
    indexed: bool
    files: int
    shards: int | None
    samples: int | None
    columns: tuple[ColumnFacts, ...]
    stored_bytes: int
    raw_bytes: int | None
    compression: tuple[str, ...]
    hashes: tuple[str, ...]
    smallest_shard: int
    largest_shard: int
    notes: tuple[str, ...] = ()
    preview: tuple[Mapping[str, Shown], ...] = ()

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("columns", "preview")}
        return {
            **plain,
            "columns": [asdict(column) for column in self.columns],
            "preview": [{name: shown.as_dict() for name, shown in sample.items()} for sample in self.preview],
        }


def shape_of(kind: str) -> tuple[int, ...] | None:
    """The shape that a type's name tells: ``ndarray:uint8:4,3`` and ``uint8[4,3]`` have ``(4, 3)``, ``int`` has ``()``."""
    if kind.startswith("ndarray"):
        parts = kind.split(":")
        return _dims(parts[2]) if len(parts) == 3 else None
    head, bracket, dims = kind.partition("[")
    if bracket:
        return _dims(dims.rstrip("]")) if dims != "]" else None
    number = head.rstrip("0123456789")
    return () if number in ("int", "uint", "float", "bool", "bfloat", "double", "half") else None


def _dims(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        return None

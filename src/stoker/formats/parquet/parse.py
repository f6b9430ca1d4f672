"""Footers of Parquet files: the schema, the row groups and their column chunks.

pyarrow parses footers, too; but it ends the process on some that are damaged (an unknown codec is enough), and it does not
tell the two codecs apart that are both called LZ4. Source: ``parquet.thrift`` of Apache Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final

from stoker.errors import CorruptDataError
from stoker.formats.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    StructSpan,
    skip_struct,
    skip_value,
    struct_numbers,
    unsigned,
)

Chunk = tuple[int, ...]
"""Fields that are read of a column chunk; -1 where one is missing.

Physical type, codec, values, uncompressed and compressed bytes, offsets of the first data page and of the dictionary page;
then the statistics' number of nulls, and where the statistics begin and end in the footer."""

# Numbers of fields of ColumnMetaData, in the order of a Chunk; of its statistics, and of null_count in these.
_CHUNK_FIELDS: Final = (1, 4, 5, 6, 7, 9, 11)
_STATISTICS: Final = 12
_NULL_COUNT: Final = 3
_NO_STATISTICS: Final[StructSpan] = {}, -1, -1

HYBRID: Final = ", times in the hybrid calendar of "
"""Ends ``created_by``, before the time zone, where times are of the Julian calendar before 1582-10-15, and of local mean time
before 1900, as Spark 2 has them, and Spark 3 with the rebase mode LEGACY."""
_SPARK: Final = b"org.apache.spark."


@dataclass(frozen=True, slots=True)
class SchemaElement:
    """One element of a Parquet schema: a column, or a group of columns.

    Attributes:
        children: number of its children, which follow it; 0 for a leaf.
        kind: the physical type of a leaf as ``parquet.thrift`` numbers them, -1 for a group.
        data: its bytes in the footer, a whole struct.
    """

    name: str
    children: int
    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Group:
    """One row group.

    ``bytes``: uncompressed bytes of all columns. ``chunks``: its column chunks, one a leaf of the schema.
    """

    rows: int
    bytes: int
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer.

    Attributes:
        schema: elements of the schema: the root first, children after their parents.
        rows: rows of the file; -1 where it does not say.
        created_by: what wrote the file; with :data:`HYBRID` and a time zone where Spark wrote times in the old calendar.
    """

    schema: list[SchemaElement]
    rows: int
    groups: list[Group]
    metadata: dict[bytes, bytes]
    created_by: str


def parse_statistics(data: bytes) -> dict[int, bytes | int]:
    """Fields of a chunk's statistics by number: binary fields as bytes, booleans as 1 and 0, integers left out.

    CorruptDataError if the bytes are no such struct.
    """
    reader = _FooterReader(data)
    found: dict[int, bytes | int] = {}
    try:
        for field, kind in reader.fields():
            if kind == BINARY:
                found[field] = reader.binary(kind)
            elif kind in (1, 2):
                found[field] = 2 - kind
    except IndexError as error:
        raise CorruptDataError(f"its statistics can not be read ({error})") from None
    return found


def _calendar(metadata: dict[bytes, bytes]) -> str:
    if _SPARK + b"legacyDateTime" not in metadata and _SPARK + b"legacyINT96" not in metadata:
        return ""
    return HYBRID + metadata.get(_SPARK + b"timeZone", b"").decode("ascii", "replace")


def parse_footer(data: bytes, choose: Callable[[list[SchemaElement]], Container[int]] | None = None) -> Footer:
    """Parse a footer.

    ``choose``: which leaves of the schema to read column chunks of; the others' are empty. Default all. CorruptDataError if
    the bytes are no footer, or one whose data is encrypted or lies in other files.
    """
    reader = _FooterReader(data)
    schema: list[SchemaElement] = []
    groups: list[Group] = []
    metadata: dict[bytes, bytes] = {}
    rows, created_by = -1, b""
    try:
        for field, kind in reader.fields():
            if field == 2:
                schema.extend(reader.element() for _ in reader.structs(kind))
            elif field == 3:
                rows = reader.integer(kind)
            elif field == 4:
                chosen = choose(schema) if choose is not None else None
                groups.extend(reader.group(chosen) for _ in reader.structs(kind))
            elif field == 5:
                metadata.update(reader.key_value() for _ in reader.structs(kind))
            elif field == 6:
                created_by = reader.binary(kind)
        if not schema:
            raise CorruptDataError("its footer has no schema")
        return Footer(schema, rows, groups, metadata, created_by.decode() + _calendar(metadata))
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"its footer can not be read ({error})") from None


class _FooterReader:
    """Reads the structs of a footer, from its first byte on.

    What is cut off is an ``IndexError``, what is wrong a ``CorruptDataError``.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of the struct that begins here; a value that is not read meanwhile is passed over."""
        field = 0
        while (head := self._byte()) != 0:
            delta = head >> 4
            field = field + delta if delta else self._signed()
            at = self._at
            yield field, head & 15
            if self._at == at:
                self._at = skip_value(self._data, at, head & 15, 0)

    def structs(self, kind: int) -> range:
        """As many as there are structs in the list that begins here."""
        if kind != LIST:
            raise CorruptDataError("its footer has no list where one should be")
        head = self._byte()
        count, item = head >> 4, head & 15
        count = self._varint() if count == 15 else count
        if (item != STRUCT and count) or count > len(self._data):
            raise CorruptDataError("its footer has no list of structs where one should be")
        return range(count)

    def integer(self, kind: int) -> int:
        """An integer of any width."""
        if kind not in (4, I32, I64):
            raise CorruptDataError("its footer has no integer where one should be")
        return self._signed()

    def binary(self, kind: int) -> bytes:
        """A string."""
        if kind != BINARY:
            raise CorruptDataError("its footer has no string where one should be")
        length = self._varint()
        value = self._data[self._at : self._at + length]
        if len(value) != length:
            raise IndexError("it ends inside a string")
        self._at += length
        return value

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value, self._at = unsigned(self._data, self._at)
        return value

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def element(self) -> SchemaElement:
        start, name, children, physical = self._at, b"", 0, -1
        for field, kind in self.fields():
            if field == 4:
                name = self.binary(kind)
            elif field == 5:
                children = self.integer(kind)
            elif field == 1:
                physical = self.integer(kind)
        return SchemaElement(name.decode(), children, -1 if children else physical, self._data[start : self._at])

    def group(self, chosen: Container[int] | None) -> Group:
        chunks: list[Chunk] = []
        rows = size = -1
        for field, kind in self.fields():
            if field == 1:
                chunks = [
                    self._chunk() if chosen is None or leaf in chosen else self._no_chunk()
                    for leaf in self.structs(kind)
                ]
            elif field == 2:
                size = self.integer(kind)
            elif field == 3:
                rows = self.integer(kind)
        return Group(rows, size, chunks)

    def key_value(self) -> tuple[bytes, bytes]:
        pair = {1: b"", 2: b""}
        for field, kind in self.fields():
            if field in pair:
                pair[field] = self.binary(kind)
        return pair[1], pair[2]

    def _no_chunk(self) -> Chunk:
        self._at = skip_struct(self._data, self._at, 0)
        return ()

    def _chunk(self) -> Chunk:
        found: Chunk | None = None
        for field, kind in self.fields():
            if field == 3 and kind == STRUCT:
                found = self._chunk_metadata()
            elif field == 1 and kind == BINARY:
                if path := self.binary(kind):
                    raise CorruptDataError(f"its data lies in another file, {path!r}, which is not supported")
            elif field in (8, 9):
                raise CorruptDataError("it has encrypted columns, which are not supported")
        if found is None:
            raise CorruptDataError("its footer lacks a column chunk's metadata")
        return found

    def _chunk_metadata(self) -> Chunk:
        spans: dict[int, StructSpan] = {}
        numbers, self._at = struct_numbers(self._data, self._at, spans)
        statistics, begin, end = spans.get(_STATISTICS, _NO_STATISTICS)
        get = numbers.get
        return (*[get(field, -1) for field in _CHUNK_FIELDS], statistics.get(_NULL_COUNT, -1), begin, end)

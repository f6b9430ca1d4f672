"""Reading footers: Thrift's compact protocol, as much of it as Parquet needs.

pyarrow parses footers, too; but it ends the process on some that are damaged (an unknown codec is enough), and it does not
tell the two codecs apart that are both called LZ4. Source: ``thrift-compact-protocol.md`` of Apache Thrift,
``parquet.thrift`` of Apache Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final

from stoker.errors import CorruptDataError

_I32: Final = 5
_I64: Final = 6
_BINARY: Final = 8
_LIST: Final = 9
_STRUCT: Final = 12

_DEEPEST: Final = 32

Chunk = tuple[int, ...]
"""Fields that are read of a column chunk; -1 where one is missing.

Physical type, codec, values, uncompressed and compressed bytes, offsets of the first data page and of the dictionary page;
then the statistics' number of nulls, and where the statistics begin and end in the footer."""

# Numbers of ColumnMetaData's fields, and their indices in a Chunk. Behind them come null_count of its statistics, and where
# these begin and end in the footer.
_CHUNK_FIELDS: Final = {1: 0, 4: 1, 5: 2, 6: 3, 7: 4, 9: 5, 11: 6}
_CHUNK: Final = 10
_NULLS: Final = 7


@dataclass(frozen=True, slots=True)
class SchemaElement:
    """One element of a Parquet schema: a column, or a group of columns.

    Attributes:
        name: its name.
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

    Attributes:
        rows: its rows.
        bytes: uncompressed bytes of all columns.
        chunks: its column chunks, one a leaf of the schema.
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
        groups: the row groups.
        metadata: key-value metadata.
        created_by: what wrote the file.
    """

    schema: list[SchemaElement]
    rows: int
    groups: list[Group]
    metadata: dict[bytes, bytes]
    created_by: str


def parse_statistics(data: bytes) -> dict[int, bytes | int]:
    """Fields of a chunk's statistics by number: binary fields as bytes, booleans as 1 and 0, integers left out.

    Raises:
        CorruptDataError: the bytes are no such struct.
    """
    reader = ThriftReader(data)
    found: dict[int, bytes | int] = {}
    try:
        for field, kind in reader.fields():
            if kind == _BINARY:
                found[field] = reader.binary(kind)
            else:
                if kind in (1, 2):
                    found[field] = 2 - kind
                reader.skip(kind)
    except IndexError as error:
        raise CorruptDataError(f"its statistics can not be read ({error})") from None
    return found


def parse_footer(data: bytes, choose: Callable[[list[SchemaElement]], Container[int]] | None = None) -> Footer:
    """Parse a footer.

    Args:
        data: the footer.
        choose: which leaves of the schema to read column chunks of; the others' are empty. Default all.

    Raises:
        CorruptDataError: the bytes are no footer, or one whose data is encrypted or lies in other files.
    """
    reader = ThriftReader(data)
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
            else:
                reader.skip(kind)
        if not schema:
            raise CorruptDataError("its footer has no schema")
        return Footer(schema, rows, groups, metadata, created_by.decode())
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"its footer can not be read ({error})") from None


class ThriftReader:
    """Reads structs from bytes, from the first on.

    What is cut off is an ``IndexError``, what is wrong a ``CorruptDataError``.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        """Offset of the next value."""
        return self._at

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of the struct that begins here. The caller reads or skips each value."""
        field = 0
        while (head := self._byte()) != 0:
            delta = head >> 4
            field = field + delta if delta else self._signed()
            yield field, head & 15

    def structs(self, kind: int) -> range:
        """As many as there are structs in the list that begins here."""
        if kind != _LIST:
            raise CorruptDataError("its footer has no list where one should be")
        count, item = self._list_head()
        if (item != _STRUCT and count) or count > len(self._data):
            raise CorruptDataError("its footer has no list of structs where one should be")
        return range(count)

    def element(self) -> SchemaElement:
        start, name, children, physical = self._at, b"", 0, -1
        for field, kind in self.fields():
            if field == 4:
                name = self.binary(kind)
            elif field == 5:
                children = self.integer(kind)
            elif field == 1:
                physical = self.integer(kind)
            else:
                self.skip(kind)
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
            else:
                self.skip(kind)
        return Group(rows, size, chunks)

    def key_value(self) -> tuple[bytes, bytes]:
        pair = {1: b"", 2: b""}
        for field, kind in self.fields():
            if field in pair:
                pair[field] = self.binary(kind)
            else:
                self.skip(kind)
        return pair[1], pair[2]

    def _no_chunk(self) -> Chunk:
        self._at = _skip_struct(self._data, self._at, 0)
        return ()

    def _chunk(self) -> Chunk:
        found: Chunk | None = None
        for field, kind in self.fields():
            if field == 3 and kind == _STRUCT:
                found = self._chunk_metadata()
            elif field == 1 and kind == _BINARY:
                if path := self.binary(kind):
                    raise CorruptDataError(f"its data lies in another file, {path!r}, which is not supported")
            elif field in (8, 9):
                raise CorruptDataError("it has encrypted columns, which are not supported")
            else:
                self.skip(kind)
        if found is None:
            raise CorruptDataError("its footer lacks a column chunk's metadata")
        return found

    def _chunk_metadata(self) -> Chunk:
        # This runs once a chunk, of which a dataset may have millions: no helpers but where they are rare.
        values = [-1] * _CHUNK
        data, at, field = self._data, self._at, 0
        while head := data[at]:
            at += 1
            kind = head & 15
            if head > 15:
                field += head >> 4
            else:
                self._at = at
                field = self._signed()
                at = self._at
            if kind in (_I64, _I32):
                byte = data[at]
                at += 1
                value = byte & 127
                shift = 7
                while byte > 127:
                    byte = data[at]
                    at += 1
                    value |= (byte & 127) << shift
                    shift += 7
                if shift > 70:
                    raise CorruptDataError("its footer holds a number that is too long")
                slot = _CHUNK_FIELDS.get(field)
                if slot is not None:
                    values[slot] = (value >> 1) ^ -(value & 1)
            elif field == 12 and kind == _STRUCT:
                nulls, end = _null_count(data, at)
                values[_NULLS:] = nulls, at, end
                at = end
            else:
                at = _skip(data, at, kind, 0)
        self._at = at + 1
        return tuple(values)

    def integer(self, kind: int) -> int:
        """An integer of any width."""
        if kind not in (4, _I32, _I64):
            raise CorruptDataError("its footer has no integer where one should be")
        return self._signed()

    def binary(self, kind: int) -> bytes:
        """A string."""
        if kind != _BINARY:
            raise CorruptDataError("its footer has no string where one should be")
        length = self._varint()
        value = self._data[self._at : self._at + length]
        if len(value) != length:
            raise IndexError("it ends inside a string")
        self._at += length
        return value

    def skip(self, kind: int) -> None:
        """Pass over a value."""
        self._at = _skip(self._data, self._at, kind, 0)

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value, self._at = _unsigned(self._data, self._at)
        return value

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4
        return (self._varint() if count == 15 else count), head & 15


def struct_numbers(data: bytes, at: int, inner: dict[int, dict[int, int]] | None = None) -> tuple[dict[int, int], int]:
    """Integers and booleans of the struct that begins at ``at``, by their fields, and its end.

    Args:
        data: where it lies.
        at: where it begins.
        inner: gets the same of the structs in it, by their fields.

    Raises:
        IndexError: it is cut off.
        CorruptDataError: it is wrong.
    """
    # This runs for each page: of small files, what a step of it takes is no small part of what reading one does.
    found: dict[int, int] = {}
    field = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            field += head >> 4
        else:
            number, at = _unsigned(data, at)
            field = (number >> 1) ^ -(number & 1)
        if 4 <= kind <= 6:
            number, at = (data[at], at + 1) if data[at] < 128 else _unsigned(data, at)
            found[field] = (number >> 1) ^ -(number & 1)
        elif kind in (1, 2):
            found[field] = 2 - kind
        elif kind == _STRUCT and inner is not None:
            inner[field], at = struct_numbers(data, at)
        else:
            at = _skip(data, at, kind, 0)
    return found, at + 1


def _null_count(data: bytes, at: int) -> tuple[int, int]:
    """``null_count`` of the statistics that begin at ``at``, -1 where it is missing; and their end."""
    nulls, field = -1, 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head < 16:
            return nulls, _skip_struct(data, at - 1, 0)
        field += head >> 4
        if field == 3 and kind == _I64:
            start = at
            at = _skip(data, at, kind, 0)
            value = 0
            for index in range(at - 1, start - 1, -1):
                value = value << 7 | data[index] & 127
            nulls = (value >> 1) ^ -(value & 1)
        else:
            at = _skip(data, at, kind, 0)
    return nulls, at + 1


# Functions, not methods: most of a footer is passed over, and attributes would double what that takes.
def _skip_struct(data: bytes, at: int, depth: int) -> int:
    """The end of the struct that begins at ``at``."""
    while head := data[at]:
        at += 1
        kind = head & 15
        if head < 16:
            at = _skip(data, at, _I64, depth)  # the field's number
        if 4 <= kind <= 6:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind > 2:
            at = _skip(data, at, kind, depth)
    return at + 1


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """The end of the value of type ``kind`` that begins at ``at``."""
    if 4 <= kind <= 6:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        length, at = _unsigned(data, at)
        return at + length
    if kind in (1, 2):  # booleans: the value is in the type
        return at
    if depth > _DEEPEST:
        raise CorruptDataError("its footer is nested too deep")
    if kind == _STRUCT:
        return _skip_struct(data, at, depth + 1)
    if kind == 3:
        return at + 1
    if kind == 7:
        return at + 8
    if kind in (_LIST, 10):
        count, kind = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _unsigned(data, at)
        kinds = [3 if kind in (1, 2) else kind]
    elif kind == 11:
        count, at = _unsigned(data, at)
        kinds = [data[at] >> 4, data[at] & 15] if count else []
        at += bool(count)
    else:
        raise CorruptDataError(f"its footer holds a value of unknown type {kind}")
    if count > len(data):
        raise CorruptDataError("its footer holds a list that is longer than itself")
    if kinds == [_I32]:
        for _ in range(count):
            while data[at] > 127:
                at += 1
            at += 1
        return at
    if kinds == [_STRUCT]:
        for _ in range(count):
            at = _skip_struct(data, at, depth + 1)
        return at
    for _ in range(count):
        for item in kinds:
            at = _skip(data, at, item, depth + 1)
    return at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise CorruptDataError("its footer holds a number that is too long")
    return value | byte << shift, at + 1

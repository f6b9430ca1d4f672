"""The columns of a Parquet file, and their types."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.common.entries import FLOATS
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.parse import Footer, SchemaElement
from stoker.formats.parquet.thrift import struct_numbers

ARROW_KEY = b"ARROW:schema"
"""Key of the Arrow types in a footer, as Parquet's types do not tell them in full."""

DECLARED_KEY: Final = b"stoker"
"""Key in a footer of a JSON object whose ``columns`` are the names and encodings of the columns that stoker wrote."""

_DTYPE: Final = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One top-level column.

    Attributes:
        type: what values it holds, in Arrow's terms, without how they are laid out: see :func:`kind_of`; for arrays of one
            dtype and shape that lie in the file as bytes ``dtype[shape]``, such as ``float32[3, 4]``.
        arrow: a schema of this field alone in Arrow's IPC format; empty where the file tells no Arrow types.
        elements: the column's elements of the Parquet schema, as structs that follow each other.
        first: number of its first leaf in the file, which is its index in every row group's list of chunks.
    """

    name: str
    type: str
    arrow: bytes
    elements: bytes
    count: int
    first: int
    paths: tuple[tuple[str, ...], ...]
    kinds: tuple[int, ...]

    @property
    def flat(self) -> bool:
        """Whether each row has one value, null or not, of each leaf: no lists and no structs, which may hold lists."""
        return len(self.paths[0]) == 1 and not self.type.startswith("list<")

    @property
    def leaves(self) -> range:
        """Numbers of its leaves in the file."""
        return range(self.first, self.first + len(self.paths))

    def repetitions(self) -> list[int]:
        """The repetition of each element, as ``parquet.thrift`` numbers them; -1 of all where they can not be read."""
        found, at = list[int](), 0
        try:
            for _ in range(self.count):
                numbers, at = struct_numbers(self.elements, at)
                found.append(numbers.get(3, -1))
        except (IndexError, CorruptDataError):
            return [-1] * self.count
        return found


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The columns of a file, in its order.

    ``created_by``: what wrote the file, as it says; readers know the faults of some writers by it.
    """

    columns: tuple[ColumnSchema, ...]
    created_by: str
    _places: dict[str, tuple[ColumnSchema, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places: dict[str, tuple[ColumnSchema, int]] = {}
        first = 0
        for column in self.columns:
            places.setdefault(column.name, (column, first))
            first += len(column.paths)
        object.__setattr__(self, "_places", places)

    def find(self, name: str) -> tuple[ColumnSchema, int] | None:
        """The column of this name, and the number of its first leaf among those of these columns."""
        return self._places.get(name)

    def as_spec(self) -> dict[str, Any]:
        """The schema in JSON values; ``columns`` are names and types."""
        return {
            "columns": {column.name: column.type for column in self.columns},
            "created_by": self.created_by,
            "schema": [
                {
                    "name": column.name,
                    "arrow": base64.b64encode(column.arrow).decode(),
                    "elements": base64.b64encode(column.elements).decode(),
                    "count": column.count,
                    "first": column.first,
                    "paths": [list(path) for path in column.paths],
                    "kinds": list(column.kinds),
                }
                for column in self.columns
            ],
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> FileSchema:
        """The schema that :meth:`as_spec` wrote."""
        columns = (
            ColumnSchema(
                column["name"],
                spec["columns"][column["name"]],
                base64.b64decode(column["arrow"]),
                base64.b64decode(column["elements"]),
                column["count"],
                column["first"],
                tuple(tuple(path) for path in column["paths"]),
                tuple(column["kinds"]),
            )
            for column in spec["schema"]
        )
        return cls(tuple(columns), spec["created_by"])

    def select(self, names: Sequence[str] | None) -> FileSchema:
        """Only the columns of these names that the file has, in the file's order."""
        if names is None:
            return self
        chosen = set(names)
        return FileSchema(tuple(column for column in self.columns if column.name in chosen), self.created_by)


def kind_of(kind: Any) -> str:
    """Name of an Arrow type, the same for all layouts of the same values.

    Lists of any layout are ``list<...>``, text of any layout ``string``, dictionaries their values' type, tensors of one
    shape ``dtype[shape]``, and all other extension types what they are stored as.
    """
    types = pyarrow().types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return kind_of(kind.value_type)
    if isinstance(kind, pyarrow().FixedShapeTensorType):
        sizes = (str(kind.shape[axis]) for axis in tensor_order(kind))
        return f"{FLOATS.get(str(kind.value_type), kind.value_type)}[{', '.join(sizes)}]"
    if isinstance(kind, pyarrow().Bool8Type):
        return "bool"
    if isinstance(kind, pyarrow().BaseExtensionType):
        return kind_of(kind.storage_type)
    if types.is_map(kind):
        return f"map<{kind_of(kind.key_type)}, {kind_of(kind.item_type)}>"
    if types.is_nested(kind) and hasattr(kind, "value_type"):
        return f"list<{kind_of(kind.value_type)}>"
    if types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {kind_of(field.type)}' for field in kind)}>"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    return str(kind)


def tensor_order(kind: Any) -> list[int]:
    """The axes of a type of tensors, as they lie in memory, in the order that the values have."""
    return list(kind.permutation or range(len(kind.shape)))


def declared_array(field: Any) -> tuple[str, tuple[int, ...]] | None:
    """Data type and shape of a field whose bytes are arrays, as its metadata say; ``None`` where they are just bytes."""
    about = field.metadata or {}
    dtype, shape = (about.get(key, b"").decode("ascii", "replace") for key in (b"dtype", b"shape"))
    if not pyarrow().types.is_fixed_size_binary(field.type) or not _DTYPE.fullmatch(dtype):
        return None
    sizes = [int(size) for size in shape.split(",") if size.isdecimal() and len(size) < 11]
    fits = field.type.byte_width == math.prod(sizes) * np.dtype(dtype).itemsize
    return (dtype, tuple(sizes)) if fits and ",".join(map(str, sizes)) == shape else None


def _declared(field: Any) -> str:
    declared = declared_array(field)
    return "" if declared is None else f"{declared[0]}[{', '.join(map(str, declared[1]))}]"


def read_schema(footer: Footer, arrow_schema: Any) -> FileSchema:
    """A file's schema.

    ``arrow_schema``: the file's Arrow schema, as pyarrow has it. CorruptDataError if the schema contradicts itself.
    """
    elements = footer.schema
    kept = _arrow_fields(footer.metadata, len(arrow_schema))
    columns: list[ColumnSchema] = []
    at, leaf = 1, 0
    for number in range(elements[0].children):
        end, paths, kinds = _tree(elements, at)
        name = elements[at].name
        if number >= len(arrow_schema) or arrow_schema.field(number).name != name:
            raise CorruptDataError(f"the footer's schema has a column {name!r} where pyarrow finds another")
        columns.append(
            ColumnSchema(
                name,
                _declared(arrow_schema.field(number)) or kind_of(arrow_schema.field(number).type),
                kept[number] if kept else b"",
                b"".join(element.data for element in elements[at:end]),
                end - at,
                leaf,
                tuple(paths),
                tuple(kinds),
            )
        )
        at, leaf = end, leaf + len(paths)
    return FileSchema(tuple(columns), footer.created_by)


def leaves_below(elements: Sequence[SchemaElement], names: Container[str] | None) -> Container[int]:
    """Numbers of the leaves of the top-level columns of these names, or of all for ``None``."""
    if names is None or not elements:
        return range(len(elements))
    chosen: list[int] = []
    at, leaf = 1, 0
    for _ in range(elements[0].children):
        if at >= len(elements):
            raise CorruptDataError("its footer's schema ends inside a group")
        name = elements[at].name
        at, paths, _kinds = _tree(elements, at)
        if name in names:
            chosen.extend(range(leaf, leaf + len(paths)))
        leaf += len(paths)
    return frozenset(chosen)


def _tree(elements: Sequence[SchemaElement], at: int) -> tuple[int, list[tuple[str, ...]], list[int]]:
    """End of the element at ``at`` with all below it, and its leaves' paths and physical types."""
    paths: list[tuple[str, ...]] = []
    kinds: list[int] = []
    open_groups: list[tuple[str, int]] = []  # names of the groups that we are in, and their children still to come
    while True:
        if at >= len(elements):
            raise CorruptDataError("the footer's schema ends inside a group")
        element = elements[at]
        at += 1
        if element.children:
            open_groups.append((element.name, element.children))
            continue
        paths.append((*(name for name, _ in open_groups), element.name))
        kinds.append(element.kind)
        while open_groups:
            name, left = open_groups.pop()
            if left > 1:
                open_groups.append((name, left - 1))
                break
        if not open_groups:
            return at, paths, kinds


def _arrow_fields(metadata: Mapping[bytes, bytes], count: int) -> list[bytes] | None:
    """The kept Arrow schema, a serialised schema for each field; ``None`` where there is none that fits."""
    kept = metadata.get(ARROW_KEY)
    if not kept:
        return None
    pa = pyarrow()
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept)))
        return [_alone(field) for field in schema] if len(schema) == count else None
    except (binascii.Error, UnicodeDecodeError, pa.ArrowException, OSError):
        return None


def _alone(field: Any) -> bytes:
    schema = pyarrow().schema([field.with_type(plain_layout(field.type, large=True)).remove_metadata()])
    data: bytes = schema.serialize().to_pybytes()
    return data


def plain_layout(kind: Any, *, large: bool) -> Any:
    """The layout of a type that all of pyarrow knows: text and lists one after the other, values instead of runs of them,
    and dates of milliseconds, as JavaScript has them, as times: Parquet would leave out the time of day.

    ``kind``: a ``pyarrow.DataType``. ``large``: to decode to: no dictionaries either, and offsets of 64 bits, which reach
    everywhere. Otherwise to write: what extension types are stored as, but for tensors, whose shape that would lose.
    """
    pa, types = pyarrow(), pyarrow().types

    def plain(inner: Any) -> Any:
        return plain_layout(inner, large=large)

    if isinstance(kind, pa.BaseExtensionType):
        return kind if large or isinstance(kind, pa.FixedShapeTensorType) else plain(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        values = plain(kind.value_type)
        kept = not (large or types.is_run_end_encoded(kind) or types.is_nested(values)) and values == kind.value_type
        return kind if kept else values
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), kind.item_field.with_type(plain(kind.item_type)), kind.keys_sorted)
    if types.is_nested(kind) and hasattr(kind, "value_type"):
        inner = kind.value_field.with_type(plain(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(inner, kind.list_size)
        wide = large or types.is_large_list(kind) or types.is_large_list_view(kind)
        return (pa.large_list if wide else pa.list_)(inner)
    if types.is_date64(kind) and not large:
        return pa.timestamp("ms")
    if kind_of(kind) == "string":
        return pa.large_string() if large or types.is_large_string(kind) else pa.string()
    if kind_of(kind) == "binary":
        return pa.large_binary() if large or types.is_large_binary(kind) else pa.binary()
    return kind

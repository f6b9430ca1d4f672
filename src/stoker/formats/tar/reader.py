"""WebDataset's tar files: a sample is the files of one name that follow each other, a column for each of their extensions.

As in WebDataset, what comes before the first dot of a file's own name is the sample's key, with the directories in front,
and what follows it, in lower case, names the column. Files without a dot, directories and links are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.byte_source import ByteSource, HeadView, head_rows, heads_of
from stoker.formats.common.checks import refuse, string_list
from stoker.formats.common.container import (
    PackedFormat,
    PackedShard,
    decode_fixed,
    decode_values,
    read_offsets,
)
from stoker.formats.common.container_writer import fixed_kind
from stoker.formats.common.inspect_header import HeaderFacts, check_count, only_settings
from stoker.formats.common.rows.gather import address_of, gather_rows
from stoker.formats.content import check_declared
from stoker.formats.format import GeneratedFiles
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.media.columns import HANDLES, Handle
from stoker.formats.media.source import MEDIA, SharedRanges, StoredFile
from stoker.formats.unstacked import spread
from stoker.types import Array, Buffer, Column, Ids

KEY: Final = "__key__"
"""Column of the samples' keys."""
URL: Final = "__url__"
"""Column of the archive's name below the dataset, where it is asked for."""

_BLOCK: Final = 512
_LONGEST: Final = 1 << 16
# Columns times samples, of which each takes 8 bytes, that are always allowed, and for each file that there is.
_MOST_CELLS: Final = 1 << 22
_CELLS_A_FILE: Final = 64
_REGULAR: Final = (0, ord("0"), ord("7"))
_META: Final = re.compile(rb"__[^/]*__($|/)")
# Extensions of text, and how others' files are read by them, as WebDataset decodes them; all others are bytes.
_TEXTS: Final = {
    **dict.fromkeys(("txt", "text", "transcript"), "str"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "str_int"),
    **dict.fromkeys(("json", "jsn"), "json"),
}
_WHOLE_NUMBER: Final = re.compile("int|u?int(8|16|32|64)")
DIGITS: Final = "digit_columns"
"""Key of an index's entry: the columns of whole numbers whose files hold digits, as readers without an index expect."""


@dataclass(frozen=True, slots=True)
class Members:
    """The files of an archive that belong to samples.

    Attributes:
        keys: the samples' keys.
        indices: for each column, for each sample the number of its file, -1 where it has none.
        begins: where each file's bytes begin.
        lengths: how many there are.
    """

    keys: list[bytes]
    indices: dict[str, Ids]
    begins: Ids
    lengths: Ids


def read_members(data: Buffer | HeadView, where: str) -> Members:
    """Read an archive's headers, each of which tells where the next one is.

    Raises:
        CorruptDataError: it is no archive, is cut off, a sample has two files of one extension, or the files of a sample do
            not follow each other.
    """
    if not len(data):
        raise CorruptDataError(f"{where}: the file is empty (0 bytes), so it is no tar archive")
    heads, names, begins, lengths = _walk(data, where)
    _check_sums(data, heads, where)
    keys: list[bytes] = []
    found: dict[bytes, dict[int, int]] = {}
    first_of: dict[bytes, int] = {}
    again: list[tuple[int, int]] = []  # samples of one key
    last: bytes | None = None
    for number, name in enumerate(names):
        folder, slash, file = name.rpartition(b"/")
        base, dot, extension = file.partition(b".")
        if not dot or _META.match(name) or not (base or (slash and b"." not in folder.rpartition(b"/")[2])):
            continue
        key = folder + slash + base  # of "a/.jpg" it is "a/", as for WebDataset
        if key != last:
            if (first := first_of.setdefault(key, len(keys))) != len(keys):
                again.append((first, len(keys)))
            keys.append(key)
            last = key
        if found.setdefault(extension.lower(), {}).setdefault(len(keys) - 1, number) != number:
            raise CorruptDataError(f"{where}: sample {_text(key)!r} has two files that end with {_text(extension)!r}")
    for one, other in again:
        if not any(one in by_sample and other in by_sample for by_sample in found.values()):
            raise CorruptDataError(
                f"{where}: the files of sample {_text(keys[one])!r} do not follow each other, and would be read as two "
                "samples, here as by WebDataset: pack the archive again, with its files sorted by name (`tar --sort=name "
                "-cf ...`)"
            )
    if len(found) * len(keys) > max(_MOST_CELLS, _CELLS_A_FILE * len(names)):
        raise CorruptDataError(
            f"{where}: {len(keys):,} samples have files of {len(found):,} different extensions, which are its columns: what "
            "comes after the first dot of a name is its extension, so names need other characters in place of dots"
        )
    indices: dict[str, Ids] = {}
    for extension, by_sample in sorted(found.items()):
        index = np.full(len(keys), -1, np.int64)
        index[list(by_sample)] = list(by_sample.values())
        indices[_text(extension)] = index
    return Members(keys, indices, np.array(begins, np.int64), np.array(lengths, np.int64))


def _walk(data: Buffer | HeadView, where: str) -> tuple[list[int], list[bytes], list[int], list[int]]:
    """Offset of all headers; name, begin and length of each regular file."""
    size = len(data)
    heads: list[int] = []
    names: list[bytes] = []
    begins: list[int] = []
    lengths: list[int] = []
    at = 0
    long_name: bytes | None = None
    long_size: int | None = None
    while at + _BLOCK <= size:
        head = data[at : at + _BLOCK]
        if not head[0] and not head.strip(b"\0"):
            break
        heads.append(at)
        kind = head[156]
        length = _number(head[124:136], where, at)
        begin = at + _BLOCK
        if long_size is not None and kind in _REGULAR:
            length, long_size = long_size, None
        at = begin + -(-length // _BLOCK) * _BLOCK
        if begin + length > size:
            raise CorruptDataError(
                f"{where}: the file at byte {begin - _BLOCK} has {length} bytes, past the archive's end"
            )
        if kind in _REGULAR:
            if long_name is not None:
                name, long_name = long_name, None
            else:
                name = head[:100].split(b"\0", 1)[0]
                if head[345] and head[257:263] == b"ustar\0":
                    name = head[345:500].split(b"\0", 1)[0] + b"/" + name
            names.append(name)
            begins.append(begin)
            lengths.append(length)
        elif kind in (ord("x"), ord("L")):
            if length > _LONGEST:
                raise CorruptDataError(f"{where}: a name of {length} bytes at byte {begin}")
            body = data[begin : begin + length]
            if kind == ord("L"):
                long_name = body.split(b"\0", 1)[0]
            else:
                given, long_size = _extended(body, where, begin)
                long_name = given if given is not None else long_name
        elif kind != ord("g"):
            long_name = long_size = None
    else:
        if at != size:
            raise CorruptDataError(f"{where}: not a tar archive, or cut off: it ends at byte {size}, in a header")
    return heads, names, begins, lengths


def _number(field: bytes, where: str, at: int) -> int:
    """A size: octal digits, or binary where they would not do."""
    try:
        if field[0] & 0x80:
            return int.from_bytes(field[1:], "big")
        number = int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise CorruptDataError(f"{where}: not a tar archive, for at byte {at} is no header of one")
    return number


def _extended(body: bytes, where: str, at: int) -> tuple[bytes | None, int | None]:
    """Name and size that an extended header gives the next file: records ``length key=value newline``."""
    name: bytes | None = None
    size: int | None = None
    begin = 0
    try:
        while begin < len(body):
            space = body.index(b" ", begin)
            end = begin + int(body[begin:space])
            if end <= space or end > len(body):
                raise ValueError("a record leaves the header")
            key, _, value = body[space + 1 : end - 1].partition(b"=")
            if key == b"path":
                name = value
            elif key == b"size":
                size = int(value)
                if size < 0:
                    raise ValueError("a negative size")
            begin = end
    except ValueError as error:
        raise CorruptDataError(f"{where}: the extended header at byte {at} is damaged: {error}") from None
    return name, size


def _check_sums(data: Buffer | HeadView, heads: list[int], where: str) -> None:
    step = 1 << 13  # headers at a time, so that they take little memory
    for first in range(0, len(heads), step):
        here = np.array(heads[first : first + step], np.int64)
        blocks: NDArray[np.uint8] = head_rows(data, here, _BLOCK)
        told = [_octal(block) for block in blocks[:, 148:156].view("S8").ravel().tolist()]
        blocks[:, 148:156] = 32
        wrong = np.flatnonzero(blocks.sum(axis=1, dtype=np.int64) != np.array(told, np.int64))
        if wrong.size:
            raise CorruptDataError(f"{where}: the header at byte {here[wrong[0]]} does not have its checksum")


def _octal(field: bytes) -> int:
    try:
        return int(field.strip(b"\0 ").split(b"\0", 1)[0], 8) & 0xFFFFFFFF
    except ValueError:
        return -1


def is_number(extension: str, encoding: str) -> bool:
    """Whether values of an encoding are whole numbers, and readers take an extension's files for such, in digits."""
    return _encoding_of(extension) == "str_int" and _WHOLE_NUMBER.fullmatch(encoding) is not None


def _encoding_of(extension: str) -> str:
    """The encoding of files of an extension; of one with dots, such as ``meta.json``, by its last part, as in WebDataset."""
    return _TEXTS.get(extension.rpartition(".")[2], "bytes")


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


class TarShard(PackedShard):
    """An open archive."""

    __slots__ = ("_data", "_digits", "_media", "_members", "_own", "_source", "_url")

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        read_offsets(info, files, where)
        left = info.detail if isinstance(info.detail, StoredFile) else None
        self._source = None if left is None else left.source
        self._data: Buffer | HeadView = files[0] if left is None else HeadView(SharedRanges(left.source))
        self._members = read_members(self._data, where)
        self._own = "column_names" in info.spec
        self._url = info.raw[0].basename if left is None else left.key
        self._media: Mapping[str, str] = info.spec.get(MEDIA, {})
        self._digits = frozenset(info.spec.get(DIGITS, ()))
        if len(self._members.keys) != info.samples:
            raise CorruptDataError(
                f"{where}: the archive holds {len(self._members.keys)} samples, the index says {info.samples}"
            )

    def take(self, name: str, rows: Ids) -> Column:
        """See :class:`~stoker.formats.common.container.PackedShard`. A sample without the file has ``None``."""
        members, encoding = self._members, self.encodings[name]
        if name == KEY:
            keys = members.keys
            return decode_values(encoding, [keys[row] for row in rows.tolist()], rows, name, self.where)
        if name == URL and not self._own:
            return [self._url] * len(rows)
        index = members.indices.get(name)
        chosen = np.full(len(rows), -1, np.int64) if index is None else index[rows]
        there = chosen >= 0
        if self._own and not there.all():
            row = int(rows[int(np.argmin(there))])
            raise CorruptDataError(f"{self.where}: sample {row} has no file for column {name!r}")
        begins, lengths = members.begins[chosen[there]], members.lengths[chosen[there]]
        present = rows if there.all() else rows[there]
        try:
            column = self._decoded(name, begins, lengths, present)
        except CorruptDataError as error:
            if not self._own:
                first = self._data[int(begins[0]) : int(begins[0] + lengths[0])]
                check_declared(self.where, name, encoding, bytes(first), error)
            raise
        if there.all():
            return column
        return spread(column, np.flatnonzero(there).tolist(), len(rows))

    def _decoded(self, name: str, begins: Ids, lengths: Ids, present: Ids) -> Column:
        """The values of the files of some samples, all of which have one."""
        encoding = self.encodings[name]
        column: Column
        if name in self._media:
            column = self._handles(name, begins, lengths, present)
        elif name in self._digits:
            column = self._numbers(name, begins, lengths, present)
        elif encoding.size is not None:
            if len(present) and (lengths != encoding.size).any():
                row = int(present[int(np.argmax(lengths != encoding.size))])
                raise CorruptDataError(
                    f"{self.where}: sample {row}: column {name!r} is not of the {encoding.size} bytes of {encoding.name}"
                )
            column = encoding.decode_fixed(np.zeros((0, encoding.size), np.uint8))
            if len(present):
                column = decode_fixed(encoding, self._fixed(begins, encoding.size), present, name, self.where)
        else:
            views = self.options.views and encoding.verbatim and not isinstance(self._data, HeadView)
            data: Any = memoryview(self._data) if views else self._data  # type: ignore[arg-type]
            values = [data[a:b] for a, b in zip(begins.tolist(), (begins + lengths).tolist(), strict=True)]
            column = decode_values(encoding, values, present, name, self.where)
        return column

    def _fixed(self, begins: Ids, size: int) -> NDArray[np.uint8]:
        """The bytes of files of one size; shape ``(len(begins), size)``."""
        if isinstance(self._data, HeadView):
            found = b"".join([self._data[begin : begin + size] for begin in begins.tolist()])
            return np.frombuffer(found, np.uint8).reshape(-1, size).copy()
        return gather_rows(address_of(np.frombuffer(self._data, np.uint8)) + begins, size)

    def _handles(self, name: str, begins: Ids, lengths: Ids, rows: Ids) -> list[Handle]:
        """Handles of files, which read of the archive what they need."""
        handle, keys = HANDLES[self._media[name]], self._members.keys
        made = []
        for row, begin, size in zip(rows.tolist(), begins.tolist(), lengths.tolist(), strict=True):
            if self._source is not None:
                made.append(handle.of(self._source.part(begin, size, f"{_text(keys[row])}.{name}")))
            else:
                made.append(handle(self._data[begin : begin + size]))
        return made

    def _numbers(self, name: str, begins: Ids, lengths: Ids, rows: Ids) -> Array:
        """Numbers in digits, in the column's own data type."""
        values = [self._data[a:b] for a, b in zip(begins.tolist(), (begins + lengths).tolist(), strict=True)]
        numbers = decode_values(get_encoding("str_int"), values, rows, name, self.where)
        dtype, _ = fixed_kind(self.encodings[name])
        try:
            return np.array(numbers, dtype)
        except OverflowError as error:
            raise CorruptDataError(f"{self.where}: column {name!r}: a number does not fit {dtype}: {error}") from None


def _spec_of(columns: Mapping[str, str], media: Mapping[str, str]) -> dict[str, Any]:
    """The spec of an archive without an index. Files of whole numbers, by extension, hold digits, whatever their type."""
    spec: dict[str, Any] = {"columns": columns, "encodings": columns}
    if media:
        spec[MEDIA] = media
    if digits := [name for name, encoding in columns.items() if is_number(name, encoding)]:
        spec[DIGITS] = digits
    return spec


class TarFormat(PackedFormat):
    """One archive a shard."""

    name = "tar"
    aliases = ("webdataset",)
    shard = "an archive, as WebDataset has it"
    reader = TarShard
    writer = "stoker.writing.shard_formats:TarWriter"
    views = "bytes"
    generated = GeneratedFiles("stoker.generation.formats.records:TarLayout", (".tar",), extensions=True)
    suffixes = (".tar",)
    packed = True
    whole = True
    steps = True
    settings = ("columns", "encodings", "url", MEDIA)

    def parse_more(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """See :class:`~stoker.formats.common.container.PackedFormat`: which columns are digits."""
        if DIGITS not in obj:
            return {}
        names = string_list(obj, DIGITS, where)
        encodings = dict(zip(obj["column_names"], obj["column_encodings"], strict=True))
        for name in names:
            if not is_number(name, encodings.get(name, "")):
                refuse(where, f"{DIGITS!r} names {name!r}, which is no column of whole numbers")
        return {DIGITS: names}

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``columns`` (extensions to read, default all, and ``__key__``), ``encodings`` (extension to how its files
        are decoded, ``{"jpg": "jpeg"}``; default text, whole numbers and JSON for their usual extensions, else bytes),
        ``url`` (whether the archive's name is a column, too, ``__url__``) and ``media`` (extension to ``"video"`` or
        ``"audio"``: handles that read of the archive what a clip needs).
        """
        only_settings(settings, self.settings, self.name)
        members = read_members(heads_of(source), source.where)
        chosen = settings.get("columns")
        given = settings.get("encodings") or {}
        if chosen is not None and not chosen:
            raise ConfigError("columns is empty: give at least one")
        columns = {
            name: given.get(name, _encoding_of(name))
            for name in (KEY, *members.indices)
            if chosen is None or name in chosen
        }
        if KEY in columns:
            columns[KEY] = "str"
        if settings.get("url"):
            columns[URL] = "str"
        media = settings.get(MEDIA) or {}
        if not isinstance(media, Mapping) or not HANDLES.keys() >= set(media.values()):
            raise ConfigError(f"format 'tar': {MEDIA}={media!r}: extensions and 'video' or 'audio', {{'mp4': 'video'}}")
        for encoding in given.values():
            get_encoding(encoding)
        columns.update(dict.fromkeys(media.keys() & columns.keys(), "bytes"))
        return HeaderFacts(check_count(len(members.keys), source.where), _spec_of(columns, media))

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`~stoker.formats.common.container.PackedFormat`: the columns of both, as a sample need not have all."""
        if first == other:
            return first
        columns = dict(sorted({**first["columns"], **other["columns"]}.items()))
        return _spec_of(columns, first.get(MEDIA, {}))

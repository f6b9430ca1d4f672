"""WebDataset's tar files: a sample is the files of one name that follow each other, a column for each of their extensions.

As in WebDataset, what comes before the first dot of a file's own name is the sample's key, with the directories in front,
and what follows it, in lower case, names the column. Files without a dot, directories, symbolic links out of the archive and
what macOS keeps beside files are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import must_be
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import (
    check_declared,
    check_indexed,
    check_memory,
    decode_fixed,
    decode_values,
    packed_as,
    refuse,
    string_list,
)
from stoker.formats.common.container import PackedFormat, PackedShard, fixed_kind, read_offsets
from stoker.formats.common.gather import address_of, cut, gather_rows
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, HeadView, check_count, heads_of
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.media.columns import HANDLES, Handle
from stoker.formats.media.source import MEDIA, SharedRanges, StoredFile
from stoker.formats.tar.headers import read_files
from stoker.formats.unstacked import spread
from stoker.integers import first_true
from stoker.types import Array, Buffer, Column, Ids

KEY: Final = "__key__"
"""Column of the samples' keys."""
URL: Final = "__url__"
"""Column of the archive's name below the dataset, where it is asked for."""

# Columns times samples, of which each takes 8 bytes, that are always allowed, and for each file that there is.
_MOST_CELLS: Final = 1 << 22
_CELLS_A_FILE: Final = 64
# What macOS keeps of files beside them (AppleDouble), and of folders in them.
_OF_MACOS: Final = (b"._", b".DS_Store")
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
        indices: for each column, for each sample the number of its file, -1 where it has none.
        begins: where each file's bytes begin.
        lengths: how many there are.
        sparse: where the parts of files with holes go, see :class:`~stoker.formats.tar.headers.ArchiveFiles`.
    """

    keys: list[bytes]
    indices: dict[str, Ids]
    begins: Ids
    lengths: Ids
    sparse: Mapping[int, NDArray[np.int64]]


def read_members(data: Buffer | HeadView, where: str) -> Members:
    """Read an archive's headers, each of which tells where the next one is.

    CorruptDataError if it is no archive, is cut off, a sample has two files of one extension or one that ends like a column
    of the reader's own, the files of a sample do not follow each other, or no file has an extension.
    """
    if not len(data):
        raise CorruptDataError(f"{where}: the file is empty (0 bytes), so it is not a tar archive")
    try:
        files = read_files(data, where)
    except CorruptDataError as error:
        if what := packed_as(bytes(data[:16])):
            raise CorruptDataError(f"{where}: not a tar archive, but {what}") from error
        raise
    names = files.names
    keys: list[bytes] = []
    found: dict[bytes, dict[int, int]] = {}
    first_of: dict[bytes, int] = {}
    again: list[tuple[int, int]] = []  # samples of one key
    last: bytes | None = None
    passed_over = b""
    for number, name in enumerate(names):
        folder, slash, file = name.rpartition(b"/")
        base, dot, extension = file.partition(b".")
        if _META.match(name) or file.startswith(_OF_MACOS):
            continue
        if not dot or not (base or (slash and b"." not in folder.rpartition(b"/")[2])):
            passed_over = passed_over or name
            continue
        key = folder + slash + base  # of "a/.jpg" it is "a/", as for WebDataset
        if key != last:
            if (first := first_of.setdefault(key, len(keys))) != len(keys):
                again.append((first, len(keys)))
            keys.append(key)
            last = key
        if found.setdefault(extension.lower(), {}).setdefault(len(keys) - 1, number) != number:
            raise CorruptDataError(f"{where}: sample {_text(key)!r} has two files that end with {_text(extension)!r}")
    if passed_over and not keys:
        raise CorruptDataError(
            f"{where}: none of its files has an extension, by which its columns are told: the first is "
            f"{_text(passed_over)!r}. Pack files with names such as img0.jpg"
        )
    for own in {KEY.encode(), URL.encode()}.intersection(found):
        key = keys[next(iter(found[own]))]
        raise CorruptDataError(
            f"{where}: sample {_text(key)!r} has a file that ends with {_text(own)!r}, a column that the reader makes"
        )
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
    return Members(keys, indices, np.array(files.begins, np.int64), np.array(files.lengths, np.int64), files.sparse)


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
        check_indexed(f"{where}: the archive holds", len(self._members.keys), info.samples, "samples")

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
        if self._own and (missing := first_true(~there)) is not None:
            raise CorruptDataError(f"{self.where}: sample {rows[missing]} has no file for column {name!r}")
        files = chosen[there]
        present = rows if there.all() else rows[there]
        try:
            column = self._decoded(name, files, present)
        except CorruptDataError as error:
            if not self._own:
                check_declared(self.where, name, encoding, bytes(self._contents(files[:1])[0]), error)
            raise
        if there.all():
            return column
        return spread(column, np.flatnonzero(there).tolist(), len(rows))

    def _contents(self, files: Ids, *, views: bool = False) -> list[Any]:
        """The bytes of files by their numbers, as views of the archive if that may be."""
        members = self._members
        begins, lengths = members.begins[files], members.lengths[files]
        data: Any = memoryview(self._data) if views else self._data  # type: ignore[arg-type]
        if not members.sparse:
            return cut(data, begins, begins + lengths)
        return [
            self._filled(begin, length, members.sparse[file])
            if file in members.sparse
            else data[begin : begin + length]
            for file, begin, length in zip(files.tolist(), begins.tolist(), lengths.tolist(), strict=True)
        ]

    def _filled(self, begin: int, length: int, parts: NDArray[np.int64]) -> bytes:
        """A file with zeros in its holes."""
        check_memory(length, int(parts[:, 1].sum()), self.options.decoded_bytes, f"{self.where}: a sparse file")
        found = bytearray(length)
        for offset, size in parts.tolist():
            found[offset : offset + size] = self._data[begin : begin + size]
            begin += size
        return bytes(found)

    def _decoded(self, name: str, files: Ids, present: Ids) -> Column:
        """The values of the files of some samples, all of which have one."""
        encoding, lengths = self.encodings[name], self._members.lengths[files]
        column: Column
        if name in self._media:
            column = self._handles(name, files, present)
        elif name in self._digits:
            column = self._numbers(name, files, present)
        elif encoding.size is not None:
            if (wrong := first_true(lengths != encoding.size)) is not None:
                raise CorruptDataError(
                    f"{self.where}: sample {present[wrong]}: column {name!r} is not of the {encoding.size} bytes of "
                    f"{encoding.name}"
                )
            column = decode_fixed(encoding, self._fixed(files, encoding.size), present, name, self.where)
        else:
            views = self.options.views and encoding.verbatim and not isinstance(self._data, HeadView)
            column = decode_values(encoding, self._contents(files, views=views), present, name, self.where)
        return column

    def _fixed(self, files: Ids, size: int) -> NDArray[np.uint8]:
        """The bytes of files of one size; shape ``(len(files), size)``."""
        if isinstance(self._data, HeadView) or self._members.sparse:
            return np.frombuffer(b"".join(self._contents(files)), np.uint8).reshape(-1, size).copy()
        return gather_rows(address_of(np.frombuffer(self._data, np.uint8)) + self._members.begins[files], size)

    def _handles(self, name: str, files: Ids, rows: Ids) -> list[Handle]:
        """Handles of files, which read of the archive what they need."""
        handle, members = HANDLES[self._media[name]], self._members
        made = []
        for row, file in zip(rows.tolist(), files.tolist(), strict=True):
            if self._source is not None and file not in members.sparse:
                begin, size = int(members.begins[file]), int(members.lengths[file])
                made.append(handle.of(self._source.part(begin, size, f"{_text(members.keys[row])}.{name}")))
            else:
                made.append(handle(self._contents(np.array([file]))[0]))
        return made

    def _numbers(self, name: str, files: Ids, rows: Ids) -> Array:
        """Numbers in digits, in the column's own data type."""
        numbers = decode_values(get_encoding("str_int"), self._contents(files), rows, name, self.where)
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
    views = "bytes"
    suffixes = (".tar",)
    packed = True
    whole = True
    steps = True
    settings = ("columns", "encodings", "url", MEDIA)

    def parse_spec(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """See :class:`~stoker.formats.format.Format`: that of MDS, and which columns are digits."""
        spec = super().parse_spec(obj, where)
        if DIGITS not in obj:
            return spec
        names = string_list(obj, DIGITS, where)
        encodings = dict(zip(spec["column_names"], spec["column_encodings"], strict=True))
        for name in names:
            if not is_number(name, encodings.get(name, "")):
                refuse(where, f"{DIGITS!r} names {name!r}, which is not a column of whole numbers")
        return {**spec, DIGITS: names}

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``columns`` (extensions to read, default all, and ``__key__``), ``encodings`` (extension to how its files
        are decoded, ``{"jpg": "jpeg"}``; default text, whole numbers and JSON for their usual extensions, else bytes),
        ``url`` (whether the archive's name is a column, too, ``__url__``) and ``media`` (extension to ``"video"`` or
        ``"audio"``: handles that read of the archive what a clip needs).
        """
        members = read_members(heads_of(source), source.where)
        chosen = settings.get("columns")
        given = settings.get("encodings") or {}
        must_be("a list of at least one name", chosen is None or len(chosen) > 0, columns=chosen)
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

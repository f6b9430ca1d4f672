"""Parses and checks index files, entry by entry, or many entries at once.

Writers give all shards of a dataset entries of the same text, in which names, bytes, hashes and counts differ. A regular
expression made from the first entry finds these in the others, in a fifth of the time and a tenth of the memory that parsing
JSON and checking each value take. An index that is not so in each byte, or that has anything to object to, is parsed entry by
entry: :func:`read_regular_entries` refuses nothing, and what it reads is the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

import numpy as np

from stoker.digests import blake2b, fastest_hash
from stoker.errors import IndexFileError, IndexSyntaxError, StokerError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import MAX_OFFSET, MAX_PACKED, USUAL_NAME
from stoker.formats.common.entries import Sizes, check_empty, entry_of, identity_line, identity_text
from stoker.formats.registry import format_names, get_format, is_format
from stoker.index.columnar_shards import ColumnarShards, kind_of, pack_shards
from stoker.types import Ids

# What an index has before and after its entries, as stoker and mosaicml-streaming write it.
_FRAMES: Final = ((b'{"shards": [', b'], "version": 2}'), (b'{"version": 2, "shards": [', b"]}"))
_BETWEEN: Final = b", "
# An entry of more bytes has very many columns.
_MOST_BYTES: Final = 1 << 20
# Values of so many entries are objects at the same time.
_SLICE: Final = 1 << 13
_NUMBER: Final = "(0|[1-9][0-9]{0,14})"
_NAME: Final = f'"({USUAL_NAME})"'
_IS_USUAL: Final = re.compile(USUAL_NAME).fullmatch
_HASH: Final = '"([0-9a-f]+)"'
# Stands in the text of an entry for what differs; such a text is in no other place of it.
_MARK: Final = re.compile('"<stoker ([0-9]+)>"')
_Row = tuple[bytes, ...]


def parse_index(
    data: bytes, where: str, sizes: Sizes | None = None, block_size: int | None = None
) -> tuple[Iterator[ShardInfo], dict[str, Any]]:
    """The shards of an index file, parsed and checked one by one, and its other keys.

    See :meth:`stoker.index.index.Index.from_json`.
    """
    obj = _parse_json(data, where)
    if "chunks" in obj and "config" in obj and "shards" not in obj:
        from stoker.formats.litdata import shards_of

        obj = shards_of(obj, where, sizes or _no_sizes(where), block_size)
    version = obj.pop("version", None)
    if version != 2 or isinstance(version, bool):
        raise IndexFileError(f"{where}: index version {version!r} is not supported, only 2")
    entries = obj.pop("shards", None)
    if not isinstance(entries, list):
        raise IndexFileError(f"{where}: 'shards' should be a list, found {type(entries).__name__}")
    entries.reverse()  # entries are taken from the end, so each is freed once it is parsed
    return parse_entries(entries, where), obj


def parse_entries(reversed_entries: list[Any], where: str) -> Iterator[ShardInfo]:
    """Parse and check entries of shards, the last one first; each is taken from the list.

    IndexFileError, CorruptDataError, FormatError: see :meth:`~stoker.index.index.Index.from_json`.
    """
    number = 0
    shared: dict[str, Mapping[str, Any]] = {}
    while reversed_entries:
        entry = reversed_entries.pop()
        here = f"{where}: shard {number}"
        if not isinstance(entry, dict):
            raise IndexFileError(f"{here}: should be an object, found {type(entry).__name__}")
        name = entry.get("format")
        if not isinstance(name, str) or not is_format(name):
            raise IndexFileError(f"{here}: shard format {name!r} is unknown; known: {', '.join(format_names())}")
        info = get_format(name).parse_shard(entry, here)
        if not info.samples:
            check_empty(info, here)
        if info.format != "mds":  # MDS shares the specs of equal columns itself
            info = replace(info, spec=shared.setdefault(repr(info.spec), info.spec))
        yield info
        number += 1


def _no_sizes(where: str) -> Sizes:
    def sizes(names: Sequence[str]) -> Mapping[str, int]:
        raise IndexFileError(f"{where}: the sizes of {len(names)} compressed chunks of litdata are not known here")

    return sizes


def _parse_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        obj = json.loads(data)
    except json.JSONDecodeError as error:
        text = f"{where}: not an index, as it is not valid JSON; copy it again, or run `stoker index`: {error.msg}"
        raise IndexSyntaxError(text, error.doc, error.pos) from None
    except (ValueError, RecursionError) as error:
        raise IndexFileError(f"{where}: not an index, as it is not valid JSON: {error}") from None
    if not isinstance(obj, dict):
        raise IndexFileError(f"{where}: not an index: a JSON {type(obj).__name__}, not an object")
    return obj


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a shard: the groups of its name, bytes and hashes."""

    name: int
    bytes: int
    hashes: Mapping[str, int]


class EntryPattern:
    """The entries of an index that differ from one of them in names, bytes, hashes and samples alone.

    ValueError if others can not be told by it. ``info``: the one, parsed and checked. ``text``: its text in the index.

    Attributes:
        as_written: whether stoker would write the entry as this text.
        least: see :meth:`~stoker.formats.format.Format.least_bytes`.
        raw, zip: the raw files of a shard, and the compressed ones.
    """

    def __init__(self, info: ShardInfo, text: str) -> None:
        form = get_format(info.format)
        least = form.least_bytes(info.spec)
        entry = json.loads(text)
        # Text of another form, or with more in it than is parsed, would not be known again.
        if least is None or not info.samples or "<stoker " in text or entry != json.loads(json.dumps(entry_of(info))):
            raise ValueError("entries of this form are parsed one by one")
        if json.dumps(entry) != text:
            raise ValueError("it is not as JSON is written by default")
        self.info = info
        self.as_written = json.dumps(entry, sort_keys=True) == text
        self.least = least
        self._patterns: list[str] = []
        entry["samples"] = self._mark(_NUMBER)
        self.raw = [self._file(entry, f"raw_{role}") for role in form.roles]
        self.zip = [self._file(entry, f"zip_{role}") for role in form.roles] if info.zip else []
        pieces = _MARK.split(json.dumps(entry))
        # Numbers of values in the order in which they were marked, and in the text.
        places = [int(number) for number in pieces[1::2]]
        if sorted(places) != list(range(len(self._patterns))):
            raise ValueError("it has a value twice")
        self._at = {number: place for place, number in enumerate(places)}
        parts = [re.escape(piece) if at % 2 == 0 else self._patterns[int(piece)] for at, piece in enumerate(pieces)]
        self._entry = re.compile("".join(parts).encode())
        self._next = re.compile((re.escape(_BETWEEN.decode()) + "".join(parts)).encode())

    def _mark(self, pattern: str) -> str:
        self._patterns.append(pattern)
        return f"<stoker {len(self._patterns) - 1}>"

    def _file(self, entry: dict[str, Any], role: str) -> _File:
        file = entry[role]
        first = len(self._patterns)
        file["basename"], file["bytes"] = self._mark(_NAME), self._mark(_NUMBER)
        hashes = list(file["hashes"])
        file["hashes"] = {name: self._mark(_HASH) for name in hashes}
        return _File(first, first + 1, {name: first + 2 + at for at, name in enumerate(hashes)})

    def rows(self, data: bytes, start: int, end: int) -> Iterator[_Row]:
        """The values that differ of each entry in ``data[start:end]``, which must be such entries and commas between them."""
        first = self._entry.match(data, start, end)
        if first is None:
            raise ValueError("the first entry is another")
        yield first.groups()
        at = first.end()
        for match in self._next.finditer(data, at, end):
            if match.start() != at:
                break
            at = match.end()
            yield match.groups()
        if at != end:
            raise ValueError("there is something else than such entries")

    def moved(self, entries: bytes, folder: str, reserved: str) -> bytes:
        """Entries, with commas between them, as they are where their files lie in a folder.

        ValueError if something else is there, the folder has an unusual name, or a file the reserved one.
        """
        if not _IS_USUAL(folder):
            raise ValueError("the folder's name is written in another way in JSON")
        names = sorted(self._at[file.name] + 1 for file in (*self.raw, *self.zip))
        inserted, taken = f"{folder}/".encode(), reserved.encode()
        out, at, done = [], 0, 0
        while True:
            match = (self._next if done else self._entry).match(entries, done)
            if match is None:
                break
            for name in names:
                if match[name] == taken:
                    raise ValueError("a file is called as the index")
                begin = match.start(name)
                out += [entries[at:begin], inserted]
                at = begin
            done = match.end()
        if done != len(entries):
            raise ValueError("there is something else than such entries")
        return b"".join([*out, entries[at:]])

    def getter(self, numbers: Sequence[int]) -> Any:
        """A function that takes the values of these numbers from a row: a tuple, or a single one alone."""
        return itemgetter(*[self._at[number] for number in numbers])


class ShardColumns:
    """Entries of an index as arrays.

    Raises ValueError if an entry would be refused or two files have one name, and OSError if memory for the arrays is
    missing.
    ``rows``: the values that differ of each, at least one.

    ``shards``: the shards. ``fingerprint``, ``content``: see :class:`~stoker.index.index.Index`.
    """

    def __init__(self, pattern: EntryPattern, rows: Iterator[_Row], reserved: str) -> None:
        raw, packed = pattern.raw, pattern.zip
        files = (*raw, *packed)
        get_samples = pattern.getter([0])
        get_names = pattern.getter([file.name for file in files])
        texts = [number for file in files for number in (file.name, *file.hashes.values())]
        get_text, text_of = pattern.getter(texts), b"%b\0" * len(texts)
        line = [number for file in raw for number in (file.name, file.bytes)]
        # As in identity_line: files, samples, and the number of the kind, of which there is one.
        get_line = pattern.getter([*line, 0])
        line_of = identity_line("/".join(["%b\0%b"] * len(raw)), "%b", 0).encode()
        hashed = fastest_hash(set.intersection(*(set(file.hashes) for file in raw)))
        get_hashes = None if hashed is None else pattern.getter([file.hashes[hashed] for file in raw])
        identity = blake2b(identity_text(pattern.info).encode(), 16)
        content = blake2b(b"", 16)
        samples: list[Ids] = []
        sizes: list[Ids] = []
        lengths: list[Ids] = []
        words: list[bytes] = []
        names: set[bytes] = set()
        while piece := list(islice(rows, _SLICE)):
            samples.append(np.fromiter(map(int, map(get_samples, piece)), np.int64, len(piece)))
            sizes.append(_numbers(pattern, files, piece))
            _check(pattern, samples[-1], sizes[-1], len(raw))
            found = [text_of % get_text(row) for row in piece]
            lengths.append(np.fromiter(map(len, found), np.int64, len(piece)))
            words.append(b"".join(found))
            identity.update(b"".join([line_of % get_line(row) for row in piece]))
            if get_hashes is not None:
                values = map(get_hashes, piece)
                content.update(b"".join(values if len(raw) == 1 else chain.from_iterable(values)))
            names.update(map(get_names, piece) if len(files) == 1 else chain.from_iterable(map(get_names, piece)))
        count = sum(map(len, samples))
        if len(names) != count * len(files):
            raise ValueError("two files have one name")
        if reserved.encode() in names:
            raise ValueError("a file is called as the index")
        self.shards: ColumnarShards = pack_shards(
            np.concatenate(samples),
            np.concatenate(sizes),
            np.cumsum(np.concatenate(lengths)),
            np.zeros(count, np.int32),
            words,
            [kind_of(pattern.info, 0)],
        )
        self.fingerprint = identity.hexdigest()
        self.content = {} if hashed is None else {hashed: content.hexdigest()}


def _numbers(pattern: EntryPattern, files: Sequence[_File], rows: Sequence[_Row]) -> Ids:
    found: Ids = np.empty((len(rows), len(files)), np.int64)
    for at, file in enumerate(files):
        found[:, at] = np.fromiter(map(int, map(pattern.getter([file.bytes]), rows)), np.int64, len(rows))
    return found


def _check(pattern: EntryPattern, samples: Ids, sizes: Ids, raw: int) -> None:
    """Check what the numbers of an entry are checked for one by one."""
    each, more = pattern.least
    if (
        int(samples.min()) < 1  # of a shard without samples the header is checked
        or int(samples.max()) > MAX_OFFSET
        or int(sizes[:, :raw].max()) > MAX_OFFSET
        or int(sizes.max()) > MAX_PACKED
        or bool((sizes[:, 0] < each + samples * more).any())
    ):
        raise ValueError("a number would be refused")


def framed(data: bytes) -> tuple[int, int]:
    """The positions where the entries of an index begin and end."""
    for head, tail in _FRAMES:
        if data.startswith(head) and data.endswith(tail):
            return len(head), len(data) - len(tail)
    raise ValueError("it has other keys, or another form")


def in_frame(texts: Sequence[bytes]) -> bytes:
    """The index of these entries, each text of at least one, as stoker writes it."""
    head, tail = _FRAMES[0]
    return b"".join([head, _BETWEEN.join(texts), tail])


def pattern_of(data: bytes, start: int, end: int, where: str) -> EntryPattern:
    """The pattern of the entries in ``data[start:end]``, made from the first."""
    try:
        text = data[start : min(end, start + _MOST_BYTES)].decode("ascii")
        entry, length = json.JSONDecoder().raw_decode(text)
        (info,) = parse_entries([entry], where)
        return EntryPattern(info, text[:length])
    except (StokerError, RecursionError) as error:
        raise ValueError("the first entry would be refused") from error


def read_regular_entries(data: bytes, where: str, reserved: str) -> ShardColumns | None:
    """The shards of an index; ``None`` where it is to be parsed, and perhaps refused, in the usual way."""
    try:
        begin, end = framed(data)
        pattern = pattern_of(data, begin, end, where)
        return ShardColumns(pattern, pattern.rows(data, begin, end), reserved)
    except (ValueError, OSError):
        return None

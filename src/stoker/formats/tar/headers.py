"""The headers of tar archives, of any writer: of each file its name and where its bytes are.

POSIX, pax Interchange Format; GNU tar's manual, "Storing Sparse Files"; libarchive's tar(5).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.common.inspect_header import HeadView
from stoker.types import Buffer

BLOCK: Final = 512
_LONGEST: Final = 1 << 24
# Headers whose checksums are compared together.
_TOGETHER: Final = 1 << 13
_MOST_LINKS: Final = 64
_REGULAR: Final = (b"\0", b"0", b"7")
_SPARSE: Final = b"S"
_EXTENDED: Final = b"xX"
_LONG: Final = {b"L": b"path", b"K": b"linkpath"}
# Links, devices, folders and pipes: a size in their headers is not one of bytes behind them, but for hard links of `pax`.
_WITHOUT_DATA: Final = b"123456"
_HARD, _SOFT = b"1", b"2"


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The files of an archive, links among them: they have the bytes of what they lead to.

    Attributes:
        names: the files' names; empty for a link out of the archive.
        begins: where each file's bytes begin.
        lengths: how many there are.
        sparse: of files with holes, by number: where their parts go, and how many bytes each has; int64, shape ``(n, 2)``.
            In the archive the parts lie end to end.
    """

    names: list[bytes] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    sparse: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def add(self, name: bytes, begin: int, length: int) -> None:
        self.names.append(name)
        self.begins.append(begin)
        self.lengths.append(length)


def read_files(data: Buffer | HeadView, where: str) -> ArchiveFiles:
    """Read an archive's headers, each of which tells where the next one is.

    CorruptDataError if it is no archive, is cut off or damaged, or a hard link leads to no file of it.
    """
    files, size, at = ArchiveFiles(), len(data), 0
    heads: list[tuple[int, bytes]] = []  # whose checksums are not compared yet
    links: dict[int, tuple[bytes, bytes]] = {}
    given: dict[bytes, bytes] = {}  # what headers before a file's own say of it
    while at + BLOCK <= size:
        head = data[at : at + BLOCK]
        if not head[0] and not head.strip(b"\0"):
            break
        heads.append((at, head))
        if len(heads) == _TOGETHER:
            _check_sums(heads, where)
            heads = []
        kind, begin = bytes(head[156:157]), at + BLOCK
        more = kind in _LONG or kind in _EXTENDED
        length = int(given[b"size"]) if b"size" in given and not more else _number(head[124:136], where, at)
        if length and (kind in _WITHOUT_DATA or _is_old_folder(head)) and not _has_data(data, begin, length):
            length = 0
        end = begin + -(-length // BLOCK) * BLOCK
        if begin + length > size:
            raise CorruptDataError(f"{where}: the file at byte {at} has {length} bytes, past the archive's end")
        if more:
            if length > _LONGEST:
                raise CorruptDataError(f"{where}: the header at byte {begin} claims {length} bytes")
            body = data[begin : begin + length]
            if kind in _LONG:
                given[_LONG[kind]] = body.split(b"\0", 1)[0]
            else:
                given.update(_extended(body, where, begin))
        elif kind != b"g":
            name = given.get(b"GNU.sparse.name") or given.get(b"path") or _name(head)
            if kind == _SPARSE or given.keys() & {b"GNU.sparse.map", b"GNU.sparse.major"}:
                try:
                    if kind == _SPARSE:
                        parts, first, real = _parts_of_header(data, head, begin)
                        end += first - begin
                        length += first - begin
                    else:
                        parts, first, real = _parts_of_records(data, given, begin, begin + length)
                    files.sparse[len(files.names)] = _checked(parts, begin + length - first, real)
                except ValueError as error:
                    raise CorruptDataError(f"{where}: the sparse file at byte {at} can not be read: {error}") from None
                files.add(name, first, real)
            elif kind in _REGULAR or (kind == _HARD and length):
                files.add(name, begin, length)
            elif kind in (_HARD, _SOFT):
                links[len(files.names)] = kind, given.get(b"linkpath") or _until_zero(head[157:257])
                files.add(name, begin, 0)
            given = {}
        at = end
    else:
        if at != size:
            raise CorruptDataError(f"{where}: not a tar archive, or cut off: it ends at byte {size}, in a header")
    _check_sums(heads, where)
    if links:
        _follow(files, links, where)
    return files


def _until_zero(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _name(head: bytes) -> bytes:
    name = _until_zero(head[:100])
    if head[345] and head[257:263] == b"ustar\0":
        name = _until_zero(head[345:500]) + b"/" + name
    return name


def _is_old_folder(head: bytes) -> bool:
    """Whether this is a folder as archives of before 1988 have it, of no kind and with a slash."""
    return not head[156] and _name(head).endswith(b"/")


def _number(field: bytes, where: str, at: int) -> int:
    """A size: octal digits, or binary where they would not do."""
    try:
        number = _size(field)
    except ValueError:
        number = -1
    if number < 0:
        raise CorruptDataError(f"{where}: not a tar archive: there is no tar header at byte {at}")
    return number


def _size(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.rstrip(b"\0 ") or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit():
        raise ValueError(f"{digits[:20]!r} is not a number")
    return int(digits)


def _has_data(data: Buffer | HeadView, begin: int, length: int) -> bool:
    """Whether bytes follow a header that should have none: where no header follows, and one does behind the bytes."""
    end = begin + -(-length // BLOCK) * BLOCK
    here, behind = bytes(data[begin : begin + BLOCK]), bytes(data[end : end + BLOCK])
    if _has_sum(here) or begin + length > len(data):
        return False
    return _has_sum(behind) or (any(here) and not any(behind))


def _has_sum(block: bytes) -> bool:
    return len(block) == BLOCK and _octal(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * 32


def _extended(body: bytes, where: str, at: int) -> dict[bytes, bytes]:
    """Records of an extended header, which are of the next file: ``length key=value newline``."""
    found: dict[bytes, bytes] = {}
    begin = 0
    try:
        while begin < len(body):
            space = body.index(b" ", begin)
            end = begin + int(body[begin:space])
            if end <= space or end > len(body):
                raise ValueError("a record leaves the header")
            key, _, value = body[space + 1 : end - 1].partition(b"=")
            if key == b"size":
                _decimal(value)
            if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):  # version 0.0, one part after the other
                key, value = (
                    b"GNU.sparse.map",
                    found.get(b"GNU.sparse.map", b"") + b"," * (b"GNU.sparse.map" in found) + value,
                )
            found[key] = value
            begin = end
    except ValueError as error:
        raise CorruptDataError(f"{where}: the extended header at byte {at} is damaged: {error}") from None
    return found


def _parts_of_header(data: Buffer | HeadView, head: bytes, begin: int) -> tuple[list[int], int, int]:
    """Parts of a sparse file as GNU tar's own format has them, in its header and blocks behind it.

    ValueError if they can not be read. Gives offset and length of each part in turn; where they begin in the archive; the
    length of the file.
    """
    if head[508:] == b"tar\0":
        raise ValueError(
            "it is in the format of the program star, which is not read: pack the archive again without holes"
        )
    fields, more = [head[at : at + 12] for at in range(386, 482, 12)], head[482]
    while more:
        block = data[begin : begin + BLOCK]
        if len(block) < BLOCK:
            raise ValueError("the list of its parts leaves the archive")
        fields += [block[at : at + 12] for at in range(0, 504, 12)]
        more, begin = block[504], begin + BLOCK
    used = next((number for number in range(0, len(fields), 2) if not fields[number + 1][0]), len(fields))
    return [_size(one) for one in fields[:used]], begin, _size(head[483:495])


def _parts_of_records(
    data: Buffer | HeadView, given: Mapping[bytes, bytes], begin: int, end: int
) -> tuple[list[int], int, int]:
    """The same as an extended header has them, in versions 0.0, 0.1 and 1.0: the last has the list before the parts."""
    real = _decimal(given.get(b"GNU.sparse.realsize") or given.get(b"GNU.sparse.size", b""))
    if b"GNU.sparse.major" not in given or given[b"GNU.sparse.major"] == b"0":
        told = given[b"GNU.sparse.map"]
        return [_decimal(one) for one in told.split(b",")] if told else [], begin, real
    if given[b"GNU.sparse.major"] != b"1":
        raise ValueError(f"there is no version {given[b'GNU.sparse.major']!r} of sparse files")
    numbers, rest = list[int](), b""
    while not numbers or len(numbers) < 1 + 2 * numbers[0]:
        if begin >= end or len(rest) > BLOCK:
            raise ValueError("the list of its parts is cut off")
        *lines, rest = (rest + data[begin : begin + BLOCK]).split(b"\n")
        numbers += [_decimal(line) for line in lines]
        begin += BLOCK
    return numbers[1 : 1 + 2 * numbers[0]], begin, real


def _checked(parts: list[int], stored: int, real: int) -> NDArray[np.int64]:
    """Parts of a sparse file: one after the other, inside the file, and stored."""
    if len(parts) % 2 or max(parts, default=0) >= 1 << 62 or real >= 1 << 62:
        raise ValueError("the list of its parts is damaged")
    table = np.array(parts, np.int64).reshape(-1, 2)
    stops = table.sum(axis=1)
    if (table[1:, 0] < stops[:-1]).any() or (stops > real).any() or sum(parts[1::2]) != stored:
        raise ValueError(f"its parts are not those of a file of {real} bytes of which {stored} are stored")
    return table


def _follow(files: ArchiveFiles, links: Mapping[int, tuple[bytes, bytes]], where: str) -> None:
    """Give links the bytes of the files that they lead to."""
    numbers: dict[bytes, int] = {}
    leads: dict[int, int | None] = {}
    for number, name in enumerate(files.names):
        kind, target = links.get(number, (b"", b""))
        if kind == _HARD:
            leads[number] = numbers.get(_plain(target))
            if leads[number] is None:
                raise CorruptDataError(
                    f"{where}: {name.decode(errors='backslashreplace')!r} is a second name of "
                    f"{target.decode(errors='backslashreplace')!r}, which is not before it in the archive: pack it again "
                    "with that file, or with `tar --hard-dereference`"
                )
        numbers[_plain(name)] = number
    for number, (kind, target) in links.items():
        if kind == _SOFT:
            path = posixpath.join(posixpath.dirname(files.names[number]), target)
            leads[number] = numbers.get(posixpath.normpath(path))
    for number in links:
        found: int | None = number
        for _ in range(_MOST_LINKS):
            if found not in leads:
                break
            found = leads[found]
        if found is None or found in leads:  # out of the archive, or in a circle
            files.names[number] = b""
            continue
        files.begins[number], files.lengths[number] = files.begins[found], files.lengths[found]
        if found in files.sparse:
            files.sparse[number] = files.sparse[found]


def _plain(name: bytes) -> bytes:
    """A file's path in the archive, without what tar leaves out of some."""
    return posixpath.normpath(name).lstrip(b"/")


def _check_sums(heads: Sequence[tuple[int, bytes]], where: str) -> None:
    """Compare the checksums of headers, and where each is."""
    told = np.array([_octal(head[148:156]) for _, head in heads], np.int64)
    blocks = np.frombuffer(bytearray().join([head for _, head in heads]), np.uint8).reshape(-1, BLOCK)
    blocks[:, 148:156] = 32
    wrong = blocks.sum(axis=1, dtype=np.int64) != told
    if wrong.any():  # old programs add up bytes with a sign
        wrong &= blocks.view(np.int8).sum(axis=1, dtype=np.int64) != told
    if wrong.any():
        raise CorruptDataError(
            f"{where}: the header at byte {heads[int(np.argmax(wrong))][0]} does not match its checksum"
        )


def _octal(field: bytes) -> int:
    try:
        return int(field.strip(b"\0 ").split(b"\0", 1)[0], 8) & 0xFFFFFFFF
    except ValueError:
        return -1

"""Archives as other programs write them: files with holes, links, long names and what macOS adds."""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import wave
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packed_cases import opened
from stoker import StreamingDataset
from stoker.errors import CorruptDataError
from stoker.formats.base import ReadOptions
from stoker.formats.common.inspect_header import HeadView, MappedSource
from stoker.formats.media.audio import Audio
from stoker.formats.tar.headers import read_files

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tars.json").read_text())


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


FILES = {name: unpack(text) for name, text in GOLDEN["files"].items()}


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: Any) -> bytes:
    """A header, with the size that is given or that of the data, and the data."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)


def values_of(data: bytes, **settings: Any) -> dict[str, Any]:
    """Files of samples, by their names."""
    reader = opened(data, "tar", **settings)
    batch = reader.read(np.arange(reader.samples))
    found = {}
    for row, key in enumerate(batch["__key__"]):
        found.update({f"{key}.{name}": column[row] for name, column in batch.items() if column[row] is not None})
        del found[f"{key}.__key__"]
    return found


@pytest.mark.parametrize("writer", GOLDEN["archives"])
def test_archives_of_other_programs_hold_what_was_packed(writer: str) -> None:
    data = unpack(GOLDEN["archives"][writer])
    found = values_of(data, encodings={"bin": "bytes", "cls": "bytes", "txt": "bytes"})
    left_out = {name for name in FILES if len(name) > 100 and writer.endswith(("v7", "ustar"))}
    assert found == {name: value for name, value in FILES.items() if name not in left_out}
    # The same by headers alone, as of an archive that is not on this machine.
    near, far = read_files(data, "the file"), read_files(HeadView(MappedSource(data, "the file")), "the file")
    assert (near.names, near.begins, near.lengths) == (far.names, far.begins, far.lengths)
    assert {number: parts.tolist() for number, parts in near.sparse.items()} == {
        number: parts.tolist() for number, parts in far.sparse.items()
    }


def test_files_with_holes_are_of_any_column(tmp_path: Path) -> None:
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.arange(8000, dtype="<i2").tobytes() + bytes(16000))
    wav, data = sound.getvalue(), b""
    for name, value in {"0.n": np.arange(2).tobytes(), "0.wav": wav, "1.n": np.arange(2).tobytes()}.items():
        kept = len(value.rstrip(b"\0"))  # zeros at the end are a hole
        data += sparse({"map": f"0,{kept},{len(value)},0", "size": len(value), "name": name}, value[:kept])
    (tmp_path / "a.tar").write_bytes(data)
    options = {"media": {"wav": "audio"}, "encodings": {"n": "ndarray:int64:2"}}
    first, second = StreamingDataset(tmp_path, format_options=options)
    assert (first["n"].tolist(), second["n"].tolist(), second["wav"]) == ([0, 1], [0, 1], None)
    assert np.array_equal(first["wav"].clip(0.9, 0.2), Audio(wav).clip(0.9, 0.2))
    (tmp_path / "a.tar").write_bytes(sparse({"map": "0,1,4,0", "size": 4, "name": "0.txt"}, b"a"))
    assert StreamingDataset(tmp_path)[0]["txt"] == "a\0\0\0"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_sizes_of_links_and_folders_are_not_those_of_bytes(kind: bytes) -> None:
    name = "d" if kind == tarfile.DIRTYPE else "0.lnk"
    for size in (1, 512, 700, 5000):
        for last in (b"", member("1.txt", b"one")):
            data = member("0.txt", b"zero") + member(name, kind=kind, size=size, linkname="0.txt") + last
            expected = {"0.txt": "zero"}
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                expected["0.lnk"] = b"zero"  # type: ignore[assignment]
            if last:
                expected["1.txt"] = "one"
            for end in (b"", bytes(1024)):
                assert values_of(data + end) == expected


def test_a_folder_of_no_kind_may_have_a_size_and_a_link_its_own_bytes() -> None:
    old = member("d/", kind=tarfile.AREGTYPE, size=4096) + member("0.txt", b"zero")
    assert values_of(old) == {"0.txt": "zero"}
    # pax -o linkdata
    links = (
        member("0.txt", b"zero") + member("1.txt", b"zero", tarfile.LNKTYPE, linkname="0.txt") + member("2.txt", b"2")
    )
    for archive in (links, links[: -2 * 512], links + bytes(1024)):
        assert values_of(archive)["1.txt"] == "zero"


def test_links_lead_to_files_of_the_archive() -> None:
    data = (
        member("a/0.txt", b"old")
        + member("./a/1.txt", kind=tarfile.LNKTYPE, linkname="a/0.txt")
        + member("b/0.txt", b"new")
        + member("b/1.txt", kind=tarfile.SYMTYPE, linkname="../c/late.txt")
        + member("b/2.txt", kind=tarfile.SYMTYPE, linkname="1.txt")
        + member("b/3.txt", kind=tarfile.LNKTYPE, linkname="/b/2.txt")
        + member("b/4.txt", kind=tarfile.SYMTYPE, linkname="5.txt")
        + member("b/5.txt", kind=tarfile.SYMTYPE, linkname="4.txt")
        + member("b/6.txt", kind=tarfile.SYMTYPE, linkname="/a/0.txt")
        + member("c/late.txt", b"late")
    )
    found = {"a/0": "old", "./a/1": "old", "b/0": "new", **dict.fromkeys(("b/1", "b/2", "b/3", "c/late"), "late")}
    assert values_of(data) == {f"{key}.txt": value for key, value in found.items()}
    long = "x" * 150
    names = member(f"{long}.txt", b"long") + member("z.txt", kind=tarfile.LNKTYPE, linkname=f"{long}.txt")
    assert values_of(names)["z.txt"] == "long"


def test_a_second_name_of_a_file_that_is_not_there_is_an_error() -> None:
    data = member("1.txt", kind=tarfile.LNKTYPE, linkname="0.txt") + member("0.txt", b"zero")
    with pytest.raises(CorruptDataError, match=r"'1\.txt' is a second name of '0\.txt', which is not before it"):
        opened(data, "tar")


def test_what_macos_keeps_beside_files_is_passed_over() -> None:
    names = ["._a", "a/._0.jpg", "a/0.jpg", "a/.DS_Store", "a/._0.txt", "a/0.txt", ".DS_Store", "a/._1.jpg", "a/1.jpg"]
    for order in (names, sorted(names)):
        assert values_of(b"".join(member(name, b"x") for name in order)).keys() == {"a/0.jpg", "a/0.txt", "a/1.jpg"}


def test_extended_headers_may_be_long() -> None:
    note = {"SCHILY.xattr.user.note": "n" * 200_000, "path": "0.txt"}
    assert values_of(member("short", b"zero", pax_headers=note)) == {"0.txt": "zero"}


def test_checksums_may_be_of_bytes_with_a_sign() -> None:
    data = bytearray(member("é.txt", b"zero"))
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % int(np.frombuffer(data, np.int8, 512).sum(dtype=int))
    assert values_of(bytes(data)) == {"é.txt": "zero"}


def sparse(records: Mapping[str, object], data: bytes) -> bytes:
    return member("0.bin", data, pax_headers={f"GNU.sparse.{key}": str(value) for key, value in records.items()})


V1 = {"major": 1, "minor": 0, "name": "0.bin", "realsize": 2000}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (sparse({"map": "0,512,1000", "size": 2000}, bytes(512)), "the list of its parts is damaged"),
        (sparse({"map": "0,512,500,10", "size": 2000}, bytes(522)), "are not those of a file of 2000 bytes"),
        (sparse({"map": "0,512,1900,200", "size": 2000}, bytes(712)), "are not those of a file of 2000 bytes"),
        (sparse({"map": "0,512,1000,200", "size": 2000}, bytes(600)), "of which 600 are stored"),
        (sparse({"map": f"0,512,{1 << 63},0", "size": 1 << 64}, bytes(512)), "the list of its parts is damaged"),
        (sparse({"map": "0,-1", "size": 2000}, b""), "b'-1' is not a number"),
        (sparse({"map": "0,0"}, b""), "b'' is not a number"),
        (sparse(V1, b"2\n0\n512\n".ljust(512)), "is cut off"),
        (sparse(V1, b"9" * 2048), "is cut off"),
        (sparse({**V1, "major": 2}, bytes(512)), "no version b'2' of sparse files"),
    ],
)
def test_damaged_lists_of_parts_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(
        CorruptDataError, match=f"the sparse file at byte 1[0-9]* can not be read: .*{re.escape(problem)}"
    ):
        opened(data, "tar")


def test_lists_of_parts_that_leave_the_archive_or_are_of_star_are_refused() -> None:
    data = unpack(GOLDEN["archives"]["GNU gnu, sparse"])
    at = next(at for at in range(0, len(data), 512) if data[at + 156 : at + 157] == b"S" and data[at + 482])
    cut = data[:at] + data[at : at + 512]
    with pytest.raises(CorruptDataError, match=r"leaves the archive|past the archive's end"):
        opened(cut, "tar")
    star = bytearray(data)
    star[at + 508 : at + 512] = b"tar\0"
    with pytest.raises(CorruptDataError, match="in the format of the program star"):
        opened(bytes(star), "tar")


def test_a_hole_that_would_fill_memory_is_not_made() -> None:
    data = sparse({"map": "0,512", "size": 1 << 40}, bytes(512)) + member("1.bin", b"one")
    reader = opened(data, "tar")
    with pytest.raises(CorruptDataError, match=r"a sparse file: 512 bytes decode to 1,099,511,627,776"):
        reader.read(np.array([0]))
    assert reader.read(np.array([1]))["bin"] == [b"one"]
    small = sparse({"map": "0,512", "size": 1 << 20}, bytes(512))
    assert opened(small, "tar", options=ReadOptions(views=True)).read(np.array([0]))["bin"] == [bytes(1 << 20)]

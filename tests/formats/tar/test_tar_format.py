"""WebDataset's tar files: theirs are read sample for sample as they read them, and they read what stoker writes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_cases import opened
from stoker import MDSWriter, StreamingDataset
from stoker.conversion import convert
from stoker.errors import ConfigError, CorruptDataError, EncodingError, IndexFileError
from stoker.formats.base import ReadOptions
from stoker.writing.shard_formats import TarWriter

COLUMNS = {"cls": "str_int", "jpg": "bytes", "json": "json", "seg.png": "bytes", "txt": "str"}


def sample_of(number: int) -> dict[str, Any]:
    return {
        "cls": number,
        "jpg": b"\xff\xd8" + bytes(number % 700),
        "json": {"n": number},
        "seg.png": b"p" * (number % 3),
        "txt": "é" * number,
    }


def archive_of(members: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def webdataset_of(path: Path) -> list[dict[str, Any]]:
    wds = pytest.importorskip("webdataset")
    return list(wds.WebDataset([str(path)], shardshuffle=False, empty_check=False))


def test_files_of_a_sample_that_do_not_follow_each_other_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive_of([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("b.cls", b"4")]))
    assert [sample["__key__"] for sample in webdataset_of(path)] == ["a", "b", "a", "b"]
    with pytest.raises(
        CorruptDataError, match=r"a\.tar: the files of sample 'a' do not follow each other.*tar --sort=name"
    ):
        StreamingDataset(path)
    path.write_bytes(archive_of([("a.txt", b"1"), ("a.cls", b"3"), ("b.txt", b"2"), ("a.txt", b"5"), ("a.cls", b"6")]))
    found = [(sample["__key__"], sample["txt"], sample["cls"]) for sample in StreamingDataset(path)]
    assert found == [("a", "1", 3), ("b", "2", None), ("a", "5", 6)]


def test_webdataset_and_tarfile_read_what_is_written(tmp_path: Path) -> None:
    with TarWriter(COLUMNS, tmp_path, size_limit=200_000) as writer:
        for number in range(120):
            writer.write(sample_of(number))
    number = 0
    for path in sorted(tmp_path.glob("*.tar")):
        with tarfile.open(path) as archive:
            assert all(member.mtime == 0 and member.isreg() for member in archive)
        for found in webdataset_of(path):
            expected = sample_of(number)
            assert found["__key__"] == f"{number:09}"
            assert (found["jpg"], found["seg.png"]) == (expected["jpg"], expected["seg.png"])
            assert (int(found["cls"]), found["txt"].decode()) == (number, expected["txt"])
            number += 1
    assert number == 120


@given(
    names=st.lists(
        st.tuples(
            st.sampled_from(["", "a/", "b.c/", "x" * 60 + "/" + "y" * 60 + "/"]),
            st.sampled_from(["0", "1", "one two", "é", "", "_m"]),
            st.sampled_from(["", ".jpg", ".JPG", ".cls", ".tar.gz", ".x.y"]),
        ),
        max_size=12,
    ),
    kind=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@settings(max_examples=200, deadline=None)
def test_samples_are_those_that_webdataset_finds(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str, str]], kind: int
) -> None:
    members = [(folder + base + extension, str(k).encode()) for k, (folder, base, extension) in enumerate(names)]
    members = [(name, data) for name, data in members if name and not name.endswith("/")]
    data = archive_of(members, kind)
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    path.write_bytes(data)
    try:
        expected = [
            {k: v for k, v in one.items() if k not in ("__url__", "__local_path__")} for one in webdataset_of(path)
        ]
    except ValueError:  # a sample with two files of one extension
        with pytest.raises(CorruptDataError, match="two files"):
            opened(data, "tar")
        return
    if members and not expected:
        with pytest.raises(CorruptDataError, match="none of its files has an extension"):
            opened(data, "tar")
        return
    parts: dict[str, set[str]] = {}
    for one in expected:
        columns = one.keys() - {"__key__"}
        if parts.setdefault(one["__key__"], columns).isdisjoint(columns):  # parts of one sample
            with pytest.raises(CorruptDataError, match="do not follow each other"):
                opened(data, "tar")
            return
    reader = opened(data, "tar", encodings={"cls": "bytes"})
    batch = reader.read(np.arange(reader.samples))
    found = [
        {name: column[row] for name, column in batch.items() if column[row] is not None}
        for row in range(reader.samples)
    ]
    assert found == expected


def test_json_in_an_archive_holds_no_number_that_became_infinite() -> None:
    reader = opened(archive_of([("a.json", b'{"x": [1e400]}'), ("b.json", b'{"x": Infinity}')]), "tar")
    assert reader.read(np.array([1]))["json"] == [{"x": float("inf")}]
    with pytest.raises(CorruptDataError, match=r"sample 0: column 'json'.*\(1e400\) is larger than a float holds"):
        reader.read(np.array([0, 1]))


def test_an_archive_of_files_without_extensions_has_no_columns() -> None:
    with pytest.raises(CorruptDataError, match=r"none of its files has an extension, .* the first is 'data/img0'"):
        opened(archive_of([("data/img0", b"x"), ("data/img1", b"y")]), "tar")
    assert not opened(archive_of([]), "tar").samples


@pytest.mark.parametrize("name", ["__key__", "__URL__"])
def test_a_file_that_ends_like_a_column_of_the_readers_own_is_refused(name: str) -> None:
    with pytest.raises(CorruptDataError, match=f"sample 'a' has a file that ends with '{name.lower()}'"):
        opened(archive_of([("a.txt", b"x"), (f"a.{name}", b"y")]), "tar")


def test_usual_extensions_are_decoded_and_missing_files_are_none() -> None:
    data = archive_of([("a.cls", b"7"), ("a.json", b"[1]"), ("b.cls", b"8"), ("b.txt", "é".encode()), ("b.bin", b"x")])
    batch = opened(data, "tar").read(np.array([1, 0]))
    assert batch == {"__key__": ["b", "a"], "bin": [b"x", None], "cls": [8, 7], "json": [None, [1]], "txt": ["é", None]}
    assert opened(data, "tar", columns=["cls"], encodings={"cls": "bytes"}).read(np.array([0])) == {"cls": [b"7"]}
    views = opened(data, "tar", options=ReadOptions(views=True)).read(np.array([1]))["bin"]
    assert isinstance(views[0], memoryview)


def test_keys_of_ones_own(tmp_path: Path) -> None:
    keys = ["train/cat/1", "x" * 90 + "/" + "y" * 90, "é", "z"]
    with TarWriter({"__key__": "str", "txt": "str"}, tmp_path) as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": key})
        for bad in ("z", "a.b", "", "/", "a/", "/a", "q" * 120, "p" * 160 + "/a", 7, "a\0b"):
            with pytest.raises(EncodingError, match="__key__"):
                writer.write({"__key__": bad, "txt": ""})
        with pytest.raises(EncodingError, match="sample 6"):
            writer.write_batch({"__key__": ["k", "l", "l"], "txt": ["", "", ""]})
    assert [sample["__key__"] for sample in StreamingDataset(local=tmp_path)] == keys
    assert [sample["__key__"] for sample in webdataset_of(tmp_path / "shard.00000.tar")] == keys


def test_numbers_continue_after_a_stop(tmp_path: Path) -> None:
    for first in (0, 5):
        with TarWriter({"txt": "str"}, tmp_path, append=first > 0) as writer:
            for number in range(first, first + 5):
                writer.write({"txt": str(number)})
    samples = list(StreamingDataset(local=tmp_path))
    assert [sample["__key__"] for sample in samples] == [f"{number:09}" for number in range(10)]


@pytest.mark.parametrize("name", ["JPG", "a/b", "", "x" * 60])
def test_columns_that_can_not_be_extensions_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can not be an extension"):
        TarWriter({name: "bytes"}, tmp_path)


def test_links_elsewhere_folders_and_what_has_no_dot_are_passed_over() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("l.txt", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "/etc/passwd"
            archive.addfile(member)
        for name in ("README", "a.txt"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"hi"))
    reader = opened(out.getvalue(), "tar")
    assert reader.read(np.arange(reader.samples)) == {"__key__": ["a"], "txt": ["hi"]}


def test_an_archive_that_is_cut_off_or_damaged_is_refused() -> None:
    data = archive_of([(f"{number}.bin", bytes(1000)) for number in range(5)])
    for bad in (data[:700], data[:1500], b"x" * 2000, data[:90] + b"\1" + data[91:], bytes(100)):
        with pytest.raises(CorruptDataError, match="the file"):
            opened(bad, "tar")
    large = bytearray(data)
    large[124:136] = b"\x80" + bytes(3) + b"\x7f" * 8
    with pytest.raises(CorruptDataError, match="past the archive's end"):
        opened(bytes(large), "tar")


@pytest.mark.parametrize("kind", ["int", "uint8", "int32", "int64", "str_int"])
@pytest.mark.parametrize("extension", ["cls", "id", "index"])
def test_numbers_are_read_alike_with_and_without_the_index(kind: str, extension: str, tmp_path: Path) -> None:
    rows: dict[str, Any] = {extension: np.arange(9, dtype=np.uint8), "txt": [f"t{n}" for n in range(9)]}
    with TarWriter({extension: kind, "txt": "str"}, tmp_path) as writer:
        writer.write_batch({name: list(column[:4]) for name, column in rows.items()})
        for number in range(4, 9):
            writer.write({extension: number, "txt": f"t{number}"})
    indexed = StreamingDataset(local=tmp_path)
    plain = StreamingDataset(remote=tmp_path, format="tar")
    assert [sample[extension] for sample in indexed] == list(range(9))
    assert [dict(sample) for sample in indexed] == [dict(sample) for sample in plain]
    if kind != "str_int":  # of the type that was declared
        column: Any = indexed.read(np.arange(9))[extension]
        assert column.dtype == np.dtype("int64" if kind == "int" else kind)
    # WebDataset's own decoder agrees.
    wds = pytest.importorskip("webdataset")
    decoded = wds.WebDataset([str(tmp_path / "shard.00000.tar")], shardshuffle=False).decode()
    assert [sample[extension] for sample in decoded] == list(range(9)) or extension == "index"


def test_numbers_of_a_conversion_are_read_without_the_index(tmp_path: Path) -> None:
    with MDSWriter(columns={"id": "int", "n": "int"}, out=str(tmp_path / "mds")) as writer:
        for number in range(7):
            writer.write({"id": number, "n": number})
    convert(tmp_path / "mds", tmp_path / "tar", to="tar")
    plain = StreamingDataset(remote=f"{tmp_path}/tar/*.tar", format="tar")
    assert [sample["id"] for sample in plain] == list(range(7))
    # Of an extension that says nothing, a value is its bytes, which the index explains.
    assert plain[5]["n"] == (5).to_bytes(8, "little")
    assert StreamingDataset(local=tmp_path / "tar")[5]["n"] == 5


def test_digits_that_fit_no_column_are_corrupt_and_foreign_claims_refused(tmp_path: Path) -> None:
    with TarWriter({"id": "uint8"}, tmp_path) as writer:
        with pytest.raises(EncodingError, match="column 'id' of sample 0"):
            writer.write({"id": 256})
        writer.write({"id": 255})
    shard, index = tmp_path / "shard.00000.tar", tmp_path / "index.json"
    assert b"255" in shard.read_bytes()
    good = shard.read_bytes()
    for wrong, message in ((b"256", "does not fit uint8"), (b"2x5", "does not decode")):
        shard.write_bytes(good.replace(b"255", wrong))
        with pytest.raises(CorruptDataError, match=rf"shard.00000.tar.*column 'id'.*{message}"):
            list(StreamingDataset(local=tmp_path))
    index.write_text(index.read_text().replace('"digit_columns": ["id"]', '"digit_columns": ["__key__"]'))
    with pytest.raises(IndexFileError, match="'digit_columns' names '__key__'"):
        StreamingDataset(local=tmp_path)


def test_the_last_part_of_an_extension_tells_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        archive_of([("a.meta.json", b'{"n": 1}'), ("a.left.cls", b"7"), ("a.x.seg", b"s")])
    )
    sample = StreamingDataset(tmp_path)[0]
    assert (sample["meta.json"], sample["left.cls"], sample["x.seg"]) == ({"n": 1}, 7, b"s")


def test_the_archives_name_is_a_column_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for number, name in enumerate(("a.tar", "sub/b.tar")):
        members = [(f"{number}-{i}.txt", str(number).encode()) for i in range(8)]
        (tmp_path / name).write_bytes(archive_of(members))
    dataset = StreamingDataset(
        tmp_path, format="tar", format_options={"url": True}, shuffle=True, batch_size=4, shuffle_algo="global"
    )
    names = {"0": "a.tar", "1": "sub/b.tar"}
    seen = [pair for batch in dataset.batches() for pair in zip(batch["txt"], batch["__url__"], strict=True)]
    assert all(names[text] == name for text, name in seen)
    assert len(seen) == 16
    assert "__url__" not in StreamingDataset(tmp_path)[0]


def test_an_empty_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(archive_of([]))
    (tmp_path / "b.tar").touch()
    assert StreamingDataset(tmp_path / "a.tar").size == 0
    with pytest.raises(CorruptDataError, match=r"b\.tar: the file is empty"):
        StreamingDataset(tmp_path)

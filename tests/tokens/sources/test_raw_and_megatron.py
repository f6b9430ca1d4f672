"""Token files of other libraries: read right, written so that they read right, and bad ones told of."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError, CorruptDataError, FormatError, ObjectNotFoundError
from stoker.loaders.parquet_loader import StreamingParquetLoader
from stoker.storage import open_store
from stoker.tokens import LMSettings, MegatronFile, MegatronWriter, Ragged, RawSource, RawTokens, windows


def megatron(path: Path, sequences: list[list[int]], borders: list[int], code: int = 8, dtype: str = "<u2") -> None:
    """The two files, byte by byte as the format has them."""
    data, places = b"", []
    for one in sequences:
        places.append(len(data))
        data += np.array(one, dtype).tobytes()
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(borders))
    index += struct.pack(f"<{len(sequences)}i", *map(len, sequences))
    index += struct.pack(f"<{len(places)}q", *places) + struct.pack(f"<{len(borders)}q", *borders)
    path.with_suffix(".bin").write_bytes(data)
    path.with_suffix(".idx").write_bytes(index)


def lists(documents: Ragged) -> list[list[int]]:
    return [documents[row].tolist() for row in range(len(documents))]


@pytest.mark.parametrize(("code", "dtype"), [(1, "<u1"), (2, "<i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")])
@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_megatron_files_are_read_by_sequence_and_by_document(
    tmp_path: Path, code: int, dtype: str, ending: str
) -> None:
    sequences = [[1, 2, 3], [4], [], [5, 6], [7, 8, 9, 10]]
    megatron(tmp_path / "data", sequences, [0, 2, 2, 5], code, dtype)
    opened = MegatronFile(f"{tmp_path}/data{ending}")
    assert (len(opened), opened.num_documents, opened.num_tokens, opened.dtype) == (5, 3, 10, np.dtype(dtype))
    assert lists(opened.read()) == sequences
    assert lists(opened.read(1, 4)) == sequences[1:4]
    assert lists(opened.take(np.array([4, 0, 4]))) == [sequences[4], sequences[0], sequences[4]]
    assert lists(opened.documents()) == [[1, 2, 3, 4], [], [5, 6, 7, 8, 9, 10]]
    assert lists(opened.documents(1, 3)) == [[], [5, 6, 7, 8, 9, 10]]
    assert not opened.read(1, 4).values.flags.owndata


def test_sequences_that_lie_in_any_order_are_read_right(tmp_path: Path) -> None:
    path = tmp_path / "data"
    megatron(path, [[1, 2], [3], [4, 5]], [0, 3])
    index = bytearray(path.with_suffix(".idx").read_bytes())
    struct.pack_into("<3i", index, 34, 2, 1, 2)
    struct.pack_into("<3q", index, 34 + 12, 6, 4, 0)
    path.with_suffix(".idx").write_bytes(bytes(index))
    assert lists(MegatronFile(path).read()) == [[4, 5], [3], [1, 2]]


def test_modes_behind_the_borders_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "data"
    megatron(path, [[1, 2], [3]], [0, 2])
    with open(path.with_suffix(".idx"), "ab") as index:
        index.write(bytes(2))
    assert lists(MegatronFile(path).read()) == [[1, 2], [3]]


@given(
    rows=st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=9),
    cut=st.integers(0, 9),
    dtype=st.sampled_from(["uint16", "int32", "int64"]),
)
def test_what_is_written_for_megatron_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], cut: int, dtype: str
) -> None:
    path = tmp_path_factory.mktemp("files") / "data"
    documents = Ragged.from_arrays([np.array(row, np.uint32) for row in rows])
    with MegatronWriter(path, dtype) as out:
        out.write(documents[:cut])
        out.write(documents[cut:])
    opened = MegatronFile(path)
    assert opened.dtype == dtype
    assert lists(opened.read()) == rows
    assert lists(opened.documents()) == rows
    # Byte by byte what the format says.
    expected = path.with_name("expected")
    code = {"uint16": 8, "int32": 4, "int64": 5}[dtype]
    megatron(expected, rows, list(range(len(rows) + 1)), code, dtype)
    for ending in (".bin", ".idx"):
        assert path.with_suffix(ending).read_bytes() == expected.with_suffix(ending).read_bytes()


def test_documents_of_several_sequences_are_written(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "data.idx", "uint16") as out:
        out.write(Ragged.of([[1], [2, 3], [4]]), sequences=[2, 0, 1])
        with pytest.raises(ConfigError, match="3 sequences in all documents, but 1"):
            out.write(Ragged.of([[1]]), sequences=[3])
    opened = MegatronFile(tmp_path / "data.bin")
    assert lists(opened.documents()) == [[1, 2, 3], [], [4]]


def test_a_writer_for_megatron_leaves_nothing_when_it_fails_and_replaces_nothing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="70000"), MegatronWriter(tmp_path / "data", "uint16") as out:
        out.write(Ragged.of([[70000]]))
    assert list(tmp_path.iterdir()) == []
    with MegatronWriter(tmp_path / "data", "uint16") as out:
        out.write(Ragged.of([[7]]))
        assert not (tmp_path / "data.bin").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.bin", "data.idx"]
    with pytest.raises(ConfigError, match=r"data\.bin exists"):
        MegatronWriter(tmp_path / "data", "uint16")
    with pytest.raises(ConfigError, match="hold no float32"):
        MegatronWriter(tmp_path / "other", "float32")
    with pytest.raises(ConfigError, match="closed"):
        out.write(Ragged.of([[7]]))


def spoil(path: Path, at: int, form: str, *values: int) -> None:
    index = bytearray(path.read_bytes())
    struct.pack_into(form, index, at, *values)
    path.write_bytes(bytes(index))


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (0, "<B", 0, "does not begin as an index"),
        (9, "<Q", 2, "has version 2"),
        (17, "<B", 7, "holds float32, which are not tokens"),
        (17, "<B", 77, "unknown dtype 77"),
        (18, "<Q", 9, "need 158. Was it written to the end"),
        (18, "<Q", 1 << 60, "Was it written to the end"),
        (34, "<i", 99, r"sequence 0 of 99 tokens begins at byte 0 of .*data\.bin, which has 10 bytes"),
        (34, "<i", -1, "sequence 0 of -1 tokens"),
        (46, "<q", 1, "sequence 0 of 2 tokens begins at byte 1"),
        (46, "<q", -2, "begins at byte -2"),
        (46, "<q", (1 << 63) - 2, "begins at byte"),
        (70, "<q", 1, "document borders that do not rise"),
        (78, "<q", 2, "document borders that do not rise from 0 to its 3 sequences"),
    ],
)
def test_a_spoilt_index_of_megatron_is_reported(tmp_path: Path, at: int, form: str, value: int, message: str) -> None:
    path = tmp_path / "data"
    megatron(path, [[1, 2], [3], [4, 5]], [0, 3])
    MegatronFile(path)
    spoil(path.with_suffix(".idx"), at, form, value)
    with pytest.raises(CorruptDataError, match=rf"data\.idx .*{message}"):
        MegatronFile(path)


def test_cut_and_missing_files_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "data"
    megatron(path, [[1, 2], [3]], [0, 2])
    whole = path.with_suffix(".idx").read_bytes()
    for size in range(len(whole)):
        path.with_suffix(".idx").write_bytes(whole[:size])
        with pytest.raises(CorruptDataError):
            MegatronFile(path)
    path.with_suffix(".idx").write_bytes(whole)
    path.with_suffix(".bin").write_bytes(b"12345")
    with pytest.raises(CorruptDataError, match="Were both written together"):
        MegatronFile(path)
    path.with_suffix(".bin").unlink()
    with pytest.raises(ObjectNotFoundError, match=r"data\.bin"):
        MegatronFile(path)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_raw_tokens_are_one_long_document_or_those_that_end_with_eos(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "train.bin"
    np.array([5, 6, 0, 7, 0, 8], dtype).tofile(path)
    raw = RawTokens(path, dtype)
    assert len(raw) == 6
    assert lists(raw.read()) == [[5, 6, 0, 7, 0, 8]]
    assert lists(raw.read(2, 4)) == [[0, 7]]
    assert lists(raw.documents(0)) == [[5, 6, 0], [7, 0], [8]]
    assert lists(raw.documents(8)) == [[5, 6, 0, 7, 0, 8]]
    assert not raw.read().values.flags.owndata
    batch = windows(raw.documents(0), 0, 2, LMSettings(3))
    assert batch.labels.tolist() == [[6, 0, -100], [0, -100, -100]]
    path.write_bytes(b"")
    assert lists(RawTokens(path, dtype).documents(0)) == []


def test_a_header_of_raw_tokens_is_seen_and_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "fineweb.bin"
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, 4
    path.write_bytes(head.tobytes() + np.array([1, 2, 3, 4], "<u2").tobytes())
    with pytest.raises(CorruptDataError, match="pass header_bytes=1024"):
        RawTokens(path, "uint16")
    assert lists(RawTokens(path, "uint16", header_bytes=1024).read()) == [[1, 2, 3, 4]]


def test_raw_tokens_that_can_not_be_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(b"12345")
    wrong: list[tuple[Any, Any]] = [("uint16", CorruptDataError), ("float32", ConfigError)]
    for dtype, kind in wrong:
        with pytest.raises(kind):
            RawTokens(path, dtype)
    with pytest.raises(ObjectNotFoundError):
        RawTokens(tmp_path / "no", "uint16")
    with pytest.raises(ConfigError, match="has 5 tokens: there are no tokens"):
        RawTokens(path, "uint8").read(3, 9)


def test_a_pair_of_files_is_not_overwritten_wherever_it_lies(tmp_path: Path) -> None:
    for place in (str(tmp_path / "tokens"), "memory://megatron-pairs/tokens"):
        with MegatronWriter(place, "uint16") as out:
            out.write(Ragged(np.arange(3), np.array([0, 3])))
        store = open_store(place.rpartition("/")[0])
        for ending in (".bin", ".idx"):
            with pytest.raises(ConfigError, match=r"/tokens\.bin exists: write elsewhere"):
                MegatronWriter(place + ending, "uint16")
        store.delete("tokens.bin")
        with pytest.raises(ConfigError, match=r"/tokens\.idx exists: write elsewhere"):
            MegatronWriter(place, "uint16")


def test_a_directory_of_arrays_names_how_it_is_read_and_its_splits_are_not_mixed(tmp_path: Path) -> None:
    """As nanoGPT leaves them: ``train.bin`` and ``val.bin``."""
    for name in ("train", "val"):
        np.arange(64, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    with pytest.raises(ConfigError, match=r"train\.bin without an \.idx.*RawSource\('.*/train\.bin'"):
        StreamingParquetLoader(tmp_path, batch_size=2, seq_len=8)
    with pytest.raises(ConfigError, match=r"splits train, validation.*as .*/train\.bin"):
        RawSource(tmp_path, "uint16", row_tokens=8)
    (tmp_path / "val.bin").unlink()
    RawSource(tmp_path, "uint16", row_tokens=8)
    (tmp_path / "train.idx").touch()
    with pytest.raises(ConfigError, match="MegatronSource"):
        StreamingParquetLoader(tmp_path, batch_size=2, seq_len=8)

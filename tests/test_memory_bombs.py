"""Small inputs that would take much memory or time are refused, with the file, the sizes and what to do."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import MDSWriter, ReadOptions, StreamingDataset, rebuild_index
from stoker.cli import main
from stoker.coordination.records import decode
from stoker.errors import CorruptDataError, FormatError, StateError
from stoker.formats.common import checks
from stoker.formats.common.compression import parse_compression
from stoker.tokens.tokenize import texts

_ROWS = 1 << 20


def _npz(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", x=np.zeros(_ROWS, np.int64))


def _hdf5(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros(_ROWS, np.int64), compression="gzip")


def _parquet(folder: Path, *, dictionary: bool) -> None:
    table = pa.table({"x": np.zeros(_ROWS, np.int64)})
    pq.write_table(table, folder / "a.parquet", compression="zstd", use_dictionary=dictionary, row_group_size=_ROWS)


def _arrow(folder: Path) -> None:
    table = pa.table({"x": np.zeros(_ROWS, np.int64)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(folder / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table, max_chunksize=1 << 14)  # each batch is within all bounds


_BOMBS: dict[str, Callable[[Path], None]] = {
    "npz": _npz,
    "hdf5": _hdf5,
    "arrow": _arrow,
    "parquet": lambda folder: _parquet(folder, dictionary=False),
    "parquet, by a dictionary": lambda folder: _parquet(folder, dictionary=True),
}


@pytest.mark.parametrize("name", _BOMBS)
def test_a_column_that_decodes_to_too_much_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_ALWAYS_DECODED", 1 << 16, raising=False)
    _BOMBS[name](tmp_path)
    kind = name.partition(",")[0]
    dataset = StreamingDataset(local=str(tmp_path), format=kind, read=ReadOptions(decoded_limit="500kb"))
    with pytest.raises(CorruptDataError, match=r"a\.(npz|h5|arrow|parquet).*bytes decode to .*decoded_limit="):
        dataset.read([0], columns=["x"])
    allowed = StreamingDataset(local=str(tmp_path), format=kind, read=ReadOptions(decoded_limit="16mb"))
    assert list(allowed.read([5], columns=["x"])["x"]) == [0]


def test_what_is_stored_as_much_is_decoded_whatever_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_ALWAYS_DECODED", 1 << 16, raising=False)
    values = np.random.default_rng(0).integers(0, 1 << 62, _ROWS)
    np.savez_compressed(tmp_path / "a.npz", x=values)
    dataset = StreamingDataset(local=str(tmp_path), format="npz", read=ReadOptions(decoded_limit=1))
    assert list(dataset.read([7], columns=["x"])["x"]) == [values[7]]


def test_a_compressed_shard_without_an_index_is_unpacked_within_bounds(tmp_path: Path) -> None:
    bomb = bytes(parse_compression("zstd").compress(bytes((1 << 28) + 1)))
    assert len(bomb) < 1 << 16
    (tmp_path / "shard.00000.mds.zstd").write_bytes(bomb)
    with pytest.raises(FormatError, match=r"shard\.00000\.mds\.zstd.*of at most 268,435,456 bytes"):
        rebuild_index(str(tmp_path))


def test_an_archive_with_an_extension_for_each_file_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(2100):
            archive.addfile(tarfile.TarInfo(f"{number}.x{number}"), io.BytesIO())
    with pytest.raises(CorruptDataError, match=r"a\.tar.*2,100 samples have files of 2,100 different extensions"):
        StreamingDataset(local=str(tmp_path), format="tar")


def test_a_compressed_line_is_unpacked_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_LONGEST_LINE", 1000, raising=False)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "' + b"x" * 988 + b'"}\n' + b'{"text": "y"}\n'))
    found = texts.find_texts(path, column=None, strict=True)
    with pytest.raises(CorruptDataError, match=r"a\.jsonl\.gz has a line of more than 1,000 bytes"):
        list(found.blocks())
    path.write_bytes(gzip.compress(b'{"text": "' + b"x" * 900 + b'"}\n' + b'{"text": "y"}\n'))
    found = texts.find_texts(path, column=None, strict=True)
    assert [text for block in found.blocks() for text in block.documents()] == ["x" * 900, "y"]


def test_json_that_is_nested_too_deeply_is_an_error_of_ours(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deep = b"[" * 200_000
    with pytest.raises(StateError):
        decode(deep)
    (tmp_path / "state").write_bytes(deep)
    with MDSWriter(out=str(tmp_path / "data"), columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    assert main(["order", str(tmp_path / "data"), "--step", "0", "--resume", str(tmp_path / "state")]) == 1
    assert "is not a state" in capfd.readouterr().err

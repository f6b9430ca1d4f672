"""Datasets of litdata: each sample as litdata itself reads it, wherever it lies, and what is not read is refused."""

from __future__ import annotations

import functools
import http.server
import json
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from litdata_cases import BLOCK, files_of, golden, golden_names, litdata_files, value_of
from PIL import Image, ImageOps

from s3server import Bucket
from stoker import LMStream, MDSWriter, StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, FormatError, IndexFileError, StokerError, UnsafeDataError
from stoker.formats.litdata_values import decoder_of
from stoker.storage import open_store
from stoker.testing.values import equal

pytestmark = pytest.mark.usefixtures("own_cache")


def laid_out(name: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for key, data in files_of(name).items():
        (folder / key).write_bytes(data)
    return folder


def options(name: str) -> dict[str, Any]:
    blocks = {"format": "litdata", "format_options": {"block_size": BLOCK}} if "tokens" in name else {}
    return {**blocks, "allow_unsafe_types": name == "pickle"}


def expected(name: str) -> list[dict[str, Any]]:
    """The samples of litdata, under the columns that stoker has for them."""
    found = []
    for told in golden()[name]["samples"]:
        value = value_of(told)
        if isinstance(value, tuple | list):
            value = {str(number): one for number, one in enumerate(value)}
        found.append(value if isinstance(value, dict) else {"data": value})
    return found


def same(found: Any, wanted: Any) -> bool:
    """Whether values are the same; an image is the tensor that litdata makes of it, and lists of numbers may be arrays."""
    if isinstance(found, Image.Image) and isinstance(wanted, np.ndarray):
        pixels = np.asarray(ImageOps.exif_transpose(found).convert("RGB")).transpose(2, 0, 1)
        return equal(pixels, wanted)
    if isinstance(found, np.ndarray) and isinstance(wanted, list):
        return equal(found.tolist(), wanted)
    return equal(found, wanted) and isinstance(found, tuple) == isinstance(wanted, tuple)


def check(found: list[Mapping[str, Any]], name: str) -> None:
    wanted = expected(name)
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted, strict=True):
        assert {key for key in one if one[key] is not None} <= two.keys() <= one.keys()
        for key, value in two.items():
            assert same(one[key], value), f"{key}: {one[key]!r} instead of {value!r}"


@pytest.mark.parametrize("name", golden_names())
def test_samples_are_those_that_litdata_reads(name: str, tmp_path: Path) -> None:
    """In place, and from a remote with a cache; a start without the network reads the index in the cache."""
    remote = laid_out(name, tmp_path / "data")
    check(list(StreamingDataset(remote, **options(name))), name)
    with StreamingDataset(remote, local=tmp_path / "cache", **options(name)) as dataset:
        check(list(dataset), name)
        check([dataset[number] for number in range(len(dataset))], name)
        assert tuple(dataset[0]) == tuple(expected(name)[0]) or "rows" in name


@pytest.mark.s3
@pytest.mark.parametrize("name", ["plain", "chunk-zstd", "tokens"])
def test_they_are_read_from_s3(name: str, bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(f"{bucket.url}/lit", bucket.storage_options)
    for key, data in files_of(name).items():
        store.put(key, data)
    where: dict[str, Any] = {"local": tmp_path / "cache", "storage_options": bucket.storage_options}
    for _ in range(2):
        check(list(StreamingDataset(f"{bucket.url}/lit", **where, **options(name))), name)


@pytest.mark.processes
def test_compressed_chunks_are_read_over_http(tmp_path: Path) -> None:
    laid_out("chunk-zstd", tmp_path / "data")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "data"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        check(list(StreamingDataset(url, local=tmp_path / "cache")), "chunk-zstd")
        server.shutdown()


def test_a_missing_compressed_chunk_is_named(tmp_path: Path) -> None:
    (laid_out("chunk-zstd", tmp_path / "data") / "chunk-0-1.zstd.bin").unlink()
    with pytest.raises(StokerError, match=r"chunk-0-1\.zstd\.bin is missing, which .*index\.json lists"):
        StreamingDataset(tmp_path / "data")


def test_documents_of_tokens_are_samples_without_a_block_size(tmp_path: Path) -> None:
    dataset = StreamingDataset(laid_out("tokens", tmp_path / "data"))
    assert len(dataset) == 11
    assert dataset[2]["data"].tolist() == list(range(200, 205))
    assert np.asarray(dataset.read([3])["data"][0]).dtype == np.int32
    stream = LMStream(dataset, "data", seq_len=16, batch_size=2)
    assert next(iter(stream)).input_ids.shape == (2, 16)


def test_blocks_of_another_size_do_not_mix_in_a_cache(tmp_path: Path) -> None:
    remote = laid_out("tokens", tmp_path / "data")

    def blocks(size: int | None) -> list[int]:
        given = {"block_size": size} if size else None
        dataset = StreamingDataset(remote, local=tmp_path / "cache", format="litdata", format_options=given)
        return [len(sample["data"]) for sample in dataset]

    assert set(blocks(8)) == {8}
    assert set(blocks(5)) == {5}
    assert blocks(None) == [3 + number for number in range(11)]
    assert set(blocks(8)) == {8}


def test_a_block_size_fits_tokens_alone(tmp_path: Path) -> None:
    remote = laid_out("plain", tmp_path / "data")
    given: list[tuple[dict[str, Any], str]] = [
        ({"block_size": 8}, "block_size= is for chunks of tokens"),
        ({"block_size": 0}, "positive int"),
        ({"blocks": 8}, "setting 'blocks' is unknown"),
    ]
    for settings, told in given:
        with pytest.raises(ConfigError, match=told):
            StreamingDataset(remote, format="litdata", format_options=settings)


def test_shards_of_another_format_are_refused_by_name(tmp_path: Path) -> None:
    with MDSWriter({"x": "int"}, str(tmp_path)) as out:
        out.write({"x": 1})
    with pytest.raises(ConfigError, match="holds shards of format 'mds'"):
        StreamingDataset(tmp_path, format="litdata")
    with pytest.raises(ConfigError, match="a list of files needs another format"):
        StreamingDataset([str(tmp_path / "a.bin")], format="litdata")


def test_pickles_need_consent(tmp_path: Path) -> None:
    dataset = StreamingDataset(laid_out("pickle", tmp_path / "data"))
    with pytest.raises(UnsafeDataError, match="column 'thing' is pickled"):
        dataset[0]
    assert [sample["id"] for sample in StreamingDataset(tmp_path / "data", columns=["id"])] == list(range(11))


def test_json_of_chunks_holds_no_number_that_became_infinite() -> None:
    decode = decoder_of("json")
    assert decode(b'{"x": [1e308, Infinity]}') == {"x": [1e308, float("inf")]}
    nested = b"\x00" + struct.pack("<I", 5)
    assert decode(nested + b"1e300") == 1e300
    for data in (b'{"x": [-1e400]}', nested + b"1e400"):
        with pytest.raises(ValueError, match=r"1e400\) is larger than a float holds"):
            decode(data)


def altered(folder: Path, name: str = "plain", **config: Any) -> Path:
    laid_out(name, folder)
    index = json.loads((folder / "index.json").read_text())
    index["config"].update(config)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"encryption": {"algorithm": "fernet", "level": "sample"}}, "encrypted .fernet., which stoker can not read"),
        ({"item_loader": "ParquetLoader"}, "format='parquet'"),
        ({"item_loader": "TemporalArrayLoader"}, "chunks of TemporalArrayLoader are not read"),
        ({"compression_level": "word"}, "compression_level 'word' is unknown"),
        ({"data_format": ["int"]}, "'data_spec' (is not a tree|has)"),
        ({"data_spec": "[1, {}]"}, "is not a tree of litdata's"),
        ({"item_loader": "TokensLoader"}, "not one array of tokens"),
    ],
)
def test_what_is_not_read_is_refused_at_once(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises((FormatError, IndexFileError), match=told):
        StreamingDataset(altered(tmp_path / "data", **config))


def test_columns_of_unknown_serializers_are_refused_alone(tmp_path: Path) -> None:
    leaves = json.loads(files_of("plain")["index.json"])["config"]["data_format"]
    dataset = StreamingDataset(altered(tmp_path / "data", data_format=["mine", *leaves[1:]]))
    with pytest.raises(FormatError, match="serializer 'mine' are not read: leave the column out"):
        dataset[0]
    assert StreamingDataset(tmp_path / "data", columns=["score"])[2]["score"] == 0.5


def test_other_chunks_than_the_index_says_are_refused(tmp_path: Path) -> None:
    """Of the same size, but of other samples."""
    folder = laid_out("plain", tmp_path / "data")
    chunk = bytearray((folder / "chunk-0-1.bin").read_bytes())
    chunk[0] += 1
    (folder / "chunk-0-1.bin").write_bytes(chunk)
    with pytest.raises(CorruptDataError, match="chunk-0-1"):
        list(StreamingDataset(folder))


def test_many_chunks_are_read_in_one_order_by_any_world(tmp_path: Path) -> None:
    for key, data in litdata_files(range(90)).items():
        (tmp_path / key).write_bytes(data)
    dataset = StreamingDataset(tmp_path, shuffle=True, shuffle_seed=3, batch_size=10)
    numbers = [sample["id"] for sample in dataset]
    assert sorted(numbers) == list(range(90)) != numbers
    assert np.asarray(dataset.read([5, 80])["id"]).dtype == np.int64

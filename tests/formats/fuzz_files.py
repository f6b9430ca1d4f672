"""The small files that are damaged: of each format some that stoker writes and some that others write.

Small, because a change to a file of 300 bytes does more than one to a file of 30 KB, and is read in a hundredth of the time.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from format_table import OTHERS, indexed_binary
from fuzz_damage import Target, seal_png, seal_tar, seal_tfrecord
from fuzz_reading import (
    facts_of,
    inspected,
    read_index,
    read_indexed,
    read_inspected,
    read_packed,
    read_parquet,
    read_side,
    told_of,
    unindexed_file,
)
from litdata_cases import files_of, golden_names, shards_of_golden

from packed_cases import sample_of
from stoker import MDSWriter
from stoker.catalog.unindexed.file_facts import parse_facts, save_facts
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.compression import compression_names, parse_compression
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.one_file import content_kind
from stoker.formats.registry import get_format
from stoker.storage import ObjectInfo
from stoker.writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from stoker.writing.shard_formats import TarWriter, TFRecordWriter, writer_of

__all__ = ["FORMATS", "targets_of"]

FORMATS = (
    "arrow",
    "compressed",
    "csv",
    "files",
    "hdf5",
    "images",
    "index",
    "indexed_binary",
    "jpeg",
    "json",
    "litdata",
    "mds",
    "megatron",
    "npy",
    "npz",
    "parquet",
    "png",
    "side",
    "tar",
    "tfrecord",
    "tsv",
    "xsv",
)
"""All formats but ``synthetic``, which has no files; and beside them ``index``, the ``index.json`` of data sets,
``side``, what is kept of files without one, and ``compressed``, files in each of the codecs."""

_TEXT: list[dict[str, str]] = [{"id": "int", "text": "str"}, {"a": "float", "text": "str"}]
_FIXED: list[dict[str, str]] = [{"flag": "bool", "half": "bfloat16", "id": "int"}, {"pixels": "ndarray:uint8:4,3"}]
_ANY: list[dict[str, str]] = [
    {"blob": "bytes", "id": "int"},
    {"flag": "bool", "meta": "json", "row": "ndarray:float32:5"},
    {"half": "bfloat16", "pixels": "ndarray:uint8:4,3", "shape": "ndarray"},
    {"text": "str"},
]
_MORE: list[dict[str, str]] = [
    {"a": "uint8", "b": "str_int", "c": "float64"},
    {"d": "str_float", "e": "ndarray:int16", "f": "str_decimal"},
]
_WRITTEN: Mapping[str, tuple[Callable[..., Any], Sequence[Mapping[str, str]]]] = {
    "arrow": (writer_of("arrow"), _ANY),
    "csv": (CSVWriter, _TEXT),
    "hdf5": (writer_of("hdf5"), [{"flag": "bool"}, {"half": "bfloat16"}, {"pixels": "ndarray:uint8:4,3"}]),
    "json": (JSONWriter, _TEXT),
    "mds": (MDSWriter, [*_ANY, *_MORE]),
    "npy": (writer_of("npy"), [{"id": "int"}, {"row": "ndarray:float32:5"}]),
    "npz": (writer_of("npz"), _FIXED),
    "tar": (TarWriter, _ANY),
    "tfrecord": (TFRecordWriter, _ANY),
    "tsv": (TSVWriter, _TEXT),
    "xsv": (partial(XSVWriter, separator="|"), _TEXT),
}
_SEALS = {"png": seal_png, "tar": seal_tar, "tfrecord": seal_tfrecord}


def targets_of(name: str) -> list[Target]:
    """The files of a format, none of them damaged yet."""
    if name == "index":
        return [Target([data], read_index) for data in _indexes()]
    if name == "side":
        return [Target(files, read_side) for files in _sides()]
    if name == "compressed":
        return [Target([data], partial(read_packed, codec, size)) for data, codec, size in _compressed()]
    if name == "parquet":
        targets = []
        for data in _parquet():
            schemas: dict[Any, Any] = {}
            first = facts_of(data, schemas).spec["columns"]
            name, kind = next(iter(first.items()))
            limit: Any = {"int64": 2, "string": "b"}.get(kind)
            filters = None if limit is None else [(name, ">=", limit)]
            targets.append(Target([data], partial(read_parquet, schemas, filters)))
        return targets
    seal = _SEALS.get(name)
    targets = [
        Target(files, partial(read_indexed, info), seal, (0,) * 7 + (len(files) - 1,)) for info, files in _written(name)
    ]
    if name in ("files", "images", "jpeg", "png"):
        content = "data" if name == "files" else "image"
        columns = {content: content_kind(name), "path": "str"}
        for data in _images(name):
            info = ShardInfo(name, 1, (FileInfo("a", len(data), {}),), (), None, {"columns": columns})
            targets.append(Target([data], partial(read_indexed, info), seal))
        return targets
    for files, settings in _others(name):
        known = inspected(name, settings, files)
        targets.append(Target(files, partial(read_inspected, name, settings, known), seal, range(len(files))))
    return targets


def _written(name: str) -> Iterator[tuple[ShardInfo, list[bytes]]]:
    """Shards of three samples as stoker writes them; of litdata, as it wrote them."""
    if name == "litdata":
        for dataset in golden_names():
            if "chunk-zstd" not in dataset and dataset != "pickle":
                yield from list(shards_of_golden(dataset))[-1:]
    if name not in _WRITTEN:
        return
    make, columns = _WRITTEN[name]
    for chosen in columns:
        with tempfile.TemporaryDirectory() as folder:
            _write(partial(make, columns=chosen, out=folder), chosen)
            (entry,) = json.loads(Path(folder, "index.json").read_bytes())["shards"]
            info = get_format(name).parse_shard(entry, "the index")
            yield info, [Path(folder, file.basename).read_bytes() for file in info.raw]


def _write(make: Callable[[], Any], columns: Mapping[str, str]) -> None:
    with make() as writer:
        for number in range(3):
            writer.write(_sample(number, columns))


def _sample(number: int, columns: Mapping[str, str]) -> dict[str, Any]:
    short = {
        "a": number,
        "b": number * 7,
        "c": number / 4,
        "d": 0.5,
        "e": np.arange(number + 1, dtype=np.int16),
        "f": "1.5",
    }
    known = [name for name in columns if name not in short]
    sample = {**short, **sample_of(number, dict.fromkeys(known, ""))}
    if columns.get("f") == "str_decimal":
        sample["f"] = importlib.import_module("decimal").Decimal("1.50")
    return {name: float(sample[name]) if kind == "float" else sample[name] for name, kind in columns.items()}


def _indexes() -> Iterator[bytes]:
    """Index files of each format that has them, and of compressed and hashed shards."""
    for name, (make, columns) in _WRITTEN.items():
        more = {"compression": "zstd:3", "hashes": ["sha1", "xxh64"]} if name in ("mds", "csv") else {}
        with tempfile.TemporaryDirectory() as folder:
            _write(partial(make, columns=columns[0], out=folder, **more), columns[0])
            yield Path(folder, "index.json").read_bytes()
    yield files_of("plain")["index.json"]
    yield files_of("tokens")["index.json"]


def _sides() -> Iterator[list[bytes]]:
    """What is kept of some files of a format, and the text of what it says."""
    spec = {"columns": {"id": "int", "text": "str"}, "separator": ","}
    text = [
        UnindexedFile(ObjectInfo("a", 99, "v1"), 3, spec, np.array([(3, 9, 1), (9, 20, 2)])),
        UnindexedFile(ObjectInfo("b", 9), 3, spec, np.zeros((0, 3), np.int64), (ObjectInfo("c", 9),), 50),
    ]
    parquet = [[unindexed_file(facts_of(data, {}), len(data))] for data in list(_parquet())[:2]]
    for files in (text, *parquet):
        with tempfile.TemporaryDirectory() as folder:
            save_facts([Path(folder)], "memory://data", "side", files)
            kept = Path(folder, ".stoker", "side").read_bytes()
        yield [kept, told_of(parse_facts(kept).values())]


def _compressed() -> Iterator[tuple[bytes, str, int]]:
    """Compressed files, their codecs, and the sizes that come out."""
    for text in (b"a line of text, " * 30, bytes(range(250))):
        for codec in compression_names():
            yield bytes(parse_compression(codec).compress(text)), codec, len(text)


def _images(kind: str) -> Iterator[bytes]:
    if kind == "files":
        yield b"any bytes at all"
        yield b""
        return
    if kind == "images":
        yield from _images("jpeg")
        yield from _images("png")
        return
    image = importlib.import_module("PIL.Image")
    for mode, size in (("L", (1, 1)), ("RGB", (3, 2))):
        out = io.BytesIO()
        image.frombytes(mode, size, bytes(range(size[0] * size[1] * len(mode)))).save(out, kind, optimize=True)
        yield out.getvalue()
    out = io.BytesIO()
    if kind == "jpeg":
        image.new("CMYK", (2, 2)).save(out, kind, progressive=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0")
    else:
        info = importlib.import_module("PIL.PngImagePlugin").PngInfo()
        info.add_text("a", "b", zip=True)
        image.new("P", (2, 2)).save(out, kind, pnginfo=info, transparency=0, dpi=(1, 1), exif=b"Exif\0\0II*\0\0\0\0\0")
    yield out.getvalue()


def _others(name: str) -> Iterator[tuple[list[bytes], Mapping[str, Any]]]:
    """Files as other programs write them, and settings to read them with."""
    made = {"arrow": _arrow, "hdf5": _hdf5, "npy": _npy, "npz": _npz, "tar": _tar}.get(name)
    if made is not None:
        for data in made():
            yield [data], {}
    elif name == "megatron":
        files = OTHERS[name].files(range(3))
        pairs = [[files[f"part-{turn}.idx"], files[f"part-{turn}.bin"]] for turn in (0, 2)]
        yield pairs[0], {}
        yield pairs[1], {"unit": "document"}
    elif name == "indexed_binary":
        files = indexed_binary([b"a", b"", b"bcd"])
        yield [files[".off.idx"], files[".sz.idx"], files[""]], {}
    elif name in OTHERS and name not in ("litdata", "mds"):
        settings = dict(OTHERS[name].options or {})
        for files in (OTHERS[name].files(range(9)), OTHERS[name].files(range(4))):
            for data in list(files.values())[:1]:
                yield [data], settings
        if name in ("csv", "json"):
            yield [data], {**settings, "piece_bytes": 20}


def _npy() -> Iterator[bytes]:
    for array in (
        np.zeros(3, [("a", "<i4"), ("b", ">f8", (2,)), ("c", "U3")]),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)),
        np.array([b"a", b"bc"]),
    ):
        out = io.BytesIO()
        np.save(out, array)
        yield out.getvalue()


def _npz() -> Iterator[bytes]:
    for save in (np.savez_compressed, np.savez):
        out = io.BytesIO()
        save(out, x=np.arange(6.0).reshape(3, 2), y=np.arange(3, dtype=np.int8))
        yield out.getvalue()


def _hdf5() -> Iterator[bytes]:
    h5py = importlib.import_module("h5py")
    kinds: Sequence[tuple[dict[str, Any], str]] = (
        ({"chunks": (3, 2), "compression": "gzip", "shuffle": True, "fletcher32": True}, "earliest"),
        ({}, "earliest"),
        ({"chunks": (1, 2), "maxshape": (None, 2)}, "latest"),
        ({"chunks": (3, 2), "compression": "gzip", "dtype": "i4,f4"}, "earliest"),
    )
    for options, version in kinds:
        out = io.BytesIO()
        with h5py.File(out, "w", libver=version) as file:
            values = np.ones((3, 2), options.pop("dtype", np.float32))
            file.create_dataset("g/x" if not options else "x", data=values, **options)
        yield out.getvalue()


def _arrow() -> Iterator[bytes]:
    pa = importlib.import_module("pyarrow")
    feather, ipc = importlib.import_module("pyarrow.feather"), importlib.import_module("pyarrow.ipc")
    words = pa.table({"text": pa.array(["a", "bb", None]).dictionary_encode(), "view": _views(pa)})
    nested = pa.table({"id": [1, None, 3], "nested": [[1, 2], None, []]})
    rest = pa.table({"blob": [b"x", b"", b"zz"], "fixed": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2))})
    for table, codec in ((words, "uncompressed"), (nested, "zstd"), (rest, "lz4")):
        out = io.BytesIO()
        feather.write_feather(table, out, compression=codec, chunksize=2)
        yield out.getvalue()
    for table in (nested, pa.table({"id": [1, 2, 3]})):
        out = io.BytesIO()
        with ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        yield out.getvalue()


def _views(pa: Any) -> Any:
    return pa.array(["a long string of more than twelve", "b", "c"], pa.string_view())


def _parquet() -> Iterator[bytes]:
    pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    for columns, options in (
        ({"id": [1, 2, 3]}, {"row_group_size": 2, "compression": "none", "store_schema": False}),
        ({"text": ["a", "bb", None]}, {"compression": "zstd", "write_page_checksum": True, "store_schema": False}),
        (
            {"tokens": pa.array([[1, 2], [], [3]], pa.list_(pa.uint16()))},
            {"compression": "none", "store_schema": False},
        ),
        (
            {"row": pa.array([[1, 2]] * 3, pa.list_(pa.float32(), 2))},
            {"compression": "snappy", "use_dictionary": False},
        ),
        ({"blob": [b"x", b"y"], "n": [{"a": 1}, None]}, {"data_page_version": "2.0", "store_schema": False}),
    ):
        out = io.BytesIO()
        pq.write_table(pa.table(columns), out, **options)
        yield out.getvalue()
    array = {"dtype": "float32", "shape": "2,1"}
    for nullable in (False, True):
        schema = pa.schema([pa.field("x", pa.binary(8), nullable, array)])
        column, out = pa.array([bytes(range(n, n + 8)) for n in range(3)], pa.binary(8)), io.BytesIO()
        how = {"data_page_version": "2.0"} if nullable else {}
        pq.write_table(
            pa.Table.from_arrays([column], schema=schema), out, use_dictionary=False, compression="none", **how
        )
        yield out.getvalue()


def _tar() -> Iterator[bytes]:
    for kind, names in ((tarfile.PAX_FORMAT, ("é" * 60 + "/1", "2")), (tarfile.GNU_FORMAT, ("x" * 120, "y"))):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
            for name in names:
                for extension, data in (("cls", b"7"), ("json", b"{}"), ("jpg", b"abc"))[: 3 if kind else 1]:
                    member = tarfile.TarInfo(f"{name}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        yield out.getvalue().rstrip(b"\0") + bytes(1024)

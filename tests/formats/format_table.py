"""The table of formats in docs/formats.md, made from what is so: ``python tests/formats/format_table.py`` prints it.

Which formats are written, and which files of others are read, is what the matrix of tests runs through: see
``test_format_table.py``.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from litdata_cases import litdata_files

from packed_cases import tiny_image
from stoker import MDSWriter, writers
from stoker.formats.registry import format_names, get_format
from stoker.writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from stoker.writing.image_folders import JPEGWriter, PNGWriter
from stoker.writing.shard_formats import TarWriter, TFRecordWriter, writable_formats, writer_of

__all__ = ["OTHERS", "ROWS", "WRITTEN", "Others", "Written", "table"]

ROWS = 60
"""Samples of each data set."""


@dataclass(frozen=True)
class Written:
    """How stoker writes a format.

    Attributes:
        make: the writer.
        columns: what is written; the sample's number is in the one called ``id``, ``label`` or ``text``.
        options: more for the writer.
    """

    make: Callable[..., Any]
    columns: Mapping[str, str]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Others:
    """Files as others write them.

    Attributes:
        files: numbers of samples to files, by name below the root.
        number: the number of a sample that came back.
        options: ``format_options``.
        suffixes: what the table says of them.
    """

    files: Callable[[range], Mapping[str, bytes]]
    number: Callable[[Mapping[str, Any]], int]
    suffixes: str
    options: Mapping[str, Any] | None = None


TEXT = {"id": "int", "text": "str"}
ANY = {"id": "int", "blob": "bytes", "row": "ndarray:float32:5"}
FIXED = {"id": "int", "row": "ndarray:float32:5"}

WRITTEN: dict[str, Written] = {
    "arrow": Written(writer_of("arrow"), ANY, {"size_limit": 900}),
    "csv": Written(CSVWriter, TEXT, {"size_limit": 200}),
    "hdf5": Written(writer_of("hdf5"), FIXED, {"size_limit": 600}),
    "jpeg": Written(JPEGWriter, {"image": "jpeg", "label": "int"}, {}),
    "json": Written(JSONWriter, TEXT, {"size_limit": 500}),
    "mds": Written(MDSWriter, ANY, {"size_limit": 700}),
    "npy": Written(writer_of("npy"), {"id": "int"}, {"size_limit": 200}),
    "npz": Written(writer_of("npz"), FIXED, {"size_limit": 600}),
    "png": Written(PNGWriter, {"image": "png", "label": "int"}, {}),
    "tar": Written(TarWriter, {"id": "str_int", "blob": "bytes"}, {"size_limit": 40_000}),
    "tfrecord": Written(TFRecordWriter, ANY, {"size_limit": 2000}),
    "tsv": Written(TSVWriter, TEXT, {"size_limit": 200}),
    "xsv": Written(XSVWriter, TEXT, {"size_limit": 200, "separator": "|"}),
}


def parts(numbers: range, count: int = 3) -> list[range]:
    """The numbers in about ``count`` runs."""
    step = -(-len(numbers) // count) or 1
    return [numbers] if not numbers else [numbers[first : first + step] for first in range(0, len(numbers), step)]


def each(make: Callable[[range], bytes], suffix: str) -> Callable[[range], dict[str, bytes]]:
    """A file for each run of numbers."""
    return lambda numbers: {f"part-{k}{suffix}": make(run) for k, run in enumerate(parts(numbers))}


def _arrow(run: range) -> bytes:
    import pyarrow as pa

    out = io.BytesIO()
    # As Hugging Face's datasets keep their files: a stream, with a description of the columns in the schema.
    info = {"info": {"features": {"id": {"dtype": "int64", "_type": "Value"}}}}
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())], {"huggingface": json.dumps(info)})
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(pa.table({"id": list(run), "text": [f"t{n}" for n in run]}, schema), max_chunksize=7)
    return out.getvalue()


def _csv(separator: str) -> Callable[[range], bytes]:
    def make(run: range) -> bytes:
        out = io.StringIO(newline="")
        writer = csv.writer(out, delimiter=separator)
        writer.writerow(["id", "text"])
        writer.writerows([n, f'a{separator}"b"\nline {n}'] for n in run)
        return out.getvalue().encode()

    return make


def _json(run: range) -> bytes:
    return "".join(
        json.dumps({"id": n, "tags": ["é", None] * (n % 2)}, ensure_ascii=False) + "\n" for n in run
    ).encode()


def _npy(run: range) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asfortranarray(np.stack([np.array(run), np.array(run)], axis=1)))
    return out.getvalue()


def _npz(run: range) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, id=np.array(run), row=np.ones((len(run), 3)))
    return out.getvalue()


def _hdf5(run: range) -> bytes:
    h5py = importlib.import_module("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.create_dataset(
            "id", data=np.array(run, np.int64), maxshape=(None,), chunks=(7,), compression="gzip", shuffle=True
        )
    return out.getvalue()


def _tar(run: range) -> bytes:
    webdataset = importlib.import_module("webdataset")
    out = io.BytesIO()
    writer = webdataset.TarWriter(out)
    for n in run:
        writer.write({"__key__": f"{n:05}", "cls": n, "txt": f"text {n}", "bin": bytes(n)})
    writer.close()
    return out.getvalue()


def _tfrecord(run: range) -> bytes:
    import tempfile

    writing = importlib.import_module("tfrecord.writer")
    with tempfile.TemporaryDirectory() as folder:
        writer = writing.TFRecordWriter(f"{folder}/a")
        for n in run:
            writer.write({"id": (n, "int"), "x": (n / 2, "float"), "data": (bytes(n), "byte")})
        writer.close()
        return Path(folder, "a").read_bytes()


def _parquet(run: range) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"id": list(run)}), out, row_group_size=7)
    return out.getvalue()


def indexed_binary(records: Sequence[bytes], offsets: Sequence[int] | None = None) -> dict[str, bytes]:
    """DLIO's three files of records, by the ends of their names."""
    sizes = np.array([len(one) for one in records], np.uint64)
    begins = np.cumsum(sizes) - sizes if offsets is None else np.array(offsets, np.uint64)
    return {"": b"".join(records), ".off.idx": begins.tobytes(), ".sz.idx": sizes.tobytes()}


def _indexed_binary(numbers: range) -> dict[str, bytes]:
    runs = [(k, run) for k, run in enumerate(parts(numbers)) if len(run)]
    files = {k: indexed_binary([n.to_bytes(8, "little") + bytes(n % 5) for n in run]) for k, run in runs}
    return {f"img_{k}_of_3.indexed_binary{end}": data for k, found in files.items() for end, data in found.items()}


def _megatron(numbers: range) -> dict[str, bytes]:
    found = {}
    for k, run in enumerate(parts(numbers)):
        lengths, tokens = (
            np.array([n % 4 + 1 for n in run]),
            np.concatenate([np.full(n % 4 + 1, n) for n in run] or [np.zeros(0)]),
        )
        places = (np.cumsum(lengths) - lengths) * 2
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
        arrays = [lengths.astype("<i4"), places.astype("<i8"), np.arange(len(lengths) + 1).astype("<i8")]
        found[f"part-{k}.idx"] = head + b"".join(array.tobytes() for array in arrays)
        found[f"part-{k}.bin"] = tokens.astype("<u2").tobytes()
    return found


def _mds(numbers: range) -> dict[str, bytes]:
    import tempfile

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(columns=ANY, out=folder, size_limit=700) as writer:
            for n in numbers:
                writer.write(sample_of(n, ANY))
        for path in Path(folder).glob("*.mds"):
            found[path.name] = path.read_bytes()
    return found


def _images(kind: str) -> Callable[[range], dict[str, bytes]]:
    return lambda numbers: {f"class {n % 5}/{n:03}.{kind}": tiny_image(n, kind) for n in numbers}


OTHERS: dict[str, Others] = {
    "arrow": Others(each(_arrow, ".arrow"), lambda s: int(s["id"]), "`.arrow`, `.feather`, `.ipc`"),
    "csv": Others(each(_csv(","), ".csv"), lambda s: int(s["id"]), "`.csv`¹"),
    "files": Others(
        lambda numbers: {f"{n % 3}/{n}": str(n).encode() for n in numbers}, lambda s: int(bytes(s["data"])), "all"
    ),
    "hdf5": Others(each(_hdf5, ".h5"), lambda s: int(s["id"]), "`.h5`, `.hdf5`, `.he5`"),
    "jpeg": Others(_images("jpeg"), lambda s: int(Path(s["path"]).stem), "`.jpg`, `.jpeg`, `.jpe`"),
    "images": Others(
        lambda numbers: {
            f"class {n % 5}/{n:03}.{'jpg' if n % 2 else 'png'}": tiny_image(n, "jpeg" if n % 2 else "png")
            for n in numbers
        },
        lambda s: int(Path(s["path"]).stem),
        "those of `jpeg` and `png`",
    ),
    "indexed_binary": Others(
        _indexed_binary,
        lambda s: int.from_bytes(s["data"][:8], "little"),
        "`.indexed_binary` with `.off.idx` and `.sz.idx`",
    ),
    "json": Others(each(_json, ".jsonl"), lambda s: int(s["id"]), "`.jsonl`, `.ndjson`, `.json`¹"),
    "litdata": Others(litdata_files, lambda s: int(s["id"]), "litdata's `index.json`"),
    "mds": Others(_mds, lambda s: int(s["id"]), "`.mds`"),
    "megatron": Others(_megatron, lambda s: int(s["tokens"][0]), "`.idx` with `.bin`"),
    "npy": Others(each(_npy, ".npy"), lambda s: int(s["data"][0]), "`.npy`"),
    "npz": Others(each(_npz, ".npz"), lambda s: int(s["id"]), "`.npz`"),
    "parquet": Others(each(_parquet, ".parquet"), lambda s: int(s["id"]), "`.parquet`, `.parq`, `.pq`"),
    "png": Others(_images("png"), lambda s: int(Path(s["path"]).stem), "`.png`"),
    "tar": Others(each(_tar, ".tar"), lambda s: int(s["cls"]), "`.tar`¹"),
    "tfrecord": Others(each(_tfrecord, ".tfrecord"), lambda s: int(s["id"]), "`.tfrecord`, `.tfrecords`, `.tfrec`¹"),
    "tsv": Others(each(_csv("\t"), ".tsv"), lambda s: int(s["id"]), "`.tsv`¹"),
    "xsv": Others(
        each(_csv("|"), ".psv"), lambda s: int(s["id"]), "`.psv`, `.txt`, `.csv`, `.tsv`¹", {"separator": "|"}
    ),
}


def sample_of(number: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """The sample with this number."""
    values = {
        "id": number,
        "text": f"number {number}",
        "blob": bytes([number]) * (number % 9),
        "row": np.arange(number, number + 5, dtype=np.float32),
        "label": number,
    }
    if "image" in columns:
        values["image"] = tiny_image(number, columns["image"])
    return {name: values[name] for name in columns}


def table() -> list[str]:
    """The lines of the table."""
    lines = ["| format | a shard | written by | read as they are | as views | needs |", "|---|---|---|---|---|---|"]
    for name in format_names():
        others = OTHERS.get(name)
        form = get_format(name)
        kind = writer_of(name).__name__ if name in writable_formats() else ""
        writer = f"`{kind if hasattr(writers, kind) else 'open_writer'}`" if kind else ""
        cells = [f"`{name}`", form.shard, writer, others.suffixes if others else "", form.views]
        lines.append("| " + " | ".join([*cells, f"`stoker[{form.extra}]`" if form.extra else ""]) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))

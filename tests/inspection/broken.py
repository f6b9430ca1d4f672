"""Small datasets of every format to break, and how to break them."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packed_cases import CASES, sample_of, tiny_image
from stoker.writing.shard_formats import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from support import write_samples

__all__ = ["FORMATS", "OTHERS", "flip", "shard_files", "write", "write_others"]

ROWS = 60
_TEXT = {"id": "int", "name": "str", "score": "float"}
_MDS = {"blob": "bytes", "id": "int", "row": "ndarray:float32:5", "text": "str"}


def write(name: str, out: Any, **options: Any) -> None:
    """Write sixty samples as a dataset with an index."""
    if name == "mds":
        samples = (sample_of(number, _MDS) for number in range(ROWS))
        write_samples(out, samples, _MDS, **{"size_limit": 1500, **options})
        return
    lines: dict[str, Callable[..., Any]] = {"json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter}
    if name in lines:
        more: dict[str, Any] = {"separator": "|"} if name == "xsv" else {}
        with lines[name](_TEXT, out, **{"size_limit": 600, **more, **options}) as writer:
            for number in range(ROWS):
                writer.write({"id": number, "name": f"number {number}", "score": number / 4})
        return
    case = CASES[name]
    limits = {"tar": 60_000, "arrow": 6000, "tfrecord": 6000, "npy": 400}
    limit = {} if name in ("jpeg", "png") else {"size_limit": limits.get(name, 900)}
    with case.make(columns=case.columns, out=out, **{**limit, **options}) as writer:
        for number in range(ROWS):
            writer.write(sample_of(number, case.columns))


FORMATS = ("mds", "json", "csv", "tsv", "xsv", *CASES)
"""What has an index."""

OTHERS = ("arrow", "csv", "hdf5", "jpeg", "json", "megatron", "npy", "npz", "parquet", "png", "tar", "tfrecord")
"""What is read as others write it."""


def write_others(name: str, out: Path) -> None:
    """Write sixty samples as others would: files, and nothing beside them."""
    out.mkdir(parents=True, exist_ok=True)
    if name == "parquet":
        for part in range(3):
            ids = list(range(20 * part, 20 * part + 20))
            table = pa.table({"id": ids, "text": [f"number {number}" for number in ids]})
            pq.write_table(table, out / f"part-{part}.parquet", row_group_size=10, use_dictionary=False)
        return
    if name in ("csv", "json", "tar", "megatron"):
        for part in range(3):
            _write_part(name, out / f"part-{part}", range(20 * part, 20 * part + 20))
        return
    made = out.parent / f"{out.name}-with-index"
    write(name, made)
    for path in shard_files(made):
        if not path.name.endswith(".meta"):
            target = out / path.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)


def _write_part(name: str, path: Path, ids: range) -> None:
    """Write one file as other programs do."""
    if name == "megatron":
        tokens = [np.arange(number, number + 5, dtype=np.int32) for number in ids]
        path.with_suffix(".bin").write_bytes(b"".join(one.tobytes() for one in tokens))
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(tokens), len(tokens) + 1)
        lengths = np.array([len(one) for one in tokens], np.int32)
        places = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) * 4
        borders = np.arange(len(tokens) + 1, dtype=np.int64)
        path.with_suffix(".idx").write_bytes(head + lengths.tobytes() + places.tobytes() + borders.tobytes())
        return
    if name == "tar":
        with tarfile.open(path.with_suffix(".tar"), "w") as archive:
            for number in ids:
                for suffix, data in (("png", tiny_image(number, "png")), ("txt", f"number {number}".encode())):
                    member = tarfile.TarInfo(f"{number:04}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        return
    if name == "csv":
        lines = ["id,text", *(f"{number},number {number}" for number in ids)]
        path.with_suffix(".csv").write_text("\n".join(lines) + "\n")
        return
    lines = [json.dumps({"id": number, "text": f"number {number}"}) for number in ids]
    path.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")


def shard_files(root: Path) -> list[Path]:
    """All files of shards, in order."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != "index.json")


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)

"""What the tests of ``stoker_bench.generation`` share: a spec of each format, and the bytes of a data set."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stoker.storage import Store
from stoker_bench.generation import DatasetSpec, iterate_file

__all__ = ["SPECS", "content", "of_directory", "of_store", "small"]

_COLUMNS = ("x=float32:3,4", "y=int64")

SPECS: dict[str, dict[str, Any]] = {
    "npy": {"format": "npy", "dims": (3, 4), "dtype": "float32"},
    "npy-stdev": {"format": "npy", "record_bytes": 2000, "stdev": 300},
    "npz": {"format": "npz", "columns": _COLUMNS},
    "npz-zip": {"format": "npz", "columns": _COLUMNS, "compression": "zip"},
    "hdf5": {"format": "hdf5", "columns": _COLUMNS},
    "hdf5-chunks": {"format": "hdf5", "columns": _COLUMNS, "hdf5_chunks": 7},
    "mds": {"format": "mds", "columns": (*_COLUMNS, "b=bool", "z=str:50")},
    "mds-zstd": {"format": "mds", "record_bytes": 1000, "stdev": 200, "compression": "zstd"},
    "mds-images": {"format": "mds", "content": "images", "dims": (64, 48)},
    "parquet": {
        "format": "parquet",
        "columns": (*_COLUMNS, "a=bool", "b=int8", "c=float16", "d=str:20", "e=bytes:30", "ids=tokens:10", "u=uint16"),
        "row_group_size": 17,
    },
    "parquet-fixed": {"format": "parquet", "columns": _COLUMNS, "page_bytes": 1024},
    "parquet-snappy": {"format": "parquet", "columns": _COLUMNS, "compression": "snappy"},
    "parquet-text": {
        "format": "parquet",
        "content": "text",
        "record_bytes": 500,
        "stdev": 100,
        "compression": "zstd:5",
    },
    "arrow": {"format": "arrow", "columns": (*_COLUMNS, "e=bytes:30"), "row_group_size": 17},
    "arrow-lz4": {"format": "arrow", "columns": (*_COLUMNS, "a=bool", "d=str:20"), "compression": "lz4"},
    "tfrecord": {"format": "tfrecord", "columns": (*_COLUMNS, "e=bytes:30", "l=int32", "n=uint8")},
    "tfrecord-wide": {"format": "tfrecord", "record_bytes": 200_000},
    "tfrecord-stdev": {"format": "tfrecord", "record_bytes": 1000, "stdev": 300},
    "tar": {"format": "tar", "columns": ("x=float32:3,4", "bin=bytes:5")},
    "tar-images": {"format": "tar", "content": "images", "dims": (64, 48)},
    "jsonl": {"format": "jsonl", "columns": ("x=float32", "y=int64", "t=str:40", "r=bytes:9", "b=int8")},
    "csv": {"format": "csv", "columns": ("x=float32", "y=int64", "t=str:40", "b=bool")},
    "csv-gz": {"format": "csv", "content": "text", "record_bytes": 200, "stdev": 50, "compression": "gz"},
    "megatron": {"format": "megatron", "content": "tokens", "dims": (128,)},
    "indexed_binary": {"format": "indexed_binary", "record_bytes": 3000},
    "jpeg": {"format": "jpeg", "dims": (100, 60)},
    "png": {"format": "png", "dims": (100, 60)},
    "files": {"format": "files", "record_bytes": 3000, "stdev": 500},
}
"""Name to the arguments of a spec, but for how many files and samples."""


def small(name: str, **more: Any) -> DatasetSpec:
    """A data set of two or three small files."""
    arguments = {**SPECS[name], **more}
    alone = arguments["format"] in ("jpeg", "png", "files")
    return DatasetSpec(**{"files": 3 if alone else 2, "samples_per_file": 1 if alone else 40, **arguments})


def content(spec: DatasetSpec, number: int) -> bytes:
    """All bytes of a file."""
    return b"".join(bytes(chunk) for chunk in iterate_file(spec, number))


def of_directory(folder: Path) -> dict[str, str]:
    """Name and digest of all files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def of_store(store: Store) -> dict[str, str]:
    """The same of a store."""
    return {item.key: hashlib.sha256(store.get(item.key, max_bytes=1 << 30)).hexdigest() for item in store.list()}

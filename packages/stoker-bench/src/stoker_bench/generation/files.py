"""The synthetic files of each format, and what they can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.formats.indexed_binary import DTYPES


@dataclass(frozen=True, slots=True)
class GeneratedFiles:
    """The synthetic files of a format.

    Attributes:
        layout: module of ``stoker_bench.generation.formats`` and class in it that lays out a file, ``"module:Class"``; a
            :class:`stoker_bench.generation.formats.base.GeneratedLayout`.
        suffixes: ends of the names of the files that a number of the dataset stands for; one to three.
        arrays: they hold values of one size only, as arrays.
        one_column: and of one column.
        extensions: columns are named as the extensions of files are (``txt``, ``jpeg``).
        image: the one type of images that they hold.
        dtypes: types of the numbers that they hold; empty for all.
        compressions: names of compressions.
        levels: whether a compression may have a level (``zstd:7``).
        compressed_whole: whether a compression is of whole files, and not of their parts.
        exact: they hold bytes as they are, where they are not compressed.
        settings: fields of :class:`stoker_bench.generation.DatasetSpec` that only some formats have.
    """

    layout: str
    suffixes: tuple[str, ...]
    arrays: bool = False
    one_column: bool = False
    extensions: bool = False
    image: str = ""
    dtypes: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    levels: bool = True
    compressed_whole: bool = False
    exact: bool = True
    settings: tuple[str, ...] = ()


GENERATED: Final = {
    "arrow": GeneratedFiles(
        "arrow:ArrowLayout",
        (".arrow",),
        compressions=("lz4", "zstd"),
        levels=False,
        exact=False,
        settings=("row_group_size",),
    ),
    "csv": GeneratedFiles("lines:CSVLayout", (".csv",), compressions=("gz",), compressed_whole=True, exact=False),
    "files": GeneratedFiles("files:FileLayout", (".bin",), one_column=True),
    "hdf5": GeneratedFiles("arrays:HDF5Layout", (".hdf5",), arrays=True, settings=("hdf5_chunks",)),
    "indexed_binary": GeneratedFiles(
        "arrays:IndexedBinaryLayout",
        (".indexed_binary", ".indexed_binary.off.idx", ".indexed_binary.sz.idx"),
        arrays=True,
        one_column=True,
    ),
    "jpeg": GeneratedFiles("files:FileLayout", (".jpeg",), one_column=True, image="jpeg", exact=False),
    "json": GeneratedFiles("lines:JSONLayout", (".jsonl",), compressions=("gz",), compressed_whole=True, exact=False),
    "mds": GeneratedFiles("mds:MDSLayout", (".mds",), compressions=("zstd", "gz"), compressed_whole=True),
    "megatron": GeneratedFiles(
        "arrays:MegatronLayout", (".bin", ".idx"), arrays=True, one_column=True, dtypes=tuple(DTYPES.values())
    ),
    "npy": GeneratedFiles("arrays:NPYLayout", (".npy",), arrays=True, one_column=True),
    "npz": GeneratedFiles("arrays:NPZLayout", (".npz",), arrays=True, compressions=("zip",)),
    "parquet": GeneratedFiles(
        "parquet:ParquetLayout",
        (".parquet",),
        compressions=("snappy", "zstd", "gzip", "lz4"),
        exact=False,
        settings=("row_group_size",),
    ),
    "png": GeneratedFiles("files:FileLayout", (".png",), one_column=True, image="png", exact=False),
    "tar": GeneratedFiles("records:TarLayout", (".tar",), extensions=True),
    "tfrecord": GeneratedFiles("records:TFRecordLayout", (".tfrecord",)),
}
"""By the format's name."""

EXACT: Final = frozenset(name for name, files in GENERATED.items() if files.exact)
"""Formats that hold bytes as they are, where they are not compressed."""

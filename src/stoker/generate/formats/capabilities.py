"""What each format can hold, and the module that lays out its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FORMATS", "Form"]


@dataclass(frozen=True, slots=True)
class Form:
    """A format.

    Attributes:
        suffixes: ends of the names of the files that a number of the data set stands for; one, or two.
        layout: module of this package, and its class.
        arrays: it holds values of one size only, as arrays.
        one_column: and of one column.
        text: it holds lines of text.
        alone: a file is a sample.
        image: the one type of images that it holds.
        compressions: names of compressions.
    """

    suffixes: tuple[str, ...]
    layout: tuple[str, str]
    arrays: bool = False
    one_column: bool = False
    text: bool = False
    alone: bool = False
    image: str = ""
    compressions: tuple[str, ...] = ()


FORMATS: Final[dict[str, Form]] = {
    "arrow": Form((".arrow",), ("arrow", "ArrowLayout"), compressions=("lz4", "zstd")),
    "csv": Form((".csv",), ("lines", "CSVLayout"), text=True, compressions=("gz",)),
    "files": Form((".bin",), ("files", "FileLayout"), one_column=True, alone=True),
    "hdf5": Form((".hdf5",), ("arrays", "HDF5Layout"), arrays=True),
    "jpeg": Form((".jpeg",), ("files", "FileLayout"), one_column=True, alone=True, image="jpeg"),
    "jsonl": Form((".jsonl",), ("lines", "JSONLayout"), text=True, compressions=("gz",)),
    "mds": Form((".mds",), ("mds", "MDSLayout"), compressions=("zstd", "gz")),
    "megatron": Form((".bin", ".idx"), ("arrays", "MegatronLayout"), arrays=True, one_column=True),
    "npy": Form((".npy",), ("arrays", "NPYLayout"), arrays=True, one_column=True),
    "npz": Form((".npz",), ("arrays", "NPZLayout"), arrays=True, compressions=("zip",)),
    "parquet": Form((".parquet",), ("parquet", "ParquetLayout"), compressions=("snappy", "zstd", "gzip", "lz4")),
    "png": Form((".png",), ("files", "FileLayout"), one_column=True, alone=True, image="png"),
    "tar": Form((".tar",), ("records", "TarLayout")),
    "tfrecord": Form((".tfrecord",), ("records", "TFRecordLayout")),
}

"""All writers of datasets, and :func:`open_writer`, which finds one by the name of its format.

Each is a :class:`Writer`: ``write(sample)``, ``write_batch(columns)``, ``end_shard()``, ``finish()``, ``abort()``, a context
manager. :class:`WriterOptions` lists the options that all take. :class:`MegatronWriter`, which writes one pair of files, is
none of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Unpack

from stoker.arguments import checked
from stoker.tokens.sources.megatron import MegatronWriter
from stoker.writing.base import Writer, WriterOptions
from stoker.writing.destination import OutPath
from stoker.writing.image_folders import JPEGWriter, PNGWriter
from stoker.writing.megatron_writer import MegatronShardWriter
from stoker.writing.parquet_writer import ParquetWriter
from stoker.writing.shard_formats import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    TarWriter,
    TFRecordWriter,
    TSVWriter,
    XSVWriter,
    writer_of,
)

__all__ = [
    "CSVWriter",
    "FormatOptions",
    "JPEGWriter",
    "JSONWriter",
    "MDSWriter",
    "MegatronShardWriter",
    "MegatronWriter",
    "PNGWriter",
    "ParquetWriter",
    "TFRecordWriter",
    "TSVWriter",
    "TarWriter",
    "Writer",
    "WriterOptions",
    "XSVWriter",
    "open_writer",
]

_COLUMNS: Final = "give an encoding's name, such as 'int', 'float32', 'str' or 'ndarray:uint16:512'"


class FormatOptions(WriterOptions, total=False):
    """Options of all writers, and those that only some formats have.

    Attributes:
        separator: of ``xsv``: what stands between two values.
        newline: of lines of text: what ends a line, default a line feed.
        raw: of ``tfrecord``: records are the bytes of the one column's encoding.
        first: of ``tar``: number of the first sample.
    """

    separator: str
    newline: str
    raw: bool
    first: int | None


@checked(columns=_COLUMNS)
def open_writer(
    format: str,  # noqa: A002 - what it is called everywhere
    columns: Mapping[str, str],
    out: OutPath,
    remote: str | os.PathLike[str] | None = None,
    **options: Unpack[FormatOptions],
) -> Writer:
    """Open a writer for a dataset of the given format; the same as calling that format's writer.

    Args:
        format: its name or another name of it: ``"mds"``, ``"parquet"``, ``"tar"`` or ``"webdataset"``, ``"jsonl"``, ...
        columns: column name to encoding, as the format's writer takes them.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`FormatOptions`.

    Raises:
        ConfigError: an unknown format, or one that is only read; an unknown option; or what its writer raises.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     with open_writer("jsonl", {"text": "str"}, out) as writer:
    ...         writer.write({"text": "a line"})
    ...         writer.write_batch({"text": ["two", "more"]})
    ...     writer.samples_written
    3
    """
    return writer_of(format)(columns, out, remote, **options)

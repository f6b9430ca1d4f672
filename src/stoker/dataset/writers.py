"""The writers that users make, one a format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Unpack

from stoker.dataset.destination import OutPath
from stoker.dataset.writer import DatasetWriter, WriterOptions
from stoker.formats.jsonl import JSONEncoder
from stoker.formats.mds.encoder import MDSEncoder
from stoker.formats.xsv import SEPARATORS, XSVEncoder

__all__ = ["CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter"]


class MDSWriter(DatasetWriter):
    """Writes an MDS dataset.

    Args:
        columns: column name to encoding: ``int``, ``str``, ``bytes``, ``ndarray:uint16:2048``, ``jpeg``, ...
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`~stoker.dataset.writer.WriterOptions`.

    Raises:
        ConfigError: an argument makes no sense, or there is a dataset already.

    >>> import os, tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as out:
    ...     with MDSWriter({"tokens": "ndarray:uint16:4", "source": "str"}, out, compression="zstd") as writer:
    ...         writer.write({"tokens": np.arange(4, dtype=np.uint16), "source": "a book"})
    ...         writer.write_batch({"tokens": np.zeros((2, 4), np.uint16), "source": ["b", "c"]})
    ...     sorted(os.listdir(out))
    ['index.json', 'shard.00000.mds.zstd']
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(out, remote, partial(MDSEncoder, columns), **options)


class JSONWriter(DatasetWriter):
    r"""Writes a dataset of JSON lines.

    Args:
        columns: column name to ``str``, ``int`` or ``float``.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        newline: what ends a line, default ``"\n"``.
        **options: see :class:`~stoker.dataset.writer.WriterOptions`.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        *,
        newline: str = "\n",
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(out, remote, partial(JSONEncoder, columns, newline=newline), **options)


class XSVWriter(DatasetWriter):
    r"""Writes a dataset of lines of separated values, without quoting.

    Args:
        columns: column name to ``str``, ``int`` or ``float``.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        separator: what stands between two values. Text that holds it is refused.
        newline: what ends a line, default ``"\n"``. Text that holds it is refused.
        **options: see :class:`~stoker.dataset.writer.WriterOptions`.
    """

    _format = "xsv"

    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        *,
        separator: str,
        newline: str = "\n",
        **options: Unpack[WriterOptions],
    ) -> None:
        make = partial(XSVEncoder, columns, newline=newline, separator=separator, name=self._format)
        super().__init__(out, remote, make, **options)


class _FixedSeparatorWriter(XSVWriter):
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        *,
        newline: str = "\n",
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(columns, out, remote, separator=SEPARATORS[self._format], newline=newline, **options)


class CSVWriter(_FixedSeparatorWriter):
    """Writes a dataset of comma-separated values: an :class:`XSVWriter` with its separator chosen."""

    _format = "csv"


class TSVWriter(_FixedSeparatorWriter):
    """Writes a dataset of tab-separated values: an :class:`XSVWriter` with its separator chosen."""

    _format = "tsv"

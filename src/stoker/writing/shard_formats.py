"""The writers that users make, one a format; and all writers by the name of their format: stoker's own, and those that other
packages name in entry points.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, Final, Protocol, Unpack

from stoker.arguments import at_least, checked
from stoker.display import unknown_name
from stoker.errors import ConfigError, FormatError
from stoker.formats.registry import format_name, format_names, get_format, is_format, is_own, load
from stoker.formats.text.csv import SEPARATORS, XSVEncoder
from stoker.formats.text.json import JSONEncoder
from stoker.lazy import load_plugin, plugins
from stoker.writing.base import Writer, WriterOptions
from stoker.writing.dataset_writer import DatasetWriter
from stoker.writing.destination import OutPath

_COLUMNS: Final = "give an encoding's name, such as 'int', 'float32', 'str' or 'ndarray:uint16:512'"
_TEXT_COLUMNS: Final = "give 'str', 'int' or 'float'"


class EncoderWriter(DatasetWriter):
    """A writer that differs from others by its encoder, which is imported when a writer is made.

    Args:
        columns: column name to encoding.
        out, remote, **options: as of :class:`MDSWriter`.
    """

    encoder_of: ClassVar[str]
    """Module and class of the encoder, ``"module:Class"``."""

    @checked(columns=_COLUMNS)
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(out, remote, self._make(columns), **options)

    def _make(self, columns: Mapping[str, str], **more: Any) -> Callable[..., Any]:
        return partial(load(self.encoder_of), columns, **more)


class MDSWriter(EncoderWriter):
    """Writes an MDS dataset.

    Args:
        columns: column name to encoding: ``int``, ``str``, ``bytes``, ``ndarray:uint16:2048``, ``jpeg``, ...
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`~stoker.writing.base.WriterOptions`.

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

    encoder_of = "stoker.formats.mds.encoder:MDSEncoder"


class JSONWriter(DatasetWriter):
    r"""Writes a dataset of JSON lines.

    Args:
        columns: column name to ``str``, ``int`` or ``float``.
        newline: what ends a line, default ``"\n"``.
        out, remote, **options: as of :class:`MDSWriter`.
    """

    @checked(columns=_TEXT_COLUMNS)
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
        separator: what stands between two values. Text that holds it is refused.
        newline: what ends a line, default ``"\n"``. Text that holds it is refused.
        out, remote, **options: as of :class:`MDSWriter`.
    """

    required: ClassVar[tuple[str, ...]] = ("separator",)
    _format = "xsv"

    @checked(columns=_TEXT_COLUMNS)
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
    required = ()

    @checked(columns=_TEXT_COLUMNS)
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


class TarWriter(EncoderWriter):
    """Writes a dataset of tar files as WebDataset reads them: in ``shard.00000.tar`` a sample is a file a column.

    The file of column ``jpg`` of the sample ``000000017`` is ``000000017.jpg``; its bytes are the value's encoding. The key
    is the sample's number in the dataset, or the value of the column ``__key__`` where there is one.

    Args:
        columns: column name, which is the files' extension, to encoding: ``{"jpg": "jpeg", "cls": "int"}``. Whole numbers in
            ``cls``, ``cls2``, ``index``, ``inx`` and ``id`` are text in the files, as all programs read them there.
        first: number of the first sample, default the samples that are there.
        out, remote, **options: as of :class:`MDSWriter`.
    """

    numbers_samples = True
    encoder_of = "stoker.formats.tar.writer:TarEncoder"

    @checked(columns=_COLUMNS)
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        *,
        first: int | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        at_least(0, first=first)
        super().__init__(columns, out, remote, **options)
        encoder: Any = self._encoder
        encoder.begin(self.samples_written if first is None else first, self.samples_written)


class TFRecordWriter(EncoderWriter):
    """Writes a dataset of TFRecord files: in ``shard.00000.tfrecord`` a record is a ``tf.train.Example``.

    Args:
        columns: column name to encoding. Integers and ``ndarray:int64:...`` become int64 lists, ``float16``, ``float32`` and
            ``ndarray:float32:...`` float lists; all else is the bytes of its encoding.
        raw: records are the bytes of the one column's encoding, without an Example around them.
        out, remote, **options: as of :class:`MDSWriter`.
    """

    encoder_of = "stoker.formats.tfrecord.reader:TFRecordEncoder"

    @checked(columns=_COLUMNS)
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        *,
        raw: bool = False,
        **options: Unpack[WriterOptions],
    ) -> None:
        DatasetWriter.__init__(self, out, remote, self._make(columns, raw=raw), **options)


GROUP: Final = "stoker.writers"
"""Group of entry points: the name is the format's, the object a subclass of :class:`~stoker.writing.base.Writer`."""

# Module and class of each, imported when first asked for.
_OWN: Final = {
    "csv": "stoker.writing.shard_formats:CSVWriter",
    "jpeg": "stoker.writing.image_folders:JPEGWriter",
    "json": "stoker.writing.shard_formats:JSONWriter",
    "mds": "stoker.writing.shard_formats:MDSWriter",
    "megatron": "stoker.writing.megatron_writer:MegatronShardWriter",
    "parquet": "stoker.writing.parquet_writer:ParquetWriter",
    "png": "stoker.writing.image_folders:PNGWriter",
    "tar": "stoker.writing.shard_formats:TarWriter",
    "tfrecord": "stoker.writing.shard_formats:TFRecordWriter",
    "tsv": "stoker.writing.shard_formats:TSVWriter",
    "xsv": "stoker.writing.shard_formats:XSVWriter",
}


class WriterClass(Protocol):
    """The class of a writer: its attributes, and how it is called. See :class:`~stoker.writing.base.Writer`."""

    __name__: str
    indexed: bool
    numbers_samples: bool
    required: tuple[str, ...]

    def __call__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Writer: ...

    def check_columns(self, columns: Mapping[str, str]) -> None: ...

    def check_compression(self, compression: str | None) -> None: ...


def writer_of(name: str) -> WriterClass:
    """The writer of a format."""
    form = format_name(name)
    if not is_format(form):
        raise ConfigError(unknown_name("format", name, writable_formats()))
    found = find_writer(form)
    if found is None:
        raise ConfigError(f"format={name!r} is read and not written; formats to write: {', '.join(writable_formats())}")
    return found


def writable_formats() -> list[str]:
    """Names of stoker's own formats that have a writer. Loads all formats."""
    return sorted({*_OWN, *(name for name in format_names() if get_format(name).encoder)})


@cache
def find_writer(form: str) -> WriterClass | None:
    """The writer of a format by its name; ``None`` where it is only read."""
    found: Any
    if form in _OWN:
        found = load(_OWN[form])
    elif is_own(form) and (encoder := get_format(form).encoder):
        found = type(f"{form.upper()}Writer", (EncoderWriter,), {"encoder_of": encoder})
    else:
        entry = plugins(GROUP).get(form)
        found = None if entry is None else load_plugin(entry, f"the writer of format {form!r}", FormatError)
        if found is not None and not (isinstance(found, type) and issubclass(found, Writer)):
            raise FormatError(f"the writer of format {form!r}, {entry}, is not a subclass of stoker.writers.Writer")
    writer: WriterClass | None = found
    return writer

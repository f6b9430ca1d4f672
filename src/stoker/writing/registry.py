"""Writers by the name of their format: stoker's own, and those that other packages name in entry points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Protocol

from stoker.display import unknown_name
from stoker.errors import ConfigError, FormatError
from stoker.formats.registry import format_name, format_names, load
from stoker.lazy import load_plugin, plugins
from stoker.writing.base import Writer
from stoker.writing.destination import OutPath
from stoker.writing.shard_formats import EncoderWriter

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
# Encoders of formats whose writers take nothing beside the columns and the options of all writers.
_ENCODERS: Final = {
    "arrow": "stoker.formats.arrow:ArrowEncoder",
    "hdf5": "stoker.formats.arrays.hdf5:HDF5Encoder",
    "npy": "stoker.formats.arrays.npy:NPYEncoder",
    "npz": "stoker.formats.arrays.npz:NPZEncoder",
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
    if form not in format_names():
        raise ConfigError(unknown_name("format", name, writable_formats()))
    found = find_writer(form)
    if found is None:
        raise ConfigError(f"format={name!r} is read and not written; formats to write: {', '.join(writable_formats())}")
    return found


def writable_formats() -> list[str]:
    """Names of stoker's own formats that have a writer."""
    return sorted({*_OWN, *_ENCODERS})


@cache
def find_writer(form: str) -> WriterClass | None:
    """The writer of a format by its name; ``None`` where it is only read."""
    found: Any
    if form in _ENCODERS:
        found = type(f"{form.upper()}Writer", (EncoderWriter,), {"encoder_of": _ENCODERS[form]})
    elif form in _OWN:
        found = load(_OWN[form])
    else:
        entry = plugins(GROUP).get(form)
        found = None if entry is None else load_plugin(entry, f"the writer of format {form!r}", FormatError)
        if found is not None and not (isinstance(found, type) and issubclass(found, Writer)):
            raise FormatError(f"the writer of format {form!r}, {entry}, is not a subclass of stoker.writers.Writer")
    writer: WriterClass | None = found
    return writer

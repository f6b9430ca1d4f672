"""Formats by name: stoker's own, and those of other packages, which name theirs in the entry points ``stoker.formats``."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, overload

from stoker.display import unknown_name
from stoker.errors import FormatError
from stoker.formats.format import Format
from stoker.lazy import plugins

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)

GROUP: Final = "stoker.formats"
"""Group of entry points: the name is the format's, the object a class, or a function, that makes it from nothing."""

# Module and class of each. Imported when first asked for, so that reading one format loads no other.
_OWN: Final[dict[str, str]] = {
    "arrow": "stoker.formats.arrow:ArrowFormat",
    "csv": "stoker.formats.text.csv:CSVFormat",
    "files": "stoker.formats.one_file:FileFormat",
    "hdf5": "stoker.formats.arrays.hdf5:HDF5Format",
    "images": "stoker.formats.one_file:ImagesFormat",
    "indexed_binary": "stoker.formats.indexed_binary:IndexedBinaryFormat",
    "jpeg": "stoker.formats.one_file:JPEGFormat",
    "json": "stoker.formats.text.json:JSONFormat",
    "litdata": "stoker.formats.litdata:LitDataFormat",
    "mds": "stoker.formats.mds.reader:MDSFormat",
    "megatron": "stoker.formats.indexed_binary:MegatronFormat",
    "npy": "stoker.formats.arrays.npy:NPYFormat",
    "npz": "stoker.formats.arrays.npz:NPZFormat",
    "parquet": "stoker.formats.parquet.reader:ParquetFormat",
    "png": "stoker.formats.one_file:PNGFormat",
    "synthetic": "stoker.formats.synthetic:SyntheticFormat",
    "tar": "stoker.formats.tar.reader:TarFormat",
    "tfrecord": "stoker.formats.tfrecord.reader:TFRecordFormat",
    "tsv": "stoker.formats.text.csv:TSVFormat",
    "xsv": "stoker.formats.text.csv:XSVFormat",
}
# What tables are read as, which no index and no file names.
_OF_TABLES: Final = {"lance": "stoker.formats.lance:LanceFormat"}


def format_names() -> tuple[str, ...]:
    """Names of stoker's own formats."""
    return tuple(sorted(_OWN))


def is_format(name: str) -> bool:
    """Return whether there is a format of this name. Plugins are searched last: that takes longer than importing stoker."""
    return name in _OWN or name in _others()


def other_formats() -> list[Format]:
    """The formats of other packages. Those that can not be loaded are left out and logged. To look for them takes longer than
    to import stoker.
    """
    found: list[Format] = []
    for name in sorted(_others()):
        try:
            found.append(get_format(name))
        except FormatError as error:
            logger.warning("%s; files of it are not detected", error)
    return found


@overload
def format_name(given: str) -> str: ...
@overload
def format_name(given: None) -> None: ...
def format_name(given: str | None) -> str | None:
    """The format that a name stands for: ``jsonl`` is ``json``. What is no alias stays what it is."""
    return given if given is None or given in _OWN else aliases().get(given, given)


@cache
def aliases() -> dict[str, str]:
    """Other names of stoker's own formats, and the names that they stand for. Loads all of them."""
    return {alias: name for name in _OWN for alias in get_format(name).aliases}


def is_own(name: str) -> bool:
    """Whether a format is stoker's own, by its name in an index."""
    return name in _OWN or name in _OF_TABLES


@cache
def get_format(name: str) -> Format:
    """The format that the index calls ``name``.

    FormatError if there is none, or another package's can not be loaded; lists those that exist.
    """
    if path := _OWN.get(name) or _OF_TABLES.get(name):
        own: Format = load(path)()
        return own
    entry = _others().get(name)
    if entry is None:
        raise FormatError(unknown_name("shard format", name, sorted({*_OWN, *_others()})))
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        make: Callable[[], Any] = entry.load()
        found = make()
    except Exception as error:  # another package's code
        raise FormatError(f"shard format {name!r} of {package} can not be loaded: {error!r}") from error
    if not isinstance(found, Format):
        raise FormatError(
            f"shard format {name!r} of {package} can not be used: it is not a stoker.formats.format.Format"
        )
    if name not in (found.name, *found.aliases):
        raise FormatError(f"shard format {name!r} of {package} can not be used: it calls itself {found.name!r}")
    return found


def format_of_bytes(head: bytes) -> str | None:
    """The format of stoker's own whose files begin so; ``None`` where no format's do."""
    return next((name for name in _OWN if any(head.startswith(magic) for magic in get_format(name).magic)), None)


def load(path: str) -> Any:
    """The object that ``"module:name"`` leads to."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def _others() -> dict[str, EntryPoint]:
    """Formats of other packages. Stoker's own names are not theirs to take."""
    return plugins(GROUP, own=_OWN)

"""Features of Hugging Face's ``datasets`` that are more than types: images and sounds as files, and names of classes.

Such columns are handed out as they are stored: of ``Image`` and ``Audio`` structs of a file's bytes and its path, of
``ClassLabel`` the number of the class.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from stoker.errors import ConfigError, CorruptDataError, StokerError
from stoker.formats.common.entries import column_kinds
from stoker.formats.mds.encodings import get_encoding
from stoker.storage import Store, is_local, open_store
from stoker.streams.streams import Streams
from stoker.types import Sample, StorageOptions

logger = logging.getLogger(__name__)

_INFO: Final = "dataset_info.json"
_KEY: Final = b"huggingface"
_MOST: Final = 64 << 20
_ORIENTATION: Final = 0x0112
_FILE: Final = re.compile(r"struct<bytes: (?:large_)?binary, path: (?:large_)?string>")


class DecodeImages:
    """A transform that opens the images of columns that ``datasets`` stored as ``Image``, turned as EXIF says.

    ConfigError if no column is named. ``columns``: names of the columns. A value is a struct of a file's ``bytes`` and
    ``path``, a list of such, or null.
    """

    def __init__(self, *columns: str) -> None:
        if not columns:
            raise ConfigError("DecodeImages needs the names of the columns")
        self.columns = columns

    def __call__(self, sample: Sample) -> Sample:
        """The sample with images of Pillow in these columns.

        ConfigError if there is no such column, or none of files. CorruptDataError if a value has the path of a file alone, or
        its bytes are no image.
        """
        decoded = dict(sample)
        for name in self.columns:
            if name not in sample:
                raise ConfigError(f"DecodeImages({name!r}): the sample has {', '.join(sample)}")
            decoded[name] = _open(sample[name], name)
        return decoded

    def __repr__(self) -> str:
        return f"DecodeImages({', '.join(map(repr, self.columns))})"


def _open(value: Any, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_open(one, name) for one in value]
    if not isinstance(value, Mapping) or value.keys() != {"bytes", "path"}:
        raise ConfigError(
            f"DecodeImages({name!r}): expected the bytes and the path of a file, found {type(value).__name__}"
        )
    data = value["bytes"]
    if data is None:
        raise CorruptDataError(
            f"column {name!r} has the path {value['path']!r} of a file, and not its bytes: save the files in the dataset"
        )
    try:
        image = get_encoding("png").decode(data)  # which opens whatever Pillow knows
        if image.getexif().get(_ORIENTATION, 1) == 1:
            return image
        from PIL.ImageOps import exif_transpose

        return exif_transpose(image)
    except (StokerError, MemoryError):
        raise
    except Exception as error:  # Pillow raises nearly anything for a damaged picture
        raise CorruptDataError(f"column {name!r} does not decode as an image: {error}") from error


def class_names(
    remote: str | os.PathLike[str], storage_options: StorageOptions | None = None
) -> dict[str, tuple[str, ...]]:
    """Names of the classes of each ``ClassLabel`` column, in the order of their numbers.

    Args:
        remote: a directory of ``save_to_disk``, or Parquet files that ``datasets`` wrote: as for ``StreamingDataset``.
        storage_options: credentials and settings of a remote store, by obstore's names.

    Raises:
        ConfigError: nothing there tells features.
        ObjectNotFoundError: nothing is there.
        CorruptDataError: what tells them is damaged.
    """
    features = _features(remote, storage_options)
    found: dict[str, tuple[str, ...]] = {}
    for name, feature in features.items():
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel":
            names = feature.get("names")
            if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                raise CorruptDataError(f"{remote}: the feature {name!r} is a ClassLabel without a list of names")
            found[name] = tuple(names)
    return found


def _features(remote: str | os.PathLike[str], options: StorageOptions | None) -> Mapping[str, Any]:
    # Every dataset warns of such columns, and few are asked for their classes.
    from stoker.catalog.unindexed.files_location import source_of
    from stoker.catalog.unindexed.find_files import find_files
    from stoker.catalog.unindexed.huggingface import DICT_NAME, refuse_dict
    from stoker.catalog.unindexed.inspect_headers import StoreSource
    from stoker.catalog.unindexed.open_files import unindexed_format
    from stoker.formats.parquet.footer import read_footer
    from stoker.formats.parquet.parse import parse_footer

    source = source_of(remote)
    if source.keys is None and source.pattern is None:
        store = open_store(source.root, options if is_local(source.root) is None else None)
        if store.exists(DICT_NAME):
            refuse_dict(store)
        if store.exists(_INFO):
            return _object(_parsed(store.get(_INFO, max_bytes=_MOST), store.url_of(_INFO)), "features", store.url)

    def open_root(root: str) -> Store:
        return open_store(root, options if is_local(root) is None else None)

    found = find_files(source, open_root, unindexed_format("parquet"))
    key = found.files[0].key
    where = found.store.url_of(key)
    footer = read_footer(StoreSource(found.store, key, found.store.head(key).size, where))
    told = parse_footer(footer).metadata.get(_KEY)
    if told is None:
        raise ConfigError(f"{where} tells no features: it was not written by Hugging Face's datasets")
    return _object(_object(_parsed(told, where), "info", where), "features", where)


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{where}: its features are not JSON: {error}") from error


def _object(value: Any, key: str, where: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(found, Mapping):
        raise CorruptDataError(f"{where}: expected an object of {key}")
    return found


def warn_of_stored_files(streams: Streams, columns: tuple[str, ...] | None) -> None:
    """Log which columns hold files as ``datasets`` stores them, which it would decode and stoker does not."""
    named: dict[str, None] = {}
    for location in streams.locations:
        for info in {id(shard.spec): shard for shard in location.index.distinct_shards}.values():
            if info.format in ("arrow", "parquet"):
                kinds = column_kinds(info)
                named.update({name: None for name, kind in kinds.items() if _FILE.search(kind.word)})
    chosen = [name for name in named if columns is None or name in columns]
    if chosen:
        logger.warning(
            "%s: %s hold files as Hugging Face's datasets stores them (Image, Audio), and come as stored, as bytes and "
            "path: decode them by transform=DecodeImages(...) of stoker.streams.features, by .map(as_audio(...)) of "
            "stoker.media, or by a function of your own",
            streams.where,
            ", ".join(map(repr, chosen)),
        )

"""Checks what the index says of an MDS shard."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from stoker.errors import FormatError, IndexFileError
from stoker.formats.common.checks import parse_settings, refuse, require, string_list
from stoker.formats.mds.encodings.registry import UnknownEncoding, get_encoding, mds_encoding


def parse_columns(obj: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], int]:
    """The columns that an entry of the index tells; see :func:`mds_spec`.

    IndexFileError if they are incomplete or contradict themselves, FormatError if an encoding is unknown.
    """
    names = string_list(obj, "column_names", where)
    encodings = string_list(obj, "column_encodings", where)
    sizes = tuple(require(obj, "column_sizes", list, where))
    try:
        return mds_spec(names, encodings, sizes, *parse_settings(obj, where))
    except IndexFileError as error:
        raise IndexFileError(f"{where}: {error}") from None
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None
    except TypeError:  # unhashable, so neither int nor null
        refuse(where, "'column_sizes' should hold integers and nulls")


@lru_cache(maxsize=256)
def mds_spec(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[int | None, ...],
    hashes: tuple[str, ...],
    size_limit: int | str | None,
) -> tuple[Mapping[str, Any], int]:
    """The checked spec of these columns and settings, and the least bytes that a sample of them takes."""
    if not len(names) == len(encodings) == len(sizes):
        raise IndexFileError(
            f"column_names, column_encodings and column_sizes have {len(names)}, {len(encodings)} and "
            f"{len(sizes)} entries"
        )
    if len(set(names)) != len(names):
        raise IndexFileError("two columns have the same name")
    width = 0
    for name, encoding_name, size in zip(names, encodings, sizes, strict=True):
        try:
            found = mds_encoding(encoding_name, size)
            expected = get_encoding(encoding_name).size if isinstance(found, UnknownEncoding) else found.size
        except FormatError as error:
            raise FormatError(f"column {name!r}: {error}") from None
        own = (size is None) != (expected is None) and size != 0  # the writer's
        if isinstance(size, bool) or (size != expected and not own) or (size or 0) < 0:
            raise IndexFileError(f"column {name!r} ({encoding_name}) should have size {expected}, found {size!r}")
        width += 4 if size is None else size
    spec = {
        "column_names": names,
        "column_encodings": encodings,
        "column_sizes": sizes,
        "hashes": hashes,
        "size_limit": size_limit,
    }
    return spec, width

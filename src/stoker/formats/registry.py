"""Formats by name."""

from __future__ import annotations

from functools import cache

from stoker.errors import FormatError
from stoker.formats.base import Format

__all__ = ["format_names", "get_format"]


def format_names() -> tuple[str, ...]:
    """Names of all formats."""
    return ("csv", "json", "mds", "parquet", "tsv", "xsv")


@cache
def get_format(name: str) -> Format:
    """The format that the index calls ``name``.

    Raises:
        FormatError: there is none; lists those that exist.
    """
    # Imported here, so that reading one format loads no other.
    if name == "mds":
        from stoker.formats.mds import MDSFormat

        return MDSFormat()
    if name == "json":
        from stoker.formats.jsonl import JSONFormat

        return JSONFormat()
    if name == "parquet":
        from stoker.formats.parquet import ParquetFormat

        return ParquetFormat()
    if name in ("csv", "tsv", "xsv"):
        from stoker.formats.xsv import XSVFormat

        return XSVFormat(name)
    raise FormatError(f"shard format {name!r} is unknown; known: {', '.join(format_names())}")

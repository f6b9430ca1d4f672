"""pyarrow, imported when a Parquet file is met and not before: it takes longer to import than all of stoker."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from stoker.concurrency.threads import has_global_lock
from stoker.errors import MissingPackageError


@cache
def pyarrow(part: str = "") -> ModuleType:
    """The package ``pyarrow``, or a part of it, such as ``compute``. MissingPackageError if it is not installed."""
    try:
        found = importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
        if not has_global_lock():
            importlib.import_module("stoker.formats.parquet.first_conversion")
        return found
    except ImportError as error:
        raise MissingPackageError(
            f"reading Parquet needs pyarrow ({error}), which stoker installs: pip install 'pyarrow>=23.0.1'"
        ) from error

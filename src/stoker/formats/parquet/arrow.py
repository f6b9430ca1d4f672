"""pyarrow, imported when a Parquet file is met and not before: it takes longer to import than all of stoker."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from stoker.errors import MissingPackageError

__all__ = ["pyarrow", "pyarrow_compute", "pyarrow_parquet"]


@cache
def pyarrow() -> ModuleType:
    """The package ``pyarrow``.

    Raises:
        MissingPackageError: it is not installed.
    """
    return _load("pyarrow")


@cache
def pyarrow_compute() -> ModuleType:
    """The package ``pyarrow.compute``.

    Raises:
        MissingPackageError: it is not installed.
    """
    return _load("pyarrow.compute")


@cache
def pyarrow_parquet() -> ModuleType:
    """The package ``pyarrow.parquet``.

    Raises:
        MissingPackageError: it is not installed.
    """
    return _load("pyarrow.parquet")


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"reading Parquet needs pyarrow ({error}), which stoker installs: pip install 'pyarrow>=23.0.1'"
        ) from error

"""pyarrow, imported when a Parquet file is met and not before: it takes longer to import than all of stoker."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Final

from stoker.concurrency.forks import ProcessLock
from stoker.concurrency.threads import has_global_lock
from stoker.errors import MissingPackageError

_CONVERTING: Final = ProcessLock()


@cache
def pyarrow(part: str = "") -> ModuleType:
    """The package ``pyarrow``, or a part of it, such as ``compute``. MissingPackageError if it is not installed."""
    try:
        found = importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
        if not has_global_lock():
            # The first conversion to NumPy imports pandas, where that is installed, and others wait for it in C++. Without a
            # global lock they wait for ever: to load an extension module of pandas, Python has all threads stop at Python
            # code, to which those do not come back (pyarrow 24.0). So one thread does it, and others wait for that here.
            with _CONVERTING:
                importlib.import_module("pyarrow").array([0, None]).to_numpy(zero_copy_only=False)
        return found
    except ImportError as error:
        raise MissingPackageError(
            f"reading Parquet needs pyarrow ({error}), which stoker installs: pip install 'pyarrow>=23.0.1'"
        ) from error

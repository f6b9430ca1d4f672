"""Whether this Python has a global lock (GIL), which lets one thread at a time run Python code."""

from __future__ import annotations

import sys
from collections.abc import Callable


def has_global_lock() -> bool:
    """Whether threads take turns at Python code.

    A free-threaded Python has no lock, unless ``PYTHON_GIL=1``, ``-X gil=1`` or an extension module switched it on.
    """
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
    return enabled is None or enabled()

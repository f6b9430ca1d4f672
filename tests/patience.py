"""How long tests wait for what must come: one number, measured when the first process of the tests starts.

A wait that ends by it is a failure: something hangs. So it is far above what a quiet machine needs, and grows with what
the same work takes here now. Children have it from the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

_QUIET: Final = 0.25
"""Seconds of :func:`_measured` on two quiet processors."""
_SECONDS: Final = 120.0
"""Patience on such a machine."""
_MOST: Final = 900.0


def _measured() -> float:
    """Seconds of starting an interpreter that imports NumPy: the second of two starts, when its files are in memory."""
    for _ in range(2):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return time.monotonic() - began


def _patience() -> float:
    known = os.environ.get("STOKER_TEST_PATIENCE")
    if known is None:
        known = str(round(min(_MOST, _SECONDS * max(1.0, _measured() / _QUIET))))
        os.environ["STOKER_TEST_PATIENCE"] = known
    return float(known)


PATIENCE: Final = _patience()
"""Seconds."""


def wait_until(done: Callable[[], object]) -> None:
    """Wait for what another process is to do."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)

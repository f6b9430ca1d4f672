"""The time of leased work, as a test wants it: leases last an hour, and an hour passes when the test says so.

So no lease is lost because the machine was busy, and none has to be waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest

from stoker.coordination import client, driver, errors

__all__ = ["HOUR", "LeaseClock", "retried"]

HOUR: Final = 3600.0
"""Seconds; no test lasts so long."""


def retried(patch: pytest.MonkeyPatch, module: Any) -> threading.Event:
    """An event that is set once a call of an engine has failed and is repeated: ``module`` sleeps between its attempts."""
    event = threading.Event()

    def sleep(_: float) -> None:
        event.set()
        time.sleep(0.002)

    patch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return event


class LeaseClock:
    """Stands for the module ``time`` where leased work asks for it: the machine's clock, and what was let pass besides.

    Args:
        patch: puts it there, for the test.
        modules: other modules that have it too.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *modules: Any) -> None:
        self._ahead = 0.0
        for module in (client, driver, errors, *modules):
            patch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        """For who asks again and again until something is so: that takes only as long as it must."""
        time.sleep(min(seconds, 0.002))

    def skip(self, seconds: float) -> None:
        """Let time pass at once."""
        self._ahead += seconds

    @contextmanager
    def passing(self, seconds: float = HOUR / 8) -> Iterator[None]:
        """Let so much time pass again and again, ever less often: so everybody gets to see each of these moments."""
        over = threading.Event()

        def work() -> None:
            pause = 0.005
            while not over.wait(pause):
                self.skip(seconds)
                pause *= 1.05

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

"""Resets objects in a child process after a fork: threads of the parent do not exist there, and its locks may be held."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forkable(Protocol):
    """An object with threads, futures or locks."""

    def after_fork(self) -> None:
        """Replace them, in the child. It may not wait: a lock of the parent may be held by a thread that is not there."""
        ...


def reset_in_children(one: Forkable) -> None:
    """Have ``one.after_fork()`` called in each child that this process forks, as long as the object lives."""
    _FORKABLE.add(one)


_FORKABLE: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def _reset_all() -> None:
    for one in list(_FORKABLE):
        one.after_fork()


os.register_at_fork(after_in_child=_reset_all)

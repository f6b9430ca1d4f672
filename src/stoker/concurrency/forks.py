"""Forks: none while another thread imports a module; objects are reset in a child, where the parent's threads do not exist.

Python makes the locks of modules anew in no child: one that imports what a thread of its parent was importing waits for that
thread for ever. A thread that fetches shards imports what it needs at its first one (codecs, a store's client, Arrow), and
functions of users import what they like. So a fork waits until no other thread imports, and none begins until it is done.
"""

from __future__ import annotations

import _imp
import importlib._bootstrap as _bootstrap
import os
import threading
import time
import weakref
from typing import Any, Final, Protocol


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


# Seconds for which a fork waits for imports: more than torch takes on a busy machine. Then it is made all the same, as the
# thread that imports may wait for something that the forking one holds.
_PATIENCE: Final = 30.0
_STEP: Final = 0.001
# Weak references to the locks of modules that are imported now, by name; and threads that are about to have such a lock, in a
# mapping of Python's own since 3.12.
_LOCKS: Final[dict[str, Any]] = getattr(_bootstrap, "_module_locks", {})
_WAITING: Final[dict[int, Any]] = getattr((_waiting := getattr(_bootstrap, "_blocking_on", {})), "data", _waiting)
_held = threading.local()


def _wait_for_imports() -> None:
    me = threading.get_ident()
    end = time.monotonic() + _PATIENCE
    while True:
        # An import begins with this lock, which other threads do not get until the fork is done.
        _imp.acquire_lock()
        importing = _importing()
        # A fork while this thread imports a module: others may wait for that module.
        if importing <= {me} or me in importing or time.monotonic() > end:
            _held.lock = True
            return
        _imp.release_lock()
        time.sleep(_STEP)


def _importing() -> set[int]:
    """Identities of the threads that import a module now."""
    locks = [reference() for reference in tuple(_LOCKS.values())]
    owners = {getattr(lock, "owner", None) for lock in locks}
    return {owner for owner in owners if owner is not None} | set(_WAITING)


def _let_import() -> None:
    if getattr(_held, "lock", False):
        _held.lock = False
        _imp.release_lock()


os.register_at_fork(after_in_child=_reset_all)
os.register_at_fork(before=_wait_for_imports, after_in_parent=_let_import, after_in_child=_let_import)

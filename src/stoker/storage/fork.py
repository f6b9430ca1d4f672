"""The effect of a fork on object stores.

obstore runs its requests on a thread pool of its own, which ``fork()`` does not copy: in a child whose
parent had loaded obstore, a request would wait for ever on threads that are not there. This module notices
such forks, so that :mod:`stoker.storage.store` can take another way.
"""

from __future__ import annotations

import os
import sys

_runtime_lost = False
_abandoned: list[object] = []


def runtime_lost() -> bool:
    """Whether obstore was loaded in the parent, before this process was forked from it."""
    return _runtime_lost


def abandon(client: object) -> None:
    """Keep a client of the parent's for ever, as its destructor would talk to threads that are not there."""
    _abandoned.append(client)


def _after_fork_in_child() -> None:
    global _runtime_lost
    # Loaded, not used: whether someone else's code has used it can not be seen, and the helper is always
    # right.
    _runtime_lost = _runtime_lost or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork_in_child)

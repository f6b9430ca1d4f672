"""Forks: what a process alone may use is made anew in a child, and no fork while another thread imports or logs.

What a child must not share with its parent, or finds locked by a thread that is not there, is of one of four kinds. Each is
renewed here, at once in the child, so that other classes need not know of forks, and pickle as plain values:

* a lock is a :class:`ProcessLock`;
* what stands for work, claims, clients or maps of one process is an attribute of a :class:`ProcessLocal`;
* an open file is a :class:`ProcessFile`, or an :class:`OpenFile` where the child shares it; a pipe or socket is given to
  :func:`close_in_children`;
* threads are a pool of :class:`~stoker.concurrency.threads.Threads`.

Python makes the locks of modules anew in no child: one that imports what a thread of its parent was importing waits for that
thread for ever. A thread that fetches shards imports what it needs at its first one (codecs, a store's client, Arrow), and
functions of users import what they like. So a fork waits until no other thread imports. Python's own lock of imports is
held from then on only where the locks that ``logging`` and ``h5py`` take before forks are this thread's: who has them may
import. What begins to be imported all the same, in the moment before the fork, is imported anew in the child.

The lock of ``h5py`` comes before those of ``logging``: who has it may write a line of log, as a file that h5py reads from.

Threads of stoker's pools are not stopped between two pieces of work instead, which would spare these names. A piece is a
fetch, which takes as long as its store does, or a function of a user's, which may wait for what the forking thread holds; the
first batches of DataLoader workers are fetched while these are forked, so that each fork would wait for a fetch; and threads
of users import and log, too.
"""

from __future__ import annotations

import _imp
import contextlib
import importlib._bootstrap as _bootstrap
import logging
import os
import sys
import threading
import time
import weakref
from _thread import RLock
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

_T = TypeVar("_T")


def alive(objects: weakref.WeakSet[_T] | weakref.WeakValueDictionary[Any, _T]) -> list[_T]:
    """The objects of a weak set, or the values of a weak dictionary, that are there.

    Their own iterators raise a ``RuntimeError`` where another thread adds one meanwhile: they take many steps. The list of
    references is made in one, with Python's lock and without it.
    """
    references = objects.valuerefs() if isinstance(objects, weakref.WeakValueDictionary) else list(objects.data)  # type: ignore[attr-defined]
    return [one for reference in references if (one := reference()) is not None]


_LOCKS: Final[weakref.WeakSet[ProcessLock]] = weakref.WeakSet()
_CLOSABLE: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()
_LOCALS: Final[weakref.WeakSet[ProcessLocal]] = weakref.WeakSet()
_FORKABLE: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


class ProcessLock(RLock):  # type: ignore[misc]  # CPython allows it
    """A lock for threads of one process; the one that has it may take it again.

    In a forked child only the thread that forks may have it, and in a copy nobody.
    """

    def __init__(self) -> None:
        _LOCKS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessLock, ()


class ProcessLocal:
    """Base of objects whose attributes are one process's, as those of :class:`threading.local` are one thread's.

    In a forked child ``__init__`` is called again, with the same arguments, and sets all of them; a copy is made so, too.
    It may not wait: a lock of the parent may be held by a thread that is not there.
    """

    _made_of: partial[Self]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        one = super().__new__(cls)
        one._made_of = partial(cls, *args, **options)
        _LOCALS.add(one)
        return one

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_of, ()

    def _renew(self) -> None:
        type(self).__init__(self, *self._made_of.args, **self._made_of.keywords)


class Closable(Protocol):
    """A pipe, socket or the like."""

    def close(self) -> object: ...


def close_in_children(one: Closable) -> None:
    """Have the copy of an open file that each forked child gets closed there, as long as the object lives."""
    _CLOSABLE.add(one)


class OpenFile:
    """A descriptor that is closed with this object. ``number``: the descriptor; -1 where there is none."""

    def __init__(self, number: int | None = None) -> None:
        self.number = -1 if number is None else number

    # Bound as a default: at the interpreter's end a module's names are gone.
    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close it, unless it is."""
        # Not twice: a process that is forked in between would close what has the number by then.
        number, self.number = self.number, -1
        if number >= 0:
            try:
                close(number)
            except OSError:
                return

    __del__ = close


class ProcessFile(OpenFile):
    """One that only this process has: it is closed in a forked child, too."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__(number)
        _CLOSABLE.add(self)


NO_FILE: Final = ProcessFile()
"""One that is closed."""


class Forkable(Protocol):
    """An object with threads, futures or locks that are none of these kinds."""

    def after_fork(self) -> None:
        """Replace them, in the child. It may not wait: a lock of the parent may be held by a thread that is not there."""
        ...


def reset_in_children(one: Forkable) -> None:
    """Have ``one.after_fork()`` called in each child that this process forks, as long as the object lives."""
    _FORKABLE.add(one)


def _renew_all() -> None:
    # Locks first: what is let go of then may take one.
    locks: list[Any] = alive(_LOCKS)  # of which the standard library renews its own so
    renewals: list[Callable[[], object]] = [lock._at_fork_reinit for lock in locks if not lock._is_owned()]
    renewals += [one.close for one in alive(_CLOSABLE)]
    renewals += [one._renew for one in alive(_LOCALS)]
    renewals += [one.after_fork for one in alive(_FORKABLE)]
    failed: list[Exception] = []
    for renew in renewals:
        try:
            renew()
        except Exception as error:  # noqa: BLE001 - the others are renewed all the same
            failed.append(error)
    if failed:
        raise ExceptionGroup("objects could not be renewed in a forked child", failed)  # which Python prints


# Seconds for which a fork waits for imports: more than torch takes on a busy machine. Then it is made all the same, as the
# thread that imports may wait for something that the forking one holds, or the module be a program that runs for long.
_PATIENCE: Final = 30.0
_STEP: Final = 0.001
_TRIES: Final = 20
# Weak references to the locks of modules that are imported now, by name.
_IMPORTS: Final[dict[str, Any]] = getattr(_bootstrap, "_module_locks", {})
# Modules that were waited for in vain: no later fork waits for them.
_outlasted: set[str] = set()


def _wait_for_imports() -> None:
    end = time.monotonic() + _PATIENCE
    while importing := _others_importing():
        if time.monotonic() > end:
            _outlasted.update(importing)
        with _without_lock_of_h5py():
            time.sleep(_STEP)


def _others_importing() -> set[str]:
    """Modules for which a fork waits. In one while this thread imports a module, others may wait for that module."""
    importing = _importing()
    _outlasted.intersection_update(importing)
    return set() if threading.get_ident() in importing.values() else importing.keys() - _outlasted


# Whether h5py is imported later than this module, if it is: what it does before a fork comes first then.
_H5PY_LATER: Final = "h5py._objects" not in sys.modules


def _lock_of_h5py() -> Any:
    """The lock that h5py takes before forks, and releases after them, from when it is partly imported on."""
    module = sys.modules.get("h5py._objects")
    return module.phil if hasattr(module, "phil") and hasattr(module, "_phil_after_fork") else None  # type: ignore[union-attr]


@contextlib.contextmanager
def _without_lock_of_h5py() -> Iterator[None]:
    """Let others have it: the rest of h5py's import needs it, too."""
    lock: Any = _lock_of_h5py() if _H5PY_LATER else None
    try:
        lock.release()
    except (AttributeError, RuntimeError):  # there is none, or this thread has it not
        yield
        return
    try:
        yield
    finally:
        lock.acquire()


def _take_lock_of_h5py() -> None:
    """Have it: where h5py takes it first, only if h5py was imported since this fork began; else once more than h5py."""
    lock = _lock_of_h5py()
    if lock is not None:
        if _H5PY_LATER:
            with contextlib.suppress(RuntimeError):
                lock.release()
        else:
            _taken.h5py = lock
        lock.acquire()


def _let_lock_of_h5py() -> None:
    lock, _taken.h5py = getattr(_taken, "h5py", None), None
    if lock is not None:
        with contextlib.suppress(RuntimeError):  # after an interrupt this thread may not have it
            lock.release()


def _importing() -> dict[str, int]:
    """Modules that are imported now, and the identity of the thread that imports each."""
    # A list is made in one go also where Python has no lock of its own: other threads begin to import meanwhile.
    owners = [(name, getattr(reference(), "owner", None)) for name, reference in list(_IMPORTS.items())]
    return {name: owner for name, owner in owners if owner is not None}


def _import_anew() -> None:
    """In a child: remove the modules that threads of the parent had imported in part, so that the next import begins anew.

    A module that the fork waited for in vain stays as it is: it may be a program, which must not run a second time.
    """
    me = threading.get_ident()
    importing = _importing()
    for name in tuple(_IMPORTS):
        if importing.get(name) == me:
            continue
        _IMPORTS.pop(name, None)  # nobody is left who would release it, or what it has inside
        specification = getattr(sys.modules.get(name), "__spec__", None)
        if name in importing and getattr(specification, "_initializing", False):
            if name in _outlasted:
                vars(specification)["_initializing"] = False
            else:
                del sys.modules[name]
    _outlasted.clear()


# Seconds for which a fork waits for lines of log that other threads write.
_LOG_PATIENCE: Final = 1.0
_taken = threading.local()


def _wait_for_logs() -> None:
    """Have no other thread write a line of log: the buffer of its stream has a lock, which no child makes anew."""
    end = time.monotonic() + _LOG_PATIENCE
    # The lock of the module comes first, as in logging.config.
    locks = [logging._lock, *(getattr(handler(), "lock", None) for handler in list(logging._handlerList))]  # type: ignore[attr-defined]
    _taken.locks = taken = []
    for lock in locks:
        if lock is not None and lock.acquire(timeout=max(0.0, end - time.monotonic())):
            taken.append(lock)  # noqa: PERF401 - those that were taken are released after an interrupt


def _bar_imports() -> None:
    """Let no import begin, unless a lock that is yet to be taken may be that of a thread which then waits for an import."""
    if logging._lock in _taken.locks:  # type: ignore[attr-defined]
        _taken.imports = True
        _imp.acquire_lock()


def _let_import() -> None:
    if getattr(_taken, "imports", False):
        _taken.imports = False
        with contextlib.suppress(RuntimeError):  # after an interrupt this thread may not have it
            _imp.release_lock()


def _let_log() -> None:
    _let_import()
    locks, _taken.locks = getattr(_taken, "locks", []), []
    for lock in reversed(locks):
        lock.release()
    _let_lock_of_h5py()


def _before_fork() -> None:
    for _ in range(_TRIES):
        _wait_for_imports()
        _take_lock_of_h5py()
        _wait_for_logs()
        _bar_imports()
        if not _others_importing():
            return
        _let_log()  # what is imported may log
    _take_lock_of_h5py()
    _wait_for_logs()


def _after_fork_in_child() -> None:
    _let_import()
    _taken.locks = []  # logging has made its own anew
    _let_lock_of_h5py()
    _import_anew()


os.register_at_fork(after_in_child=_renew_all)
os.register_at_fork(before=_before_fork, after_in_parent=_let_log, after_in_child=_after_fork_in_child)

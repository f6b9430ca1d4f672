"""Weak sets and dictionaries that other threads change while they are looked through."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from stoker.concurrency.forks import alive


class _One:
    pass


@pytest.fixture(autouse=True)
def _threads_take_many_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _look_while_others_are_added(look: Callable[[], list[_One]], add: Callable[[_One], None]) -> None:
    stays = [_One() for _ in range(50)]
    for one in stays:
        add(one)
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            add(_One())  # and lets go of it

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(2000):
            assert len(set(stays).intersection(look())) == len(stays)
    finally:
        ended.set()
        thread.join()


def test_a_weak_set_is_listed_while_a_thread_adds_to_it() -> None:
    found: weakref.WeakSet[_One] = weakref.WeakSet()
    _look_while_others_are_added(lambda: alive(found), found.add)


def test_the_values_of_a_weak_dictionary_are_listed_while_a_thread_adds_to_it() -> None:
    found: weakref.WeakValueDictionary[int, _One] = weakref.WeakValueDictionary()
    _look_while_others_are_added(lambda: alive(found), lambda one: found.__setitem__(id(one), one))


def test_those_that_are_gone_are_not_listed() -> None:
    found: weakref.WeakSet[_One] = weakref.WeakSet()
    one, other = _One(), _One()
    found.update([one, other])
    del other
    assert alive(found) == [one]

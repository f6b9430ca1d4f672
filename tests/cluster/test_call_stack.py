"""Callers of a thread: functions of other threads that wait for what it reads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any

import pytest

from patience import PATIENCE
from stoker.cluster import call_stack
from stoker.cluster.call_stack import called_from
from stoker.concurrency.global_lock import has_global_lock
from stoker.concurrency.user_code import calls_user_code
from stoker.errors import ConfigError

looks_at_others = pytest.mark.skipif(
    not has_global_lock(), reason="a free-threaded Python can not look at other threads"
)

_WRAPPER = """
def loop(items):
    for item in items():
        yield item
"""
READS: dict[str, Iterator[bool]] = {}
"""What the thread reads; a module's variable, so that only the iterators between lead to it."""


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Iterator[Any]]], Iterator[Any]]:
    """A generator function of a wrapper package, which has no variable for its iterator."""
    package = ModuleType("a_wrapper")
    exec(_WRAPPER, vars(package))
    monkeypatch.setitem(sys.modules, "a_wrapper", package)
    return package.loop  # type: ignore[no-any-return]


def _reads() -> Iterator[bool]:
    while True:
        yield called_from("a_wrapper")


@looks_at_others
def test_a_wrapper_that_waits_in_a_function_of_others_is_found(loop: Callable[..., Iterator[Any]]) -> None:
    READS["it"] = _reads()
    found: list[bool] = []

    def items() -> Iterator[bool]:
        reads = READS["it"]
        thread = threading.Thread(target=lambda: found.append(next(reads)))
        thread.start()
        thread.join(PATIENCE)
        yield found[0]

    assert next(loop(items))


@looks_at_others
def test_a_wrapper_is_found_at_each_moment_of_a_loop_that_goes_on(loop: Callable[..., Iterator[Any]]) -> None:
    READS["it"] = _reads()
    found: list[bool] = []

    def items() -> Iterator[int]:
        reads = READS["it"]
        while reads:
            yield sum(range(300))

    def read() -> None:
        found.extend(next(READS["it"]) for _ in range(300))

    wrapper = loop(items)
    next(wrapper)
    thread = threading.Thread(target=read)
    thread.start()
    while thread.is_alive():
        next(wrapper)
        sum(range(300))
    assert found == [True] * 300


@looks_at_others
def test_a_wrapper_of_another_loader_is_not_found(loop: Callable[..., Iterator[Any]]) -> None:
    READS["it"] = _reads()
    other = iter([1, 2, 3])

    def items() -> Iterator[int]:
        yield from other

    wrapper = loop(items)
    next(wrapper)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(next(READS["it"])))
    thread.start()
    thread.join(PATIENCE)
    assert found == [False]


@looks_at_others
def test_a_tuple_that_another_thread_makes_meanwhile_is_left_alone(loop: Callable[..., Iterator[Any]]) -> None:
    """Python refuses to make a tuple larger to which others refer."""
    READS["it"] = _reads()
    over = threading.Event()

    def read() -> None:
        for _ in range(50):
            next(READS["it"])
        over.set()

    def items() -> Iterator[int]:
        while not over.is_set():
            yield sum(range(100))

    wrapper = loop(items)
    thread = threading.Thread(target=read)
    thread.start()
    while thread.is_alive():
        assert len(tuple(islice(wrapper, 1000))) in range(1001)


@pytest.mark.usefixtures("loop")
def test_a_thread_beside_a_wrapper_is_refused_without_a_global_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other threads run can not be looked at while they run it; what a function of the user reads is for itself."""
    monkeypatch.setattr(call_stack, "has_global_lock", lambda: False)
    found: list[object] = []

    def read(package: str) -> None:
        try:
            found.append(called_from(package))
        except ConfigError as error:
            found.append(str(error))

    for target in (read, calls_user_code(lambda package: read(package))):
        for package in ("a_wrapper", "not_imported"):
            thread = threading.Thread(target=target, args=(package,), name="mine")
            thread.start()
            thread.join(PATIENCE)
    told, *others = found
    assert "in the thread 'mine', a_wrapper is imported" in str(told)
    assert "PYTHON_GIL=1" in str(told)
    assert others == [False, False, False]
    assert not called_from("a_wrapper")  # in the main thread

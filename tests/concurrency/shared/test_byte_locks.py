"""Locks of bytes of a file belong to the description that took them, not to the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.concurrency.shared.byte_locks import is_byte_locked, lock_byte, unlock_byte

PLACE = 1 << 61
"""Far beyond the file's end, as caches' places are."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Opens the same file, a description of its own each time."""
    descriptors: list[int] = []

    def open_again() -> int:
        descriptors.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
        return descriptors[-1]

    yield open_again
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_lock_excludes_other_descriptions_of_the_same_process(opened: Callable[[], int], at_once: bool) -> None:
    mine, other = opened(), opened()
    assert lock_byte(mine, PLACE, "exclusive", at_once=at_once)
    assert not lock_byte(other, PLACE, "exclusive", at_once=at_once)
    assert not lock_byte(other, PLACE, "shared", at_once=at_once)
    assert lock_byte(other, PLACE + 1, "exclusive", at_once=at_once)
    assert is_byte_locked(other, PLACE)
    assert not is_byte_locked(mine, PLACE)  # its own is none of another
    unlock_byte(mine, PLACE, at_once=at_once)
    assert not is_byte_locked(other, PLACE)
    assert lock_byte(other, PLACE, "exclusive", at_once=at_once)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_closed_descriptor_is_an_error(tmp_path: Path, at_once: bool) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock_byte(descriptor, PLACE, "exclusive", at_once=at_once)
    with pytest.raises(OSError, match="Bad file descriptor"):
        unlock_byte(descriptor, PLACE, at_once=at_once)


def test_shared_locks_exclude_exclusive_ones_alone(opened: Callable[[], int]) -> None:
    one, two, three = opened(), opened(), opened()
    assert lock_byte(one, PLACE, "shared")
    assert lock_byte(two, PLACE, "shared")
    assert not lock_byte(three, PLACE, "exclusive")
    unlock_byte(one, PLACE)
    assert is_byte_locked(three, PLACE)
    unlock_byte(two, PLACE)
    assert lock_byte(three, PLACE, "exclusive")


def test_a_lock_lasts_until_the_last_descriptor_of_its_description_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    mine, other = os.open(path, os.O_RDWR | os.O_CREAT), os.open(path, os.O_RDWR)
    assert lock_byte(mine, PLACE, "exclusive")
    os.close(os.open(path, os.O_RDWR))  # which would end a lock of the process
    assert is_byte_locked(other, PLACE)
    copy = os.dup(mine)
    os.close(mine)
    assert is_byte_locked(other, PLACE)
    os.close(copy)
    assert not is_byte_locked(other, PLACE)
    os.close(other)

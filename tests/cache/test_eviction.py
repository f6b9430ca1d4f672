"""Which files leave a cache that is full: those opened longest ago, but none in use."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from patience import PATIENCE
from stoker.cache.disk.in_use import Users, held, hold
from stoker.cache.disk.quota import CacheQuota
from stoker.storage.files.mapped import map_file
from stoker.storage.files.own import PRIVATE


def test_files_opened_longest_ago_go_first(tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    for opened, (name, size) in enumerate((("old", 400), ("large", 600), ("new", 300)), 1):
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (opened, opened))
    assert CacheQuota(tmp_path, tmp_path / PRIVATE, 1000, 1.0, dict).take(0)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"large", "new"}


def test_files_in_use_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(bytes(400_000))
    mapped = map_file(tmp_path / "a")
    assert not isinstance(mapped, bytes)
    hold(tmp_path, "a", mapped)
    quota = CacheQuota(tmp_path, tmp_path / PRIVATE, 500_000, 1.0, dict)
    assert quota.take(0)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"a"}
    assert len(memoryview(mapped)) == 400_000


def test_what_is_to_be_opened_is_passed_over_until_it_is(tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    quota = CacheQuota(tmp_path, tmp_path / PRIVATE, 500_000, 1.0, dict)
    with held(tmp_path, ["a", "b"]):
        for name in ("a", "b", "c"):
            (tmp_path / name).write_bytes(bytes(400_000))
        assert not quota.take(0)
        assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"a", "b"}
    assert quota.take(0)
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 1


@pytest.mark.processes
def test_a_child_does_not_hold_what_a_thread_of_its_parent_was_about_to_open(tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    begun, over, (theirs, ours) = threading.Event(), threading.Event(), os.pipe()

    def open_something() -> None:
        with held(tmp_path, ["a"]):
            begun.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=open_something)
    thread.start()
    begun.wait()
    pid = os.fork()
    if not pid:
        status = 2
        try:
            os.read(theirs, 1)
            with Users() as users:
                status = int(users.uses(tmp_path / "a"))
        finally:
            os._exit(status)
    over.set()
    thread.join()
    os.write(ours, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(ours)
    os.close(theirs)

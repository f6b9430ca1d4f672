"""Which files leave a cache that is full: those that its policy puts first, but none in use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from stoker.cache.disk.eviction import CachedFile, EvictionPolicy, least_recently_opened
from stoker.cache.disk.in_use import hold
from stoker.cache.disk.quota import CacheQuota
from stoker.storage.files.mapped import map_file
from stoker.storage.files.own import PRIVATE


def largest_first(files: Sequence[CachedFile]) -> Iterable[CachedFile]:
    return sorted(files, key=lambda file: -file.bytes)


@pytest.mark.parametrize(
    ("policy", "left"),
    [(least_recently_opened, {"large", "new"}), (largest_first, {"old", "new"})],
)
def test_the_policy_says_which_files_go(policy: EvictionPolicy, left: set[str], tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    for opened, (name, size) in enumerate((("old", 400), ("large", 600), ("new", 300)), 1):
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (opened, opened))
    quota = CacheQuota(tmp_path, tmp_path / PRIVATE, 1000, 1.0, dict, policy)
    assert quota.take(0)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == left


def test_files_in_use_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / PRIVATE).mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(bytes(400_000))
    mapped = map_file(tmp_path / "a")
    assert not isinstance(mapped, bytes)
    hold(tmp_path, "a", mapped)
    quota = CacheQuota(tmp_path, tmp_path / PRIVATE, 500_000, 1.0, dict, least_recently_opened)
    assert quota.take(0)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"a"}
    assert len(memoryview(mapped)) == 400_000

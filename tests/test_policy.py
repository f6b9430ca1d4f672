"""Limits that come from the host: the processors that a process has."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import policy
from stoker.formats.base import ReadOptions
from stoker.policy import ReadAmounts, processors
from throttle import remove_group

_CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited_group(half_processors: int) -> Iterator[Path]:
    """A control group that has so many halves of a processor."""
    old = (_CGROUPS / "cpu" / "cpu.cfs_quota_us").exists()
    group = (_CGROUPS / "cpu" if old else _CGROUPS) / f"stoker-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        if old:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(50_000 * half_processors))
        else:
            (group / "cpu.max").write_text(f"{50_000 * half_processors} 100000")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("no control group may be made here")
    try:
        yield group
    finally:
        remove_group(group)


def test_processors_are_those_of_the_process_divided_among_those_that_share() -> None:
    count = len(os.sched_getaffinity(0))
    assert 1.0 <= processors(1) <= count
    assert processors(10 * count) == 1.0, "at least one"


@pytest.mark.processes
@pytest.mark.parametrize("halves", [2, 3])
def test_a_container_has_the_processors_that_its_control_group_allows(halves: int) -> None:
    """Two or more may be seen in it."""
    script = (
        "import sys; open(sys.argv[1], 'w').write('0'); from stoker.policy import processor_count, processors; "
        "print(processors(1), processor_count())"
    )
    with limited_group(halves) as group:
        command = [sys.executable, "-c", script, str(group / "cgroup.procs")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    has, count = done.stdout.split()
    assert float(has) == min(halves / 2, len(os.sched_getaffinity(0)))
    assert int(count) == min((halves + 1) // 2, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("kind", ["memory", ""])
def test_what_is_held_in_memory_fits_into_the_container(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By control groups of both versions: the narrowest of those above counts, and what has no limit does not."""
    name = "memory.limit_in_bytes" if kind else "memory.max"
    groups = [tmp_path / "group", tmp_path, tmp_path / "none"]
    groups[0].mkdir()
    (groups[0] / name).write_text(str(1 << 62) if kind else "max")
    (tmp_path / name).write_text(str(1 << 30))
    monkeypatch.setattr(policy, "_control_groups", lambda _: ((kind, folder) for folder in groups))
    policy.memory_limit.cache_clear()
    try:
        assert policy.memory_limit() == 1 << 30
        held = [policy.held_in_memory(), policy.reused_memory(), policy.decoded_memory(), policy.spare_bytes(None, 1)]
        held += [ReadAmounts(held=True).lookahead(1), policy.small_shards_held(1), ReadAmounts().group_bytes]
        assert held == [1 << 29, 1 << 27, 1 << 27, 1 << 26, 1 << 20, 1 << 26, 1 << 26]
        assert ReadAmounts(held=True, sample_bytes=1 << 20).lookahead(1) == 1 << 7
        assert ReadOptions().decoded_bytes == 1 << 27
        assert ReadOptions(decoded_limit="2gb").decoded_bytes == 2 << 30
    finally:
        policy.memory_limit.cache_clear()


def test_the_usual_amounts_where_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "memory_limit", lambda: 64 << 30)
    assert [policy.held_in_memory(), policy.reused_memory(), policy.decoded_memory()] == [8 << 30, 1 << 30, 1 << 30]
    assert [policy.spare_bytes(None, 1), policy.small_shards_held(1), ReadAmounts().group_bytes] == [1 << 28] * 3


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    for now in ((1024, 4096), (1024, resource.RLIM_INFINITY), (1024, 1024), (2000, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, now=now: now)
        policy.allow_descriptors(2000)
    assert given == [(2000, 4096), (2000, resource.RLIM_INFINITY), (1024, 1024)]


def test_lists_have_more_small_samples_where_no_function_makes_them() -> None:
    made = {size: ReadAmounts(sample_bytes=size).made_at_once(calls_functions=False) for size in (100, 1 << 14)}
    assert made == {100: (1 << 20) // 100, 1 << 14: 512}, "large ones take as much memory as before"
    assert ReadAmounts(sample_bytes=100).made_at_once(calls_functions=True) == 512

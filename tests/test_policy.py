"""Limits that come from the host: the processors that a process has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.policy import processors
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

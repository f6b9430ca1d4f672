"""Storage without end: some of the data set's files in memory, to measure what is the loader's own share of waiting."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stoker.cluster import World
from stoker.errors import StokerError
from stoker.storage import open_store
from stoker.storage.files.locked_folder import LockedFolder
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.settings.workload import Storage


def in_memory(storage: Storage, url: str) -> Storage:
    """Settings of storage for a copy in memory: read in the same way, as far as that is one for files."""
    called = storage.client in ("direct", "buffered")
    return Storage(
        url=url,
        cache="keep",
        client="buffered" if called else "mmap" if storage.client == "mmap" else "auto",
        part_bytes=storage.part_bytes if storage.client == "direct" else None,
        part_requests=storage.part_requests if storage.client == "direct" else None,
    )


def copy_files(plan: RunPlan, world: World, holds: ExitStack) -> dict[str, Any]:
    """Copy the first training files into memory of this host, up to ``metric.calibrate_bytes``; for JSON.

    Args:
        holds: removes the copy at its end.

    Returns:
        ``url``, ``files`` and ``bytes`` of the copy, or ``error``: why there is none.
    """
    workload = plan.workload
    memory = Path("/dev/shm")  # noqa: S108 - where Linux has memory as a folder
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    if parent is None:
        return {"error": "this host has no /dev/shm, where a copy could be kept in memory"}
    try:
        folder = holds.enter_context(LockedFolder(parent, "stoker-bench-"))
        store = open_store(f"{plan.url.rstrip('/')}/train", workload.storage.store_options(plan.url, world.rank))
        listed = sorted(
            (one for one in store.list() if not Path(one.key).name.startswith(".")), key=lambda one: one.key
        )
        whole = any(one.key == "index.json" for one in listed)
        limit = min(workload.metric.calibrate_bytes, shutil.disk_usage(folder).free // 2)
        total = sum(one.size for one in listed)
        if whole and total > limit:
            raise StokerError(f"the data set has an index and {total} bytes, metric.calibrate_bytes allows {limit}")
        copied = size = 0
        for one in listed:
            if size + one.size > limit and copied:
                break
            if size + one.size > limit:
                raise StokerError(f"{one.key} has {one.size} bytes, metric.calibrate_bytes allows {limit}")
            target = folder / "train" / one.key
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(one.key, target)
            copied, size = copied + 1, size + one.size
        files = min(copied, workload.dataset.files)
        steps = workload.steps_of(files * workload.dataset.samples_per_file, world.world_size)
        wanted = workload.metric.exclude_start + workload.metric.exclude_end + 1
        if steps < wanted:
            raise StokerError(
                f"{files} files in memory are {steps} steps, {wanted} are needed: raise metric.calibrate_bytes"
            )
    except (StokerError, OSError) as error:
        holds.close()
        return {"error": str(error)}
    return {"url": str(folder), "files": files, "bytes": size}


def copy_of_host(told: Sequence[Mapping[str, Any] | None], world: World) -> Mapping[str, Any]:
    """The copy of this rank's host, as :func:`copy_files` tells it; or the error for all hosts where one has none.

    Args:
        told: by rank, of the first of each host its copy.
    """
    copies = [one for one in told if one is not None]
    for one in copies:
        if "error" in one:
            return one
    counts = sorted({one["files"] for one in copies})
    if len(counts) > 1:
        return {
            "error": f"hosts have memory for {counts[0]} files and others for {counts[-1]}: lower metric.calibrate_bytes"
        }
    own = told[world.rank // world.local_world_size * world.local_world_size]
    assert own is not None
    return own

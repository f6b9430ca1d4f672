"""Rules for checkpoints: what makes their times say how fast the storage is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.display import bytes_text, counted
from stoker_bench.measure.page_cache import FROM_DEVICE
from stoker_bench.settings.workload import Workload

_MEMORIES: Final = 3
"""Least size of a host's checkpoints for caching not to matter, in multiples of its memory; a rule of MLPerf Storage."""
_MAKING: Final = 0.1

Found = tuple[str, bool, str]
"""Rule, whether it makes the run invalid, and the reason."""


def checkpoint_findings(result: Mapping[str, Any], workload: Workload) -> Iterator[Found]:
    """The findings of the rules; none where no checkpoints were asked for."""
    found = result["checkpoint"]
    if found is None:
        return
    stage = [one for one in (*found["saves"], *found["loads"]) if one["place"] == "stage"]
    if (found["saves"] or found["loads"]) and found["storage"]["in_memory"]:
        kind, url = found["storage"]["kind"], found["storage"]["url"]
        yield "checkpoint storage", True, f"{url} is in memory ({kind}): no storage was measured"
    yield from _written(found, workload, bool(stage))
    yield from _sizes(found)
    yield from _loaded(result, workload)
    yield from _said(found, workload)


def _written(found: Mapping[str, Any], workload: Workload, stage: bool) -> Iterator[Found]:
    if found["saves"] and found["storage"]["local"] and not workload.checkpoint.fsync:
        # A training that does not wait for the device is one; a measurement of storage that does not is none.
        yield (
            "fsync",
            stage,
            "checkpoint.fsync is false: the time of saving is that of writing to memory, as far as it has room",
        )


def _sizes(found: Mapping[str, Any]) -> Iterator[Found]:
    """Whether what was loaded, perhaps of another run, are checkpoints of this workload."""
    size = found["layout"]["bytes"]
    for load in found["loads"]:
        if load["complete"] and load["bytes"] != size:
            loaded = f"{bytes_text(load['bytes'])} ({load['bytes']:,} bytes)"
            reason = f"checkpoint {load['number']} that was loaded has {loaded}, those of this workload have {size:,}"
            yield "checkpoint sizes", True, f"{reason}: it is another model's, or of other ranks"
            return


def _loaded(result: Mapping[str, Any], workload: Workload) -> Iterator[Found]:
    found = result["checkpoint"]
    storage, loads = found["storage"], [one for one in found["loads"] if one["complete"]]
    if not loads or storage["in_memory"]:
        return
    if not storage["local"]:
        yield (
            "page cache",
            False,
            "what the object store itself had in memory when checkpoints were loaded is not known",
        )
        return
    for load in loads:
        device = load["device_bytes"]
        if device is None:
            memory = min((rank["memory_bytes"] for rank in result["ranks"]), default=0)
            small = load["bytes"] < _MEMORIES * memory * len(result["world"]["hosts"])
            than = f"{'less than' if small else 'at least'} {_MEMORIES} times the memory of its hosts"
            reason = (
                f"what came from memory is not known: the kernel does not count what is read of {storage['kind']}; the "
                f"checkpoint has {bytes_text(load['bytes'])}, {than}"
            )
            yield "page cache", small, reason
            return
        elif device < FROM_DEVICE * load["bytes"]:
            how = "" if workload.storage.cache == "drop" else " (storage.cache is keep)"
            reason = (
                f"{1 - device / load['bytes']:.0%} of checkpoint {load['number']} did not come from the device when it was "
                f"loaded but from the page cache{how}"
            )
            yield "page cache", True, reason
            return


def _said(found: Mapping[str, Any], workload: Workload) -> Iterator[Found]:
    layout, settings = found["layout"], workload.checkpoint
    left = found.get("leftovers")
    if left and left["checkpoints"]:
        reason = (
            f"{found['storage']['url']} has {bytes_text(left['bytes'])} of "
            f"{counted(left['checkpoints'], 'checkpoint')} of other runs that do not count, "
            f"such as {left['first']}: remove them, unless such a run is under way"
        )
        yield "leftovers", False, reason
    if layout["ranks"] < layout["whole_ranks"]:
        reason = (
            f"{layout['ranks']} of {layout['whole_ranks']} ranks: {bytes_text(layout['bytes'])} of "
            f"{bytes_text(layout['whole_bytes'])} of a checkpoint were saved and loaded"
        )
        yield "subset", False, reason
    shifted = {rank["source_rank"] == rank["rank"] for load in found["loads"] for rank in load["ranks"]}
    if settings.shift and shifted == {True}:
        yield "shift", False, "all ranks are on one host, so that each loaded what it had written itself"
    if settings.verify and found["loads"]:
        yield (
            "verification",
            False,
            "what was loaded was compared to what was saved, which is part of the time of loading",
        )
    making = [
        rank["fill_seconds"] / (rank["seconds"] * settings.threads)
        for save in found["saves"]
        if save["complete"]
        for rank in save["ranks"]
        if rank["bytes"] and rank["seconds"]
    ]
    if making and max(making) > _MAKING:
        yield (
            "content",
            False,
            f"making the bytes took up to {max(making):.0%} of the threads' time: checkpoint.threads hides more of it",
        )
    if not found["storage"]["local"] and found["saves"] and settings.fsync:
        yield "fsync", False, "an object store has an object durably when it has taken it: there is no fsync apart"

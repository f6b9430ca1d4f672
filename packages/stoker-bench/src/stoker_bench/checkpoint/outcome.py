"""The results of a run's checkpoints, from all ranks' records: for ``results.json``, and in DLIO's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.units import GIB
from stoker_bench.measure.metrics import summarize
from stoker_bench.measure.page_cache import file_system
from stoker_bench.results.requests import counted_requests, told_requests

_EVENT_KEYS: Final = ("kind", "place", "number", "repeat", "epoch", "step")
_RANK: Final = (
    *("bytes", "files", "seconds", "fsync_seconds", "io_seconds", "fill_seconds", "verify_seconds"),
    *("commit_seconds", "source_rank", "complete", "cache", "usage"),
)


def checkpoint_result(records: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any] | None:
    """All that was saved and loaded; ``None`` where that was not asked for.

    Args:
        records: of the ranks that reported.
        ranks: how many there should be.
    """
    described = next((one for one in records if one.get("checkpoint_layout")), None)
    if described is None:
        return None
    storage = dict(described["checkpoint_place"])
    kind, memory = file_system(storage["url"]) if storage["local"] else (storage["url"].partition(":")[0], False)
    events = [_event([_nth(record, at) for record in records], ranks) for at in range(_most(records))]
    saves = [one for one in events if one["kind"] == "save"]
    loads = [one for one in events if one["kind"] == "load"]
    return {
        "storage": {**storage, "kind": kind, "in_memory": memory},
        "leftovers": next((one["checkpoint_leftovers"] for one in records if one.get("checkpoint_leftovers")), None),
        "layout": described["checkpoint_layout"],
        "saves": saves,
        "loads": loads,
        "save": _over(saves),
        "load": _over(loads),
    }


def _most(records: Sequence[Mapping[str, Any]]) -> int:
    return max((len(record["checkpoints"]) for record in records), default=0)


def _nth(record: Mapping[str, Any], at: int) -> dict[str, Any] | None:
    """All ranks save and load the same ones in the same order."""
    return {"rank": record["rank"], **record["checkpoints"][at]} if at < len(record["checkpoints"]) else None


def _event(entries: Sequence[Mapping[str, Any] | None], ranks: int) -> dict[str, Any]:
    known = [one for one in entries if one is not None]
    timed = [one for one in known if one.get("seconds") is not None]
    complete = len(known) == ranks and all(one["complete"] for one in known)
    seconds = max((one["seconds"] for one in timed), default=None)
    size = sum(one["bytes"] for one in known)
    moved = [one["bytes"] / one["seconds"] for one in timed if one["bytes"] and one["seconds"] > 0]
    whole = complete and seconds
    requests = counted_requests(timed)
    return {
        **{name: known[0][name] for name in _EVENT_KEYS},
        "began_at": min((one["began_at"] for one in timed), default=None),
        "ended_at": max((one["ended_at"] for one in timed), default=None),
        "complete": complete,
        "bytes": size,
        "seconds": seconds if complete else None,
        "bytes_per_second": size / seconds if whole else None,
        "rank_bytes_per_second": summarize(moved) if whole else None,
        "fsync_seconds": max((one["fsync_seconds"] for one in timed), default=None),
        "commit_seconds": max((one["commit_seconds"] for one in known if "commit_seconds" in one), default=None),
        "device_bytes": _sum(timed, "device_bytes"),
        "cpu_seconds": _sum(timed, "cpu_seconds"),
        "peak_memory_bytes": _sum(timed, "peak_memory_bytes"),
        "cache": next((one["cache"] for one in known if one.get("cache")), None),
        "requests": None if requests is None else told_requests(requests),
        "ranks": [{"rank": one["rank"], **{name: one.get(name) for name in _RANK}} for one in known],
    }


def _sum(entries: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [one["usage"][name] for one in entries]
    return None if not values or None in values else sum(values)


def _over(events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Mean and spread over those that were completed."""
    done = [one for one in events if one["complete"]]
    if not done:
        return None
    slowest = [one["rank_bytes_per_second"] for one in done]
    return {
        "count": len(done),
        "seconds": summarize([one["seconds"] for one in done]),
        "bytes_per_second": summarize([one["bytes_per_second"] for one in done]),
        "slowest_rank_bytes_per_second": summarize([None if one is None else one["min"] for one in slowest]),
        "fsync_seconds": summarize([one["fsync_seconds"] for one in done]),
    }


def checkpoint_summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of DLIO's ``summary.json``. Its GB are GiB; a checkpoint takes as long as its slowest rank."""
    found = result["checkpoint"]
    if found is None:
        return {}
    made: dict[str, Any] = {"checkpoint_size_GB": found["layout"]["bytes"] / GIB}
    for kind in ("save", "load"):
        over = found[kind]
        if over is None:
            continue
        rate, seconds = over["bytes_per_second"], over["seconds"]
        made |= {
            f"{kind}_checkpoint_io_mean_GB_per_second": rate["mean"] / GIB,
            f"{kind}_checkpoint_io_stdev_GB_per_second": rate["stdev"] / GIB,
            f"{kind}_checkpoint_duration_mean_seconds": seconds["mean"],
            f"{kind}_checkpoint_duration_stdev_seconds": seconds["stdev"],
        }
    return made

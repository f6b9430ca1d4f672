"""Rules for the stage ``kv_cache``: what makes its latencies the storage's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.display import bytes_text
from stoker_bench.measure.page_cache import FROM_DEVICE, TELLING_BYTES
from stoker_bench.settings.workload import Workload

_HOST: Final = 0.05
_REPEATS: Final = 3
_FEW: Final = 100


def kv_cache_findings(found: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    """Rule, whether it makes the run invalid, and the reason.

    Args:
        found: what :func:`~stoker_bench.kv_cache.outcome.kv_cache_result` gave, with at least one repeat.
        workload: all settings.
    """
    storage, settings = found["storage"], workload.kv_cache
    if storage["in_memory"]:
        yield "kv cache storage", True, f"{storage['url']} is in memory ({storage['kind']}): no storage was measured"
    if storage["local"] and not settings.fsync and found["write"] is not None:
        yield "fsync", True, "kv_cache.fsync is false: an entry that counts as written may be in memory alone"
    yield from _moved(found, workload)
    if not storage["in_memory"]:
        yield from _page_cache(found)
    yield from _told(found, workload)


def _moved(found: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    for repeat in found["repeats"]:
        done = repeat["tiers"]["storage"]
        if not repeat["requests"]:
            yield "requests", True, f"no request was answered to its end in {repeat['seconds']:.1f} s: give more time"
            return
        if done["read"] is None and done["write"] is None:
            yield "kv cache", True, "the storage was not used: the tiers above it hold all entries"
            return
    if found["read"] is None and workload.kv_cache.phase != "prefill":
        yield "kv cache", True, "nothing was read from storage: the tiers above it hold all that was read"


def _page_cache(found: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    if found["read"] is None:
        return
    storage = found["storage"]
    if not storage["local"]:
        yield "page cache", False, "what the object store itself had in memory when entries were read is not known"
        return
    for repeat in found["repeats"]:
        read = repeat["tiers"]["storage"]["read"]
        if read is None:
            continue
        device = repeat["device_bytes"]
        if device is None or read["bytes"] < TELLING_BYTES:
            why = (
                f"the kernel does not count what is read of {storage['kind']}"
                if device is None
                else f"{bytes_text(read['bytes'])} are too few to tell from what else the processes read"
            )
            how = f"kv_cache.direct is {'true' if storage['direct'] else 'false'}"
            if not storage["direct"] or device is None:
                yield "page cache", not storage["direct"], f"whether the device was read is not known: {why}, and {how}"
                return
        elif device < FROM_DEVICE * read["bytes"]:
            part = 1 - device / read["bytes"]
            yield "page cache", True, f"{part:.0%} of the bytes of entries that were read did not come from the device"
            return


def _told(found: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    settings = workload.kv_cache
    for kind in ("read", "write"):
        over = found[kind]
        if over is None:
            continue
        for name, what in (
            ("host_share", "this process's own: its code, and waiting for Python's lock"),
            ("queue_share", "waiting for a processor of this host, which was busy"),
        ):
            if over[name]["max"] > _HOST:
                reason = (
                    f"up to {over[name]['max']:.0%} of the latency of {kind}s is {what}; device_latency is without it"
                )
                yield "host's share", False, reason
        count = min(one["tiers"]["storage"][kind]["count"] for one in found["repeats"])
        if count < _FEW:
            yield "latency", False, f"only {count} {kind}s of storage: too few for a 99th percentile"
    deleted = sum(one["deletes"] for one in found["repeats"])
    if deleted:
        yield (
            "capacity",
            False,
            f"the storage was full: entries that were not used for the longest time were removed ({deleted:,})",
        )
    if settings.repeats < _REPEATS:
        yield "repeats", False, f"kv_cache.repeats is {settings.repeats}; MLPerf Storage asks for {_REPEATS} runs"

"""The results of the stage ``kv_cache``, from all ranks' records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from stoker.units import GIB
from stoker_bench.kv_cache.tiers import TIERS
from stoker_bench.measure.call_times import merged
from stoker_bench.measure.metrics import summarize
from stoker_bench.measure.page_cache import file_system

_RATES: Final = ("bytes_per_second", "per_second", "host_share", "queue_share")
_COUNTS: Final = ("requests", "generated_tokens", "hits", "misses", "moves", "deletes", "workers")


def kv_cache_result(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """All repeats; ``None`` where the stage was not asked for or did not begin."""
    known = [record["kv_cache"] for record in records if record.get("kv_cache")]
    if not known:
        return None
    storage = known[0]["storage"]
    if storage["local"]:
        kind, memory = file_system(storage["url"].rpartition("/")[0])
    else:
        kind, memory = storage["url"].partition(":")[0], False
    repeats = [
        _repeat([one["repeats"][at] for one in known]) for at in range(min(len(one["repeats"]) for one in known))
    ]
    users = {name: sum(one["users"][name] for one in known) for name in known[0]["users"]}
    return {
        "storage": {**storage, "kind": kind, "in_memory": memory},
        "bytes_per_token": known[0]["bytes_per_token"],
        "users": users,
        "repeats": repeats,
        "read": _over(repeats, "read"),
        "write": _over(repeats, "write"),
    }


def _repeat(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One repeat of all ranks: sums, and the slowest rank's time."""
    seconds = max(part["seconds"] for part in parts)
    usage = [part["usage"] for part in parts]
    device = [one["device_bytes"] for one in usage]
    times = [part["request_seconds"] for part in parts if part["request_seconds"] is not None]
    return {
        "repeat": parts[0]["repeat"],
        "seconds": seconds,
        **{name: sum(part[name] for part in parts) for name in _COUNTS},
        "request_seconds": {name: max(one[name] for one in times) for name in times[0]} if times else None,
        "tiers": {
            tier: {kind: merged([part["tiers"][tier][kind] for part in parts], seconds) for kind in ("read", "write")}
            for tier in TIERS
        },
        "held": {tier: sum(part["held"][tier] for part in parts) for tier in TIERS},
        "capacity_bytes": sum(part["capacity_bytes"] for part in parts),
        "device_bytes": None if None in device else sum(device),
        "cpu_seconds": sum(one["cpu_seconds"] for one in usage),
        "peak_memory_bytes": sum(one["peak_memory_bytes"] for one in usage),
    }


def _over(repeats: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any] | None:
    """Mean and spread over repeats of what storage did."""
    done = [one["tiers"]["storage"][kind] for one in repeats if one["tiers"]["storage"][kind] is not None]
    if not done:
        return None
    return {
        **{
            name: summarize([one[name] for one in done])
            for name in ("bytes_per_second", "per_second", "host_share", "queue_share")
        },
        **{name: summarize([one["latency"][name] for one in done]) for name in ("p50", "p95", "p99")},
    }


def kv_cache_summary(found: Mapping[str, Any] | None) -> dict[str, float]:
    """Numbers for ``summary.json``, under the names that MLPerf Storage's reports give them; GB are GiB.

    Bandwidths and tokens are sums over ranks and means over repeats, latencies those of the worst rank and repeat.
    """
    if found is None:
        return {}
    done: dict[str, float] = {}
    for kind in ("read", "write"):
        if found[kind] is None:
            continue
        done[f"kvcache_aggregated_{kind}_bandwidth_gbps"] = found[kind]["bytes_per_second"]["mean"] / GIB
        worst = [one["tiers"]["storage"][kind] for one in found["repeats"]]
        slowest = max(one["device_latency"]["p95"] for one in worst if one is not None)
        done[f"kvcache_aggregated_device_{kind}_p95_ms"] = slowest * 1e3
    rates = [one["generated_tokens"] / one["seconds"] for one in found["repeats"] if one["seconds"]]
    if rates:
        done["kvcache_aggregated_avg_throughput_tokens_per_sec"] = fmean(rates)
    return done

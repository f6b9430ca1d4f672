"""The results of the stage ``vectors``, from all ranks' records, and the rules for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from stoker_bench.measure.call_times import merged
from stoker_bench.measure.metrics import summarize
from stoker_bench.measure.page_cache import FROM_DEVICE, TELLING_BYTES, file_system
from stoker_bench.settings.workload import Workload
from stoker_bench.vectors.indexes import INDEXES

_HOST: Final = 0.05
_REPEATS: Final = 5


def vector_result(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """All repeats; ``None`` where the stage was not asked for or did not begin."""
    known = [record["vectors"] for record in records if record.get("vectors")]
    if not known:
        return None
    served = INDEXES[known[0]["index"]].served
    kind, memory = ("server", False) if served else file_system(known[0]["path"])
    built = [one["build_seconds"] for one in known if one["build_seconds"] is not None]
    repeats = [
        _repeat([one["repeats"][at] for one in known]) for at in range(min(len(one["repeats"]) for one in known))
    ]
    return {
        **{name: known[0][name] for name in ("index", "path", "bytes", "memory_bytes", "unit")},
        "kind": kind,
        "in_memory": memory,
        "build_seconds": max(built, default=None),
        "repeats": repeats,
        "recall": summarize([one["recall"] for one in repeats]),
        "queries_per_second": summarize([one["search"]["per_second"] for one in repeats]),
        **{name: summarize([one["search"]["latency"][name] for one in repeats]) for name in ("p50", "p95", "p99")},
    }


def _repeat(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds = max(part["seconds"] for part in parts)
    replayed = [part["replay_seconds"] for part in parts if part["replay_seconds"] is not None]
    queries = sum(part["search"]["count"] for part in parts)
    device = [part["usage"]["device_bytes"] for part in parts]
    again = [part["replay_usage"]["device_bytes"] for part in parts if part["replay_usage"] is not None]
    return {
        "repeat": parts[0]["repeat"],
        "seconds": seconds,
        "recall": sum(part["recall"] * part["search"]["count"] for part in parts) / queries,
        "reads_a_query": sum(part["reads"] for part in parts) / queries,
        "hops_a_query": sum(part["hops"] for part in parts) / queries,
        "search": merged([part["search"] for part in parts], seconds),
        "replay_seconds": max(replayed, default=None),
        "replay": merged([part["replay"] for part in parts], max(replayed)) if replayed else None,
        "device_bytes": None if None in device else sum(device),
        "device_bytes_a_query": None if None in device else sum(device) / queries,
        "replay_device_bytes": None if None in again or not again else sum(again),
        "cpu_seconds": sum(part["usage"]["cpu_seconds"] for part in parts),
    }


def vector_summary(found: Mapping[str, Any] | None) -> dict[str, float]:
    """Numbers for ``summary.json``, under the names that MLPerf Storage's reports give them: means over the repeats."""
    if found is None or not found["repeats"]:
        return {}
    latency = [one["search"]["latency"] for one in found["repeats"]]
    named = {"mean": "mean", "p95": "p95", "p99": "p99", "p999": "p99.9"}
    return {
        "vdb_throughput_qps": found["queries_per_second"]["mean"],
        "vdb_recall": found["recall"]["mean"],
        **{f"vdb_{name}_latency_ms": 1e3 * fmean([one[key] for one in latency]) for name, key in named.items()},
    }


def vector_findings(found: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    """Rule, whether it makes the run invalid, and the reason.

    Args:
        found: what :func:`vector_result` gave, with at least one repeat.
        workload: all settings.
    """
    settings = workload.vectors
    if found["in_memory"]:
        yield "vector storage", True, f"{found['path']} is in memory ({found['kind']}): no storage was measured"
    elif found["unit"]:
        yield from _page_cache(found, settings.direct)
    elif INDEXES[found["index"]].served:
        yield _served(found)
    else:
        yield from _mapped(found)
    if found["recall"]["min"] < settings.recall:
        least, asked = found["recall"]["min"], settings.recall
        reason = (
            f"{least:.1%} of the nearest vectors were found, vectors.recall asks for {asked:.0%}: raise vectors.kept"
        )
        yield "recall", True, reason
    replay = [one["replay"] for one in found["repeats"] if one["replay"] is not None]
    for name, what in (
        ("host_share", "this process's own"),
        ("queue_share", "waiting for a processor, of which few were free"),
    ):
        share = max((one[name] for one in replay), default=0.0)
        if share > _HOST:
            yield "host's share", False, f"up to {share:.0%} of the time of the reads alone is {what}"
    if settings.repeats < _REPEATS:
        yield "repeats", False, f"vectors.repeats is {settings.repeats}; MLPerf Storage asks for {_REPEATS} runs"


def _page_cache(found: Mapping[str, Any], direct: bool) -> Iterator[tuple[str, bool, str]]:
    for repeat in found["repeats"]:
        for name, key in (("search", "device_bytes"), ("replay", "replay_device_bytes")):
            read, device = repeat[name]["bytes"], repeat[key]
            if device is None or read < TELLING_BYTES:
                if device is None:
                    why = (
                        f"the kernel does not count what is read of {found['kind']}; vectors.direct is {direct}".lower()
                    )
                    yield "page cache", not direct, f"whether the device was read is not known: {why}"
                    return
                if not direct:
                    reason = "whether the device was read is not known: read more, or set vectors.direct=true"
                    yield "page cache", True, reason
                    return
            elif device < FROM_DEVICE * read:
                part = 1 - device / read
                yield "page cache", True, f"{part:.0%} of the bytes that searches read did not come from the device"
                return


def _served(found: Mapping[str, Any]) -> tuple[str, bool, str]:
    least = min(repeat["device_bytes"] for repeat in found["repeats"])
    if not least:
        return "page cache", True, "the server had all that was read of the index in its own buffers"
    reason = (
        f"the server read {least / found['bytes']:.0%} of the index's bytes in a repeat, beside what its own buffers had; "
        "what of that its host's page cache had is not known"
    )
    return "page cache", False, reason


def _mapped(found: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    for repeat in found["repeats"]:
        device = repeat["device_bytes"]
        if not device:
            yield "page cache", True, "nothing is known to have come from the device: the mapped index was in memory"
            return
    most = max(one["device_bytes"] for one in found["repeats"])
    part = most / found["bytes"]
    reason = (
        f"the index is mapped: {part:.0%} of its bytes came from the device, and what was there already from memory"
    )
    yield "page cache", False, reason

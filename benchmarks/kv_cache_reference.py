"""The same requests to MLPerf Storage's KV cache benchmark and to stoker's: operations, bytes, and the client's share.

    python benchmarks/kv_cache_reference.py --reference DIR              # operations and bytes, without a device
    python benchmarks/kv_cache_reference.py --reference DIR --real 12    # and 12 requests to this disk, one after the other
    python benchmarks/kv_cache_reference.py --real 12                    # stoker's alone, in about two minutes

``DIR`` is ``kv_cache_benchmark`` of a checkout of github.com/mlcommons/storage. It needs NumPy and PyYAML. Without it,
stoker's operations are compared with the numbers of operations and bytes that the reference of April 2026 had.

Requests are stoker's, of MLPerf Storage's users. The reference gets them one by one, with its own tiers, eviction and
conversations, and logs its operations (its trace mode); stoker plans its own. The two lists are compared entry by entry:
what was read, written, moved and removed, its bytes, and its tier.

With ``--real`` entries of a small model are written and read below ``--folder``, in turns. The reference says which part of
its latencies is its client's (serialising, copies); stoker measures what is its own. It ends with 1 where the operations
differ, or the median of stoker's own share is above 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

CASES = {
    "llama 8b, 200 users": ("kv-cache-llama-8b", []),
    "llama 8b, 100 users, 4 GiB memory": ("kv-cache-llama-8b-memory", []),
    "llama 70b, 70 users": ("kv-cache-llama-70b", []),
    "tiny, 8 + 16 GiB above a storage of 64 GiB": (
        "kv-cache-tiny-1b",
        [
            "kv_cache.users=50",
            f"kv_cache.accelerator_bytes={8 << 30}",
            f"kv_cache.memory_bytes={16 << 30}",
            f"kv_cache.capacity_bytes={64 << 30}",
        ],
    ),
    "deepseek v3": ("kv-cache-deepseek-v3", []),
}
RECORDED = dict(zip(CASES, [(11_985, 6.0), (16_320, 8.5), (13_689, 16.6), (19_766, 1.8), (13_332, 3.6)], strict=True))
"""Operations of the reference of April 2026 for 1,500 requests, and TB that they move."""
RECORDED_REQUESTS = 1500
MOST_OWN = 0.05
MODELS = {
    "kv-cache-llama-8b": "llama3.1-8b",
    "kv-cache-llama-8b-memory": "llama3.1-8b",
    "kv-cache-llama-70b": "llama3.1-70b-instruct",
    "kv-cache-tiny-1b": "tiny-1b",
    "kv-cache-deepseek-v3": "deepseek-v3",
}


def planned(name: str, settings: list[str], requests: int) -> tuple[dict[str, Any], list[list[Any]]]:
    """What the reference is to be given, and stoker's own operations."""
    from stoker_bench.kv_cache.requests import draw_requests, draw_users
    from stoker_bench.kv_cache.tiers import TierTable
    from stoker_bench.kv_cache.workers import plan_request
    from stoker_bench.settings.sources import read_workload

    workload = read_workload(name, settings, environ={}, dotenv=None).workload
    cache = workload.kv_cache
    table = TierTable(cache.accelerator_bytes, cache.memory_bytes, cache.capacity_bytes or 1 << 60)
    asked, operations = [], []
    for request, _ in zip(draw_requests(cache, 0), range(requests), strict=False):
        asked.append([request.number, request.tokens, request.generate, list(request.earlier), request.decodes])
        made, _ = plan_request(request, cache, workload.model.kv_bytes, table)
        for one in made:
            if one.kind == "move":
                operations += [["Read", one.entry.number, one.entry.size, one.tier]]
            if one.kind != "delete":
                kind = "Read" if one.kind == "read" else "Write"
                operations.append([kind, one.entry.number, one.entry.size, one.to])
    users = draw_users(cache.kinds, cache.users, cache.seed)
    return {
        "model": MODELS[name],
        "users": [[user.context, user.generate, user.think_seconds] for user in users],
        "seed": cache.seed,
        "requests": asked,
        "accelerator": cache.accelerator_bytes,
        "memory": cache.memory_bytes,
        "storage": cache.capacity_bytes or 1 << 60,
    }, operations


def drive(job: dict[str, Any]) -> dict[str, Any]:
    """Run in a process of its own, with the reference's package on the path: its operations, or its latencies."""
    import random

    from kv_cache import config
    from kv_cache.benchmark import IntegratedBenchmark
    from kv_cache.models import InferencePhase, InferenceRequest, get_model_configs
    from kv_cache.workload import UserSimulator

    config.set_config(config.ConfigLoader(job["config"]))
    model = get_model_configs()[job["model"]]
    random.seed(job["seed"])
    users = UserSimulator.generate_mixed_users(len(job["users"]))
    bench = IntegratedBenchmark(
        model_config=model,
        num_users=len(job["users"]),
        gpu_memory_gb=job["accelerator"] / 2**30,
        cpu_memory_gb=job["memory"] / 2**30,
        storage_capacity_gb=job["storage"] / 2**30,
        duration_seconds=1,
        cache_dir=job["folder"],
        enable_prefix_caching=False,  # what it takes off a context is off already
        seed=job["seed"],
        io_trace_log=job["trace"],
    )
    manager = bench.conversation_manager
    manager.max_conversations = 10**9
    conversations: dict[int, str] = {}
    names: dict[str, int] = {}

    class Once:
        """Lets one request through."""

        def __init__(self) -> None:
            self.asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 2

    for number, tokens, generate, earlier, decodes in job["requests"]:
        conversation = conversations[earlier[-1]] if earlier else manager.start_conversation(f"user_{number}")
        conversations[number] = conversation
        turn, key = manager.add_turn(conversation, tokens, generate)
        names[key] = number
        request = InferenceRequest(
            user_id="user",
            request_id=str(number),
            timestamp=None,
            context_tokens=tokens,
            generate_tokens=generate,
            priority=1,
            phase=InferencePhase.PREFILL_DECODE if decodes else InferencePhase.PREFILL,
            cache_key=key,
            conversation_id=conversation,
            turn_number=turn,
        )
        bench.request_queue.put((number, request))
        bench.process_requests(Once())
    made: dict[str, Any] = {"users": [[one.context_length, one.generation_length, one.think_time] for one in users]}
    if job["trace"]:
        bench.io_tracer.close()
        tiers = {"Tier-0": "accelerator", "Tier-1": "memory", "Tier-2": "storage"}
        lines = [line.split(",") for line in Path(job["trace"]).read_text().splitlines()[1:]]
        made["operations"] = [[one[1], names[one[4]], int(one[2]), tiers[one[3]]] for one in lines]
    else:
        made["stats"] = {name: one for name, one in bench.cache.stats.items() if "storage_" in name}
        bench.cache.backends["nvme"].clear()
    return made


def ask_reference(reference: Path, python: str, job: dict[str, Any]) -> dict[str, Any]:
    job = job | {"config": str(reference / "config.yaml")}
    with tempfile.TemporaryDirectory() as scratch:
        given, answer = Path(scratch, "job.json"), Path(scratch, "answer.json")
        job.setdefault("folder", scratch + "/entries")
        job.setdefault("trace", scratch + "/trace.csv")
        given.write_text(json.dumps(job))
        command = [python, __file__, "--drive", str(given), str(answer)]
        done = subprocess.run(
            command,
            check=False,
            env={"PYTHONPATH": str(reference), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            timeout=1800,
        )
        if done.returncode:
            raise SystemExit(done.stderr.decode()[-3000:])
        return json.loads(answer.read_text())


def compare(reference: Path | None, python: str, requests: int) -> bool:
    same = True
    for case, (name, settings) in CASES.items():
        job, ours = planned(name, settings, requests)
        size = sum(one[2] for one in ours)
        told = f"{case}: {requests} requests, {len(ours):,} operations, {size / 1e12:,.1f} TB: "
        if reference is None:
            operations, terabytes = RECORDED[case]
            equal = (operations, terabytes) == (len(ours), round(size / 1e12, 1))
            print(f"{told}{'equal' if equal else 'DIFFER'} (recorded: {operations:,}, {terabytes} TB)")
            same = same and equal
            continue
        theirs = ask_reference(reference, python, job)
        equal = ours == theirs["operations"]
        users = job["users"] == theirs["users"]
        same = same and equal and users
        first = next(
            (at for at, pair in enumerate(zip(ours, theirs["operations"], strict=False)) if pair[0] != pair[1]), -1
        )
        print(
            f"{told}users {'equal' if users else 'DIFFER'}, operations {'equal' if equal else f'DIFFER at {first}'} "
            f"(reference {len(theirs['operations']):,}, {sum(one[2] for one in theirs['operations']) / 1e12:,.1f} TB)"
        )
    return same


def real(reference: Path | None, python: str, requests: int, folder: Path, rounds: int) -> bool:
    """The same requests to the same disk, one after the other, in turns; whether stoker's own share is small."""
    from stoker_bench.run import run_benchmark
    from stoker_bench.settings.sources import read_workload

    job, operations = planned("kv-cache-tiny-1b", [], requests)
    settings = [f"kv_cache.requests={requests}", "kv_cache.seconds=0", "kv_cache.workers=1", "kv_cache.paced=false"]
    found: dict[str, list[Timed]] = {}
    for number in range(rounds):
        stats = None
        if reference is not None:
            mine = job | {"folder": str(folder / "reference"), "trace": None}
            stats = ask_reference(reference, python, mine)["stats"]
            shutil.rmtree(folder / "reference", ignore_errors=True)
        resolved = read_workload("kv-cache-tiny-1b", settings, environ={}, dotenv=None)
        result = run_benchmark(resolved, results=folder / f"results{number}", url=str(folder / "data"))
        for kind in ("read", "write"):
            one = result["kv_cache"]["repeats"][0]["tiers"]["storage"][kind]
            seconds = one["latency"]["mean"] * one["count"]
            timed = Timed(one["count"], one["bytes"], seconds, one["host_share"], one["queue_share"])
            found.setdefault(f"{kind} stoker", []).append(timed)
            sizes = [size for name, _, size, tier in operations if (name.lower(), tier) == (kind, "storage")]
            assert (one["count"], one["bytes"]) == (len(sizes), sum(sizes)), "not the operations that were planned"
            if stats is not None:
                total = stats[f"storage_{kind}_latencies"]
                host = sum(stats[f"storage_{kind}_host_latencies"])
                size = stats[f"tier_storage_kv_bytes_{'read' if kind == 'read' else 'written'}"]
                assert (one["count"], one["bytes"]) == (len(total), size), "not the same operations"
                theirs = Timed(len(total), size, sum(total), host / sum(total), 0.0)
                found.setdefault(f"{kind} reference", []).append(theirs)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"real: {rounds} rounds of {requests} requests to {folder}; load {load}; medians, and from the least to the most"
    )
    for name, values in found.items():
        print(
            f"{name}: {values[0].count} entries, {values[0].size / 1e9:.1f} GB, "
            f"{spread([one.seconds for one in values], '{:.2f}')} s, "
            f"{spread([one.size / one.seconds / 1e6 for one in values], '{:,.0f}')} MB/s, "
            f"the client's share {spread([one.own for one in values], '{:.1%}')}, "
            f"waiting for a processor {spread([one.queue for one in values], '{:.1%}')}"
        )
    own = {kind: statistics.median(one.own for one in found[f"{kind} stoker"]) for kind in ("read", "write")}
    print(f"stoker's own share: {'below' if max(own.values()) <= MOST_OWN else 'ABOVE'} {MOST_OWN:.0%}")
    return max(own.values()) <= MOST_OWN


class Timed(NamedTuple):
    """A round's operations of one kind: entries, bytes, seconds, the client's part of these, and the part in the queue."""

    count: int
    size: int
    seconds: float
    own: float
    queue: float


def spread(values: list[float], form: str) -> str:
    median, least, most = (form.format(one) for one in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least} to {most})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="kv_cache_benchmark of a checkout of mlcommons/storage")
    parser.add_argument("--python", default=sys.executable, help="with what the reference needs")
    parser.add_argument("--requests", type=int, default=RECORDED_REQUESTS)
    parser.add_argument("--real", type=int, default=0, metavar="N", help="also N requests to this disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="for entries; default: a temporary one")
    parser.add_argument("--drive", nargs=2, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive:
        chosen.drive[1].write_text(json.dumps(drive(json.loads(chosen.drive[0].read_text()))))
        return 0
    if chosen.reference is None and chosen.requests != RECORDED_REQUESTS:
        parser.error(f"without --reference, operations of {RECORDED_REQUESTS} requests are compared")
    reference = None if chosen.reference is None else chosen.reference.resolve()
    same = compare(reference, chosen.python, chosen.requests)
    if chosen.real:
        folder = chosen.folder or Path(tempfile.mkdtemp(prefix="kv-cache-"))
        try:
            same = real(reference, chosen.python, chosen.real, folder, chosen.rounds) and same
        finally:
            if chosen.folder is None:
                shutil.rmtree(folder, ignore_errors=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

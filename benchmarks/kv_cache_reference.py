"""The same requests to MLPerf Storage's KV cache benchmark and to stoker's: operations, bytes, and the client's share.

    python benchmarks/kv_cache_reference.py --reference DIR              # operations and bytes, without a device
    python benchmarks/kv_cache_reference.py --reference DIR --real 40    # and 40 requests to this disk, one after the other

``DIR`` is ``kv_cache_benchmark`` of a checkout of github.com/mlcommons/storage. It needs NumPy and PyYAML.

Requests are stoker's, of MLPerf Storage's users. The reference gets them one by one, with its own tiers, eviction and
conversations, and logs its operations (its trace mode); stoker plans its own. The two lists are compared entry by entry:
what was read, written, moved and removed, its bytes, and its tier.

With ``--real`` both write and read entries of a small model below ``--folder``, in turns. The reference says which part of
its latencies is its client's (serialising, copies); stoker measures what is its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
MODELS = {
    "kv-cache-llama-8b": "llama3.1-8b",
    "kv-cache-llama-8b-memory": "llama3.1-8b",
    "kv-cache-llama-70b": "llama3.1-70b-instruct",
    "kv-cache-tiny-1b": "tiny-1b",
    "kv-cache-deepseek-v3": "deepseek-v3",
}


def planned(name: str, settings: list[str], requests: int) -> tuple[dict[str, Any], list[list[Any]]]:
    """What the reference is to be given, and stoker's own operations."""
    from stoker.bench.kv_cache.requests import draw_requests, draw_users
    from stoker.bench.kv_cache.tiers import TierTable
    from stoker.bench.kv_cache.workers import plan_request
    from stoker.bench.settings.sources import read_workload

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


def compare(reference: Path, python: str, requests: int) -> bool:
    same = True
    for case, (name, settings) in CASES.items():
        job, ours = planned(name, settings, requests)
        theirs = ask_reference(reference, python, job)
        equal = ours == theirs["operations"]
        users = job["users"] == theirs["users"]
        same = same and equal and users
        size = sum(one[2] for one in ours)
        first = next(
            (at for at, pair in enumerate(zip(ours, theirs["operations"], strict=False)) if pair[0] != pair[1]), -1
        )
        print(
            f"{case}: {requests} requests, {len(ours):,} operations, {size / 1e9:,.1f} GB: "
            f"users {'equal' if users else 'DIFFER'}, operations {'equal' if equal else f'DIFFER at {first}'} "
            f"(reference {len(theirs['operations']):,}, {sum(one[2] for one in theirs['operations']) / 1e9:,.1f} GB)"
        )
    return same


def real(reference: Path, python: str, requests: int, folder: Path, rounds: int) -> None:
    """The same requests to the same disk, one after the other, in turns."""
    from stoker.bench.run import run_benchmark
    from stoker.bench.settings.sources import read_workload

    job, _ = planned("kv-cache-tiny-1b", [], requests)
    settings = [f"kv_cache.requests={requests}", "kv_cache.seconds=0", "kv_cache.workers=1", "kv_cache.paced=false"]
    found: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(rounds):
        theirs = ask_reference(reference, python, job | {"folder": str(folder / "reference"), "trace": None})["stats"]
        shutil.rmtree(folder / "reference", ignore_errors=True)
        resolved = read_workload("kv-cache-tiny-1b", settings, environ={}, dotenv=None)
        result = run_benchmark(resolved, results=folder / f"results{number}", url=str(folder / "data"))
        for kind in ("read", "write"):
            total = theirs[f"storage_{kind}_latencies"]
            host = sum(theirs[f"storage_{kind}_host_latencies"])
            found.setdefault(f"{kind} reference", []).append((len(total), sum(total), host / sum(total)))
            one = result["kv_cache"]["repeats"][0]["tiers"]["storage"][kind]
            seconds = one["latency"]["mean"] * one["count"]
            found.setdefault(f"{kind} stoker", []).append((one["count"], seconds, one["host_share"]))
            size = theirs[f"tier_storage_kv_bytes_{'read' if kind == 'read' else 'written'}"]
            assert (one["count"], one["bytes"]) == (len(total), size), "not the same operations"
    for name, values in found.items():
        shares = [share for *_, share in values]
        seconds = [value for _, value, _ in values]
        print(
            f"{name}: {values[0][0]} entries, {statistics.fmean(seconds):.2f} s (± {statistics.pstdev(seconds):.2f}), "
            f"the client's share {min(shares):.1%} to {max(shares):.1%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="kv_cache_benchmark of a checkout of mlcommons/storage")
    parser.add_argument("--python", default=sys.executable, help="with what the reference needs")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--real", type=int, default=0, metavar="N", help="also N requests to this disk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for entries; default: a temporary one")
    parser.add_argument("--drive", nargs=2, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive:
        chosen.drive[1].write_text(json.dumps(drive(json.loads(chosen.drive[0].read_text()))))
        return 0
    if chosen.reference is None:
        parser.error("--reference is needed")
    reference = chosen.reference.resolve()
    same = compare(reference, chosen.python, chosen.requests)
    if chosen.real:
        folder = chosen.folder or Path(tempfile.mkdtemp(prefix="kv-cache-"))
        try:
            real(reference, chosen.python, chosen.real, folder, chosen.rounds)
        finally:
            if chosen.folder is None:
                shutil.rmtree(folder, ignore_errors=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measure two revisions of stoker in alternation: what does a change cost, or gain?

    python benchmarks/revisions.py HEAD~20                     # the working tree against an earlier commit
    python benchmarks/revisions.py v1 v2 --rounds 9            # two revisions
    python benchmarks/revisions.py HEAD~20 --cold s3://bucket/prefix   # also cold epochs from an object store

The cases are those of ``compare.py`` that stoker itself takes part in: reading tokens and images by sample, columnar
batches, the DataLoader with two workers, and writing. Each measurement is a process of its own. In each round every
revision has its turn, in every other round in reverse; the ratio is taken round by round, so that a machine whose speed
drifts does not decide. Each revision reads data that it wrote itself, with its own defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

from common import make_source  # noqa: E402
from compare import scratch_folder  # noqa: E402
from sidebyside import cases as plan  # noqa: E402
from sidebyside.cases import CASES, Case, Entry  # noqa: E402
from sidebyside.machine import machine  # noqa: E402
from sidebyside.processes import measure  # noqa: E402

# What is measured, as names of a case and of stoker's variant in it.
MEASURED = (
    ("write-tokens", "write_batch"),
    ("tokens-shuffled", "plain"),
    ("tokens-columns", "columns"),
    ("tokens-loader", "torch"),
    ("tokens-loader", "columnar"),
    ("write-images", "write_batch"),
    ("images-shuffled", "plain"),
    ("images-shuffled", "views"),
)
COLD_MEGABYTES = 512

_COLD = """
import json, sys
sys.path.insert(0, {benchmarks!r})
import cold_epoch, pathlib, tempfile, shutil
if {write}:
    cold_epoch.write({url!r}, {megabytes}, "64MB")
cache = None if {memory} else pathlib.Path(tempfile.mkdtemp(dir={scratch!r}))
rate, first = cold_epoch.cold({url!r}, 8, cache, 1024)
if cache is not None:
    shutil.rmtree(cache)
print(json.dumps({{"rate": rate}}))
"""


def source_of(revision: str | None, folder: Path) -> Path:
    """The ``src`` folder of a revision, checked out below ``folder``; of ``None``, the working tree's.

    ``benchmarks`` comes with it: a revision is measured by its own runner, written for its own names.
    """
    if revision is None:
        return HERE.parent / "src"
    target = folder / "revisions" / revision.replace("/", "_")
    target.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", revision, "src", "benchmarks"], cwd=HERE.parent, check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target / "src"


def find(case: str, variant: str) -> tuple[Case, Entry]:
    """A case and stoker's entry in it."""
    found = next(one for one in CASES if one.name == case)
    return found, next(one for one in found.entries if one.library == "stoker" and one.variant == variant)


def once(case: Case, entry: Entry, home: Path, source: Path, samples: int, scratch: Path) -> float:
    """Rate of one measurement, in samples (or bytes, in writing) a second.

    Raises:
        SystemExit: it failed.
    """
    data = scratch / "data" / source.parent.name / entry.data
    data.parent.mkdir(parents=True, exist_ok=True)
    if case.action == "write":
        shutil.rmtree(data, ignore_errors=True)
    job = {
        "action": case.action,
        "kind": case.kind,
        "variant": entry.variant,
        "source": str(home),
        "data": str(data),
        "samples": samples,
        "shuffle": case.shuffle,
        "seconds": plan.BOX if case.action == "load" else 0.0,
        "batch_size": case.batch_size,
    }
    runners = source.parent / "benchmarks" / "peers"
    found = measure("stoker", job, scratch / "tmp", {"PYTHONPATH": str(source)}, runners)
    if "error" in found:
        raise SystemExit(f"{case.name}, {entry.variant}, {source}: {found['error']}\n{found.get('stderr', '')}")
    amount: float = found.get("bytes", found["samples"])
    return amount / float(found["seconds"])


def cold(url: str, source: Path, scratch: Path, *, write: bool, memory: bool) -> float:
    """MB/s of a cold epoch from an object store."""
    script = _COLD.format(
        benchmarks=str(source.parent / "benchmarks"),
        url=url,
        megabytes=COLD_MEGABYTES,
        write=write,
        memory=memory,
        scratch=str(scratch),
    )
    env = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["rate"])


def line(name: str, rates: list[list[float]]) -> dict[str, Any]:
    """Print and return the medians of both sides and the spread of the ratio."""
    before, after = ([pair[side] for pair in rates] for side in (0, 1))
    ratios = [pair[1] / pair[0] for pair in rates]
    print(
        f"{name:<28} before {statistics.median(before):>14,.0f}/s   after {statistics.median(after):>14,.0f}/s   "
        f"ratio {statistics.median(ratios):.3f}  (from {min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )
    return {"name": name, "before": before, "after": after, "ratio": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="revision to measure against")
    parser.add_argument("after", nargs="?", help="revision that is measured; default: the working tree")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a fifth of the samples")
    parser.add_argument("--cold", metavar="URL", help="also cold epochs of data written below this URL")
    names = sorted({case for case, _ in MEASURED})
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the data goes (default /dev/shm)")
    parser.add_argument("--json", type=Path, help="write every rate to this file")
    options = parser.parse_args()
    print("  ".join(f"{name}: {value}" for name, value in machine(options.dir).items()))
    table: list[dict[str, Any]] = []
    with scratch_folder(options.dir) as scratch:
        sources = [source_of(options.before, scratch), source_of(options.after, scratch)]
        for kind in ("tokens", "images"):
            full = {"tokens": plan.TOKEN_ROWS, "images": plan.IMAGES}[kind]
            samples = full // 5 if options.quick else full
            home = scratch / kind
            home.mkdir()
            make_source(home, kind, samples)
            for name, variant in MEASURED:
                case, entry = find(name, variant)
                if case.kind != kind or (case.name not in options.cases and case.action != "write"):
                    continue
                rates = []
                rounds = options.rounds if case.name in options.cases else 1  # written all the same: it is read
                for number in range(rounds):
                    pair = [0.0, 0.0]
                    for side in (0, 1) if number % 2 == 0 else (1, 0):
                        pair[side] = once(case, entry, home, sources[side], samples, scratch)
                    rates.append(pair)
                if case.name in options.cases:
                    table.append(line(f"{name} {variant}", rates))
            shutil.rmtree(home)
            shutil.rmtree(scratch / "data")
        if options.cold:
            urls = [f"{options.cold.rstrip('/')}/{side}" for side in ("before", "after")]
            for side in (0, 1):
                cold(urls[side], sources[side], scratch, write=True, memory=True)
            for memory in (False, True):
                rates = []
                for number in range(options.rounds):
                    pair = [0.0, 0.0]
                    for side in (0, 1) if number % 2 == 0 else (1, 0):
                        pair[side] = cold(urls[side], sources[side], scratch, write=False, memory=memory) * 1e6
                        time.sleep(0.2)
                    rates.append(pair)
                table.append(line(f"cold epoch, {'memory' if memory else 'disk'}", rates))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()

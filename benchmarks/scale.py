"""Measures what more and more files, shards, streams, columns and processes cost, beside a bound, over three sizes.

    python benchmarks/scale.py --quick                 # small sizes, about 4 minutes; growth is compared with growth.json
    python benchmarks/scale.py --cases files streams   # full sizes, in /dev/shm
    python benchmarks/scale.py --json scale.json

Each figure is the median of several fresh processes, of which those of stoker and of the bound alternate. The growth of a
figure is the ratio of its cost at the largest size to that at the smallest, divided by what it may be: 1 is as it should be.
``--quick`` fails where a growth is more than half above the one that ``scaling/growth.json`` has.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rich.console import Console
from rich.table import Table
from scaling.direction import Direction, as_record, growth
from scaling.directions import DIRECTIONS
from sidebyside.machine import machine
from sidebyside.processes import measure

RUNNERS = Path(__file__).resolve().parent / "scaling"
RECORD = RUNNERS / "growth.json"
WORSE = 1.5


def measured(
    direction: Direction, sizes: tuple[int, ...], rounds: int, scratch: Path
) -> dict[str, list[dict[str, float]]]:
    """For each side the figures at each size."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in direction.sides}
    for size in sizes:
        folder = scratch / f"{direction.name}-{size}"
        folder.mkdir(parents=True)
        job = {"direction": direction.name, "folder": str(folder), "size": size}
        _run(job | {"side": "prepare"}, scratch)
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in direction.sides}
        for number in range(rounds):
            for side in list(direction.sides)[:: 1 if number % 2 == 0 else -1]:
                runs[side].append(_run(job | {"side": side}, scratch))
        for side, each in runs.items():
            found[side].append({name: statistics.median(run[name] for run in each) for name in each[0]})
        shutil.rmtree(folder)
    return found


def _run(job: dict[str, Any], scratch: Path) -> dict[str, float]:
    result = measure("stoker", job, scratch / "tmp", runners=RUNNERS)
    if "error" in result:
        raise SystemExit(f"{job}: {result['error']}\n{result.get('stderr', '')}")
    return result


def report(direction: Direction, sizes: tuple[int, ...], found: dict[str, list[dict[str, float]]]) -> None:
    """Print a direction's table."""
    table = Table("", *(f"{size:,}" for size in sizes), "growth", title=f"{direction.name}: {direction.what}")
    for column in table.columns[1:]:
        column.justify = "right"
    for side, each in found.items():
        for name in each[0]:
            values = [one[name] for one in each]
            grown = f"{growth(direction, name, sizes, values):.2f}" if name in direction.judged else ""
            table.add_row(f"{side} {name}", *(f"{value:,.4g}" for value in values), grown)
    table.caption = f"to reach: {direction.reach}"
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round; compares the growth with growth.json"
    )
    parser.add_argument("--cases", nargs="+", choices=[one.name for one in DIRECTIONS], help="default: all")
    parser.add_argument("--rounds", type=int, help="processes for each figure; default: 3, with --quick 1")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the data goes; default: /dev/shm")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--record", action="store_true", help="with --quick: write the growth to growth.json")
    chosen = parser.parse_args()
    record: dict[str, dict[str, float]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    everything: dict[str, Any] = {"machine": machine(chosen.dir), "directions": {}}
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stoker-scale-", dir=chosen.dir) as scratch:
        for direction in DIRECTIONS:
            if chosen.cases and direction.name not in chosen.cases:
                continue
            sizes = direction.quick if chosen.quick else direction.full
            found = measured(direction, sizes, chosen.rounds or (1 if chosen.quick else 3), Path(scratch))
            report(direction, sizes, found)
            everything["directions"][direction.name] = {
                "sizes": sizes,
                "sides": {side: [as_record(one) for one in each] for side, each in found.items()},
            }
            grown = {
                name: growth(direction, name, sizes, [one[name] for one in found["stoker"]])
                for name in direction.judged
            }
            if chosen.quick and chosen.record:
                record[direction.name] = as_record(grown)
            elif chosen.quick:
                before = record.get(direction.name, {})
                faults += [
                    f"{direction.name}: {name} grows {value:.2f} times as much as it may, {before[name]:.2f} before"
                    for name, value in grown.items()
                    if name in before and value > WORSE * max(before[name], 1.0)
                ]
    if chosen.json:
        chosen.json.write_text(json.dumps(everything, indent=1) + "\n")
    if chosen.record:
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()

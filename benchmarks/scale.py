"""Measures what more and more files, shards, streams, columns and processes cost, beside a bound, over three sizes.

    python benchmarks/scale.py --quick                 # small sizes, 3 to 4 minutes; growth is compared with growth.json
    python benchmarks/scale.py --cases files streams   # full sizes, in /dev/shm
    python benchmarks/scale.py --json scale.json --markdown scale.md --plot plots
    python benchmarks/scale.py --from scale.json more.json --plot plots   # tables and plots of figures that were written

Each figure is the median of several fresh processes, of which those of stoker and of the bound alternate. The growth of a
figure is the ratio of its cost at the largest size to that at the smallest, divided by what it may be: 1 is as it should be.

``--quick`` is for CI. It measures stoker alone and counts the time of the processor, which other work on the machine changes
little. It fails where a growth is more than half above the one that ``scaling/growth.json`` has, and is so each time that
the direction is measured again.
"""

from __future__ import annotations

import argparse
import compileall
import json
import shlex
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rich.console import Console
from rich.table import Table
from scaling.direction import Direction, allowed_growth, as_record, growth
from scaling.directions import DIRECTIONS
from scaling.report import markdown, plot, versions
from sidebyside.machine import machine
from sidebyside.processes import measure

import stoker

RUNNERS = Path(__file__).resolve().parent / "scaling"
RECORD = RUNNERS / "growth.json"
LONGEST = 1800.0
"""Seconds that a process may measure."""
TRIES = 3
"""How often a direction of ``--quick`` is measured before it fails. The best growth counts."""

Found = dict[str, list[dict[str, float]]]
"""For each side the figures at each size."""


class Measuring:
    """How directions are measured.

    Args:
        quick: small sizes, stoker alone unless ``bounds``, by the time of the processor.
        bounds: the other sides, too.
        rounds: processes for each figure.
        scratch: where the data goes.
    """

    def __init__(self, quick: bool, bounds: bool, rounds: int, scratch: Path) -> None:
        self.clock = "cpu" if quick else "wall"
        self._quick, self._bounds, self._rounds, self._scratch = quick, bounds, rounds, scratch

    def sizes(self, direction: Direction) -> tuple[int, ...]:
        """The sizes that a direction is measured at."""
        return direction.quick if self._quick else direction.full

    def measured(self, direction: Direction) -> Found:
        """Measure a direction."""
        sides = list(direction.sides) if self._bounds else ["stoker"]
        found: Found = {side: [] for side in sides}
        for size in self.sizes(direction):
            folder = self._scratch / f"{direction.name}-{size}"
            folder.mkdir(parents=True)
            job = {"direction": direction.name, "folder": str(folder), "size": size}
            self._run(job | {"side": "prepare"})
            runs: Found = {side: [] for side in sides}
            for number in range(self._rounds):
                for side in sides[:: 1 if number % 2 == 0 else -1]:
                    runs[side].append(self._run(job | {"side": side}))
            for side, each in runs.items():
                found[side].append({name: statistics.median(run[name] for run in each) for name in each[0]})
            shutil.rmtree(folder)
        return found

    def _run(self, job: dict[str, Any]) -> dict[str, float]:
        job |= {"clock": self.clock, "seconds": 1.0 if self._quick else 2.0}
        # A cache of the process's own: what a process of the round before has kept is not there the first time.
        with tempfile.TemporaryDirectory(dir=self._scratch) as cache:
            variables = {"STOKER_CACHE": cache}
            result = measure("stoker", job, self._scratch / "tmp", runners=RUNNERS, limit=LONGEST, variables=variables)
        if "error" in result:
            raise SystemExit(f"{job}: {result['error']}\n{result.get('stderr', '')}")
        return result


def growths(direction: Direction, sizes: tuple[int, ...], found: Found) -> dict[str, float]:
    """The growth of each figure of stoker that is judged."""
    return {name: growth(direction, name, sizes, [one[name] for one in found["stoker"]]) for name in direction.judged}


def faults(
    direction: Direction, sizes: tuple[int, ...], grown: dict[str, float], before: dict[str, float]
) -> list[str]:
    """Figures of a direction that grow more than half as much again as they did, in words."""
    return [
        f"{direction.name}: {figure} grows {value:.3g} times as much as it should; {before[figure]:.3g} is recorded, and "
        f"at most {most:.3g} allowed"
        for figure, value in grown.items()
        if figure in before and value > (most := allowed_growth(direction, figure, sizes, before[figure]))
    ]


def report(direction: Direction, sizes: tuple[int, ...], found: Found) -> None:
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
    parser.add_argument("--quick", action="store_true", help="small sizes, one round; compares growth with growth.json")
    parser.add_argument("--bounds", action="store_true", help="with --quick: measure the bounds and variants, too")
    parser.add_argument("--cases", nargs="+", choices=[one.name for one in DIRECTIONS], help="default: all")
    parser.add_argument("--rounds", type=int, help="processes for each figure; default: 3, with --quick 1")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the data goes; default: /dev/shm")
    parser.add_argument("--record", action="store_true", help="with --quick: write the growth to growth.json")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", type=Path, help="write a table of all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw cost against size: scale.svg and scale.png in this folder")
    parser.add_argument(
        "--from",
        type=Path,
        dest="before",
        nargs="+",
        help="measure nothing: take the figures of files of --json; of a direction in several, those of the first",
    )
    chosen = parser.parse_args()
    if chosen.before:
        everything, bad = written_before(chosen.before), []
    else:
        everything, bad = measure_all(chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(everything, indent=1) + "\n")
    if chosen.markdown:
        chosen.markdown.write_text(markdown(everything))
    if chosen.plot:
        print(*plot(everything, chosen.plot))
    if bad:
        raise SystemExit("\n".join(bad))


def written_before(files: list[Path]) -> dict[str, Any]:
    """The figures of files that ``--json`` wrote, as if one command had measured them on the first's machine."""
    first, *others = (json.loads(file.read_text()) for file in files)
    directions = {name: one for found in (*others[::-1], first) for name, one in found["directions"].items()}
    commands = " and ".join(dict.fromkeys(found["command"] for found in (first, *others)))
    in_order = {one.name: directions[one.name] for one in DIRECTIONS if one.name in directions}
    return first | {"command": commands, "directions": in_order}


def measure_all(chosen: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """All figures, for ``--json``, and the directions that grow more than they may, in words."""
    record: dict[str, dict[str, float]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    everything: dict[str, Any] = {"machine": machine(chosen.dir), "versions": versions()}
    everything["command"] = shlex.join(["python", "benchmarks/scale.py", *sys.argv[1:]])
    directions: dict[str, Any] = {}
    bad: list[str] = []
    # As pip leaves an installed package: without, each process compiles all modules that it imports.
    compileall.compile_dir(Path(stoker.__file__).parent, quiet=2)
    with tempfile.TemporaryDirectory(prefix="stoker-scale-", dir=chosen.dir) as scratch:
        rounds = chosen.rounds or (1 if chosen.quick else 3)
        measuring = Measuring(chosen.quick, chosen.bounds or not chosen.quick, rounds, Path(scratch))
        for direction in DIRECTIONS:
            if chosen.cases and direction.name not in chosen.cases:
                continue
            sizes, tried, grown = measuring.sizes(direction), 0, {}
            while tried < TRIES:
                found, tried = measuring.measured(direction), tried + 1
                report(direction, sizes, found)
                once = growths(direction, sizes, found)
                grown = {name: min(value, grown.get(name, value)) for name, value in once.items()}
                before = record.get(direction.name, {}) if chosen.quick and not chosen.record else {}
                worse = faults(direction, sizes, grown, before)
                if not worse:
                    break
                print(*worse, f"measured {tried} times of at most {TRIES}", sep="\n", flush=True)
            bad += worse
            directions[direction.name] = {
                "what": direction.what,
                "reach": direction.reach,
                "sizes": sizes,
                "judged": direction.judged,
                "sides": {side: [as_record(one) for one in each] for side, each in found.items()},
                "growth": as_record(grown),
            }
            if chosen.record:
                record[direction.name] = as_record(grown)
    if chosen.record:
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return everything | {"clock": measuring.clock, "directions": directions}, bad


if __name__ == "__main__":
    main()

"""Measure stoker beside mosaicml-streaming, litdata and webdataset, on the same samples, on this machine.

    python3 tools/environments.py mosaic litdata hf grain            # once: the peers' own environments
    python benchmarks/compare.py                # about 17 minutes
    python benchmarks/compare.py --quick        # a few minutes: fewer samples, one round

Every measurement is a fresh process of the library's own interpreter. The libraries take turns within each
round. The data sets lie in a temporary folder on memory-backed disk, which is removed however this ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

from common import make_source  # noqa: E402
from sidebyside import cases as plan  # noqa: E402
from sidebyside.cases import CASES, Case, Entry  # noqa: E402
from sidebyside.machine import machine  # noqa: E402
from sidebyside.processes import interpreters, measure  # noqa: E402
from sidebyside.report import Outcome, Row, as_json, judge, print_report  # noqa: E402

LIBRARIES = ("stoker", "mosaicml", "litdata", "webdataset", "numpy")
SPACE_PER_SAMPLE_BYTE = 9  # the source and what is alive of the data sets at once


@dataclass(frozen=True)
class Options:
    quick: bool
    rounds: int
    cases: tuple[str, ...]
    libraries: tuple[str, ...]
    touch: str
    dir: Path
    json: Path | None

    def samples(self, kind: str) -> int:
        if kind == "tokens":
            return plan.QUICK_TOKEN_ROWS if self.quick else plan.TOKEN_ROWS
        return plan.QUICK_IMAGES if self.quick else plan.IMAGES


def parse() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--quick", action="store_true", help="40 k rows and 2 k images, one round")
    parser.add_argument("--rounds", type=int, help="how often each measurement is made (default 3, quick 1)")
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES, help="default: all")
    parser.add_argument(
        "--touch",
        choices=("ends", "copy"),
        default="ends",
        help="what is read of a sample: its first and last element (default), or all of it by one copy",
    )
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the data goes (default /dev/shm)")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    found = parser.parse_args()
    rounds = found.rounds or (1 if found.quick else 3)
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    libraries = tuple(found.libraries)
    missing = [name for name in libraries if not interpreters()[name].exists()]
    if missing:
        parser.error(
            f"no environment for {', '.join(missing)}: python3 tools/environments.py makes them;"
            " or leave them out by --libraries"
        )
    if not found.dir.is_dir():
        parser.error(f"{found.dir} is no folder: give one on memory-backed disk by --dir")
    return Options(found.quick, rounds, tuple(found.cases), libraries, found.touch, found.dir, found.json)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder that is gone afterwards, on SIGINT, SIGTERM and SIGHUP too."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    folder = Path(tempfile.mkdtemp(prefix="stoker-compare-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in previous.items():
            signal.signal(number, handler)


class Comparison:
    """Works through the cases of one kind of sample after the other."""

    def __init__(self, options: Options, folder: Path, progress: Progress) -> None:
        self.options = options
        self.folder = folder
        self.progress = progress
        self.cases = [case for case in CASES if case.name in options.cases]
        self.rows = {
            case.name: [Row(entry) for entry in case.entries if entry.library in options.libraries]
            for case in self.cases
        }
        steps = sum(len(rows) for rows in self.rows.values()) * options.rounds
        self.task = progress.add_task("starting", total=steps)

    def run(self) -> list[Outcome]:
        for kind in ("tokens", "images"):
            cases = [case for case in self.cases if case.kind == kind]
            if not cases:
                continue
            home = self.folder / kind
            home.mkdir()
            try:
                self.run_kind(kind, home, cases)
            finally:
                shutil.rmtree(home, ignore_errors=True)
        return [Outcome(case, self.rows[case.name]) for case in self.cases]

    def run_kind(self, kind: str, home: Path, cases: list[Case]) -> None:
        self.say(f"making {self.options.samples(kind)} {kind}")
        source = home / "source"
        source.mkdir()
        size = make_source(source, kind, self.options.samples(kind))
        free = shutil.disk_usage(home).free
        if free < SPACE_PER_SAMPLE_BYTE * size:
            raise SystemExit(
                f"{self.options.dir} has {free / 1e9:.1f} GB free and the data sets of {kind} need about "
                f"{SPACE_PER_SAMPLE_BYTE * size / 1e9:.1f} GB: give another folder by --dir, or --quick"
            )
        readers = [case for case in cases if case.action != "write"]
        wanted = {row.entry.data for case in readers for row in self.rows[case.name]}
        for case in cases:
            if case.action == "write":
                self.rounds(case, home, wanted)
        self.make_missing(kind, home, wanted)
        for case in readers:
            self.rounds(case, home, wanted)

    def make_missing(self, kind: str, home: Path, wanted: set[str]) -> None:
        """Write, untimed, the data sets that are to be read and were not written by a measurement."""
        case = next(case for case in CASES if case.kind == kind and case.action == "write")
        for entry in case.entries:
            if entry.data in wanted and not (home / entry.data).exists():
                self.say(f"{case.name}: {entry.library} {entry.label}, not timed")
                self.one(case, entry, home)

    def rounds(self, case: Case, home: Path, wanted: set[str]) -> None:
        """Measure each entry once a round; every other round the other way round."""
        rows = self.rows[case.name]
        for number in range(self.options.rounds):
            for row in rows if number % 2 == 0 else rows[::-1]:
                entry = row.entry
                self.say(f"{case.name}: {entry.library} {entry.label}, round {number + 1}")
                data = home / entry.data
                if case.action == "write":
                    shutil.rmtree(data, ignore_errors=True)
                row.add(self.one(case, entry, home))
                last = number == self.options.rounds - 1
                if case.action == "write" and (row.errors or not last or entry.data not in wanted):
                    shutil.rmtree(data, ignore_errors=True)
                self.progress.advance(self.task)

    def one(self, case: Case, entry: Entry, home: Path) -> dict[str, Any]:
        data = home / entry.data
        if case.action != "write" and not data.exists():
            return {"error": "its data set could not be written"}
        job = {
            "action": case.action,
            "kind": case.kind,
            "variant": entry.variant,
            "source": str(home / "source"),
            "data": str(data),
            "samples": self.options.samples(case.kind),
            "shuffle": case.shuffle,
            "seconds": plan.BOX if entry.boxed or case.action == "load" else 0.0,
            "batch_size": case.batch_size,
            "touch": self.options.touch,
        }
        return measure(entry.library, job, self.folder / "tmp")

    def say(self, what: str) -> None:
        self.progress.update(self.task, description=what)


def versions_of(outcomes: list[Outcome]) -> dict[str, str]:
    """Library to what its runners said they ran with."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            for measurement in row.measurements:
                if "versions" in measurement:
                    found[row.entry.library] = ", ".join(f"{k} {v}" for k, v in measurement["versions"].items())
    return found


def main() -> int:
    options = parse()
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # into a file: wide enough that no cell is broken
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    where = machine(options.dir)
    try:
        with (
            scratch_folder(options.dir) as folder,
            Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ):
            outcomes = Comparison(options, folder, progress).run()
    except KeyboardInterrupt:
        console.print("interrupted; everything is removed")
        return 130
    verdicts = judge(outcomes)
    print_report(console, outcomes, verdicts, where, versions_of(outcomes))
    if options.json:
        command = shlex.join(["python", *sys.argv])
        parameters = {"rounds": options.rounds, "touch": options.touch} | {
            kind: options.samples(kind) for kind in ("tokens", "images")
        }
        head = {
            "command": command,
            "machine": where,
            "versions": versions_of(outcomes),
            "parameters": parameters,
        }
        options.json.write_text(json.dumps(head | as_json(outcomes, verdicts), indent=2) + "\n")
    return 1 if any(row.errors for outcome in outcomes for row in outcome.rows) else 0


if __name__ == "__main__":
    sys.exit(main())

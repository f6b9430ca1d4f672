"""The gate: what must pass before a commit lands, in stages with a verdict each.

    python3 tools/gate.py lint pure system timing      # make test
    python3 tools/gate.py --summary                    # the stages that have run in this checkout, and what failed

=========  ============================================================  ==========================================
stage      runs                                                          a failure
=========  ============================================================  ==========================================
demo       ``make demo``                                                 fails the gate
lint       ruff, mypy, layers of imports                                 fails the gate
pure       tests without processes, servers and clocks, in parallel      fails the gate
system     tests that start processes and servers, one at a time         is run again, see below
timing     tests of time, alone on the machine                           is run again, see below
trainers   ``tests/trainers``, in environments of their own, where what  is run again, see below
           they touch has changed since they last passed
=========  ============================================================  ==========================================

Lint, pure and trainers run beside system, which waits more than it computes. When all of them have ended, a test that
failed is run again alone, three times, in fresh processes. One that fails again fails the gate. One that
passes three times is a flake: it is printed, and written to ``tests/flaky.json``, for the next commit to take up. A
test that stands there twice within ten runs of the gate fails it, until it is mended and its lines are removed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from environments import ROOT, TRAINERS, WITHOUT, Variant, is_made, make, python_of

RECORDS: Final = ROOT / "build" / "gate"
FLAKY: Final = ROOT / "tests" / "flaky.json"
RESULTS: Final = ROOT / "tests" / "results"
RUNS: Final = 10
"""Runs of the gate in which a test may stand once in the list of flaky ones."""
SLOWEST: Final = 10
"""Test files whose seconds are kept and printed."""
OUTCOMES: Final = ("passed", "failed", "skipped")
AGAIN: Final = 3
"""How often a failed test is run again."""
MOST_AGAIN: Final = 10
"""More failed tests than this are a fault, and none is run again."""
PYTEST: Final = ("-m", "pytest", "-p", "no:cacheprovider", "--ignore=tests/trainers")
BENCH_TESTS: Final = "packages/stoker-bench/tests"
SYSTEM: Final = "(processes or s3)"
MARKS: Final = {
    "pure": f"not {SYSTEM} and not timing and not peer",
    "system": f"{SYSTEM} and not timing and not peer",
    "timing": "timing and not peer",
}
TOUCHED_BY_TRAINERS: Final = (
    *(f"src/stoker/{folder}" for folder in ("loaders", "pipeline", "cluster", "concurrency", "streams", "order")),
    "src/stoker/ray.py",
    "src/stoker/jax.py",
    "tests/trainers",
    "tests/support.py",
    "tools/constraints",
    "tools/environments.py",
    *(
        f"examples/train_{name}.py"
        for name in ("accelerate", "fsdp", "jax", "keras", "lightning", "ray", "transformers")
    ),
)
"""What decides how trainers and stoker work together: changes of anything else are tried nightly."""


@dataclass
class Failure:
    """A test or command that failed.

    Attributes:
        name: of the test or command.
        command: runs it again.
        error: the end of what it said.
    """

    name: str
    command: str
    error: str = ""


@dataclass
class Verdict:
    """The outcome of a stage.

    Attributes:
        stage: its name.
        minutes: that it took.
        counts: tests by outcome.
        failures: what fails the gate.
        flaky: tests that failed, and then passed three times.
        slowest: seconds of the test files that took most.
        note: why nothing was run.
        touched: hash of the files that trainers touch, where their tests passed.
        commit, date: of the run.
    """

    stage: str
    minutes: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    note: str = ""
    touched: str = ""
    commit: str = ""
    date: str = ""

    @property
    def passed(self) -> bool:
        """Whether the gate goes on."""
        return not self.failures

    def add(self, other: Verdict) -> None:
        """Take in the outcome of more tests."""
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        self.failures += other.failures
        self.flaky += other.flaky
        self.slowest |= other.slowest


def run_pytest(stage: str, command: Sequence[str], cwd: Path = ROOT) -> Verdict:
    """Run pytest; the verdict has each test that failed as a failure.

    Args:
        stage: of the verdict.
        command: an interpreter and arguments, to which those of ``tests/stages.py`` are added.
        cwd: the folder to which names of tests are relative.
    """
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    environ = os.environ | {"PYTHONPATH": path}
    alone = "" if any(one.startswith(BENCH_TESTS) for one in command) else f"{WITHOUT}=1 "
    if alone:
        environ[WITHOUT] = "1"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        whole = [*command, "-p", "stages", f"--report={report}"]
        status = subprocess.run(whole, cwd=cwd, check=False, env=environ).returncode
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    failures: dict[str, Failure] = {}
    for line in lines:
        if line["outcome"] == "failed":
            again = f"{alone}{shlex.join([_short(command[0]), '-m', 'pytest', line['test']])}"
            failures.setdefault(line["test"], Failure(line["test"], again, line["error"]))
    if status and not failures:  # also where no test was chosen
        said = f"pytest ended with status {status}, and named no test that failed"
        failures["pytest"] = Failure("pytest", shlex.join([_short(command[0]), *command[1:]]), said)
    seconds: Counter[str] = Counter()
    for line in lines:
        seconds[line["test"].partition("::")[0]] += line["seconds"]
    return Verdict(
        stage,
        counts=dict(Counter(line["outcome"] for line in lines if line["outcome"] in OUTCOMES)),
        failures=list(failures.values()),
        slowest={file: round(taken, 1) for file, taken in seconds.most_common(SLOWEST)},
    )


def try_again(verdict: Verdict, cwd: Path = ROOT) -> None:
    """Run the tests that failed again; those that pass are flaky, and fail nothing."""
    began = time.monotonic()
    if len(verdict.failures) <= MOST_AGAIN:
        failed, verdict.failures = verdict.failures, []
        for failure in failed:
            if "::" in failure.name and _passes_alone(failure, cwd):
                verdict.flaky.append(failure.name)
            else:
                verdict.failures.append(failure)
    verdict.minutes = round(verdict.minutes + (time.monotonic() - began) / 60, 2)


def _passes_alone(failure: Failure, cwd: Path) -> bool:
    """Whether a test passes three times in fresh processes; if not, the failure gets the later error, too."""
    python, *arguments = shlex.split(failure.command.removeprefix(f"{WITHOUT}=1 "))
    for attempt in range(1, AGAIN + 1):
        print(f"\nagain, alone, {attempt} of {AGAIN}: {failure.command}", flush=True)
        for later in run_pytest("again", [str(ROOT / python), *arguments, "-p", "no:cacheprovider"], cwd).failures:
            failure.error += f"\nagain, alone, {attempt} of {AGAIN}: {later.error}"
            return False
    return True


def run_commands(stage: str, commands: Iterable[Sequence[str]]) -> Verdict:
    """Run commands, all of them also where one fails."""
    verdict = Verdict(stage)
    for command in commands:
        short = shlex.join([_short(command[0]), *command[1:]])
        print(f"+ {short}", flush=True)
        done = subprocess.run(
            command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        print(done.stdout, end="", flush=True)
        outcome = "failed" if done.returncode else "passed"
        verdict.counts[outcome] = verdict.counts.get(outcome, 0) + 1
        if done.returncode:
            verdict.failures.append(Failure(short, short, _tail(done.stdout)))
    return verdict


def demo() -> Verdict:
    """The first of the README's commands."""
    return run_commands("demo", [["make", "--no-print-directory", "demo"]])


def lint() -> Verdict:
    """Rules, format, types, layers."""
    tools = str(python_of("dev").parent) + "/"
    return run_commands(
        "lint",
        [
            [f"{tools}ruff", "check", "."],
            [f"{tools}ruff", "format", "--check", "."],
            [f"{tools}mypy"],
            [f"{tools}lint-imports", "--no-cache"],
        ],
    )


def run_tests(stage: str, variant: Variant, *arguments: str) -> Verdict:
    """Tests of both packages: stoker's where stoker-bench is not installed, then those of stoker-bench."""
    found = Verdict(stage)
    for folder in ("tests", BENCH_TESTS):
        found.add(run_pytest(stage, [str(variant.interpreter), *PYTEST, *arguments, folder]))
    return found


def pure() -> Verdict:
    """Tests that depend on nothing but their process."""
    processes = str(len(os.sched_getaffinity(0)))
    return run_tests("pure", Variant("dev"), "-n", processes, "--dist", "worksteal", "-m", MARKS["pure"])


def system() -> Verdict:
    """Tests that start processes and servers."""
    return run_tests("system", Variant("dev"), "-m", MARKS["system"])


def timing() -> Verdict:
    """Tests of time."""
    return run_tests("timing", Variant("dev"), "-m", MARKS["timing"])


def check() -> Verdict:
    """Lint, then of each file of pure tests as many as two minutes have time for."""
    began = time.monotonic()
    found = lint()
    left = max(25.0, 85.0 - (time.monotonic() - began))  # collecting the tests takes its time, too
    processors = str(min(8, len(os.sched_getaffinity(0))))
    arguments = [*PYTEST, "-r", "fE", "-n", processors, "--dist", "loadfile", "-m", f"{MARKS['pure']} and not slow"]
    tests = Verdict("check")
    for folder, share in (("tests", 0.8), (BENCH_TESTS, 0.2)):
        tests.add(run_pytest("check", [str(python_of("dev")), *arguments, f"--seconds={left * share:.0f}", folder]))
    found.stage, found.failures = "check", found.failures + tests.failures
    found.note = (
        f"{tests.counts.get('passed', 0)} tests passed: each file had its share of {left:.0f} s. Its other tests were left"
        " out, as were those that start processes or servers, measure time or are slow: make test"
    )
    return found


def trainers() -> Verdict:
    """The trainers' tests, unless all that they touch is as it was when they last passed."""
    last = RESULTS / "trainers.json"
    found = json.loads(last.read_text()) if last.exists() else {}
    if found and not found["failures"] and found["touched"] == touched_by_trainers():
        return Verdict(
            "trainers", note=f"unchanged since {found['commit'][:10]}, {found['date'][:10]}, when they passed"
        )
    return test_trainers()


def touched_by_trainers() -> str:
    """The hash of the files that decide how trainers and stoker work together."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "--", *TOUCHED_BY_TRAINERS], cwd=ROOT, text=True)
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        digest.update(f"{name}\0".encode() + (path.read_bytes() if path.exists() else b"") + b"\0")
    return digest.hexdigest()


ALSO: Final = {
    "ray": (
        "packages/stoker-bench/tests/bench/test_bench_ray.py",
        *(
            f"tests/coordination/test_coordinated_processes.py::{test}"
            for test in ("TestRay", "test_over_ray", "test_an_actor_that_comes_back_without_its_file_is_an_error")
        ),
    ),
}
"""Tests of other folders that need a trainer's environment, and are skipped elsewhere."""


def test_trainers() -> Verdict:
    """The trainers' tests, in their environments, then the table of which samples came."""
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(make, [Variant(name) for name in TRAINERS if not is_made(Variant(name))]))
    whole = Verdict("trainers", touched=touched_by_trainers())
    for name in TRAINERS:
        for tests in filter(None, ((f"tests/trainers/{name}",), ALSO.get(name))):
            command = [str(python_of(name)), "-m", "pytest", "-p", "no:cacheprovider", *tests]
            whole.add(run_pytest("trainers", command))
    pages = [*PYTEST, "tests/test_docs.py", "-k", "test_code_blocks_run and trainers"]
    whole.add(run_pytest("trainers", [str(python_of("dev")), *pages]))
    table = run_commands("trainers", [[str(python_of("dev")), "tests/trainers/table.py", "--check"]])
    whole.failures += table.failures
    return whole


STAGES: Final[dict[str, Callable[[], Verdict]]] = {
    "demo": demo,
    "lint": lint,
    "pure": pure,
    "system": system,
    "timing": timing,
    "trainers": trainers,
}
COMMANDS: Final = {**STAGES, "check": check}
TRIED_AGAIN: Final = ("system", "timing", "trainers")
BESIDE_SYSTEM: Final = ("lint", "pure", "trainers")


def run(stage: str) -> Verdict:
    """Run a stage, and keep its verdict for the summary."""
    (RECORDS / f"{stage}.json").unlink(missing_ok=True)
    verdict = timed(stage, COMMANDS[stage])
    _keep(verdict)
    return verdict


def _judge(verdict: Verdict) -> Verdict:
    """The verdict of a stage, when nothing else runs any more."""
    if verdict.stage in TRIED_AGAIN and not verdict.passed:
        try_again(verdict)
        _keep(verdict)
    if verdict.touched:
        keep_result(verdict)
    return verdict


def timed(name: str, run_it: Callable[[], Verdict]) -> Verdict:
    """The verdict of a stage or a job, with the time that it took, the commit and the date."""
    print(f"\n=== {name} ===", flush=True)
    began = time.monotonic()
    verdict = run_it()
    verdict.minutes = round((time.monotonic() - began) / 60, 2)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True)
    verdict.commit, verdict.date = head.stdout.strip(), datetime.now(UTC).isoformat(timespec="seconds")
    return verdict


def keep_result(verdict: Verdict, python: str = platform.python_version()) -> None:
    """Write the last result of what does not run for each change, to be committed. ``python``: the version that ran it."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"machine": f"{platform.machine()}, Python {python}"}
    (RESULTS / f"{verdict.stage}.json").write_text(json.dumps(machine | asdict(verdict), indent=1) + "\n")


def record_flaky(verdicts: Sequence[Verdict], path: Path = FLAKY) -> list[Failure]:
    """Write the flaky tests of this run to the list; those that stand in it twice fail the gate.

    The list holds the runs since the first of its flaky tests, ten at most. It is left alone while it is empty.
    """
    runs: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    flaky = sorted(one for verdict in verdicts for one in verdict.flaky)
    if not flaky and not runs:
        return []
    first = verdicts[0]
    runs = [*runs, {"run": first.date, "commit": first.commit, "flaky": flaky}][-RUNS:]
    while runs and not runs[0]["flaky"]:
        del runs[0]
    path.write_text(json.dumps(runs, indent=1) + "\n")
    twice = {test: count for test, count in Counter(test for run in runs for test in run["flaky"]).items() if count > 1}
    return [
        Failure(
            test,
            f"{_short(str(python_of('dev')))} -m pytest {shlex.quote(test)}",
            f"flaky in {count} of the last {len(runs)} runs: mend it, then remove its lines from tests/flaky.json",
        )
        for test, count in twice.items()
    ]


def summary(verdicts: Sequence[Verdict]) -> str:
    """A table of the stages, then flaky tests, then what failed, each with its command."""
    lines = [f"\n{'stage':10}{'verdict':10}{'minutes':>8}   tests"]
    for one in verdicts:
        counts = one.note or ", ".join(f"{count} {outcome}" for outcome, count in sorted(one.counts.items()))
        lines.append(f"{one.stage:10}{'passed' if one.passed else 'FAILED':10}{one.minutes:8.1f}   {counts}")
        if one.slowest:
            slowest = ", ".join(f"{name.removeprefix('tests/')} {taken:.0f}" for name, taken in one.slowest.items())
            lines.append(f"{'':28}   seconds: {slowest}")
    for one in verdicts:
        lines += [f"FLAKY   {test} (written to tests/flaky.json: commit it, and mend the test)" for test in one.flaky]
    for failure in (failure for one in verdicts for failure in one.failures):
        lines.append(f"\nFAILED  {failure.name}")
        lines += [f"        {line}" for line in _tail(failure.error).splitlines()]
        lines.append(f"        run it again: {failure.command}")
    return "\n".join(lines)


def _tail(said: str, lines: int = 25) -> str:
    return "\n".join(said.strip().splitlines()[-lines:])


def _short(program: str) -> str:
    """A program's path as it is typed in the checkout's folder."""
    path = Path(program)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else program


def _recorded() -> list[Verdict]:
    """The verdicts of stages that have run in this checkout."""
    found = []
    for stage in STAGES:
        path = RECORDS / f"{stage}.json"
        if path.exists():
            record = json.loads(path.read_text())
            record["failures"] = [Failure(**one) for one in record["failures"]]
            found.append(Verdict(**record))
    return found


def _run_all(stages: Sequence[str]) -> list[Verdict]:
    """Run stages: some beside the tests of the system, then each of the others alone."""
    beside = [stage for stage in BESIDE_SYSTEM if stage in stages] if "system" in stages else []
    judged: dict[str, Verdict] = {}
    if beside:
        with tempfile.TemporaryFile("w+") as said:
            # The system stage is the longest, as its tests run one at a time: the others have what it leaves.
            command = ["nice", "-n", "5", sys.executable, __file__, "--once", *beside]
            other = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
            found = [run("system")]
            other.wait()
            said.seek(0)
            print(said.read(), flush=True)
        found += [one for one in _recorded() if one.stage in beside]
        judged = {one.stage: _judge(one) for one in found}
    return [judged[stage] if stage in judged else _judge(run(stage)) for stage in stages]


def _keep(verdict: Verdict) -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{verdict.stage}.json").write_text(json.dumps(asdict(verdict), indent=1))


def main() -> int:
    """The command line; 0 where all stages passed."""
    # Tests start some thousand processes, which import stoker and torch: they are compiled once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(COMMANDS))
    parser.add_argument("--once", action="store_true", help="leave it to the caller to run failed tests again")
    parser.add_argument("--summary", action="store_true", help="print the stages that have run, and what failed")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(COMMANDS):
        parser.error(f"no stage is called {min(unknown)}: there are {', '.join(COMMANDS)}")
    if options.summary:
        verdicts = _recorded()
    elif options.once:
        verdicts = [run(stage) for stage in options.stages]
    else:
        verdicts = _run_all(options.stages)
        if {"system", "timing", "trainers"} & set(options.stages):
            verdicts[-1].failures += record_flaky(verdicts)
            _keep(verdicts[-1])
    print(summary(verdicts), flush=True)
    return 0 if all(one.passed for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What is too long for each change, or needs what few machines have. The last result of each is committed.

    python3 tools/nightly.py                             # all jobs
    python3 tools/nightly.py growth peers                # these
    python3 tools/nightly.py python --python python3.13  # all tests on another Python

========  ============================================================================================================
trainers  ``tests/trainers`` in the trainers' environments, the table of which samples came, the pages that need them
growth    what more files, shards, streams and processes cost: ``benchmarks/scale.py --quick``, compared with a record
peers     results compared with mosaicml-streaming as it runs
unpinned  all tests with the newest packages that the requirements allow, without ``constraints.txt``
deep      properties and random histories with many more examples, and all runs that are recorded
python    all tests on another Python
threads   the tests of threads on a free-threaded Python, whose samples are compared with this one's
========  ============================================================================================================

A result is written to ``tests/results/<job>.json``: date, commit, versions, tests by outcome, what failed. A job whose
interpreter is missing leaves its result alone, and says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from environments import VENVS, Variant, make, python_of
from gate import (
    MARKS,
    PYTEST,
    Verdict,
    keep_result,
    run_commands,
    run_pytest,
    run_tests,
    summary,
    test_trainers,
    timed,
    try_again,
)

THREADS: Final = (
    "tests/concurrency",
    "tests/reading/test_shard_pool.py",
    "tests/order/mixture/test_stream_locator.py",
    "tests/formats/parquet/test_first_conversion.py",
)


def growth(_: str) -> Verdict:
    """Alone on the machine."""
    return run_commands("growth", [[str(python_of("dev")), "benchmarks/scale.py", "--quick"]])


def peers(_: str) -> Verdict:
    """Tests with the mark ``peer``."""
    make(Variant("mosaic"))
    return _judged(run_pytest("peers", [str(python_of("dev")), *PYTEST, "-m", "peer"]))


def unpinned(_: str) -> Verdict:
    """All stages of tests in an environment without pins."""
    return _all_tests("unpinned", Variant("dev", pinned=False))


def python(interpreter: str) -> Verdict:
    """All stages of tests on another Python."""
    if shutil.which(interpreter) is None:
        return Verdict("python", note=f"{interpreter} is not installed: nothing was run")
    return _all_tests("python", Variant("dev", interpreter, pinned=False))


def deep(_: str) -> Verdict:
    """More examples of what draws them by lot."""
    tests = ["tests/order/test_histories.py", "--histories=3000", "tests/loaders/test_lineage.py", "--lineages=400"]
    tests += ["tests/loaders/test_drawn_runs.py", "--drawn-runs=6000"]
    tests += ["tests/recorded", "--recorded=1"]
    return run_pytest("deep", [str(python_of("dev")), *PYTEST, "--timeout=7200", *tests])


def threads(interpreter: str) -> Verdict:
    """Stoker without extras: few packages have wheels for such a Python, and none is compiled here."""
    if shutil.which(interpreter) is None:
        return Verdict("threads", note=f"{interpreter} is not installed: nothing was run")
    folder = VENVS / "free-threaded"
    other = str(folder / "bin" / "python")
    needed = ("pytest", "pytest-timeout", "hypothesis", "boto3")
    return run_commands(
        "threads",
        [
            [interpreter, "-m", "venv", str(folder)],
            [other, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--editable", ".", *needed],
            [other, "-m", "pytest", "-p", "no:cacheprovider", *THREADS],
            [str(python_of("dev")), "benchmarks/thread_outputs.py", "--with", other],
        ],
    )


def _all_tests(name: str, variant: Variant) -> Verdict:
    make(variant)
    whole = Verdict(name)
    for stage in ("pure", "system", "timing"):
        found = run_tests(name, variant, "-m", MARKS[stage])
        whole.add(found if stage == "pure" else _judged(found))
    return whole


def _judged(verdict: Verdict) -> Verdict:
    try_again(verdict)
    return verdict


JOBS: Final[dict[str, Callable[[str], Verdict]]] = {
    "trainers": lambda _: _judged(test_trainers()),
    "growth": growth,
    "peers": peers,
    "unpinned": unpinned,
    "deep": deep,
    "python": python,
    "threads": threads,
}
INTERPRETERS: Final = {"python": "python3.13", "threads": "python3.14t"}


def main() -> int:
    """The command line; 0 where all jobs passed."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; default all")
    parser.add_argument("--python", help=f"the interpreter of a job; default {INTERPRETERS}")
    options = parser.parse_args()
    if unknown := set(options.jobs) - set(JOBS):
        parser.error(f"no job is called {min(unknown)}: there are {', '.join(JOBS)}")
    verdicts = []
    for job in options.jobs or JOBS:
        interpreter = options.python or INTERPRETERS.get(job, sys.executable)
        verdicts.append(timed(job, partial(JOBS[job], interpreter)))
        if not verdicts[-1].note:
            ask = [interpreter, "-c", "import platform; print(platform.python_version())"]
            keep_result(verdicts[-1], subprocess.check_output(ask, text=True).strip())
    print(summary(verdicts), flush=True)
    return 0 if all(one.passed for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

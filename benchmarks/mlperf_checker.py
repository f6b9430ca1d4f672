"""Runs MLPerf Storage's own submission checker and ``stoker bench check`` over one tree, and prints the faults of both.

The checker is in a checkout of github.com/mlcommons/storage, version 3.0.0 or later. It needs Python 3.12 and packages, in an
environment of its own:

    python3.12 -m venv mlps && mlps/bin/pip install pyyaml 'pydantic>=2' psutil pyarrow rich packaging python-dotenv
    python benchmarks/mlperf_checker.py TREE --checkout storage --python mlps/bin/python --edition v2
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from stoker.bench.mlperf.check import check_submission
from stoker.bench.mlperf.editions import EDITIONS

_SAID = re.compile(r"\[ERROR\] \[(?P<rule>[\d.]+) \w+\] (?P<said>.*)")


def official(tree: Path, checkout: Path, python: str, edition: str) -> list[tuple[str, str]]:
    """Rule and message of each fault that the official checker finds."""
    done = subprocess.run(
        [
            *(python, "-m", "mlpstorage_py.submission_checker.main", "--input", str(tree.resolve())),
            *("--version", f"{edition}.0", "--csv", os.devnull),
        ],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if "SUMMARY" not in done.stderr + done.stdout:
        sys.exit(f"the checker did not come to its end:\n{done.stderr[-2000:]}")
    return [(one["rule"], one["said"]) for one in _SAID.finditer(done.stderr + done.stdout)]


def main() -> None:
    """Print both lists of faults, and the rules that only one list has."""
    parser = argparse.ArgumentParser(description="Run MLPerf Storage's own checker over the tree of a submission.")
    parser.add_argument("tree", type=Path)
    parser.add_argument("--checkout", type=Path, required=True, help="of github.com/mlcommons/storage")
    parser.add_argument("--python", default=sys.executable, help="with pyyaml and pydantic")
    parser.add_argument("--edition", choices=tuple(EDITIONS), default="v3")
    chosen = parser.parse_args()
    theirs = official(chosen.tree, chosen.checkout, chosen.python, chosen.edition)
    ours = [one for one in check_submission(chosen.tree, EDITIONS[chosen.edition]) if not one.remark]
    for rule, said in theirs:
        print(f"theirs {rule:8} {said}")
    for one in ours:
        print(f"ours   {one.rule.split()[0]:8} {one.path}: {one.said}")
    mine, others = {one.rule.split()[0] for one in ours}, {rule for rule, _ in theirs}
    print(f"{len(theirs)} faults by theirs, {len(ours)} by ours")
    print(
        f"rules that theirs alone finds broken: {', '.join(sorted(others - mine)) or 'none'}; ours alone: "
        f"{', '.join(sorted(mine - others)) or 'none'}"
    )


if __name__ == "__main__":
    main()

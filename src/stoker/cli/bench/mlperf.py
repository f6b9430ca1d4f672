"""``stoker bench submit`` and ``check``: the directory tree of a submission to MLPerf Storage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.running import ExitCode, add_json, add_results, print_json

if TYPE_CHECKING:
    from stoker.bench.mlperf.read_runs import SubmissionFault

_EDITIONS = ("v3", "v2")
_ORIGIN = (
    "note: the source in this tree is stoker's. By rule 1.1 the closed division takes runs of MLPerf Storage's own "
    "mlpstorage: use the tree for reviews, rehearsals and your own publications, and ask MLCommons before you submit it\n"
)


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the commands' arguments."""
    one = kinds.add_parser(
        "submit",
        help="write a submission to MLPerf Storage",
        description="Write the tree of a submission to MLPerf Storage from the results of several runs, and check it.",
    )
    one.add_argument("folder", metavar="DIR", help="the tree; it may hold other systems and organizations")
    add_results(one, "--results", required=True)
    one.add_argument("--organization", metavar="NAME", required=True, help="the submitter")
    one.add_argument("--system", metavar="NAME", required=True, help="the system under test")
    one.add_argument("--description", metavar="FILE", help="the system's YAML; default: a draft, to be filled in")
    one.add_argument("--document", metavar="FILE", help="the system's PDF")
    one.add_argument("--division", choices=("closed", "open"), default="closed", help="default: closed")
    one.add_argument("--force", action="store_true", help="write also results that break rules")
    two = kinds.add_parser(
        "check",
        help="check a submission to MLPerf Storage",
        description="Check the tree of a submission to MLPerf Storage, of any origin, and name each fault with its path.",
    )
    two.add_argument("folder", metavar="DIR", help="the directory that holds closed or open")
    for parser in (one, two):
        parser.add_argument("--edition", choices=_EDITIONS, default=_EDITIONS[0], help="default: v3")
        add_json(parser)


def submit(chosen: argparse.Namespace) -> int | None:
    """Write a tree and check it.

    Raises:
        StokerError: there are no results, they make no submission, or the tree can not be written.
    """
    from stoker.bench.mlperf.editions import EDITIONS
    from stoker.bench.mlperf.submit import Submission, write_submission
    from stoker.bench.results.report_files import find_runs

    edition = EDITIONS[chosen.edition]
    written = write_submission(
        Path(chosen.folder),
        Submission(chosen.organization, chosen.system, edition, chosen.division),
        find_runs(chosen.results),
        description=None if chosen.description is None else Path(chosen.description),
        document=None if chosen.document is None else Path(chosen.document),
        force=chosen.force,
    )
    sys.stderr.write(_ORIGIN)
    if not chosen.json:
        sys.stdout.writelines(f"{one}\n" for one in written)
    return check(chosen)


def check(chosen: argparse.Namespace) -> int | None:
    """Check a tree.

    Raises:
        StokerError: there is no tree, or it can not be read.
    """
    from stoker.bench.mlperf.check import check_submission
    from stoker.bench.mlperf.editions import EDITIONS

    found = check_submission(Path(chosen.folder), EDITIONS[chosen.edition])
    wrong = [one for one in found if not one.remark]
    if chosen.json:
        print_json({"valid": not wrong, "faults": [asdict(one) for one in found]})
    else:
        _show(found, len(wrong), chosen.edition)
    return ExitCode.PROBLEMS if wrong else None


def _show(found: Sequence[SubmissionFault], wrong: int, edition: str) -> None:
    for one in found:
        sys.stdout.write(f"{'note' if one.remark else 'wrong'}: {one.path}: {one.said} ({one.rule})\n")
    sys.stdout.write(f"{wrong or 'no'} fault{'s' if wrong != 1 else ''} by the rules of MLPerf Storage {edition}\n")

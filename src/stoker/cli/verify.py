"""``stoker verify``: whether a dataset is whole, and what is broken."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from stoker.cli.arguments import byte_size, integer
from stoker.cli.running import (
    ExitCode,
    add_engine,
    add_format,
    add_json,
    add_storage_options,
    arguments_of,
    bar,
    on_interrupt,
    print_json,
)
from stoker.display import counted, escape

if TYPE_CHECKING:
    from stoker.inspection import VerifyReport

_MOST_STRANGE = 10


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "verify",
        description="Check a dataset: every file there, of its size and hash, every offset in order. Ends with 3 where "
        "something is broken.",
    )
    parser.add_argument("url", metavar="URL", help="a directory or URL of any format, a file, or a pattern")
    add_format(parser)
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--deep", action="store_true", help="decode every sample, too, and compare all hashes")
    depth.add_argument("--quick", action="store_true", help="compare only names and sizes; read only headers")
    parser.add_argument("--local", metavar="DIR", help="check what this cache holds of the dataset at URL")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="rebuild a lost or damaged index; with --local, fetch again what differs. Nothing is lost by it",
    )
    parser.add_argument(
        "--max-problems", type=integer(1), default=100, metavar="N", help="stop after so many; default: 100"
    )
    parser.add_argument("--threads", type=integer(1), metavar="N", help="files at once; default: 8, or one a processor")
    add_engine(parser)
    parser.add_argument(
        "--memory", type=byte_size, default=1 << 30, metavar="SIZE", help="of decompressed shards; default: 1gb"
    )
    parser.add_argument("--allow-unsafe-types", action="store_true", help="decode pickles, which can run code")
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> int:
    """Verify, and say what is broken.

    Returns:
        The exit code: 3 where something is broken."""
    from stoker.inspection import verify

    said = "nothing was changed" if not chosen.repair else "what was not yet mended is as before"
    with bar(chosen, "verifying") as shown, on_interrupt(said), redirect_stdout(sys.stderr):

        def progress(done: int, total: int) -> None:
            shown.expect(total)
            shown.advance(done)

        report = verify(**arguments_of(verify, chosen), progress=progress)
    if chosen.json:
        print_json(report.as_dict())
    else:
        _print(report)
    return ExitCode.FINE if report.ok else ExitCode.PROBLEMS


def _print(report: VerifyReport) -> None:
    from stoker.cli.terminal import seconds_text
    from stoker.display import bytes_text

    for problem in report.problems:
        sys.stdout.write(f"{escape(str(problem))}\n")
    for done in report.repaired:
        sys.stdout.write(f"repaired: {escape(str(done))}\n")
    if report.strange:
        more = f", and {len(report.strange) - _MOST_STRANGE:,} more" if len(report.strange) > _MOST_STRANGE else ""
        sys.stdout.write(f"not of the dataset: {', '.join(map(escape, report.strange[:_MOST_STRANGE]))}{more}\n")
    for note in report.notes:
        sys.stdout.write(f"note: {escape(note)}\n")
    if report.stopped:
        sys.stdout.write("stopped, because there are too many problems (--max-problems); there may be others\n")
    found = "no problems" if report.ok else counted(len(report.problems), "problem")
    sys.stdout.write(
        f"{report.url}: {found} in {counted(report.shards, 'shard')} with {counted(report.samples, 'sample')}; "
        f"{bytes_text(report.bytes)} read in {seconds_text(report.seconds)}\n"
    )

"""The ``stoker`` command. Each subcommand is a module of its own, with ``add`` (its arguments) and ``run``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from stoker.cli import order, tokenize
from stoker.errors import StokerError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0, or 1 where stoker raised an error, which is told on stderr. Arguments that can not be read end
        the process with 2, as ``argparse`` does it.
    """
    parser = argparse.ArgumentParser(
        prog="stoker", description="Streams sharded training data to any cluster in one deterministic order."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (order, tokenize):
        command.add(commands)
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
        sys.stdout.flush()
    except StokerError as error:
        sys.stderr.write(f"stoker {chosen.command}: {error}\n")
        return 1
    except BrokenPipeError:
        # Whoever read has had enough. Python flushes again at exit, which must have somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0

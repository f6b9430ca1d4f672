"""The ``stoker`` command. Each subcommand is a module of its own, with ``add`` (its arguments) and ``run``,
which raises the errors of the library's function that it calls.

Only the module of the command that is asked for is imported, so none makes another one slow to start.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from stoker import __version__
from stoker.cli.running import ExitCode
from stoker.cli.terminal import escaped_output
from stoker.display import nearest, unknown_name
from stoker.errors import StokerError

__all__ = ["COMMANDS", "main"]

COMMANDS: Final[dict[str, str]] = {
    "bench": "measure whether accelerators would wait for storage and loader",
    "cache": "list, prune or clear the caches of this machine",
    "convert": "make one format of another, in parallel",
    "generate": "make a synthetic data set",
    "index": "make an index from shards, or one of several",
    "inspect": "say what a dataset is, and show samples",
    "order": "show who reads which shard when on a cluster, and what waits",
    "profile": "read a dataset for a while, and say where the time goes",
    "tokenize": "make tokens of text, on many processes",
    "verify": "check a dataset, and say what is broken",
}
"""Each command, which is a module of this package, and what ``stoker --help`` says of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0; 1 where stoker raised an error, which is told on stderr; 130 after Ctrl-C; 143 where a
        benchmark got SIGTERM; or what the command
        says, such as 3 where ``stoker verify`` found problems. Arguments that can not be read end the process with 2, as
        ``argparse`` does it.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="stoker",
        description="Writes, checks and streams sharded training data to any cluster in one deterministic order.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    name = given[0] if given and given[0] in COMMANDS else None
    with escaped_output():
        return _run(parser, commands, name, given)


def _run(parser: argparse.ArgumentParser, commands: Any, name: str | None, given: Sequence[str]) -> int:
    try:
        if name is None:  # which argparse answers with help or an error
            for command, said in COMMANDS.items():
                commands.add_parser(command, help=said)
            if given and not given[0].startswith("-"):
                parser.error(unknown_name("command", given[0], COMMANDS))
        else:
            importlib.import_module(f"stoker.cli.{name}").add(commands)
        chosen = _parse(parser, given)
        code = sys.modules[f"stoker.cli.{chosen.command}"].run(chosen)
        sys.stdout.flush()
    except StokerError as error:
        sys.stderr.write(f"stoker {name}: {_told(error, parser, name, given)}\n")
        return ExitCode.FAILED
    except KeyboardInterrupt as error:
        word = getattr(error, "word", "interrupted")  # or terminated
        sys.stderr.write(f"stoker {name}: {word}{''.join(f'; {said}' for said in error.args)}\n")
        return getattr(error, "code", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the pipe has closed it. Python flushes again at exit, which must have somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = None
    return ExitCode.FINE if code is None else code


def _parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """The arguments, of which settings (``section.key=value``) may stand anywhere behind what they are of.

    ``argparse`` takes those only that come directly behind it.
    """
    chosen, left = parser.parse_known_args(given)
    if left and (not hasattr(chosen, "settings") or any(one.startswith("-") or "=" not in one for one in left)):
        _refuse(parser, given, left)
    if left:
        chosen.settings = [*chosen.settings, *left]
    return chosen


def _told(error: StokerError, parser: argparse.ArgumentParser, name: str | None, given: Sequence[str]) -> str:
    """An error as the command line prints it: its message, and the options for the arguments that it names."""
    from stoker.cli.arguments import with_options

    module = sys.modules.get(f"stoker.cli.{name}")
    return with_options(str(error), _innermost(parser, given), getattr(module, "ARGUMENTS", {}))


def _innermost(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command and its action that the words name."""
    for word in given:
        below = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
        if below is None:
            break
        parser = below.choices.get(word, parser)
    return parser


def _refuse(parser: argparse.ArgumentParser, given: Sequence[str], left: Sequence[str]) -> NoReturn:
    """End with the usage of the command that was asked for, not with that of ``stoker``."""
    parser = _innermost(parser, given)
    options = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    wrong = next((one.partition("=")[0] for one in left if one.startswith("-")), "")
    parser.error(f"unrecognized arguments: {' '.join(left)}{nearest(wrong, options).rstrip()}")

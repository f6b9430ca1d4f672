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
from stoker.errors import ConfigError, MissingPackageError, StokerError
from stoker.lazy import INSTALL_BENCH, load_plugin, package_of, plugins

__all__ = ["COMMANDS", "GROUP", "OF_BENCH", "CommandParser", "find_command", "main"]

COMMANDS: Final[dict[str, str]] = {
    "cache": "list, prune or clear the caches of this machine",
    "convert": "make one format of another, in parallel",
    "index": "make an index from shards, or one of several",
    "inspect": "say what a dataset is, and show samples",
    "order": "show the samples of a step, or of a rank, and where they lie",
    "profile": "read a dataset for a while, and say where the time goes",
    "tokenize": "make tokens of text, on many processes",
    "verify": "check a dataset, and say what is broken",
}
"""Each command, which is a module of this package, and what ``stoker --help`` says of it."""
OF_BENCH: Final[dict[str, str]] = {
    "bench": "measure whether accelerators would wait for storage and loader",
    "generate": "make a synthetic data set",
    "simulate": "predict who reads which shard when on a cluster, and what waits",
}
"""Commands that the package stoker-bench brings."""
GROUP: Final = "stoker.commands"
"""Group of entry points of other packages' commands: modules with ``add`` and ``run``."""


class CommandParser(argparse.ArgumentParser):
    """A parser that takes options by their whole names only; parsers of its commands are of this class, too.

    ``argparse`` would read ``--step 3``, an option of another command, as ``--step-time 3``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Gives the exit code: 0; 1 where stoker raised an error, which is told on stderr; 130 after Ctrl-C; 143 where a benchmark
    got SIGTERM; or what the command says, such as 3 where ``stoker verify`` found problems. Arguments that can not be read
    end the process with 2, as ``argparse`` does it.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = CommandParser(
        prog="stoker",
        description="Writes, checks and streams sharded training data to any cluster in one deterministic order.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    with escaped_output():
        return _run(parser, commands, given)


def find_command(name: str) -> Any:
    """The module of a command; ``None`` where no package has one of this name.

    MissingPackageError if it is of stoker-bench, which is not installed. ConfigError if another package's can not be
    imported.
    """
    if name in COMMANDS:
        return importlib.import_module(f"stoker.cli.{name}")
    found = plugins(GROUP, own=COMMANDS).get(name)
    if found is None and name in OF_BENCH:
        raise MissingPackageError(
            f"this command is of the package stoker-bench, which is not installed: {INSTALL_BENCH}"
        )
    module = None if found is None else load_plugin(found, f"the command {name!r}")
    if found is not None and not (hasattr(module, "add") and hasattr(module, "run")):
        raise ConfigError(f"the command {name!r}, {found.value} of {package_of(found)}, has no add and run")
    return module


def _run(parser: argparse.ArgumentParser, commands: Any, given: Sequence[str]) -> int:
    name = next(iter(given), "-")
    module = None
    try:
        if not name.startswith("-"):
            module = find_command(name)
        if module is None:  # which argparse answers with help or an error
            known = {**dict.fromkeys(plugins(GROUP, own=COMMANDS), "of another package"), **COMMANDS}
            missing = {
                command: f"{said} (needs stoker-bench)" for command, said in OF_BENCH.items() if command not in known
            }
            if missing:
                parser.epilog = f"stoker-bench is not installed: {INSTALL_BENCH}"
            known = dict(sorted({**known, **OF_BENCH, **missing}.items()))
            for command, said in known.items():
                commands.add_parser(command, help=said)
            if not name.startswith("-"):
                parser.error(unknown_name("command", name, known))
        else:
            module.add(commands)
        chosen = _parse(parser, given)
        code: int | None = module.run(chosen) if module else None
        sys.stdout.flush()
    except StokerError as error:
        sys.stderr.write(f"stoker {name}: {_told(error, parser, module, given)}\n")
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


def _told(error: StokerError, parser: argparse.ArgumentParser, module: Any, given: Sequence[str]) -> str:
    """An error as the command line prints it: its message, and the options for the arguments that it names."""
    from stoker.cli.arguments import with_options

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

"""The command line as tests call it: in their process, and what its help has to say."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import pytest

from stoker.cli import CommandParser, find_command, main
from stoker.cli.running import arguments_of


def stoker(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> str:
    """Run the command in this process; what it says on stdout, or on stderr where it fails."""
    try:
        found = main([str(argument) for argument in arguments])
    except SystemExit as end:
        found = int(end.code or 0)
    said = capsys.readouterr()
    assert found == code, said
    return said.err if code in (1, 2) else said.out


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [inner for action in below for one in action.choices.values() for inner in (parsers(one) or [one])]


def check_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--help``, a wrong flag and an abbreviated one show the usage of the command or action that was asked for."""
    top = CommandParser(prog="stoker")
    find_command(name).add(top.add_subparsers())
    found = parsers(top)
    assert found
    for parser in found:
        words = parser.prog.split()[1:]
        assert stoker(capsys, *words, "--help").startswith(f"usage: {parser.prog} ")
        needed = [action for action in parser._actions if action.required]
        needed += [group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required]
        given: list[str] = []
        for action in needed:
            choice = next(iter(action.choices or ["1"]))
            given += [*action.option_strings[:1], str(choice)]
        for wrong in ("--hepl", "--hel"):
            said = stoker(capsys, *words, *given, wrong, code=2)
            assert said.startswith(f"usage: {parser.prog} "), said
            assert f"{parser.prog}: error: unrecognized arguments: {wrong}; did you mean '--help'?" in said


def check_options(name: str, library: list[str], own: set[str]) -> None:
    """Each option of a command but its ``own`` is an argument of a function of the ``library``."""
    top = CommandParser(prog="stoker")
    find_command(name).add(top.add_subparsers())
    (parser,) = parsers(top)
    options = argparse.Namespace(**{action.dest: None for action in parser._actions})
    functions = [getattr(importlib.import_module(one.partition(":")[0]), one.partition(":")[2]) for one in library]
    taken = {option for function in functions for option in arguments_of(function, options)}
    assert set(vars(options)) - taken == own | {"help"}

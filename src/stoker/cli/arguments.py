"""Types of command-line arguments: what can not be read is told in the words of the library, not of ``argparse``."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from stoker.errors import ConfigError
from stoker.units import parse_bytes, parse_count

# An argument of Python's in an error: `exist_ok=True`, `fill={...}`, `column=`. Not `s.fill=` nor `--fill=`.
_ARGUMENT: Final = re.compile(r"(?<![\w.?&/-])([a-z]\w*)=(True|False)?")
_TIMES: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def integer(least: int) -> Callable[[str], int]:
    """An integer of at least ``least``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
        return value

    return read


def seconds(positive: bool) -> Callable[[str], float]:
    """A number of seconds, above 0 if ``positive``, else from 0."""
    said = f"seconds {'above' if positive else 'from'} 0"
    return partial(number, said=said, good=lambda value: value > 0 or (value == 0 and not positive))


def number(text: str, said: str, good: Callable[[float], bool]) -> float:
    """A finite number for which ``good`` holds; ``said`` tells which those are."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and good(value)):
        raise argparse.ArgumentTypeError(f"must be {said}, got {text!r}")
    return value


def folder(text: str) -> str:
    """A directory's name. An empty one, as of a shell's variable that is not set, would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; the current directory is .")
    return text


def byte_size(text: str) -> int:
    """A size above 0, such as ``100gb``."""
    return _positive(text, parse_bytes)


def count(text: str) -> int:
    """A count above 0, such as ``10k``."""
    return _positive(text, parse_count)


def _positive(text: str, parse: Callable[[str], int]) -> int:
    try:
        value = parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not value:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text!r}")
    return value


def duration(text: str) -> float:
    """Seconds of a span of time above 0, such as ``12h`` or ``30d``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _TIMES or not float(match[1]):
        raise argparse.ArgumentTypeError(f"must be a number above 0 with {', '.join(_TIMES)}, like 30d, got {text!r}")
    return float(match[1]) * _TIMES[match[2]]


def codec(text: str) -> str | None:
    """The name of a compression; ``None`` for ``none``."""
    return None if text == "none" else text


def named(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def named_json(text: str) -> tuple[str, Any]:
    """``NAME=VALUE``, the value in JSON, or else the text itself."""
    name, value = named(text)
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def with_options(message: str, parser: argparse.ArgumentParser, others: Mapping[str, str]) -> str:
    """An error's message, with the command's options for the arguments of Python's that it names.

    ``others``: options of arguments whose names differ: the argument, or it with its value (``"strict=False"``), to what to
    write instead; nothing where the command's option of that name means something else.
    """
    known: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if action.option_strings:
            known[action.dest] = known[f"{action.dest}s"] = action
    found: dict[str, str] = {}
    for match in _ARGUMENT.finditer(message):
        name, value = match[1], match[2] or ""
        option = others.get(f"{name}={value}") or others.get(name)
        if option is None and name in known:
            option = _option(known[name], value)
        if option and option.split()[0] not in message:
            found[f"{name}={value}"] = option
    if not found:
        return message
    return f"{message} (on the command line: {', '.join(f'{option} for {name}' for name, option in found.items())})"


def _option(action: argparse.Action, value: str) -> str | None:
    """The option as it is written for an argument; ``None`` where it is a switch that does not set that value."""
    if action.nargs == 0:
        return action.option_strings[-1] if value == str(action.const) else None
    return (
        f"{action.option_strings[-1]} {action.metavar}"
        if isinstance(action.metavar, str)
        else action.option_strings[-1]
    )

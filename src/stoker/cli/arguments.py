"""Types of command-line arguments: what can not be read is told in the words of the library, not of ``argparse``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from stoker.errors import ConfigError
from stoker.units import parse_bytes, parse_count

__all__ = ["byte_size", "count", "integer", "seconds"]


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

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
            raise argparse.ArgumentTypeError(f"must be seconds {'above' if positive else 'from'} 0, got {text!r}")
        return value

    return read


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

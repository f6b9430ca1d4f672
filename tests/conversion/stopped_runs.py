"""Conversions in this process that a test stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.conversion import ConvertReport, convert


def run(source: Any, destination: Path, **options: Any) -> ConvertReport:
    """Convert in this process, unless options say how many there are."""
    return convert(source, destination, **{"processes": 1, **options})


class StoppedError(Exception):
    """What a test stops a run with."""


def stopping_at(samples: int) -> Callable[[int, int], None]:
    """Progress that ends the run."""

    def progress(done: int, total: int) -> None:
        if done >= samples:
            raise StoppedError

    return progress

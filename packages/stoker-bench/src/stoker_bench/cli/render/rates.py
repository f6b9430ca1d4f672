"""Rates, parts and waits for people, beside what :mod:`stoker.cli.terminal` has."""

from __future__ import annotations

from stoker.display import bytes_text


def bytes_rate_text(rate: float) -> str:
    """Bytes a second, by powers of 1000: ``1.52 GB/s``."""
    return f"{bytes_text(rate)}/s"


def percent_text(value: float | None) -> str:
    """A part of 1 in percent; ``-`` for what was not measured."""
    return "-" if value is None else f"{value:.2%}"


def time_text(value: float | None) -> str:
    """Seconds, in the unit that fits."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"

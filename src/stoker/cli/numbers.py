"""Bytes, seconds and counts for people."""

from __future__ import annotations

from stoker.display import byte_unit, bytes_text, digits

__all__ = ["byte_unit", "bytes_text", "count_text", "seconds_text", "time_unit"]

_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a span of time is told; two of it at least."""
    return next((unit for unit in _TIMES if seconds >= 2 * unit[0]), _TIMES[-1])


def seconds_text(seconds: float) -> str:
    """A span of time with three digits: ``3.4 min``."""
    if 0 < seconds < 0.999e-3:
        return f"{seconds * 1e6:.3g} µs"
    if 0 < seconds < 0.9995:
        return f"{digits(seconds * 1000)} ms"
    unit, name = time_unit(seconds)
    return f"{digits(seconds / unit)} {name}"


def count_text(count: float) -> str:
    """A count with separators between thousands."""
    return f"{count:,.0f}" if abs(count) >= 100 or count == int(count) else digits(count)

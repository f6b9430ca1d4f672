"""Sizes and counts as people write them: ``"64MB"``, ``"1.5gb"``, ``"10k"``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from stoker.errors import ConfigError

GIB: Final = 1 << 30
"""Bytes of a GiB."""

_BYTES = {"": 1, "b": 1} | {
    f"{letter}{end}": 1 << 10 * power for power, letter in enumerate("kmgtpe", 1) for end in ("b", "ib")
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)", re.ASCII)


def parse_bytes(value: float | str, name: str = "") -> int:
    """Bytes of a size such as ``65536``, ``"100kb"``, ``"64MB"`` or ``"1.5gb"``.

    Units are powers of 1024 in any case: ``b``, ``kb``, ``mb``, ``gb``, ``tb``, ``pb``, ``eb``, and the same as ``kib``,
    ``mib`` and so on. Fractions of a byte are dropped. ``name``: of the argument, for the error.

    Raises:
        ConfigError: negative, not finite, or not of this form; names the value.

    >>> parse_bytes("64MB")
    67108864
    """
    return _parse(
        value,
        _BYTES,
        "a size in bytes",
        "an integer or a number with b, kb, mb, gb, tb, pb or eb (or kib to eib), like '64MB'",
        name,
    )


def parse_count(value: float | str, name: str = "") -> int:
    """Number of things, such as ``1000``, ``"10k"`` or ``"1.5m"``.

    Units are powers of 1000 in any case: ``k``, ``m``, ``b`` (10⁹), ``t``. Fractions of one are dropped.
    ``name``: of the argument, for the error.

    Raises:
        ConfigError: negative, not finite, or not of this form; names the value.

    >>> parse_count("1.5k")
    1500
    """
    return _parse(value, _COUNTS, "a count", "an integer or a number with k, m, b or t, like '10k'", name)


def _parse(value: object, units: Mapping[str, int], what: str, form: str, name: str) -> int:
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip().lower())
        if match and match[2] in units:
            from fractions import Fraction  # here, as the command line starts without it

            return int(Fraction(match[1]) * units[match[2]])
    elif isinstance(value, float):
        if math.isfinite(value) and value >= 0:
            return int(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):  # also NumPy's integers
        number = int(value.__index__())
        if number >= 0:
            return number
    raise ConfigError(f"{name and name + '='}{value!r} is not {what}: expected {form}, not negative.")


def as_decimal(value: Any) -> Any:
    """A float as the decimal that it is written as, 0.1 as ``Decimal("0.1")``; other values as they are."""
    from decimal import Decimal  # here, as the command line starts without it

    return Decimal(repr(value)) if isinstance(value, float) else value

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.units import parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (65536, 65536),
        (1e6, 1_000_000),
        (np.int64(7), 7),
        ("12", 12),
        ("12b", 12),
        ("100kb", 102_400),
        ("64MB", 64 << 20),
        (" 1 gb ", 1 << 30),
        ("1.5gb", 3 << 29),
        (".5kb", 512),
        ("2tb", 2 << 40),
        ("2TiB", 2 << 40),
        ("3 kib", 3 << 10),
        ("1eb", 1 << 60),
        ("0.0009765625kb", 1),
    ],
)
def test_sizes_are_powers_of_1024(text: int | str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [(5, 5), ("5", 5), ("10k", 10_000), ("1.5M", 1_500_000), ("2b", 2 * 10**9), ("1t", 10**12)]
)
def test_counts_are_powers_of_1000(text: int | str, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize(
    "value",
    [-1, "-1", "-1kb", "", "kb", "1xb", "1 2", "1e3", "nan", float("nan"), float("inf"), True, None, [1], "\u0661kb"],
)
@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
def test_anything_else_is_refused_by_name(parse: object, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(value)  # type: ignore[operator]
    assert repr(value) in str(caught.value)


@given(st.integers(0, 2**70), st.sampled_from(["", "b", "kb", "MB", "Gb", "tb"]))
def test_whole_numbers_are_exact(number: int, unit: str) -> None:
    factor = {"": 0, "b": 0, "kb": 10, "mb": 20, "gb": 30, "tb": 40}[unit.lower()]
    assert parse_bytes(f"{number}{unit}") == number << factor

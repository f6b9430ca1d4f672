"""Promise: sizes and spans of time are told with three digits, in the unit that fits."""

from __future__ import annotations

import pytest

from stoker.cli.terminal import seconds_text
from stoker.display import byte_unit, bytes_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (454e-6, "454 µs"),
        (0.0999, "99.9 ms"),
        (0.12478, "125 ms"),  # was 0.12 s, two digits
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (4.338, "4.34 s"),
        (204, "3.4 min"),
    ],
)
def test_seconds_have_three_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.02 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (146_600_628, "147 MB"),
        (4_000_000_000_000_000, "4 PB"),
    ],
)
def test_sizes_are_shown_by_powers_of_1000(size: int, text: str) -> None:
    """stoker generate and inspect showed those of 1024 under the same names as stoker bench those of 1000."""
    assert bytes_text(size) == text
    assert byte_unit(size)[1] == text.split()[1]

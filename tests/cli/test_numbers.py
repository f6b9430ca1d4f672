"""Promise: spans of time are told with three digits, in the unit that fits."""

from __future__ import annotations

import pytest

from stoker.cli.numbers import seconds_text


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

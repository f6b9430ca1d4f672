"""Rows are copied from their addresses, by whichever call."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.formats.common.gather import address_of, gather_rows


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 4097, 1 << 14, (1 << 14) + 1, 100_000, (1 << 18) + 1])
def test_rows_of_any_width_are_copied(width: int, at_once: bool) -> None:
    data = np.random.default_rng(width).integers(0, 256, 5 * width, dtype=np.uint8)
    rows = np.array([3, 0, 4, 4])
    found = gather_rows(address_of(data) + rows * width, width, at_once=at_once)
    assert np.array_equal(found, data.reshape(5, width)[rows])
    assert found.flags.writeable
    assert gather_rows(rows[:0], width, at_once=at_once).shape == (0, width)


def test_rows_begin_at_any_byte() -> None:
    data = np.random.default_rng(3).integers(0, 256, 1000, dtype=np.uint8)
    begins = np.arange(990)
    for width in (2, 4, 5, 8):
        expected = np.lib.stride_tricks.sliding_window_view(data, width)[begins]
        assert np.array_equal(gather_rows(address_of(data) + begins, width), expected)

"""Rows are copied from their addresses, by whichever call."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.formats.common.rows.gather import address_of, gather_rows


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("width", [1, 1 << 14, (1 << 14) + 1, 100_000, (1 << 18) + 1])
def test_rows_of_any_width_are_copied(width: int, at_once: bool) -> None:
    data = np.random.default_rng(width).integers(0, 256, 5 * width, dtype=np.uint8)
    rows = np.array([3, 0, 4, 4])
    found = gather_rows(address_of(data) + rows * width, width, at_once=at_once)
    assert np.array_equal(found, data.reshape(5, width)[rows])
    assert found.flags.writeable

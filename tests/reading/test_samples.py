"""Which shards a read touches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.reading.samples import distinct, distinct_shards


@given(shards=st.lists(st.integers(0, 99), min_size=1, max_size=200), count=st.sampled_from([100, 1 << 20]))
def test_distinct_numbers_and_their_indices(shards: list[int], count: int) -> None:
    numbers, which = distinct(np.array(shards), count)
    assert numbers.tolist() == sorted(set(shards))
    assert numbers[which].tolist() == shards
    assert distinct_shards(np.array(shards), count) == numbers.tolist()

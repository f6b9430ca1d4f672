"""The keyed bijection: one to one on any domain, the same everywhere, and well mixed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.order.bijection import mix, permute


@given(n=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_is_one_to_one_on_any_domain(n: int, key: int) -> None:
    image = permute(np.arange(n), n, key)
    assert np.array_equal(np.sort(image), np.arange(n))


@given(data=st.data())
@settings(max_examples=50)
def test_domains_and_keys_may_differ_within_one_call(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=8))
    keys = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(sizes), max_size=len(sizes)))
    index = np.concatenate([np.arange(n) for n in sizes])
    n = np.repeat(np.array(sizes), sizes)
    key = np.repeat(np.array(keys, dtype=np.uint64), sizes)
    together = permute(index, n, key)
    apart = np.concatenate([permute(np.arange(m), m, k) for m, k in zip(sizes, keys, strict=True)])
    assert np.array_equal(together, apart)


def test_values_are_fixed_for_ever() -> None:
    # A change here would reorder every run that is under way: it needs a new state version.
    assert permute(np.arange(8), 8, 42).tolist() == EXPECTED_8
    assert permute(np.array([0, 1, 10**12 - 1]), 10**12, 7).tolist() == EXPECTED_LARGE
    assert mix(1, 2, 3) == EXPECTED_MIX


def test_images_are_spread_evenly() -> None:
    n, keys = 1 << 12, 64
    # Where does a quarter of the domain go? Each quarter of the image should get its share, for every key.
    shares = np.array(
        [np.bincount(permute(np.arange(n // 4), n, mix(key)) // (n // 4), minlength=4) for key in range(keys)]
    )
    expected = n / 16
    chi_square = ((shares - expected) ** 2 / expected).sum()
    # 64 x 3 degrees of freedom: mean 192 (less, as sampling is without replacement), deviation 20.
    assert chi_square < 300


def test_neighbours_do_not_stay_neighbours() -> None:
    n = 1 << 14
    steps = np.abs(np.diff(permute(np.arange(n), n, 99)))
    # For a random permutation the mean distance of neighbours is n / 3.
    assert abs(steps.mean() / (n / 3) - 1) < 0.05
    assert (steps == 1).sum() < 20


def test_different_keys_give_different_permutations() -> None:
    seen = {permute(np.arange(64), 64, mix(key)).tobytes() for key in range(500)}
    assert len(seen) == 500


EXPECTED_8 = [5, 1, 0, 2, 3, 4, 7, 6]
EXPECTED_LARGE = [602184147896, 430215179381, 584265677539]
EXPECTED_MIX = 7702586659592502839

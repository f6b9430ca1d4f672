"""The keyed bijection: one to one on any domain, the same everywhere, and well mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.integers import mix
from stoker.order.shuffle.bijection import Domain, permute, split_keys, unpermute


@given(n=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_is_one_to_one_on_any_domain(n: int, key: int) -> None:
    image = permute(np.arange(n), n, key)
    assert np.array_equal(np.sort(image), np.arange(n))


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_domains_and_keys_may_differ_within_one_call(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=8))
    keys = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(sizes), max_size=len(sizes)))
    index = np.concatenate([np.arange(n) for n in sizes])
    n = np.repeat(np.array(sizes), sizes)
    key = np.repeat(np.array(keys, dtype=np.uint64), sizes)
    together = permute(index, n, key)
    apart = np.concatenate([permute(np.arange(m), m, k) for m, k in zip(sizes, keys, strict=True)])
    assert np.array_equal(together, apart)


@given(n=st.integers(1, 5000) | st.integers(1, 2**62 - 1), key=st.integers(0, 2**64 - 1), data=st.data())
def test_the_inverse_undoes_it(n: int, key: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50)))
    image = permute(index, n, key)
    assert 0 <= image.min() <= image.max() < n
    assert len(set(image.tolist())) == len(set(index.tolist()))
    assert np.array_equal(unpermute(image, n, key), index)


@given(key=st.integers(0, 2**64 - 1))
@settings(max_examples=20, deadline=None)
def test_small_and_large_domains_may_be_requested_together(key: int) -> None:
    # They are computed in words of 32 bits and of 64; which, must depend on the domain alone.
    sizes = np.array([5, 2**32 - 1, 2**32, 2**32 + 1, 10**12, 2**62 - 1])
    index = sizes - 1
    together = permute(index, sizes, key)
    assert together.tolist() == [int(permute(index[i : i + 1], int(n), key)[0]) for i, n in enumerate(sizes)]
    assert np.array_equal(unpermute(together, sizes, key), index)


@given(usual=st.integers(1, 10**6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_table_of_one_width_is_one_to_one_for_domains_of_all_sizes(usual: int, data: st.DataObject) -> None:
    sizes = np.array(data.draw(st.lists(st.integers(1, min(2 * usual, 3000)), min_size=1, max_size=5)))
    domains = Domain(sizes, bits=data.draw(st.integers(0, 16)), rounds=data.draw(st.integers(1, 5)))
    which = np.repeat(np.arange(len(sizes)), sizes)
    index = np.concatenate([np.arange(n) for n in sizes])
    keys = split_keys(np.array([mix(usual, k) for k in range(len(sizes))], dtype=np.uint64), domains.word)
    x = index.astype(domains.word)
    low, high = (word[which] for word in keys)
    domains.move(x, low, high, domains.take(which))
    for number, n in enumerate(sizes):
        assert np.array_equal(np.sort(x[which == number]), np.arange(n))
    domains.move(x, low, high, domains.take(which), inverse=True)
    assert np.array_equal(x, index)


def test_values_are_fixed_for_ever() -> None:
    # A change here would reorder every run that is under way: it needs a new state version.
    assert permute(np.arange(8), 8, 42).tolist() == EXPECTED_8
    assert permute(np.arange(11), 11, 0).tolist() == EXPECTED_11
    assert permute(np.array([0, 1, 10**9 - 1]), 10**9, 7).tolist() == EXPECTED_MIDDLE
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


@pytest.mark.parametrize("n", [2, 3, 5, 11, 16, 31, 100])
def test_every_position_is_as_likely(n: int) -> None:
    draws = 400_000 // n**2 * n
    keys = np.array([mix(n, key) for key in range(draws)], dtype=np.uint64)
    images = permute(np.tile(np.arange(n), draws), np.full(n * draws, n), np.repeat(keys, n)).reshape(draws, n)
    counts = np.array([np.bincount(images[:, index], minlength=n) for index in range(n)])
    freedom = (n - 1) ** 2
    # Rows and columns of the table of counts add up to the same, which takes the factor.
    chi_square = ((counts - draws / n) ** 2 / (draws / n)).sum() * (n - 1) / n
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("n", [256, 1000, 4096, 5000, 1 << 14, 12_345])
@pytest.mark.parametrize("lag", [1, 2, 3, 64])
def test_the_distance_of_two_says_nothing_of_where_they_go(n: int, lag: int) -> None:
    keys = [mix(key) for key in range(400_000 // n)]
    images = [permute(np.arange(n), n, key) for key in keys]
    # Distances around the circle of the domain are all equally likely for a random permutation.
    distances = np.concatenate([(image[lag:] - image[:-lag]) % n for image in images])
    bins = 64
    counts = np.bincount((distances - 1) * bins // (n - 1), minlength=bins)
    widths = np.bincount(np.arange(n - 1) * bins // (n - 1), minlength=bins)
    expected = distances.size * widths / widths.sum()
    assert np.abs(counts / expected - 1).max() < 0.08
    # The nearest are seen one by one: neighbours do not stay neighbours.
    nearest = ((distances < 4) | (distances > n - 4)).sum() / (distances.size * 6 / (n - 1))
    assert abs(nearest - 1) < 0.15


def test_different_keys_give_different_permutations() -> None:
    seen = {permute(np.arange(64), 64, mix(key)).tobytes() for key in range(500)}
    assert len(seen) == 500


EXPECTED_8 = [2, 1, 7, 0, 6, 5, 4, 3]
EXPECTED_11 = [8, 10, 4, 1, 7, 6, 0, 9, 2, 5, 3]
EXPECTED_MIDDLE = [492166585, 616040364, 210322416]
EXPECTED_LARGE = [221405068916, 756180496844, 777651470938]
EXPECTED_MIX = 7702586659592502839

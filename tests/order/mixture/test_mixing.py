"""Streams as one sequence: each sample once, shares kept, steps of one stream, and shards with their nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order.mixture.interleave import Interleave
from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture, Mixing
from stoker.types import Ids

MANY = st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(any)


def split_codes(codes: Ids) -> tuple[Ids, Ids]:
    return codes >> NUMBER_BITS, codes & ((1 << NUMBER_BITS) - 1)


def assert_complete(codes: Ids, counts: list[int], begun: list[int]) -> None:
    """The codes are of each stream its next ``counts``, each once."""
    expected = [
        np.arange(first, first + count) + (stream << NUMBER_BITS)
        for stream, (first, count) in enumerate(zip(begun, counts, strict=True))
    ]
    assert np.array_equal(np.sort(codes), np.concatenate(expected))


@given(counts=MANY)
def test_interleaving_numbers_the_elements_of_each_stream_in_order(counts: list[int]) -> None:
    tree = Interleave(np.array(counts))
    streams, numbers = tree.locate(np.arange(tree.total))
    for stream, count in enumerate(counts):
        assert np.array_equal(numbers[streams == stream], np.arange(count))


@given(counts=MANY)
def test_counts_before_are_those_of_the_sequence(counts: list[int]) -> None:
    tree = Interleave(np.array(counts))
    streams, _ = tree.locate(np.arange(tree.total))
    literal = np.zeros((tree.total + 1, len(counts)), dtype=np.int64)
    np.cumsum(streams[:, None] == np.arange(len(counts)), axis=0, out=literal[1:])
    assert np.array_equal(tree.counts_before(np.arange(tree.total + 1)), literal)


@given(counts=st.lists(st.integers(0, 10**5), min_size=2, max_size=40).filter(any), seed=st.integers(0, 99))
def test_every_window_has_each_stream_in_its_share(counts: list[int], seed: int) -> None:
    tree = Interleave(np.array(counts))
    ends = np.sort(np.random.default_rng(seed).integers(0, tree.total + 1, (2, 200)), axis=0)
    before = tree.counts_before(ends.reshape(-1)).reshape(2, 200, -1)
    shares = np.array(counts) / tree.total
    assert np.abs(before[1] - before[0] - (ends[1] - ends[0])[:, None] * shares).max() < 3
    assert np.abs(before - ends[:, :, None] * shares).max() < 1.5


def test_interleaving_is_exact_where_products_overflow() -> None:
    counts = [3 * 10**11 + 7, 10**11 + 3, 6 * 10**11 - 10, 1]
    total = sum(counts)
    tree = Interleave(np.array(counts))
    index = np.concatenate([np.arange(50), total // 3 + np.arange(50), total - 50 + np.arange(50)])
    before = tree.counts_before(np.concatenate([index, index + 1]))
    streams, numbers = tree.locate(index)
    assert np.array_equal(numbers, before[:150][np.arange(150), streams])
    assert np.array_equal(before[150:] - before[:150], streams[:, None] == np.arange(4))
    assert tree.counts_before(np.array([total])).tolist() == [counts]

    # The tree of two: Python's integers say what is right.
    a, n = counts[1], counts[0] + counts[1]
    pair = Interleave(np.array(counts[:2]))
    x = [0, 1, 10**11, n // 2, n - 1, n]
    assert pair.counts_before(np.array(x))[:, 1].tolist() == [(value * a + n // 2) // n for value in x]


def test_a_pinned_interleaving_does_not_change() -> None:
    streams, _ = Interleave(np.array([5, 0, 3, 2])).locate(np.arange(10))
    assert streams.tolist() == [0, 2, 0, 3, 0, 2, 0, 3, 0, 2]


@given(
    counts=MANY,
    begun=st.integers(0, 50),
    nodes=st.integers(1, 9),
    unit=st.integers(1, 12),
    window=st.sampled_from([0, 1, 2, 7, 16, 1024]),
    shared=st.booleans(),
    key=st.integers(0, 2**64 - 1),
)
def test_a_mixing_has_of_each_stream_its_next_samples_each_once(
    counts: list[int], begun: int, nodes: int, unit: int, window: int, shared: bool, key: int
) -> None:
    starts = [begun * (stream + 1) for stream in range(len(counts))]
    mixing = Mixing(counts, starts, nodes=nodes, unit=unit, window=window, shared=shared, key=key)
    codes = mixing.codes(np.arange(sum(counts)))
    assert_complete(codes, counts, starts)
    # A code does not depend on what else is asked for in the same call.
    some = np.random.default_rng(1).integers(0, sum(counts), 17)
    assert np.array_equal(mixing.codes(some), codes[some])
    assert np.array_equal(np.concatenate([mixing.codes(some[i : i + 1]) for i in range(17)]), codes[some])


@given(
    counts=MANY,
    nodes=st.integers(1, 5),
    unit=st.integers(1, 9),
    window=st.sampled_from([0, 4, 1024]),
    shared=st.booleans(),
    data=st.data(),
)
def test_what_was_taken_at_a_position_is_told(
    counts: list[int], nodes: int, unit: int, window: int, shared: bool, data: st.DataObject
) -> None:
    begun = list(range(7, 7 + len(counts)))
    mixing = Mixing(counts, begun, nodes=nodes, unit=unit, window=window, key=3, shared=shared)
    index = data.draw(st.integers(0, mixing.total))
    before, more = mixing.taken(index)
    assert len(more) < (max(1, window) + len(counts)) * nodes * unit
    whole = [
        np.arange(first, end) + (s << NUMBER_BITS) for s, (first, end) in enumerate(zip(begun, before, strict=True))
    ]
    assert np.array_equal(np.sort(np.concatenate([*whole, more])), np.sort(mixing.codes(np.arange(index))))


@given(counts=MANY, nodes=st.integers(1, 9), unit=st.integers(1, 9), window=st.sampled_from([0, 4, 1024]))
def test_a_node_reads_its_own_numbers_of_each_stream(counts: list[int], nodes: int, unit: int, window: int) -> None:
    begun = [7 * stream for stream in range(len(counts))]
    mixing = Mixing(counts, begun, nodes=nodes, unit=unit, window=window, key=3)
    main = sum(count // (nodes * unit) * nodes * unit for count in counts)
    index = np.arange(main)
    if sum(map(bool, counts)) > 1:
        streams, numbers = split_codes(mixing.codes(index))
        assert np.array_equal(numbers % nodes, index // unit % nodes)
        # And a unit is of one stream.
        assert (streams.reshape(-1, unit) == streams[::unit, None]).all()


@given(counts=MANY, nodes=st.integers(1, 5), turns=st.integers(1, 4), window=st.sampled_from([0, 3, 64]))
def test_a_shared_unit_is_of_one_stream_and_of_all_nodes(
    counts: list[int], nodes: int, turns: int, window: int
) -> None:
    unit = nodes * turns
    begun = [5 * stream + 1 for stream in range(len(counts))]
    mixing = Mixing(counts, begun, nodes=nodes, unit=unit, window=window, shared=True, key=3)
    index = np.arange(sum(count // unit * unit for count in counts))
    if sum(map(bool, counts)) > 1:
        streams, numbers = split_codes(mixing.codes(index))
        assert np.array_equal(numbers % nodes, index % nodes)
        assert (streams.reshape(-1, unit) == streams[::unit, None]).all()


def test_scrambling_keeps_shares_window_by_window_and_nothing_else() -> None:
    counts = [7000, 2000, 1000]
    plain, scrambled = (Mixing(counts, window=window, key=5).codes(np.arange(10_000)) for window in (0, 100))
    assert not np.array_equal(plain, scrambled)
    for start in range(0, 10_000, 100):
        assert sorted(plain[start : start + 100].tolist()) == sorted(scrambled[start : start + 100].tolist())
    # Regular is regular: the second stream's next sample is always about as far away. Irregular is not.
    gaps = [np.diff(np.flatnonzero(codes >> NUMBER_BITS == 1)) for codes in (plain, scrambled)]
    assert int(gaps[0].max()) <= 7
    assert int(gaps[1].max()) > 12
    other = Mixing(counts, window=100, key=6).codes(np.arange(10_000))
    assert not np.array_equal(other, scrambled)


def test_each_node_and_each_window_is_scrambled_in_its_own_way() -> None:
    codes = Mixing([4000, 4000], nodes=2, window=100, key=5).codes(np.arange(8000))
    windows = (codes >> NUMBER_BITS).reshape(-1, 100, 2).transpose(0, 2, 1).reshape(-1, 100)
    assert len(np.unique(windows, axis=0)) == len(windows)


@given(
    parts=st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=2, max_size=4),
    unit=st.integers(1, 5),
    window=st.sampled_from([0, 8]),
)
def test_parts_with_common_units_have_the_same_stream_in_each_step(
    parts: list[list[int]], unit: int, window: int
) -> None:
    if min(sum(map(bool, part)) for part in parts) < 2:
        return
    units = np.min([np.array(part) // unit for part in parts], axis=0)
    codes = []
    for number, part in enumerate(parts):
        mixing = Mixing(part, unit=unit, window=window, key=9, unit_counts=units, first_stream=number * 3)
        codes.append(mixing.codes(np.arange(sum(part))))
        assert_complete(codes[-1], [0] * 3 * number + part, [0] * 3 * (number + 1))
    steps = int(units.sum()) * unit
    streams = [(each[:steps] >> NUMBER_BITS) % 3 for each in codes]
    assert all(np.array_equal(each, streams[0]) for each in streams)


@given(total=st.integers(1, 10**6), begun=st.integers(0, 10**9), nodes=st.integers(1, 8), unit=st.integers(1, 64))
def test_one_stream_is_read_in_the_order_of_its_line(total: int, begun: int, nodes: int, unit: int) -> None:
    mixing = Mixing([0, total], [5, begun], nodes=nodes, unit=unit, window=64)
    index = np.array([0, total // 2, total - 1])
    assert np.array_equal(mixing.codes(index), index + begun + (1 << NUMBER_BITS))


def test_a_large_mixing_is_injective_and_in_range() -> None:
    counts = [5 * 10**11, 3 * 10**11, 2 * 10**11 - 1, 10**6]
    begun = [10**12, 0, 17, 10**11]
    mixing = Mixing(counts, begun, nodes=64, unit=32, window=1024, key=11)
    rng = np.random.default_rng(0)
    index = np.unique(np.concatenate([rng.integers(0, mixing.total, 100_000), mixing.total - 1 - np.arange(50_000)]))
    codes = mixing.codes(index)
    assert np.unique(codes).size == index.size
    streams, numbers = split_codes(codes)
    assert (numbers >= np.array(begun)[streams]).all()
    assert (numbers < (np.array(begun) + counts)[streams]).all()
    assert (
        np.abs(np.bincount(streams[: index.size // 2], minlength=4) / (index.size // 2) - np.array(counts) / 1e12).max()
        < 0.01
    )


def test_a_pinned_mixing_does_not_change() -> None:
    streams, numbers = split_codes(Mixing([6, 4, 3], [1, 0, 2], nodes=2).codes(np.arange(13)))
    assert streams.tolist() == [0, 0, 1, 1, 0, 0, 2, 2, 0, 0, 1, 1, 2]
    assert numbers.tolist() == [2, 1, 0, 1, 4, 3, 2, 3, 6, 5, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": [1], "unit": 0}, "unit must be at least 1, got 0"),
        ({"counts": [1, -1]}, "counts of streams must not be negative"),
        ({"counts": [1], "begun": [1 << 42]}, "4398046511105 samples of a stream are asked for"),
        ({"counts": [1], "begun": [1 << 70]}, "1180591620717411303425 samples of a stream are asked for"),
        ({"counts": [1 << 42, 1]}, "4398046511105 samples are more than can be mixed"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixing(**arguments)  # type: ignore[arg-type]


@given(
    phases=st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3).filter(any), min_size=1, max_size=4),
    skipped=st.integers(0, 20),
    cut=st.integers(0, 20),
)
def test_a_mixture_is_its_phases_one_after_the_other(phases: list[list[int]], skipped: int, cut: int) -> None:
    begun = np.cumsum([[0, 0, 0], *phases], axis=0)
    mixings = [Mixing(counts, start, window=4) for counts, start in zip(phases, begun, strict=False)]
    # The epoch begins inside the first phase, and ends inside the last.
    skipped = min(skipped, mixings[0].total - 1)
    lengths = [mixing.total for mixing in mixings]
    firsts = (np.cumsum([0, *lengths[:-1]]) - skipped).clip(0).tolist()
    offsets = [skipped] + [0] * (len(phases) - 1)
    total = sum(lengths) - skipped
    mixture = EpochMixture(firsts, offsets, mixings)
    literal = np.concatenate([mixing.codes(np.arange(mixing.total)) for mixing in mixings])[skipped:]
    assert np.array_equal(mixture.codes(np.arange(total)), literal)
    end = max(0, total - cut)
    assert np.array_equal(mixture.codes(np.arange(end)), literal[:end])
    reached = mixture.reached(np.arange(total + 1))
    assert reached[-1].tolist() == begun[-1].tolist()
    assert (np.diff(reached, axis=0).sum(axis=1) == 1).all()
    assert (np.diff(reached, axis=0) >= 0).all()
    for position in (0, total - 1):
        assert mixture.counts(np.array([position])).tolist() == [phases[0 if position < lengths[0] - skipped else -1]]

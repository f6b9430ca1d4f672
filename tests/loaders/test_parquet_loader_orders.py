"""The loader over tokens that are all different: none lost, none twice, labels right, in any world and after any history."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loader_cases import FIRST, MemorySource, epoch_rows, rows_of

from stoker import ReadOptions
from stoker.errors import ConfigError, StateError
from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=8)
FILES = st.lists(st.lists(LENGTHS, min_size=1, max_size=4), min_size=1, max_size=6)
PAD, EOS = 0, 1


def ranks(source: MemorySource, world: int, **options: Any) -> list[StreamingParquetLoader]:
    chosen: dict[str, Any] = {"batch_size": 3, "seq_len": 7, "pad_id": PAD, "shuffle_tokens": 30, **options}
    return [StreamingParquetLoader(source, ShardConfig(rank, world, 5), **chosen) for rank in range(world)]


def useful(source: MemorySource) -> bool:
    return source.total > 0


# -- each layout, in one go ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    FILES, st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from([None, "row_group", "row"]), st.booleans()
)
def test_joined_tokens_come_once_and_are_followed_by_their_labels(
    files: list[list[list[int]]], world: int, eos: bool, shuffle: bool, granularity: Any, cross: bool
) -> None:
    source = MemorySource(files)
    if not useful(source) or (granularity == "row_group" and len(source.groups) < world):
        return
    loaders = ranks(
        source,
        world,
        granularity=granularity,
        shuffle=shuffle,
        eos_id=EOS if eos else None,
        cross_document_labels=cross,
        remainder="uneven",
    )
    following = {token: after for document in source.documents for token, after in itertools.pairwise(document)}
    lasts = {document[-1] for document in source.documents}
    firsts = {document[0] for document in source.documents}
    seen: Counter[int] = Counter()
    for loader in loaders:
        rows = list(loader)
        assert len(loader) == len(rows)
        stream: list[int] = []
        for batch in rows:
            for ids, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True):
                stream += ids
                for token, after in itertools.pairwise(ids):
                    if token in following:
                        assert after == following[token]
                    assert not eos or token not in lasts or after == EOS
                for token, label in zip(ids, labels, strict=True):
                    if token == PAD:
                        assert label == -100
                    elif token == EOS:
                        assert label == -100 or (cross and label in firsts)
                    elif token in following:
                        assert label == following[token]
                    elif eos:
                        assert label == EOS
                    else:
                        assert label == -100 or (cross and label in firsts)
        real = [token for token in stream if token != PAD]
        seen.update(real)
    expected = Counter(range(FIRST, FIRST + source.total))
    if eos:
        expected[EOS] = len(source.documents)
    assert seen == expected


@settings(deadline=None)
@given(FILES, st.integers(1, 3), st.booleans(), st.booleans())
def test_masks_of_joined_documents_are_right_at_their_borders(
    files: list[list[list[int]]], world: int, eos: bool, unshifted: bool
) -> None:
    source = MemorySource(files)
    if not useful(source):
        return
    number_of = {}
    row = 0
    for group in source._groups:
        for k in range(len(group)):
            number_of.update(dict.fromkeys(group[k].tolist(), row))
            row += 1
    for loader in ranks(
        source, world, eos_id=EOS if eos else None, remainder="uneven", labels="unshifted" if unshifted else "shifted"
    ):
        for batch in loader:
            ids, documents = batch.input_ids, batch.document_ids
            assert np.array_equal(batch.attention_mask, ids != PAD)
            assert batch.num_tokens == int((ids != PAD).sum())
            for i, j in np.ndindex(*ids.shape):
                token = int(ids[i, j])
                if token == PAD:
                    assert documents[i, j] == -1
                    continue
                if token != EOS:
                    assert documents[i, j] == number_of[token]
                new = j == 0 or documents[i, j - 1] != documents[i, j]
                assert batch.position_ids[i, j] == (0 if new else batch.position_ids[i, j - 1] + 1)
                if unshifted and not new:
                    assert batch.labels[i, j] == token
            borders = batch.cu_seqlens
            assert borders[0] == 0
            assert borders[-1] == ids.size
            assert (np.diff(borders) > 0).all()


@settings(deadline=None)
@given(FILES, st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from(["split", "truncate"]))
def test_packed_documents_come_once_whole(
    files: list[list[list[int]]], world: int, eos: bool, shuffle: bool, too_long: Any
) -> None:
    source = MemorySource(files)
    if not useful(source):
        return
    loaders = ranks(
        source,
        world,
        layout="pack",
        too_long=too_long,
        shuffle=shuffle,
        eos_id=EOS if eos else None,
        remainder="uneven",
        shuffle_tokens=5,
    )
    seen: Counter[int] = Counter()
    cut = 0
    for loader in loaders:
        for batch in loader:
            ids = batch.input_ids
            seen.update(ids[ids != PAD].tolist())
            cut += batch.cut_tokens
            # Documents that fit a row lie in it whole.
            for row in ids.tolist():
                for document in source.documents:
                    if len(document) + eos <= 7 and document[0] in row:
                        at = row.index(document[0])
                        assert row[at : at + len(document)] == document
                        assert not eos or row[at + len(document)] == EOS
    del seen[EOS]
    everything = Counter(range(FIRST, FIRST + source.total))
    if too_long == "split":
        assert seen == everything
        assert not cut
    else:
        kept = Counter(token for document in source.documents for token in document[:7])
        assert seen == kept
        assert cut == sum(max(0, len(document) + eos - 7) for document in source.documents)


@settings(deadline=None)
@given(FILES, st.integers(1, 4), st.booleans())
def test_padded_documents_are_rows(files: list[list[list[int]]], world: int, truncate: bool) -> None:
    source = MemorySource(files)
    if not useful(source):
        return
    length = 11 if truncate else 20
    loaders = ranks(source, world, layout="truncate" if truncate else "pad", seq_len=length, remainder="uneven")
    rows = []
    for loader in loaders:
        for batch in loader:
            rows += [tuple(token for token in row if token != PAD) for row in batch.input_ids.tolist()]
    assert sorted(rows) == sorted(tuple(document[:length]) for document in source.documents)


def test_a_document_that_is_too_long_is_an_error_where_rows_are_padded() -> None:
    source = MemorySource([[[3, 9]]])
    (loader,) = ranks(source, 1, layout="pad", seq_len=8)
    with pytest.raises(ValueError, match="9 tokens, more than seq_len=8"):
        list(loader)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
@pytest.mark.parametrize("cross", [False, True])
def test_rows_of_documents_that_are_as_long_as_rows(shuffle: bool, labels: Any, cross: bool) -> None:
    """The short way gives what the long way does, which a first document of another length forces."""
    documents = [[7] * 40, [7] * 25]
    short = ranks(MemorySource([documents]), 1, shuffle=shuffle, labels=labels, cross_document_labels=cross)[0]
    rows = rows_of(short)
    assert len(rows) == 65
    for row in rows:
        ids, label = list(row[:7]), list(row[7:])
        assert (ids[0] - FIRST) % 7 == 0
        assert ids == list(range(ids[0], ids[0] + 7))
        if labels == "unshifted":
            assert label == (ids if cross else [-100, *ids[1:]])
        else:
            assert label[:6] == ids[1:]
            assert (label[6] - FIRST) % 7 == 0 if cross and label[6] != -100 else label[6] == -100
    # Only where the stream ends is there nothing to predict.
    assert not cross or sum(row[-1] == -100 for row in rows) <= 1
    if not shuffle:
        assert [row[0] for row in rows] == list(range(FIRST, FIRST + 65 * 7, 7))
    assert short.stats().tokens == 65 * 7


@settings(deadline=None)
@given(FILES, st.sampled_from(["concat", "pack", "truncate", "pad"]), st.sampled_from([None, EOS]), st.integers(1, 3))
def test_batches_made_together_are_those_made_one_by_one(files: Any, layout: Any, eos: int | None, world: int) -> None:
    source = MemorySource(files)
    assume(useful(source))
    chosen = {
        "layout": layout,
        "eos_id": eos,
        "seq_len": 22 if layout == "pad" else 7,
        "shuffle_tokens": 400,
        "remainder": "uneven",
    }
    together = ranks(source, world, **chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.tokens.layouts.assemble._WIDENED", 1)
        batches = [list(loader) for loader in together]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.tokens.order.token_order.UnitOrder.together", (1, 1))
        alone = ranks(source, world, **chosen)
        singly = [list(loader) for loader in alone]
    assert [[len(batch) for batch in of_rank] for of_rank in batches] == [
        [len(b) for b in of_rank] for of_rank in singly
    ]
    for one, other in zip(itertools.chain(*batches), itertools.chain(*singly), strict=True):
        assert rows_of([one]) == rows_of([other])
        assert one.document_ids.tolist() == other.document_ids.tolist()
        assert (one.num_tokens, one.cut_tokens) == (other.num_tokens, other.cut_tokens)
    assert [_counted(loader) for loader in together] == [_counted(loader) for loader in alone]


def _counted(loader: StreamingParquetLoader) -> tuple[int, ...]:
    stats = loader.stats()
    return stats.token_batches, stats.tokens, stats.token_slots, stats.cut_documents, stats.cut_tokens


def test_labels_that_nobody_wants_are_left_out_of_the_same_rows() -> None:
    source = MemorySource([[[3, 9, 14]] * 3, [[5] * 40]])
    for layout in ("concat", "pack", "truncate"):
        (full,), (bare,) = (ranks(source, 1, layout=layout, labels=labels) for labels in ("shifted", "none"))
        for one, other in zip(full, bare, strict=True):
            assert one.input_ids.tolist() == other.input_ids.tolist()
            assert other.given_labels is None


def test_rows_of_a_long_document_do_not_come_in_a_row() -> None:
    source = MemorySource([[[700], [700]]])
    rows = rows_of(ranks(source, 1, shuffle_tokens=10_000)[0])
    follows = [after[0] - before[0] == 7 for before, after in itertools.pairwise(rows)]
    assert len(rows) == 200
    assert sum(follows) < 10


# -- worlds and histories ----------------------------------------------------------------------------------------------

LAYOUTS: list[dict[str, Any]] = [
    {"layout": "concat"},
    {"layout": "concat", "eos_id": EOS, "cross_document_labels": True},
    {"layout": "pack"},
    {"layout": "truncate"},
]


@settings(deadline=None, max_examples=150)
@given(
    FILES,
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(LAYOUTS),
    st.sampled_from([None, "row"]),
    st.integers(0, 2),
)
def test_any_history_of_worlds_delivers_what_one_run_does(
    files: list[list[list[int]]],
    history: list[tuple[int, int, int]],
    layout: dict[str, Any],
    granularity: Any,
    epoch: int,
) -> None:
    source = MemorySource(files)
    if not useful(source):
        return
    home = history[0][0]
    common: dict[str, Any] = {**layout, "granularity": granularity, "remainder": "uneven"}
    straight = ranks(source, home, **common)
    for loader in straight:
        loader.reset_epoch(epoch)
    expected = Counter(epoch_rows(straight))
    seen: Counter[tuple[int, ...]] = Counter()
    state: dict[str, Any] | None = None
    for world, batch_size, steps in [*history, (home, 3, 1000)]:
        states = []
        for loader in ranks(source, world, batch_size=batch_size, **common):
            if state is None:
                loader.reset_epoch(epoch)
            else:
                loader.load_state_dict(state)
            seen.update(rows_of(batch for _, batch in zip(range(steps), iter(loader), strict=False)))
            with contextlib.suppress(StateError):  # of uneven ranks, one that is done before the others has none
                states.append(loader.state_dict())
        # The rank that has most tells where the run is, and so do all that are not done.
        assert states
        going = [left for left in states if left["epoch"] == epoch]
        assert all(left == going[0] for left in going)
        if not going:
            break
        state = json.loads(json.dumps(going[0]))
    assert not going
    assert seen == expected


@settings(deadline=None)
@given(FILES, st.integers(1, 4), st.sampled_from(LAYOUTS), st.sampled_from(["pad", "drop"]), st.integers(1, 5))
def test_all_ranks_take_the_same_number_of_steps(
    files: list[list[list[int]]], world: int, layout: dict[str, Any], remainder: Any, batch_size: int
) -> None:
    source = MemorySource(files)
    if not useful(source):
        return
    loaders = ranks(source, world, **layout, batch_size=batch_size, remainder=remainder)
    if remainder == "pad" and loaders[0]._files.division(loaders[0]._data_rank()).rounds.smallest == 0:
        with pytest.raises(ConfigError, match="part without samples"):
            [len(loader) for loader in loaders]
        return
    if not any(map(len, loaders)):
        for loader in loaders:
            with pytest.raises(ConfigError, match="has no batches"):
                list(loader)
        return
    batches = [list(loader) for loader in loaders]
    assert len({len(own) for own in batches}) == 1
    rows = Counter(row for own in batches for row in rows_of(own))
    everything = Counter(epoch_rows(ranks(source, world, **layout, batch_size=batch_size, remainder="uneven")))
    if remainder == "pad":
        assert set(rows) == set(everything)
    else:
        assert not rows - everything
        assert all(len(batch) == batch_size for own in batches for batch in own)


def test_what_is_repeated_and_what_is_left_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    source = MemorySource([[[7] * 10], [[7] * 10]])
    with caplog.at_level(logging.WARNING):
        for loader in ranks(source, 3, layout="concat", granularity="row", batch_size=2):
            list(loader)
        for loader in ranks(source, 3, layout="concat", granularity="row", batch_size=2, remainder="drop"):
            list(loader)
    said = [record.getMessage() for record in caplog.records if "epoch" in record.getMessage()]
    assert said[0].startswith("epoch 0: 1 rows are repeated, so that all 3 ranks take the same number of steps")
    assert said[1:] == ["epoch 0: 2 of 20 rows are left out, so that all 3 ranks take the same number of full batches"]


def test_epochs_differ_and_do_not_depend_on_those_before() -> None:
    source = MemorySource([[[5] * 6, [4] * 7], [[6] * 5, [3] * 8], [[9] * 4]])
    (loader,) = ranks(source, 1)
    epochs = [rows_of(loader) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    (fresh,) = ranks(source, 1)
    fresh.reset_epoch(2)
    assert rows_of(fresh) == epochs[2]
    fresh.reset_epoch(0)
    assert rows_of(fresh) == epochs[0]
    assert [fresh.current_epoch, fresh.is_epoch_exhausted] == [0, True]


def test_ranks_keep_their_files_in_every_epoch() -> None:
    source = MemorySource([[[5] * 6] for _ in range(6)])
    for loader in ranks(source, 2):
        first = {token for row in rows_of(loader) for token in row[:7]} - {PAD}
        second = {token for row in rows_of(loader) for token in row[:7]} - {PAD}
        assert first == second
        assert loader.my_files == tuple(
            f"f{number:03}" for number in range(6) if number % 2 == loader._data_rank().rank
        )


# -- the surface -------------------------------------------------------------------------------------------------------


def test_next_batches_are_the_epoch_in_as_many_parts_as_files() -> None:
    source = MemorySource([[[7] * 30] for _ in range(4)])
    for shuffle in (False, True):
        (loader,) = ranks(source, 1, shuffle=shuffle, batch_size=3)
        (whole,) = ranks(source, 1, shuffle=shuffle, batch_size=3)
        parts = []
        assert loader.num_files == loader.total_files == 4
        while (batches := loader.next_batches()) is not None:
            parts.append(batches)
            assert loader.current_file_index == len(parts)
            assert loader.is_epoch_exhausted == (len(parts) == 4)
        assert len(parts) == 4
        assert rows_of(batch for part in parts for batch in part) == rows_of(whole)
        assert loader.next_batches() is None
        assert (loader.current_epoch, loader.current_file_index) == (0, 4)
        if not shuffle:  # a file has 210 tokens, which are 30 rows
            assert [len(part) for part in parts] == [10] * 4
        loader.reset_epoch(1)
        assert (loader.current_epoch, loader.current_file_index, loader.is_epoch_exhausted) == (1, 0, False)
        assert loader.next_batches() is not None


def test_resume_from_a_file_delivers_what_next_batches_would() -> None:
    source = MemorySource([[[7] * 30] for _ in range(4)])
    (loader,) = ranks(source, 1, batch_size=3)
    parts = [rows_of(loader.next_batches() or []) for _ in range(4)]
    for index in range(5):
        (fresh,) = ranks(source, 1, batch_size=3)
        fresh.resume_from(index)
        assert fresh.current_file_index == index
        assert fresh.current_epoch == 0
        found = []
        while (batches := fresh.next_batches()) is not None:
            found.append(rows_of(batches))
        assert found == parts[index:]
        assert fresh.is_epoch_exhausted
    fresh.resume_from(100)
    assert fresh.current_file_index == 4
    assert fresh.next_batches() is None
    assert rows_of(fresh) != []  # iterating begins the next epoch
    assert fresh.current_epoch == 1


def test_a_state_says_what_differs() -> None:
    source = MemorySource([[[7] * 10], [[7] * 10]])
    (loader,) = ranks(source, 1)
    state = loader.state_dict()
    for options, said in (
        ({"seq_len": 8}, "seq_len was 7 and is 8"),
        ({"eos_id": EOS}, "eos_id was None and is 1"),
        ({"layout": "pack"}, "layout was 'concat' and is 'pack'"),
        ({"shuffle": False}, "seed was 5 and is None"),
        ({"pad_id": None}, "partial was True and is False"),
    ):
        (other,) = ranks(source, 1, **options)
        with pytest.raises(StateError, match=said):
            other.load_state_dict(state)
    (other,) = ranks(MemorySource([[[7] * 10], [[6] * 10]]), 1)
    with pytest.raises(StateError, match="another dataset"):
        other.load_state_dict(state)
    state["position"], state["terms"] = 1000, [1, 0, 0]
    with pytest.raises(StateError, match="beyond the epoch"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("options", [{}, {"layout": "pack"}, {"read": ReadOptions(read_threads=3)}, {"shuffle": False}])
def test_a_rank_reads_each_of_its_groups_once_an_epoch_and_fetches_it_before(options: dict[str, Any]) -> None:
    files = [[[5] * 20, [6] * 15] for _ in range(6)]
    for rank in range(2):
        source = MemorySource(files)
        loader = ranks(source, 2, shuffle_tokens=1, **options)[rank]
        source.fetched.clear()  # to count packed rows, all are read
        source.reads.clear()
        list(loader)
        assert len(source.reads) == len(set(source.reads)) == 6
        assert set(source.fetched) == set(source.reads)
        assert len(set(source.fetched[:6])) > 1  # ahead of what is read


def test_a_rank_fetches_nothing_that_another_reads_alone() -> None:
    """Where rows are shared out, a rank stops fetching where its run ends."""
    source = MemorySource([[[7] * 20 for _ in range(16)]])
    loader = ranks(source, 4, granularity="row", shuffle_tokens=1)[1]
    list(loader)
    assert set(source.fetched) == set(source.reads)
    assert len(source.reads) in (4, 5)


def test_groups_are_read_once_also_where_another_world_continues() -> None:
    files = [[[7] * 20 for _ in range(4)] for _ in range(4)]
    begun = ranks(MemorySource(files), 4, shuffle_tokens=1)
    for loader in begun:
        list(itertools.islice(loader, 3))
    source = MemorySource(files)
    resumed = ranks(source, 1, shuffle_tokens=1)[0]
    resumed.load_state_dict(begun[0].state_dict())
    list(resumed)
    assert len(source.reads) == len(set(source.reads)) == 16
    assert set(source.fetched) == set(source.reads)


def test_arguments_that_make_no_sense_are_refused() -> None:
    source = MemorySource([[[5]]])
    for options in (
        {"layout": "best"},
        {"granularity": "token"},
        {"read": ReadOptions(read_threads=0)},
        {"too_long": "drop"},
        {"batch_size": 0},
        {"seq_len": 0},
        {"seed": 3},
        {"layout": "pack", "pad_id": None},
    ):
        with pytest.raises(ConfigError):
            ranks(source, 1, **options)
    for option, said in (
        ({"decode_threads": 2}, r"it is read=ReadOptions\(read_threads=...\)"),
        ({"on_bad_files": "skip"}, r'it is format_options=\{"on_bad_files": "skip"\}'),
        ({"format_options": {"on_bad_files": "ignore"}}, "on_bad_files must be 'error' or 'skip'"),
        ({"format_options": {"filters": []}}, "format_options 'filters' is unknown"),
        ({"read": ReadOptions(views=True)}, r"ReadOptions\(views=\) has no meaning for tokens"),
        ({"column": "tokens"}, "column= is for Parquet files, and has no meaning for MemorySource"),
        ({"cache_limit": "1gb"}, "cache_limit= is for Parquet files"),
        ({"read": ReadOptions(cache="memory")}, "cache= is for Parquet files"),
    ):
        with pytest.raises(ConfigError, match=said):
            ranks(source, 1, **option)
    with pytest.raises(ConfigError, match="rank 2 is not in a world of 2"):
        ShardConfig(2, 2)
    with pytest.raises(ConfigError):
        StreamingParquetLoader(3, ShardConfig.single())  # type: ignore[arg-type]

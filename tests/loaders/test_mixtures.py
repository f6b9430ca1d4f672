"""Several streams in one dataset as users meet them: weights, batching, curricula, subsets, partitions, meshes, states."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any, Final

import pytest

from stoker import (
    HashSplit,
    KeepIds,
    MDSWriter,
    Mesh,
    Schedule,
    SkipIds,
    Stream,
    StreamingDataset,
    Where,
    World,
    train_validation_split,
)
from stoker.errors import ConfigError, StateError
from stoker.partitions import Contiguous, HashBased, RangeBased, RoundRobin, Stratified
from stoker.writers import CSVWriter, JSONWriter

Ids = list[int]
Weights = dict[str, dict[str, Any]]

STREAMS: Final[dict[str, tuple[Any, int, int]]] = {
    "web": (MDSWriter, 0, 300),
    "books": (JSONWriter, 1000, 120),
    "notes": (CSVWriter, 2000, 81),
}
"""Writer, first id and number of samples of each stream."""


def sample_of(number: int) -> dict[str, Any]:
    return {"id": number, "label": number % 3, "user": f"user {number % 17}", "word": f"word {number}"}


def write(root: Path, name: str, count: int | None = None) -> None:
    """Write one of the streams, or only its first samples."""
    writer, first, most = STREAMS[name]
    columns = {"id": "int", "label": "int", "user": "str", "word": "str"}
    with writer(columns=columns, out=str(root / name), size_limit=1200) as out:
        for number in range(first, first + (count or most)):
            out.write(sample_of(number))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixture")
    for name in STREAMS:
        write(root, name)
    return root


def streams_of(data: Path, weights: Weights | None = None) -> list[Stream]:
    """The streams by name, each with its arguments; default: all of each."""
    return [Stream(local=data / name, **options) for name, options in (weights or WEIGHTS["plain"]).items()]


def stream_of(number: int) -> str:
    """Name of the stream that a sample is of."""
    return ("web", "books", "notes")[number // 1000]


def ids_of_stream(name: str) -> range:
    _, first, count = STREAMS[name]
    return range(first, first + count)


EVERYTHING: Final = [number for name in STREAMS for number in ids_of_stream(name)]


def check(batch: dict[str, Any]) -> Ids:
    """Compare a batch's samples with what their ids say; returns the ids."""
    ids: Ids = [int(number) for number in batch["id"]]
    for name in ("label", "user", "word"):
        assert list(batch[name]) == [sample_of(number)[name] for number in ids]
    return ids


def read(dataset: StreamingDataset, batches: int | None = None) -> list[Ids]:
    """The batches of the next epoch, or its first ones."""
    return [check(batch) for batch in islice(dataset.batches(), batches)]


def flat(batches: Sequence[Ids]) -> Ids:
    return [number for batch in batches for number in batch]


def world_of(make: Callable[[World], StreamingDataset], ranks: int, local: int = 1) -> list[list[Ids]]:
    """An epoch of each rank."""
    return [read(make(World(rank, ranks, local))) for rank in range(ranks)]


WEIGHTS: Final[dict[str, Weights]] = {
    "plain": {"web": {}, "books": {}, "notes": {}},
    "proportion": {"web": {"proportion": 1}, "books": {"proportion": 2}, "notes": {"proportion": 1}},
    "repeat and choose": {"web": {"repeat": 0.5}, "books": {"repeat": 2.1}, "notes": {"choose": 90}},
}
COUNTS: Final = {
    "plain": {"web": 300, "books": 120, "notes": 81},
    "proportion": {"web": 125, "books": 250, "notes": 125},
    "repeat and choose": {"web": 150, "books": 252, "notes": 90},
}
METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["balanced", "fixed"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_epoch_has_of_each_stream_what_its_weight_says(data: Path, weights: str, sampling: str) -> None:
    dataset = StreamingDataset(
        streams=streams_of(data, WEIGHTS[weights]),
        epoch_size=500 if weights == "proportion" else None,
        shuffle=True,
        batch_size=32,
        sampling_method=sampling,
    )
    assert dataset.stream_names == ("web", "books", "notes")
    assert len(dataset) == dataset.epoch_size == sum(COUNTS[weights].values())
    epochs = [Counter(flat(read(dataset))) for _ in range(3)]
    seen: Counter[int] = Counter()
    for number, epoch in enumerate(epochs, 1):
        assert Counter(map(stream_of, epoch.elements())) == COUNTS[weights]
        seen += epoch
        for name, count in COUNTS[weights].items():
            times = {(seen if sampling == "balanced" else epoch)[sample] for sample in ids_of_stream(name)}
            total = count * (number if sampling == "balanced" else 1)
            least, more = divmod(total, len(ids_of_stream(name)))
            assert times == ({least, least + 1} if more else {least})
    assert (epochs[0] == epochs[1]) == (sampling == "fixed" or weights == "plain")


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_mixed_as_the_method_says(data: Path, method: str) -> None:
    def make(world: World) -> StreamingDataset:
        return StreamingDataset(
            streams=streams_of(data),
            shuffle=True,
            batch_size=10,
            batching_method=method,
            world=world,
            remainder="uneven",
        )

    ranks = world_of(make, 3)
    assert sorted(flat([flat(rank) for rank in ranks])) == EVERYTHING
    steps = [[part for part in parts if part] for parts in zip_longest(*ranks)]
    kinds = [[set(map(stream_of, part)) for part in parts] for parts in steps]
    if method == "device_per_stream":
        assert all(len(kind) == 1 for parts in kinds[:13] for kind in parts)
    if method == "per_stream":
        assert all(len(set.union(*parts)) == 1 for parts in kinds[:13])
        assert [set.union(*parts) for parts in kinds[:13]].count({"web"}) in (9, 10)
    if method == "stratified":
        for parts in steps[:16]:
            counts = Counter(stream_of(number) for part in parts for number in part)
            assert all(abs(counts[name] - 30 * COUNTS["plain"][name] / 501) < 3 for name in STREAMS)
    if method == "random":
        assert any(len(kind) > 1 for parts in kinds[:5] for kind in parts)


def test_streams_without_a_common_weight_are_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="give every stream a proportion, or none"):
        StreamingDataset(streams=streams_of(data, {"web": {"proportion": 1}, "books": {}}))
    with pytest.raises(ConfigError, match="epoch_size= needs proportion="):
        StreamingDataset(streams=streams_of(data, {"web": {"repeat": 2}, "books": {}}), epoch_size=100)
    with pytest.raises(ConfigError, match="one of proportion, repeat and choose, not repeat and choose"):
        Stream(local=data / "web", repeat=1, choose=4)


# -- a curriculum ------------------------------------------------------------------------------------------------------


def curriculum(data: Path, **options: Any) -> StreamingDataset:
    """Weights that go over from one stream to another, in the middle of epochs."""
    schedule = Schedule.parse(
        {
            0: {"web": 1, "books": 0, "notes": 0},
            150: {"web": 1, "books": 1, "notes": 0},
            "2.5ep": {"web": 0, "books": 1, "notes": 3},
        },
    )
    return StreamingDataset(
        streams=streams_of(data), sampling_method=schedule, epoch_size=200, shuffle=True, batch_size=10, **options
    )


@pytest.mark.parametrize("method", ["random", "stratified"])
def test_a_curriculum_changes_weights_when_it_says_whatever_is_resumed(data: Path, method: str) -> None:
    dataset = curriculum(data, batching_method=method)
    epochs = [read(dataset) for _ in range(5)]
    line = flat([flat(epoch) for epoch in epochs])
    for first, last, shares in (
        (0, 150, {"web": 1.0}),
        (150, 500, {"web": 0.5, "books": 0.5}),
        (500, 700, {"books": 0.25, "notes": 0.75}),
        (700, 900, {"books": 0.25, "notes": 0.75}),
    ):
        counts = Counter(map(stream_of, line[first:last]))
        assert counts == {name: round((last - first) * share) for name, share in shares.items()}
    # No sample of a stream twice before all came once: notes have 81, of which the first two periods take 300.
    notes = Counter(number for number in line[:700] if stream_of(number) == "notes")
    assert set(notes.values()) <= {1, 2}
    for stop in (3, 7, 18, 20):
        stopped = curriculum(data, batching_method=method)
        for epoch in range(3):
            kept = read(stopped, stop if epoch == 2 else None)
        # On two ranks, from the middle of a phase, with the same global batches.
        state = json.loads(json.dumps(stopped.state_dict()))
        parts = []
        for rank in range(2):
            resumed = curriculum(data, batching_method=method, world=World(rank, 2))
            resumed.load_state_dict(state)
            resumed.batch_size = 5
            parts.append(read(resumed) + read(resumed) if stop < 20 else read(resumed))
        rest = [sorted(first + second) for first, second in zip(*parts, strict=True)]
        assert rest == [sorted(batch) for batch in epochs[2][stop:] + epochs[3]]
        assert kept == epochs[2][:stop]


# -- subsets -----------------------------------------------------------------------------------------------------------


def test_train_and_validation_are_disjoint_and_complete_over_several_streams(data: Path) -> None:
    train, validation = train_validation_split(0.2, seed=4)
    parts = [
        flat(read(StreamingDataset(streams=streams_of(data), subset=subset, shuffle=True, batch_size=16)))
        for subset in (train, validation)
    ]
    assert sorted(parts[0] + parts[1]) == EVERYTHING
    for name in STREAMS:
        held_out = sum(stream_of(number) == name for number in parts[1])
        assert abs(held_out - 0.2 * len(ids_of_stream(name))) <= 1


def test_subsets_of_all_streams_and_of_one_hold_together(data: Path) -> None:
    # Ids of a dataset count through its streams; those of a stream through the stream.
    streams = [
        Stream(local=data / "web", subset=[HashSplit(0, 0.5), Where("label", "!=", 1)]),
        Stream(local=data / "books", subset=SkipIds([0, 119])),
        Stream(local=data / "notes"),
    ]
    kept = [*range(300), *range(300, 420, 2), *range(420, 501)]
    dataset = StreamingDataset(
        streams=streams, subset=[KeepIds(kept), SkipIds([1, 301, 302, 500]), Where("user", "<", "user 5")], batch_size=7
    )
    half = set(flat(read(StreamingDataset(local=data / "web", subset=HashSplit(0, 0.5), batch_size=9))))
    expected = [number for number in range(300) if number in half and number % 3 != 1 and number != 1]
    expected += [1000 + row for row in range(0, 120, 2) if row not in (0, 2, 119)]
    expected += [2000 + row for row in range(80)]
    expected = [number for number in expected if f"user {number % 17}" < "user 5"]
    assert 100 < len(expected) == dataset.epoch_size
    for _ in range(2):
        assert sorted(flat(read(dataset))) == expected


def test_an_id_that_no_stream_has_is_refused(data: Path) -> None:
    for subset in (KeepIds([3, 501]), SkipIds([501])):
        with pytest.raises(ConfigError, match="id 501 is not in this dataset, which has 501 samples"):
            StreamingDataset(streams=streams_of(data), subset=subset)


def test_a_subset_without_samples_names_its_stream(data: Path) -> None:
    with pytest.raises(ConfigError, match="stream 'notes' has no samples"):
        StreamingDataset(streams=streams_of(data, {"web": {}, "notes": {"subset": Where("label", ">", 7)}}))


# -- partitions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partition",
    [
        RoundRobin(),
        Contiguous(),
        HashBased(12),
        HashBased(64, 2, "user"),
        Stratified("label"),
        Stratified("label", num_classes=3),
    ],
)
def test_parts_of_several_streams_are_disjoint_and_complete_and_stay_with_their_rank(
    data: Path, partition: Any
) -> None:
    datasets = [
        StreamingDataset(
            streams=streams_of(data),
            partition_algo=partition,
            shuffle=True,
            batch_size=8,
            world=World(rank, 3),
            remainder="uneven",
        )
        for rank in range(3)
    ]
    first, second = ([flat(read(dataset)) for dataset in datasets] for _ in range(2))
    assert sorted(flat(first)) == EVERYTHING
    assert [set(part) for part in first] == [set(part) for part in second]
    assert first != second
    if partition.name == "stratified":
        for name, label in product(STREAMS, range(3)):
            counts = [sum(stream_of(n) == name and n % 3 == label for n in part) for part in first]
            assert max(counts) - min(counts) <= 1
    if partition.column == "user":
        # The same user is of the same rank in every stream.
        users = [{number % 17 for number in part} for part in first]
        assert sum(map(len, users)) == len(set.union(*users)) == 17


def test_ranges_are_of_one_stream(data: Path) -> None:
    def make(world: World) -> StreamingDataset:
        partition = RangeBased([(0, 10), (10, 200), (200, 300)])
        return StreamingDataset(
            local=data / "web", partition_algo=partition, batch_size=4, world=world, remainder="uneven"
        )

    assert [sorted(flat(rank)) for rank in world_of(make, 2)] == [[*range(10), *range(200, 300)], [*range(10, 200)]]


def test_a_padded_part_says_how_many_samples_come_twice(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make(world: World) -> StreamingDataset:
        return StreamingDataset(
            local=data / "web", partition_algo=RangeBased([(0, 10), (10, 300)]), batch_size=4, world=world
        )

    ranks = world_of(make, 2)
    assert len(ranks[0]) == len(ranks[1])
    assert set(flat(ranks[0])) == set(range(10))
    assert f"{len(flat(ranks[0])) + len(flat(ranks[1])) - 300} samples are repeated" in caplog.text


def test_an_epoch_of_parts_is_finished_in_another_world(data: Path) -> None:
    def make(world: World) -> StreamingDataset:
        return StreamingDataset(
            streams=streams_of(data), partition_algo=Stratified("label"), shuffle=True, batch_size=6, world=world
        )

    begun = [make(World(rank, 4)) for rank in range(4)]
    seen = [flat(read(dataset, 9)) for dataset in begun]
    state = json.loads(json.dumps(begun[0].state_dict()))
    for world in (3, 4):
        resumed = [make(World(rank, world)) for rank in range(world)]
        for dataset in resumed:
            dataset.load_state_dict(state)
        rest = [flat(read(dataset)) for dataset in resumed]
        assert sorted(set(flat(seen) + flat(rest))) == EVERYTHING
        assert len(flat(seen)) + len(flat(rest)) <= len(EVERYTHING) + world
        # The epoch after it is divided for the new world.
        following = [flat(read(dataset)) for dataset in resumed]
        assert sorted(set(flat(following))) == EVERYTHING


# -- ranks that read the same ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["elastic", "round_robin", RoundRobin()])
def test_ranks_that_share_read_the_same_and_others_other_samples(data: Path, partition: Any) -> None:
    def replicated(world: World) -> StreamingDataset:
        return StreamingDataset(
            streams=streams_of(data), replication=2, shuffle=True, batch_size=5, world=world, partition_algo=partition
        )

    def meshed(world: World) -> StreamingDataset:
        mesh = Mesh({"pp": 2, "dp": 3, "tp": 2})
        return StreamingDataset(
            streams=streams_of(data),
            replication=mesh,
            shuffle=True,
            batch_size=5,
            world=world,
            partition_algo=partition,
        )

    def alone(world: World) -> StreamingDataset:
        return StreamingDataset(
            streams=streams_of(data), shuffle=True, batch_size=5, world=world, partition_algo=partition
        )

    three = world_of(alone, 3)
    six = world_of(replicated, 6, 2)
    assert six == [three[rank // 2] for rank in range(6)]
    twelve = world_of(meshed, 12, 4)
    assert twelve == [three[rank // 2 % 3] for rank in range(12)]
    # A state of one is one of the others.
    stopped = meshed(World(11, 12, 4))
    before = read(stopped, 4)
    resumed = replicated(World(5, 6, 2))
    resumed.load_state_dict(stopped.state_dict())
    assert before + read(resumed) == three[2]


# -- states ------------------------------------------------------------------------------------------------------------


def mixture(data: Path, weights: Weights, **options: Any) -> StreamingDataset:
    return StreamingDataset(
        **{"streams": streams_of(data, weights), "shuffle": True, "batch_size": 10, "num_canonical_nodes": 2, **options}
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weights", ["plain", "repeat and choose"])
def test_a_mixture_continues_in_mid_epoch_on_another_world(data: Path, weights: str, method: str) -> None:
    options: dict[str, Any] = {"batching_method": method, "remainder": "uneven"}
    whole = [
        sorted(flat([flat(read(d)) for d in datasets]))
        for datasets in [[mixture(data, WEIGHTS[weights], **options, world=World(rank, 2)) for rank in range(2)]] * 2
    ]
    run = [mixture(data, WEIGHTS[weights], **options, world=World(rank, 2)) for rank in range(2)]
    seen = flat([flat(read(dataset, 7)) for dataset in run])
    for world, batch in (
        (4, 10 if method == "device_per_stream" else 5),
        (1, 10 if method == "device_per_stream" else 20),
    ):
        state = json.loads(json.dumps(run[0].state_dict()))
        run = [
            mixture(data, WEIGHTS[weights], **options, world=World(r, world), batch_size=batch) for r in range(world)
        ]
        for dataset in run:
            dataset.load_state_dict(state)
        # Sample by sample, and as columns.
        taken = [list(islice(dataset, 3 * batch)) for dataset in run] if world == 4 else []
        seen += [sample["id"] for samples in taken for sample in samples]
        seen += flat([flat(read(dataset)) for dataset in run]) if not taken else []
    assert sorted(seen) == whole[0]
    following = flat([flat(read(dataset)) for dataset in run])
    assert sorted(following) == whole[1]


CHANGES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "added": ({"weights": WEIGHTS["plain"]}, "stream 'notes' is new"),
    "removed": ({"weights": {"web": {}}}, "stream 'books' is gone"),
    "renamed": (
        {"weights": {"web": {}, "books": {"name": "novels"}}},
        "stream 'books' is gone; stream 'novels' is new",
    ),
    "reweighted": ({"weights": {"web": {"repeat": 2}, "books": {}}}, r"web\.choose was 300 and is 600"),
    "reordered": (
        {"weights": {"books": {}, "web": {}}},
        "the streams were listed as web, books and are listed as books, web",
    ),
    "subset": ({"subset": SkipIds([7])}, r"web\.subset was None and is \[\{'skip': 1"),
    "partition": ({"partition_algo": RoundRobin()}, r"partition\.name was 'elastic' and is 'round_robin'"),
    "seed": ({"shuffle_seed": 5}, "seed was 9176 and is 5"),
    "shuffle": ({"shuffle_algo": "global"}, "shuffle was 'block' and is 'global'"),
    "block size": ({"shuffle_block_size": 99}, r"books\.block_size was \d+ and is 99"),
    "batching": ({"batching_method": "stratified"}, "batching_method was 'random' and is 'stratified'"),
    "sampling": ({"sampling_method": "fixed"}, "sampling_method was None and is 'fixed'"),
    "canonical nodes": ({"num_canonical_nodes": 3}, "num_canonical_nodes was 2 and is 3"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_says_exactly_what_differs(data: Path, change: str) -> None:
    two: Weights = {"web": {}, "books": {}}
    stopped = mixture(data, two)
    read(stopped, 5)
    state = json.loads(json.dumps(stopped.state_dict(), sort_keys=True))
    mixture(data, two).load_state_dict(state)
    options, message = CHANGES[change]
    options = {"weights": two, **options}
    with pytest.raises(StateError, match=message) as caught:
        mixture(data, **options).load_state_dict(state)
    assert str(caught.value).startswith("this state does not match the data or order of this run: ")
    assert ("change_streams=True" in str(caught.value)) == (
        change in ("added", "removed", "renamed", "reweighted", "subset", "block size")
    )


def test_other_data_under_the_same_name_is_said(data: Path, tmp_path: Path) -> None:
    stopped = mixture(data, WEIGHTS["plain"])
    read(stopped, 5)
    for name in STREAMS:
        write(tmp_path, name, 50 if name == "notes" else None)
    with pytest.raises(StateError, match="stream 'notes' belongs to another dataset") as caught:
        mixture(tmp_path, WEIGHTS["plain"]).load_state_dict(stopped.state_dict())
    assert "web" not in str(caught.value)


# -- other streams than before -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["elastic", RoundRobin(), Stratified("label")])
def test_a_run_continues_with_other_streams_where_each_was(
    data: Path, partition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before: Weights = {"web": {"repeat": 0.31}, "books": {"choose": 50}}
    after: Weights = {"web": {"repeat": 0.2}, "notes": {"choose": 30}}

    def world(weights: Weights) -> list[StreamingDataset]:
        return [mixture(data, weights, world=World(rank, 2), partition_algo=partition) for rank in range(2)]

    stopped = world(before)
    seen = [flat([flat(read(dataset)) for dataset in stopped]) for _ in range(2)]
    inside = partition == "elastic"  # the others give each rank samples of its own
    seen.append(flat([flat(read(dataset, 3 if inside else None)) for dataset in stopped]))
    web = [number for epoch in seen for number in epoch if stream_of(number) == "web"]
    state = json.loads(json.dumps(stopped[0].state_dict()))
    with pytest.raises(StateError, match=r"call load_state_dict\(state, change_streams=True\) to change streams"):
        world(after)[0].load_state_dict(state)
    resumed = world(after)
    with caplog.at_level(logging.WARNING):
        for dataset in resumed:
            dataset.load_state_dict(state, change_streams=True)
    goes = "epoch 2 continues at position 60" if inside else "epoch 3 begins"
    assert f"{goes}; web continue where they were, notes begins" in caplog.text
    assert len(resumed[0]) > 0
    assert resumed[0].next_epoch == (2 if inside else 3)
    first = [flat([flat(read(dataset)) for dataset in resumed])]
    now = [number for number in first[0] if stream_of(number) == "web"]
    if inside:
        # What was left of the pass that was begun comes before the next one.
        assert len(now) == 20
        assert len(set(web + now)) == len(web) + len(now)
    # The new run can be stopped and gone on with, too, in another world, as the run that it is.
    whole = [flat([flat(read(dataset)) for dataset in resumed]) for _ in range(2)]
    again = world(after)
    for dataset in again:
        dataset.load_state_dict(state, change_streams=True)
    assert [flat([flat(read(dataset)) for dataset in again])] == first
    part = flat([flat(read(dataset, 2)) for dataset in again])
    second = json.loads(json.dumps(again[0].state_dict()))
    assert second["origin"]["epoch"] == (2 if inside else 3)
    alone = mixture(data, after, partition_algo=partition)
    alone.load_state_dict(second)
    assert Counter(part + flat(read(alone))) == Counter(whole[0])
    if partition == "elastic":
        assert Counter(flat(read(alone))) == Counter(whole[1])
    # A run that never changed is another.
    with pytest.raises(StateError, match="is gone"):
        mixture(data, before).load_state_dict(second)


def test_no_sample_comes_twice_before_all_came_once_although_streams_are_changed_twice(data: Path) -> None:
    plans: list[Weights] = [
        {"web": {"choose": 70}, "books": {}},
        {"web": {"choose": 100}, "notes": {}},
        {"web": {"choose": 40}},
    ]
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for weights, epochs in zip(plans, (2, 1, 3), strict=True):
        dataset = mixture(data, weights)
        if state is not None:
            dataset.load_state_dict(state, change_streams=True)
        for _ in range(epochs):
            seen.update(flat(read(dataset)))
        state = json.loads(json.dumps(dataset.state_dict()))
    web = Counter({number: count for number, count in seen.items() if stream_of(number) == "web"})
    assert web.total() == 360
    assert set(web.values()) == {1, 2}
    assert list(web.values()).count(2) == 60
    assert state is not None
    assert {**state["origin"], "away": [one["name"] for one in state["origin"]["away"]]} == {
        "epoch": 3,
        "consumed": {"web": 240},
        "samples": 2 * 190 + 181,
        "away": ["books", "notes"],
    }


def test_a_stream_that_is_left_out_and_comes_back_continues_where_it_was(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when it is away for several changes, and through states that are only loaded in between."""
    plans: list[Weights] = [
        {"web": {"choose": 90}, "books": {"choose": 50}},
        {"books": {"choose": 30}, "notes": {}},
        {"notes": {}, "books": {"choose": 30}},
        {"web": {"choose": 110}, "books": {"choose": 30}},
        {"web": {"choose": 100}, "notes": {}},
    ]
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for weights in plans:
        dataset = mixture(data, weights)
        if state is not None:
            dataset.load_state_dict(state, change_streams=True)
            fresh = mixture(data, weights)
            fresh.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
            dataset = fresh
        seen += flat(read(dataset))
        state = json.loads(json.dumps(dataset.state_dict()))
    web = [number for number in seen if stream_of(number) == "web"]
    assert len(web) == 300
    assert sorted(web) == list(ids_of_stream("web"))
    assert "books, web continue where they were" in caplog.text
    assert state is not None
    assert [one["name"] for one in state["origin"]["away"]] == ["books"]


@pytest.mark.parametrize("plans", [["ac", "bc"], ["ac", "a", "bc"], ["ac", "bac", "c"], ["cb", "b", "bc"]])
def test_a_stream_keeps_its_order_when_one_of_the_same_shape_comes_before_it_or_goes(
    tmp_path: Path, plans: list[str]
) -> None:
    for name, first in (("a", 0), ("b", 100), ("c", 200)):
        with MDSWriter({"x": "int"}, str(tmp_path / name), size_limit="200b") as out:
            out.write_batch({"x": list(range(first, first + 10))})
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for names in plans:
        streams = [Stream(local=str(tmp_path / name), name=name, choose=5) for name in names]
        dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=5)
        if state is not None:
            dataset.load_state_dict(state, change_streams=True)
        seen.update(int(x) for batch in dataset.batches() for x in batch["x"])
        state = json.loads(json.dumps(dataset.state_dict()))
        StreamingDataset(streams=streams, shuffle=True, batch_size=5).load_state_dict(state)
    for first in (0, 100, 200):
        counts = [seen[x] for x in range(first, first + 10)]
        assert sum(counts) % 5 == 0
        assert max(counts) - min(counts) <= 1, counts


def test_another_stream_of_the_name_of_one_that_is_away_begins(data: Path, tmp_path: Path) -> None:
    stopped = mixture(data, {"web": {"choose": 90}, "books": {}})
    read(stopped)
    without = mixture(data, {"books": {}, "notes": {}})
    without.load_state_dict(stopped.state_dict(), change_streams=True)
    state = without.state_dict()
    changed = mixture(data, {"web": {}, "books": {}}, subset=SkipIds([0]))
    with pytest.raises(StateError, match="how much of each stream was consumed"):
        changed.load_state_dict(
            {**state, "origin": {**state["origin"], "away": [{"name": "web"}]}}, change_streams=True
        )
    changed.load_state_dict(state, change_streams=True)
    assert "web" not in changed.state_dict()["origin"]["consumed"]
    # The web of before is still remembered.
    assert "web" in [one["name"] for one in changed.state_dict()["origin"]["away"]]


def test_ids_to_skip_are_a_streams_own_whatever_streams_come_before_it(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = mixture(data, {"web": {"choose": 100}, "books": {"choose": 40}}, subset=SkipIds([3, 305]))
    seen = Counter(flat(read(stopped)))
    weights: Weights = {"notes": {}, "web": {"choose": 199}, "books": {"choose": 79}}
    # The same samples, now that 81 others come before them.
    changed = mixture(data, weights, subset=SkipIds([84, 386]))
    changed.load_state_dict(stopped.state_dict(), change_streams=True)
    assert "books, web continue where they were, notes begins" in caplog.text
    seen.update(flat(read(changed)))
    assert seen == Counter(set(EVERYTHING) - {3, 1005})


def test_a_curriculum_may_be_changed_on_the_way(data: Path) -> None:
    run = curriculum(data)
    read(run)
    read(run, 4)
    schedule = Schedule.parse({0: {"web": 1, "books": 1}, 600: {"web": 0, "books": 1}})
    changed = StreamingDataset(
        streams=streams_of(data, {"web": {}, "books": {}}),
        sampling_method=schedule,
        epoch_size=100,
        shuffle=True,
        batch_size=10,
        num_canonical_nodes=run.order["num_canonical_nodes"],
    )
    changed.load_state_dict(run.state_dict(), change_streams=True)
    # 240 samples of training came before, 60 are left of an epoch of 100, and three more epochs come before the change.
    epochs = [Counter(map(stream_of, flat(read(changed)))) for _ in range(5)]
    assert sum(epochs[:4], Counter()) == {"web": 180, "books": 180}
    assert epochs[0].total() == 60
    assert epochs[4] == {"books": 100}


def test_a_stream_comes_at_most_so_often_whatever_is_resumed(data: Path) -> None:
    schedule = Schedule.parse({0: {"web": 1, "books": 1}}, most={"books": "150"})

    def ranks(count: int) -> list[StreamingDataset]:
        options: dict[str, Any] = {"sampling_method": schedule, "epoch_size": 200, "shuffle": True}
        return [
            StreamingDataset(
                streams=streams_of(data, {"web": {}, "books": {}}),
                batch_size=20 // count,
                world=World(rank, count),
                **options,
            )
            for rank in range(count)
        ]

    had: Counter[str] = Counter()
    run = ranks(1)
    for count in (2, 4, 1):
        had.update(stream_of(number) for rank in run for number in flat(read(rank, 3)))
        state = json.loads(json.dumps(run[0].state_dict()))
        run = ranks(count)
        for rank in run:
            rank.load_state_dict(state)
    assert had.total() == 180
    for _ in range(3):
        had.update(map(stream_of, flat(read(run[0]))))
    assert had == {"web": 450, "books": 150}


def test_a_schedule_that_was_the_same_so_far_is_taken(data: Path) -> None:
    def run(points: Any, interpolate: int = 0) -> StreamingDataset:
        return StreamingDataset(
            streams=streams_of(data, {"web": {}, "books": {}}),
            sampling_method=Schedule.parse(points, interpolate),
            epoch_size=120,
            shuffle=True,
            batch_size=10,
        )

    begun = {0: {"web": 3, "books": 1}, 100: {"web": 1, "books": 1}}
    stopped = run(begun)
    seen = flat(read(stopped)) + flat(read(stopped, 3))
    state = json.loads(json.dumps(stopped.state_dict()))
    later = run({**begun, 150: {"web": 0, "books": 1}})
    later.load_state_dict(state)
    rest = flat(read(later))
    assert Counter(map(stream_of, rest)) == {"books": 90}
    books = Counter(number for number in seen + rest if stream_of(number) == "books")
    assert books.total() > len(books) == 120  # all of the first pass before the next one
    for points, interpolate in (
        ({0: {"web": 2, "books": 1}, 100: {"web": 1, "books": 1}}, 0),
        ({**begun, 149: {"web": 0, "books": 1}}, 0),
        ({**begun, 300: {"web": 0, "books": 1}}, 20),
    ):
        with pytest.raises(StateError, match=r"schedule\.points"):
            run(points, interpolate).load_state_dict(state)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_weights_that_change_inside_an_epoch_lose_and_repeat_nothing(data: Path, method: str, nodes: int) -> None:
    """Each stream goes on where the run was, however often its weight changes, and it goes away and comes back."""
    draw = random.Random(f"{method} {nodes}")
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for _ in range(5):
        weights: Weights = {name: {"choose": draw.randint(30, 90)} for name in ("web", "books", "notes")}
        if draw.random() < 0.3:
            del weights[draw.choice(list(weights))]
        ranks = draw.choice((1, 2))
        world = [
            mixture(
                data,
                weights,
                world=World(rank, ranks),
                batching_method=method,
                num_canonical_nodes=nodes,
                batch_size=draw.choice((4, 6)) if ranks == 1 else 3,
                remainder="uneven",
            )
            for rank in range(ranks)
        ]
        if state is not None:
            for dataset in world:
                dataset.load_state_dict(state, change_streams=True)
                state_now = dataset.state_dict()
                dataset.load_state_dict(json.loads(json.dumps(state_now)))
        left = (world[0].order["epoch_size"] - world[0].state_dict()["position"]) // ranks
        taken = max(1, min(draw.randint(1, 26), left - 6))
        for dataset in world:
            seen.update(int(sample["id"]) for sample in itertools.islice(iter(dataset), taken))
        state = json.loads(json.dumps(world[0].state_dict()))
    for name in STREAMS:
        # Alone, a stream goes on with what was passed over: after whole passes all its samples have come equally often.
        alone = mixture(data, {name: {}}, num_canonical_nodes=nodes, batch_size=1)
        assert state is not None
        alone.load_state_dict(state, change_streams=True)
        ids = ids_of_stream(name)
        passes = sum(seen[number] for number in ids) // len(ids) + 2
        rest = itertools.chain.from_iterable(flat(read(alone)) for _ in range(4))
        seen.update(itertools.islice(rest, passes * len(ids) - sum(seen[number] for number in ids)))
        assert {seen[number] for number in ids} == {passes}


def test_more_than_the_streams_can_not_be_changed(data: Path) -> None:
    stopped = mixture(data, WEIGHTS["plain"])
    read(stopped, 2)
    for options in ({"shuffle_seed": 4}, {"num_canonical_nodes": 1}, {"batching_method": "per_stream"}):
        with pytest.raises(StateError, match=r"not the rest of the order: \w+ was .*Set that as it was"):
            mixture(data, {"web": {}, "books": {}}, **options).load_state_dict(
                stopped.state_dict(), change_streams=True
            )


# -- loader workers ----------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize(("workers", "start"), [(0, "fork"), (2, "fork"), (2, "spawn")])
def test_loader_workers_hand_out_what_one_process_does(data: Path, workers: int, start: str) -> None:
    torch_module = pytest.importorskip("stoker.loaders.dataloader")

    def loader(**options: Any) -> Any:
        dataset = StreamingDataset(
            streams=streams_of(data, WEIGHTS["repeat and choose"]),
            shuffle=True,
            batch_size=16,
            batching_method="stratified",
            partition_algo="elastic",
            subset=SkipIds([2, 400]),
            **options,
        )
        return torch_module.StreamingDataLoader(
            dataset, num_workers=workers, **({"multiprocessing_context": start} if workers else {})
        )

    alone = StreamingDataset(
        streams=streams_of(data, WEIGHTS["repeat and choose"]),
        shuffle=True,
        batch_size=16,
        batching_method="stratified",
        subset=SkipIds([2, 400]),
    )
    expected = [read(alone), read(alone)]
    running = loader()
    assert [check(batch) for batch in running] == expected[0]
    taken = [check(batch) for batch in islice(running, 5)]
    state = json.loads(json.dumps(running.state_dict()))
    assert state["position"] == 80
    resumed = loader()
    resumed.load_state_dict(state)
    assert taken + [check(batch) for batch in resumed] == expected[1]


@pytest.mark.processes
def test_loader_workers_own_parts_and_finish_them(data: Path) -> None:
    torch_module = pytest.importorskip("stoker.loaders.dataloader")

    def loader(rank: int, workers: int) -> Any:
        dataset = StreamingDataset(
            streams=streams_of(data),
            partition_algo=HashBased(64, 2, "user"),
            shuffle=True,
            batch_size=8,
            world=World(rank, 2),
            remainder="uneven",
        )
        return torch_module.StreamingDataLoader(dataset, num_workers=workers)

    taken, parts = [], []
    for rank in range(2):
        running = loader(rank, 2)
        taken.append([check(batch) for batch in islice(running, 6)])
        resumed = loader(rank, 0)
        resumed.load_state_dict(json.loads(json.dumps(running.state_dict())))
        parts.append(flat(taken[-1] + [check(batch) for batch in resumed]))
    assert sorted(flat(parts)) == EVERYTHING

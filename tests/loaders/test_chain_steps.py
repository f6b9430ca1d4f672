"""Steps that change columns or counts: the samples and their order are those of a plain reference, wherever a run resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain as chain_of
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stoker import (
    BadSamples,
    Chain,
    LMStream,
    ReadOptions,
    Stream,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.cluster import World
from stoker.errors import ConfigError, StateError, TransformError
from stoker.partitions import RoundRobin
from support import all_of, write_columns, write_samples

SAMPLES = 203
WORLDS = ((1, 24), (2, 12), (3, 8), (4, 6))
"""Ranks, and the batch size of each, of which the global batches are the same."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = (
        {"id": number, "x": np.full(2, number, np.float32), "text": f"t{number}", "doc": [number]}
        for number in range(SAMPLES)
    )
    return write_samples(tmp_path_factory.mktemp("steps") / "data", samples, size_limit=1500, hashes=[])


def opened(data: Path, ranks: int = 1, rank: int = 0, size: int = 24, **settings: Any) -> StreamingDataset:
    given: dict[str, Any] = {"shuffle": True, "batch_size": size, "world": World(rank, ranks, ranks)}
    return StreamingDataset(data, **(given | settings))


def number_of(sample: Any) -> int:
    return int(sample["id"])


def odd_ones(sample: dict[str, Any]) -> bool:
    return number_of(sample) % 3 != 1


def copies(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for turn in range(number_of(sample) % 4):
        yield {**sample, "turn": np.int64(turn)}


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": np.int64(rng.integers(1 << 40))}


def ids_of(batch: dict[str, Any]) -> list[int]:
    return [int(number) for number in batch.get("id", ())]


def given_instead(value: Any, _: Any) -> Any:
    return value


Reference = Callable[[list[int], list[int]], list[int]]


def left_out(ids: list[int], order: list[int]) -> list[int]:
    return [number for number in ids if number % 3 != 1]


def repeated(ids: list[int], order: list[int]) -> list[int]:
    return [number for number in ids for _ in range(number % 4)]


def repeated_of_left(ids: list[int], order: list[int]) -> list[int]:
    return repeated(left_out(ids, order), order)


def replaced(ids: list[int], order: list[int]) -> list[int]:
    def instead(number: int) -> int:
        at, step, distances = order.index(number), 1, []
        while step <= at:
            distances.append(step)
            step += max(1, step // 2)
        before = [order[at - one] for one in [*distances, *range(1, min(at, 1000) + 1)]]
        after, left, step = [], len(order) - 1 - at, 1
        while step <= left:
            after.append(order[at + step])
            step += max(1, step // 2)
        after += [order[at + one] for one in range(1, left + 1)]
        found: int = next(one for one in [*before, *after] if one % 3 != 1)
        return found

    return [number if number % 3 != 1 else instead(number) for number in ids]


CHAINS: dict[str, tuple[Chain, Reference]] = {
    "filter": (Chain().filter(odd_ones), left_out),
    "replace": (Chain().filter(odd_ones, dropped="replace"), replaced),
    "flat_map": (Chain().flat_map(copies), repeated),
    "both": (Chain().rename({"text": "t"}).filter(odd_ones).flat_map(copies).enumerate(), repeated_of_left),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("on_bad_sample", ["raise", "skip"])
def test_batches_are_those_of_a_reference_in_any_world_and_after_any_stop(
    data: Path, name: str, on_bad_sample: str
) -> None:
    chain, reference = CHAINS[name]
    plain = opened(data)
    steps = -(-SAMPLES // 24)
    order = [number for step in range(steps) for number in plain.ids_of(step).tolist()]
    chosen = random.Random(name)
    settings: dict[str, Any] = {"transform": chain, "on_bad_sample": on_bad_sample}
    for ranks, size in WORLDS:
        stop, threads = chosen.randrange(steps), chosen.choice((0, 2))
        read = ReadOptions(read_threads=threads)
        others, other_size = chosen.choice(WORLDS)
        delivered: list[list[list[int]]] = []
        for rank in range(ranks):
            dataset = opened(data, ranks, rank, size, read=read, **settings)
            delivered.append([ids_of(batch) for batch in islice(dataset.batches(), stop)])
            assert len(delivered[-1]) == stop
            if rank == 0:
                state = dataset.state_dict()
        rest: list[list[list[int]]] = []
        for rank in range(others):
            dataset = opened(data, others, rank, other_size, **settings)
            dataset.load_state_dict(state)
            rest.append([ids_of(batch) for batch in dataset.batches()])
        assert {len(one) for one in rest} == {steps - stop}
        found = [
            list(chain_of.from_iterable(parts)) for parts in [*zip(*delivered, strict=True), *zip(*rest, strict=True)]
        ]
        wanted = [reference(plain.ids_of(step).tolist(), order) for step in range(steps)]
        assert found == wanted, (ranks, stop, others)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("on_bad_sample", ["raise", "skip", "replace"])
def test_samples_one_by_one_are_those_of_a_reference(data: Path, name: str, threads: int, on_bad_sample: str) -> None:
    chain, reference = CHAINS[name]
    settings: dict[str, Any] = {"transform": chain, "on_bad_sample": on_bad_sample}
    order = [number for step in range(-(-SAMPLES // 24)) for number in opened(data).ids_of(step).tolist()]
    wanted = reference(order, order)
    dataset = opened(data, read=ReadOptions(read_threads=threads), **settings)
    assert [number_of(sample) for sample in dataset] == wanted
    assert dataset.stats().filtered == (0 if name == "flat_map" else sum(number % 3 == 1 for number in order))
    for _ in range(6):
        first = opened(data, read=ReadOptions(read_threads=threads), **settings)
        taken = random.Random(name).randrange(len(wanted))
        begun = [number_of(sample) for sample in islice(first, taken)]
        second = opened(data, **settings)
        if "flat" in repr(chain) and taken and taken < len(wanted) and wanted[taken] == wanted[taken - 1]:
            with pytest.raises(StateError, match="between samples that flat_map"):
                first.state_dict()
            continue
        second.load_state_dict(first.state_dict())
        assert begun + [number_of(sample) for sample in second] == wanted


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
def test_loaders_deliver_the_same_batches(data: Path, columnar: bool) -> None:
    for chain, reference in CHAINS.values():
        plain = opened(data)
        steps = -(-SAMPLES // 24)
        order = [number for step in range(steps) for number in plain.ids_of(step).tolist()]
        wanted = [reference(plain.ids_of(step).tolist(), order) for step in range(steps)]
        for workers in (0, 2):
            with StreamingDataLoader(opened(data, transform=chain), num_workers=workers, columnar=columnar) as loader:
                found = [ids_of(batch) for batch in islice(loader, 3)]
                state = loader.state_dict()
            with StreamingDataLoader(
                opened(data, transform=chain), num_workers=2 - workers, columnar=columnar
            ) as loader:
                loader.load_state_dict(state)
                found += [ids_of(batch) for batch in loader]
            assert found == wanted


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_function_that_can_not_be_sent_to_a_worker(data: Path) -> None:
    dataset = opened(data).filter(lambda sample: True, "local")
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    with (
        loader,
        pytest.raises(ConfigError, match=r"can not be sent to a worker .*: define functions at the top of a module"),
    ):
        next(iter(loader))


def test_bad_samples_between_filtered_ones(data: Path) -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if number_of(sample) % 5 == 0:
            raise ValueError("five")
        return sample

    order = [number for step in range(-(-SAMPLES // 24)) for number in opened(data).ids_of(step).tolist()]
    for threads in (0, 2):
        for chain in (
            Chain().map(fails).filter(odd_ones).flat_map(copies),
            Chain().filter(odd_ones).map(fails).flat_map(copies),
        ):
            settings: dict[str, Any] = {"transform": chain, "read": ReadOptions(read_threads=threads)}
            with pytest.raises(TransformError, match="five"):
                list(opened(data, **settings))
            dataset = opened(data, on_bad_sample=BadSamples("skip", max_share=None), **settings)
            wanted = repeated_of_left([number for number in order if number % 5], order)
            assert [number_of(sample) for sample in dataset] == wanted
            assert [one for batch in dataset.batches() for one in ids_of(batch)] != wanted  # another epoch
            bad = sum(number % 5 == 0 for number in order if chain.steps[0].kind == "map" or number % 3 != 1)
            assert dataset.stats().bad_samples == 2 * bad


def test_a_filter_that_keeps_little_is_replaced_or_refused(data: Path) -> None:
    rare = Chain().filter(lambda sample: number_of(sample) == 17, "rare", dropped="replace")
    assert {number_of(sample) for sample in opened(data, transform=rare)} == {17}
    assert [ids_of(batch) for batch in opened(data, transform=rare).batches()][-1] == [17] * (SAMPLES % 24)
    never = Chain().filter(lambda sample: False, "never", dropped="replace")
    for on_bad_sample in ("raise", "skip", "replace"):
        with pytest.raises(ConfigError, match="none is kept: use dropped='leave_out'"):
            list(opened(data, transform=never, on_bad_sample=on_bad_sample))
    nothing = opened(data).filter(lambda sample: False, "never")
    assert list(nothing) == []
    assert list(opened(data, transform=nothing.chain).batches()) == [{}] * 9
    with pytest.raises(TransformError, match="all 24 samples of a batch are bad or filtered"):
        list(StreamingDataLoader(opened(data, transform=nothing.chain)))
    documents = opened(data, size=4).filter(lambda sample: number_of(sample) > 190, "late")
    assert sum(batch.num_tokens for batch in LMStream(documents, "doc", batch_size=1, seq_len=2)) == 12


def test_random_numbers_of_samples_made_of_one(data: Path) -> None:
    chain = Chain().flat_map(copies).random_map(noise)

    def numbers(chain: Chain, **settings: Any) -> dict[tuple[int, int], int]:
        dataset = opened(data, transform=chain, **settings)
        return {(number_of(one), int(one["turn"])): int(one["noise"]) for one in dataset}

    whole = numbers(chain)
    assert len(set(whole.values())) == len(whole) == sum(number % 4 for number in range(SAMPLES))
    assert numbers(chain, shuffle=False, read=ReadOptions(read_threads=0)) == whole
    # Samples keep their numbers when others are filtered out.
    some = numbers(Chain().flat_map(copies).filter(lambda one: one["turn"] != 1, "some").random_map(noise))
    assert some == {key: number for key, number in whole.items() if key[1] != 1}
    first = {number_of(one): int(one["noise"]) for one in opened(data).random_map(noise)}
    assert all(first[number] == noise for (number, turn), noise in whole.items() if turn == 0)


def test_samples_made_of_one_are_changed_apart(data: Path) -> None:
    """Whichever dict a function gives: the same several times, or one that it changes between."""

    def numbered(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        sample["noise"] = np.int64(rng.integers(1 << 40))
        return sample

    def turned(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for turn in range(3):
            sample["turn"] = np.int64(turn)
            yield sample

    batch: dict[str, Any] = next(opened(data).flat_map(lambda one: [one] * 3, "thrice").random_map(numbered).batches())
    assert len(set(batch["noise"].tolist())) == len(batch["id"]) == 72
    turns: dict[str, Any] = next(opened(data).flat_map(turned).random_map(numbered, "numbered").batches())
    assert turns["turn"].tolist() == [0, 1, 2] * 24
    assert len(set(turns["noise"].tolist())) == 72


@pytest.mark.parametrize(
    ("batching", "same", "others"),
    [
        ("random", [(3, 8), (1, 20), (2, 6)], []),
        ("per_stream", [(3, 8), (2, 12)], [(1, 20), (2, 6)]),
        ("device_per_stream", [(2, 24), (3, 24)], [(3, 8), (1, 20)]),
    ],
)
def test_positions_depend_on_the_sizes_of_batches_of_one_stream_alone(
    tmp_path: Path, batching: str, same: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    for name, first in (("a", 0), ("b", 1000)):
        write_columns(tmp_path / name, {"id": np.arange(first, first + 120)}, size_limit=400)

    def positions(ranks: int, size: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for rank in range(ranks):
            streams = [Stream(local=tmp_path / name) for name in ("a", "b")]
            world: dict[str, Any] = {"world": World(rank, ranks, ranks), "batch_size": size, "remainder": "uneven"}
            dataset = StreamingDataset(streams=streams, shuffle=True, batching_method=batching, **world)
            for batch in dataset.enumerate("at").batches():
                found |= dict(zip(np.asarray(batch["at"]).tolist(), ids_of(batch), strict=True))
        return found

    expected = positions(1, 24)
    assert sorted(expected) == list(range(240))
    assert all(positions(*one) == expected for one in same)
    assert all(positions(*one) != expected for one in others)


def test_positions_are_those_of_the_epoch(data: Path) -> None:
    order = [number for step in range(-(-SAMPLES // 24)) for number in opened(data).ids_of(step).tolist()]
    for ranks, size in WORLDS:
        found: dict[int, int] = {}
        for rank in range(ranks):
            for batch in opened(data, ranks, rank, size).enumerate("at").select(["at", "id"]).batches():
                assert isinstance(batch["at"], np.ndarray)
                assert batch["at"].dtype == np.int64
                found |= dict(zip(batch["at"].tolist(), ids_of(batch), strict=True))
        assert [found[at] for at in range(SAMPLES)] == order
    first = opened(data).filter(odd_ones).enumerate()
    begun = [(number_of(one), int(one["position"])) for one in islice(first, 50)]
    second = opened(data, transform=first.chain)
    second.load_state_dict(first.state_dict())
    begun += [(number_of(one), int(one["position"])) for one in second]
    assert begun == [(number, at) for at, number in enumerate(order) if number % 3 != 1]
    with pytest.raises(ConfigError, match="positions that are the same on any cluster"):
        next(opened(data, partition_algo=RoundRobin()).enumerate().batches())
    # As the first step it is done with the reading, by a step of another name.
    with pytest.raises(ConfigError, match=r"without an epoch, and enumerate\('at'\) needs an epoch"):
        opened(data).enumerate("at").rename({"at": "place"})[3]
    with pytest.raises(ConfigError, match="samples by id come one for one"):
        _ = opened(data).enumerate()[3]


def test_columns_change_names_and_are_chosen_without_being_decoded(data: Path, tmp_path: Path) -> None:
    changed = opened(data).rename({"id": "number", "x": "id"}).select(["id", "number"])
    batch = next(changed.batches())
    assert list(batch) == ["id", "number"]
    assert np.asarray(batch["id"])[:, 0].tolist() == np.asarray(batch["number"]).tolist()
    sample = next(iter(opened(data, transform=changed.chain)))
    assert list(sample) == ["id", "number"]
    assert opened(data, transform=changed.chain)[5]["number"] == 5
    assert changed.epoch_reader.settings.stored == ("id", "x")
    swapped = opened(data).rename({"id": "x", "x": "id"})
    assert [len(column) for column in next(swapped.batches()).values()] == [24] * 4
    with StreamingDataLoader(opened(data, transform=changed.chain), columnar=True) as loader:
        assert list(next(iter(loader))) == ["id", "number"]
    assert StreamingShardLoader(opened(data, transform=changed.chain)).next().keys() == {"id", "number"}
    ids = opened(data, read=ReadOptions(ids="key")).rename({"key": "k"}).select(["k"])
    assert [one for batch in ids.batches() for one in np.asarray(batch["k"]).tolist()] == [
        one["k"] for one in opened(data, read=ReadOptions(ids="k"))
    ]
    # A column that does not decode is no matter where it is dropped.
    out = tmp_path / "damaged"
    write_columns(out, {"id": np.arange(9), "doc": [["here"]] * 9}, {"id": "int", "doc": "json"}, hashes=[])
    (shard,) = out.glob("*.mds")
    shard.write_bytes(shard.read_bytes().replace(b'["here"]', b'["here"}'))
    chosen = StreamingDataset(out, batch_size=3).rename({"doc": "d"}).select(["id"])
    assert [ids_of(batch) for batch in chosen.batches()] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [number_of(one) for one in chosen] == list(range(9))
    late = StreamingDataset(out, batch_size=3).map(lambda one: one, "needs all").select(["id"])
    with pytest.raises(Exception, match="column 'doc'"):
        next(late.batches())


@pytest.mark.processes
def test_a_function_of_whole_batches(data: Path) -> None:
    lengths: list[int] = []

    def halved(batch: dict[str, Any]) -> dict[str, Any]:
        lengths.append(len(batch["id"]))
        return {"id": batch["id"], "mean": np.full(len(batch["id"]), batch["x"].mean()), "text": batch["text"]}

    chain = Chain().filter(odd_ones).select(["id", "x", "text"]).batch_map(halved).rename({"mean": "m"})
    found = list(opened(data, transform=chain, read=ReadOptions(read_threads=0)).batches())
    assert [len(ids_of(batch)) for batch in found] == lengths
    for batch in found:
        assert list(batch) == ["id", "m", "text"]
        assert np.allclose(batch["m"], np.mean(ids_of(batch)))
    for columnar in (False, True):
        for workers in (0, 2):
            with StreamingDataLoader(opened(data, transform=chain), num_workers=workers, columnar=columnar) as loader:
                batches = list(loader)
            assert [batch["m"].tolist() for batch in batches] == [np.asarray(batch["m"]).tolist() for batch in found]
            assert [batch["text"] for batch in batches] == [batch["text"] for batch in found]
    # The function may change how many rows there are.
    first = opened(data).batch_map(lambda batch: {"id": batch["id"][:1]}, "first")
    assert [len(ids_of(batch)) for batch in first.batches()] == [1] * 9
    for read in (iter, lambda dataset: dataset[3]):
        with pytest.raises(ConfigError, match=r"batch_map\(\) needs batches|samples by id come one for one"):
            next(iter(read(opened(data, transform=chain))))
    with pytest.raises(ConfigError, match=r"nothing for collate_fn to collate: .*batch_map\(function\)"):
        StreamingDataLoader(opened(data, transform=chain), collate_fn=list)
    with pytest.raises(ConfigError, match=r"one that batch_map\(\) has changed"):
        StreamingDataLoader(opened(data, transform=Chain().batch_map(halved)), drop_last=True)
    for returned, message in (
        (None, "returned None"),
        ({}, "returned an empty dict"),
        ({"id": 3}, "'id': int"),
        ({"id": [1], "x": [1, 2]}, "of different lengths"),
    ):
        with pytest.raises(TransformError, match=message):
            next(opened(data).batch_map(partial(given_instead, returned), "odd").batches())
    with pytest.raises(TransformError, match=r"the batch that begins with .*row"):
        next(opened(data, on_bad_sample="skip").batch_map(lambda batch: {"y": batch["y"]}, "odd").batches())


@pytest.mark.processes
def test_what_may_leave_ranks_apart_is_refused(data: Path) -> None:
    for name in ("filter", "flat_map"):
        chain, _ = CHAINS[name]
        with pytest.raises(ConfigError, match=rf"{name}\(\) leaves ranks and workers"):
            next(iter(opened(data, 2, 0, 12, transform=chain)))
        with pytest.raises(ConfigError, match=rf"{name}\(\) leaves ranks and workers"):
            all_of(DataLoader(opened(data, transform=chain), batch_size=24, num_workers=1))
        with pytest.raises(ConfigError, match="drop_last=True can not tell"):
            StreamingDataLoader(opened(data, transform=chain), columnar=True, drop_last=True)
        with pytest.raises(ConfigError, match="samples by id come one for one"):
            _ = opened(data, transform=chain)[0]
        with pytest.raises(ConfigError, match=rf"{name}\(\) leaves 2 ranks"):
            _ = StreamingShardLoader(opened(data, transform=chain), StreamingConfig(2, 0)).epoch

    with pytest.raises(ConfigError, match=r"flat_map\(\) makes batches longer"):
        LMStream(opened(data, transform=CHAINS["flat_map"][0]), "doc", 24, 2, layout="pad", pad_id=0)

    class Tagged(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    with pytest.raises(ConfigError, match="a subclass that overrides __getitem__"):
        next(iter(Tagged(data).filter(odd_ones)))


def test_steps_that_make_no_sense_are_refused(data: Path) -> None:
    dataset = opened(data)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: dataset.select(["id", "y"]), "there is no column 'y'; there are doc, id, "),
        (lambda: dataset.select([]), "give at least one column"),
        (lambda: dataset.rename({"y": "z"}), "there is no column 'y'"),
        (lambda: dataset.rename({"id": "x"}), "gives two columns the same name"),
        (lambda: dataset.rename({"id": "z", "x": "z"}), "gives two columns the same name"),
        (lambda: dataset.enumerate("id"), "has a column of this name"),
        (
            lambda: dataset.flat_map(copies).filter(odd_ones, dropped="replace"),
            "a replacement takes the place of one sample",
        ),
        (lambda: dataset.batch_map(dict).enumerate(), r"call enumerate\(\) before it"),
    ]
    for wrong, message in refused:
        with pytest.raises(ConfigError, match=message):
            wrong()
    for chain, message in (
        (Chain().filter(lambda sample: None, "none"), "filter.none. raised TypeError: the function returned None"),
        (Chain().filter(copies, "lazy"), "filter.lazy. raised TypeError: the function returned a generator"),
        (Chain().flat_map(lambda sample: next(iter(())), "ended"), "raised StopIteration"),
        (
            Chain().flat_map(lambda sample: sample, "one"),
            "flat_map.one. raised TypeError: the function returned a dict",
        ),
        (Chain().flat_map(partial(given_instead, None), "none"), "the function returned None"),
        (Chain().map(lambda sample: sample, "same").select(["y"]), "there is no column 'y'"),
    ):
        with pytest.raises((TransformError, ConfigError), match=message):
            list(opened(data, transform=chain, on_bad_sample="raise"))
    with pytest.raises((TransformError, ConfigError), match="there is no column 'y'"):
        list(opened(data, transform=Chain().map(dict, "same").select(["y"]), on_bad_sample="skip"))
    raising = Chain().map(dict, "same").map(lambda sample: sample["gone"], "second")
    for chain in (raising, Chain().flat_map(lambda sample: [sample], "one").map(raising, "second")):
        with pytest.raises(TransformError, match=r"\(sample \d+\): map\(second\) raised KeyError: 'gone'$"):
            list(opened(data, transform=chain).batches())
    chain = Chain().rename({"id": "n"}).select(["n"]).filter(odd_ones, dropped="replace").enumerate("at")
    assert repr(chain) == (
        "Chain().rename({'id': 'n'}).select(['n']).filter(odd_ones, dropped='replace').enumerate('at')"
    )
    assert Chain().rename({"id": "n"}).select(["n"])({"id": 3, "x": 4}) == {"n": 3}


def test_a_state_names_the_steps(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    def state_of(chain: Chain, batches: int) -> dict[str, Any]:
        dataset = opened(data, transform=chain)
        assert len(list(islice(dataset.batches(), batches))) == batches
        return dict(dataset.state_dict())

    kept = Chain().map(dict, "same").filter(odd_ones)
    state = state_of(kept, 2)
    assert state["chain"] == ["map(same)", "filter(odd_ones)"]
    assert "chain" not in state_of(Chain(), 2)
    others = Chain(), kept.flat_map(copies), Chain().filter(odd_ones, dropped="replace"), Chain().filter(odd_ones, "o")
    for other in others:
        for given, taker in ((state, other), (state_of(other, 2), kept)):
            with pytest.raises(StateError, match="some samples would come twice or not at all"):
                opened(data, transform=taker).load_state_dict(given)
        opened(data, transform=other).load_state_dict(state_of(kept, 9))
        assert "resuming with another chain" in caplog.text
        caplog.clear()
    opened(data, transform=kept.select(["id"])).load_state_dict(state)
    assert "made by map(same).filter(odd_ones), and here it is map(same).filter(odd_ones).select" in caplog.text
    caplog.clear()
    opened(data, transform=kept).load_state_dict(state)
    assert not caplog.text
    with pytest.raises(StateError, match="'chain' should be a list of steps"):
        opened(data, transform=kept).load_state_dict({**state, "chain": 3})
    with StreamingDataLoader(opened(data, transform=kept)) as loader:
        next(iter(loader))
        with pytest.raises(StateError, match="some samples would come twice"):
            StreamingDataLoader(opened(data)).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("dropped", ["leave_out", "replace"])
def test_filtered_batches_have_the_columns_of_others(data: Path, dropped: Any) -> None:
    plain = opened(data).rename({"id": "n"}).enumerate()
    wanted = {name: type(column) for name, column in next(plain.batches()).items()}
    for threads in (0, 2):
        read = ReadOptions(read_threads=threads)
        filtered = opened(data, read=read).rename({"id": "n"}).filter(lambda one: one["n"] % 2, "odd", dropped=dropped)
        for batch in filtered.enumerate().batches():
            assert {name: type(column) for name, column in batch.items()} == wanted
            assert np.asarray(batch["n"]).dtype == np.int64
            assert np.asarray(batch["x"])[:, 0].tolist() == np.asarray(batch["n"]).tolist()
        identified: dict[str, Any] = next(
            opened(data, read=replace(read, ids="at")).filter(odd_ones, dropped=dropped).batches()
        )
        assert identified["at"].dtype == np.int64
        assert identified["at"].tolist() == identified["id"].tolist()


@pytest.mark.processes
def test_columns_are_arrays_with_and_without_workers(data: Path) -> None:
    """A function of batches gets the same kind of column everywhere; filters change none."""
    wanted = {"id": np.ndarray, "x": np.ndarray, "text": list, "doc": list}
    seen: list[Any] = []

    def typed(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append({name: type(column) for name, column in batch.items()})
        assert seen[-1] == wanted
        return batch

    for workers in (0, 2):
        with StreamingDataLoader(opened(data).filter(odd_ones).batch_map(typed), num_workers=workers) as loader:
            assert sum(len(batch["id"]) for batch in loader) == sum(number % 3 != 1 for number in range(SAMPLES))
        with StreamingDataLoader(opened(data).filter(odd_ones), num_workers=workers, columnar=True) as loader:
            assert next(iter(loader))["id"].dtype == torch.int64


def test_token_batches_of_chosen_and_repeated_documents_resume(data: Path) -> None:
    def made() -> LMStream:
        chain = Chain().filter(odd_ones).flat_map(copies)
        return LMStream(opened(data, size=8, transform=chain), "doc", batch_size=2, seq_len=5)

    order = [number for step in range(-(-SAMPLES // 8)) for number in opened(data, size=8).ids_of(step).tolist()]
    whole = [batch.input_ids.tolist() for batch in made()]
    tokens = [token for batch in whole for row in batch for token in row]
    assert tokens == repeated_of_left(order, order)[: len(tokens)]
    assert len(tokens) > 150
    for stop in (0, 1, 7, len(whole) - 1):
        first = made()
        begun = [batch.input_ids.tolist() for batch in islice(first, stop)]
        second = made()
        second.load_state_dict(first.state_dict())
        assert begun + [batch.input_ids.tolist() for batch in second] == whole


def test_batches_that_get_as_many_samples_as_before_keep_their_own(data: Path) -> None:
    """Of two batches that are read together one gets a sample more, and the other one less."""

    def moved(sample: dict[str, Any]) -> list[dict[str, Any]]:
        return [sample] * {24: 2, 39: 0}.get(number_of(sample), 1)

    for treatment in ("raise", "skip"):
        dataset = opened(data, shuffle=False, size=8, on_bad_sample=treatment).flat_map(moved)
        batches = [ids_of(batch) for batch in dataset.batches()]
        assert batches[3] == [24, *range(24, 32)], treatment
        assert batches[4] == list(range(32, 39))

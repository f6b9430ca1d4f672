"""Files that are appended while a run is in an epoch: what it has had does not come again in it, all the rest comes once."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from s3server import Bucket
from stoker import HashSplit, MDSWriter, ReadOptions, SkipIds, Stream, StreamingDataset, World
from stoker.errors import StateError
from stoker.partitions import RoundRobin

BATCH: Final = 6


def write_mds(root: Path, first: int, end: int, hashes: tuple[str, ...] = ("xxh64",)) -> None:
    """Shards of the samples ``[first, end)``, behind those that are there."""
    part = root.parent / f"{root.name} {first}"
    with MDSWriter({"x": "int"}, str(part), size_limit="250b", hashes=list(hashes)) as out:
        out.write_batch({"x": np.arange(first, end)})
    index = json.loads((part / "index.json").read_text())
    root.mkdir(exist_ok=True)
    for shard in index["shards"]:
        name = shard["raw_data"]["basename"]
        shard["raw_data"]["basename"] = f"{first:05}.{name}"
        (part / name).rename(root / f"{first:05}.{name}")
    if (root / "index.json").exists():
        index["shards"] = json.loads((root / "index.json").read_text())["shards"] + index["shards"]
    (root / "index.json").write_text(json.dumps(index))


def write_jsonl(root: Path, first: int, end: int) -> None:
    """A file of these samples."""
    root.mkdir(exist_ok=True)
    (root / f"{first:05}.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(first, end)))


def write_parquet(root: Path, first: int, end: int) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    root.mkdir(exist_ok=True)
    pq.write_table(pa.table({"x": np.arange(first, end)}), root / f"{first:05}.parquet", row_group_size=7)


def write_png(root: Path, first: int, end: int) -> None:
    """A file of each sample."""
    image = pytest.importorskip("PIL.Image")
    root.mkdir(exist_ok=True)
    for number in range(first, end):
        image.new("L", (1, 1), number % 256).save(root / f"{number:05}.png")


WRITERS: Final[dict[str, Callable[[Path, int, int], None]]] = {
    "mds": write_mds,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "png": write_png,
}


def saved(dataset: StreamingDataset) -> dict[str, Any]:
    """A state, as a file would have it."""
    state: dict[str, Any] = json.loads(json.dumps(dataset.state_dict()))
    return state


def take(dataset: StreamingDataset, batches: int | None = None) -> list[int]:
    """The samples of so many batches, or of the rest of the epoch."""
    return [int(x) for batch in islice(dataset.batches(), batches) for x in batch["id" if "id" in batch else "x"]]


def flat(ranks: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(ranks))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_epoch_goes_on_with_what_was_appended(
    tmp_path: Path, kind: str, shuffle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    WRITERS[kind](data, 0, 100)

    def opened() -> StreamingDataset:
        return StreamingDataset(
            str(data), shuffle=shuffle, batch_size=BATCH, num_canonical_nodes=1, read=ReadOptions(ids="id")
        )

    run = opened()
    seen = take(run, 7)
    state = saved(run)
    WRITERS[kind](data, 100, 130)
    with pytest.raises(
        StateError,
        match=r"files were appended to 'data' since.* call load_state_dict\(state, change_streams=True\)",
    ):
        opened().load_state_dict(state)
    grown = opened()
    with caplog.at_level(logging.WARNING):
        grown.load_state_dict(state, change_streams=True)
    assert "epoch 0 continues at position 42; data continue where they were; files were appended to data" in caplog.text
    # What the state's run would have had next comes in the same order, between what was appended.
    again = opened()
    again.load_state_dict(saved(grown))
    rest = take(grown)
    assert take(again) == rest
    assert sorted(seen + rest) == list(range(130))
    if not shuffle:
        assert seen + rest == list(range(130))
    for _ in range(2):
        later = take(grown)
        assert sorted(later) == list(range(130))
        assert take(again) == later


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("stored", ["objects", "cached"])
def test_files_may_lie_elsewhere(tmp_path: Path, kind: str, stored: str, bucket: Bucket) -> None:
    data, client = tmp_path / "data", bucket.server.client()

    def put(first: int, end: int) -> None:
        WRITERS[kind](data, first, end)
        for path in data.iterdir():
            if path.name >= f"{first:05}":  # what was there has its time still
                client.upload_file(str(path), bucket.name, f"data/{path.name}")

    def opened() -> StreamingDataset:
        settings: dict[str, Any] = {
            "shuffle": True,
            "batch_size": BATCH,
            "num_canonical_nodes": 1,
            "read": ReadOptions(ids="id"),
        }
        if stored == "cached":
            return StreamingDataset(remote=data.as_uri(), local=str(tmp_path / "cache"), **settings)
        return StreamingDataset(f"{bucket.url}/data", storage_options=bucket.storage_options, **settings)

    put(0, 100)
    run = opened()
    seen = take(run, 7)
    state = saved(run)
    put(100, 130)
    grown = opened()
    grown.load_state_dict(state, change_streams=True)
    assert sorted(seen + take(grown)) == list(range(130))


@pytest.mark.parametrize("seed", range(12))
def test_drawn_histories_of_one_dataset(tmp_path: Path, seed: int) -> None:
    """Stops, appended files and other worlds: an epoch has each sample of those that are there at its end once."""
    draw = random.Random(seed)
    kind = draw.choice(list(WRITERS))
    data = tmp_path / "data"
    total = draw.randrange(40, 90)
    WRITERS[kind](data, 0, total)
    settings: dict[str, Any] = {
        "shuffle": True,
        "shuffle_algo": draw.choice(["block", "shard", "global"]),
        "num_canonical_nodes": draw.choice([1, 2, 3]),
        "subset": draw.choice([None, SkipIds([3, 17]), HashSplit(0.0, 0.7)]),
        "remainder": "uneven",
        "read": ReadOptions(ids="id"),
    }
    if draw.random() < 0.2:
        settings |= {"shuffle": False, "num_canonical_nodes": None}

    def world(ranks: int) -> list[StreamingDataset]:
        return [
            StreamingDataset(str(data), batch_size=BATCH // ranks, world=World(rank, ranks), **settings)
            for rank in range(ranks)
        ]

    def all_ids() -> list[int]:
        return sorted(take(StreamingDataset(str(data), batch_size=BATCH, **settings)))

    state: dict[str, Any] | None = None
    seen: list[int] = []
    epoch, appended = 0, False
    for _ in range(14):
        readers = world(draw.choice([1, 2, 3]))
        twin = world(draw.choice([1, 2, 3]))
        for dataset in (*readers, *twin):
            if state is not None:
                dataset.load_state_dict(state, change_streams=appended)
                if draw.random() < 0.5:
                    dataset.load_state_dict(saved(dataset))
            assert dataset.next_epoch == epoch
        batches = draw.choice([1, 2, 3, 5, None])
        had = [take(dataset, batches) for dataset in readers]
        # Steps have the same samples in any world.
        assert sorted(flat(had)) == sorted(flat(take(dataset, batches) for dataset in twin))
        seen += flat(had)
        assert len(set(seen)) == len(seen)
        longest = max(range(len(had)), key=lambda rank: len(had[rank]))
        state = saved(readers[longest])
        if state["epoch"] > epoch:
            assert sorted(seen) == all_ids()
            seen, epoch = [], epoch + 1
        appended = draw.random() < 0.5
        if appended:
            more = draw.randrange(1, 30)
            WRITERS[kind](data, total, total + more)
            total += more


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream"])
@pytest.mark.parametrize("seed", range(4))
def test_drawn_histories_of_several_streams(tmp_path: Path, method: str, seed: int) -> None:
    """Of which all samples belong to an epoch, so that it has each once, whatever is appended in it."""
    draw = random.Random(f"{method} {seed}")
    firsts = {"a": 0, "b": 10_000, "c": 20_000}
    ends = {name: first + draw.randrange(4, 15) * BATCH for name, first in firsts.items()}
    for name, first in firsts.items():
        write_mds(tmp_path / name, first, ends[name])

    def opened(ranks: int) -> list[StreamingDataset]:
        return [
            StreamingDataset(
                streams=[Stream(str(tmp_path / name)) for name in firsts],
                shuffle=True,
                batch_size=BATCH // ranks,
                world=World(rank, ranks),
                batching_method=method,
                num_canonical_nodes=1 + seed % 2,
                remainder="uneven",
            )
            for rank in range(ranks)
        ]

    state: dict[str, Any] | None = None
    seen: Counter[int] = Counter()
    epoch, appended = 0, False
    for _ in range(16):
        ranks = draw.choice([1, 2])
        readers = opened(ranks)
        batches = draw.choice([1, 3, 6, None])
        had = []
        for dataset in readers:
            if state is not None:
                dataset.load_state_dict(state, change_streams=appended)
            had.append(take(dataset, batches))
        seen.update(flat(had))
        state = saved(readers[max(range(ranks), key=lambda rank: len(had[rank]))])
        if state["epoch"] > epoch:
            assert seen == Counter(number for name in firsts for number in range(firsts[name], ends[name]))
            seen, epoch = Counter(), epoch + 1
        appended = draw.random() < 0.6
        if appended:
            for name in draw.sample(list(firsts), draw.choice([1, 2])):
                more = draw.randrange(1, 6) * BATCH
                write_mds(tmp_path / name, ends[name], ends[name] + more)
                ends[name] += more


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_weighted_stream_has_all_of_a_pass_before_the_next(tmp_path: Path, shuffle: bool) -> None:
    """Also where it is left out for a while, and comes back with more files."""
    for name, first in (("a", 0), ("b", 1000)):
        write_mds(tmp_path / name, first, first + 100)

    def opened(**chosen: int) -> StreamingDataset:
        streams = [Stream(str(tmp_path / name), choose=choose) for name, choose in chosen.items()]
        return StreamingDataset(streams=streams, shuffle=shuffle, batch_size=5, num_canonical_nodes=1)

    run = opened(a=70, b=30)
    seen = take(run) + take(run, 8)  # 98 of a, in two passes
    state = saved(run)
    write_mds(tmp_path / "a", 100, 150)
    for chosen in ({"a": 40, "b": 60}, {"b": 100}, {"b": 50, "a": 30}, {"a": 90}):
        run = opened(**chosen)
        run.load_state_dict(state, change_streams=True)
        seen += take(run, 5)
        state = saved(run)
        if "a" not in chosen:
            write_mds(tmp_path / "a", 150, 170)
    of_a = Counter(number for number in seen if number < 1000)
    if not shuffle:  # else a window of an epoch has samples of two passes
        assert set(of_a.values()) == {1}
    run = opened(a=90)
    run.load_state_dict(state)
    rest = chain.from_iterable(take(run) for _ in range(9))
    files = (range(100), range(100, 150), range(150, 170))
    while any(len({of_a[number] for number in one}) > 1 for one in files) or not of_a[169]:
        of_a.update([next(rest)])
    assert [of_a[one[0]] for one in files] == ([2, 1, 1] if shuffle else [1, 1, 1])
    for _ in range(2):
        assert sorted(islice(rest, 170)) == list(range(170))


def test_a_stream_of_which_an_epoch_has_had_all_has_what_is_appended_next(tmp_path: Path) -> None:
    """And a state holds no more than what the order still depends on, however often something is appended."""
    for name, first in (("a", 0), ("b", 1000)):
        write_mds(tmp_path / name, first, first + (18 if name == "a" else 90))

    def opened() -> StreamingDataset:
        streams = [Stream(str(tmp_path / name)) for name in ("a", "b")]
        return StreamingDataset(
            streams=streams, shuffle=True, batch_size=6, num_canonical_nodes=1, batching_method="per_stream"
        )

    run = opened()
    seen: list[int] = []
    while sum(x < 1000 for x in seen) < 18:
        run.load_state_dict(saved(run))
        seen += take(run, 1)
    for end in range(18, 54, 6):
        state = saved(run)
        write_mds(tmp_path / "a", end, end + 6)
        run = opened()
        run.load_state_dict(state, change_streams=True)
        run.load_state_dict(saved(run))
    run = opened()
    run.load_state_dict(state, change_streams=True)
    assert len(saved(run)["origin"]["appended"]["a"]) == 1  # nothing was read in between
    assert sorted(seen + take(run)) == [*range(54), *range(1000, 1090)]
    take(run, 20)
    state = saved(run)
    write_mds(tmp_path / "a", 54, 60)
    run = opened()
    run.load_state_dict(state, change_streams=True)
    (entry,) = saved(run)["origin"]["appended"]["a"]  # of epoch 1 alone
    assert (entry["samples"], entry["begun"]) == (54, 54)


@pytest.mark.parametrize("block_sizes", [(None, None), (50, 7)])
def test_another_block_size_leaves_the_order_of_files_before(tmp_path: Path, block_sizes: tuple[Any, Any]) -> None:
    """The default follows from the sizes of shards."""
    data = tmp_path / "data"
    for first in range(0, 100, 10):
        write_jsonl(data, first, first + 10)
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 10, "num_canonical_nodes": 1}
    run = StreamingDataset(str(data), **settings, shuffle_block_size=block_sizes[0])
    seen = take(run, 3)
    state = saved(run)
    write_jsonl(data, 100, 900)
    grown = StreamingDataset(str(data), **settings, shuffle_block_size=block_sizes[1])
    grown.load_state_dict(state, change_streams=True)
    assert grown.state_dict()["streams"]["data"]["block_size"] != state["streams"]["data"]["block_size"]
    rest = take(grown)
    assert sorted(seen + rest) == list(range(900))


def test_passes_of_stratified_batches_do_not_overlap(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 1000)):
        write_mds(tmp_path / name, first, first + 40)

    def opened() -> StreamingDataset:
        streams = [Stream(str(tmp_path / "a"), choose=300), Stream(str(tmp_path / "b"), choose=60)]
        return StreamingDataset(
            streams=streams, shuffle=True, batch_size=12, num_canonical_nodes=1, batching_method="stratified"
        )

    run = opened()
    seen = take(run, 5)
    state = saved(run)
    write_mds(tmp_path / "a", 40, 53)
    run = opened()
    run.load_state_dict(state, change_streams=True)
    of_a = [x for x in seen + take(run) if x < 1000]
    assert sorted(of_a[:40]) == list(range(40))
    for begin in (40, 93, 146, 199):
        assert sorted(of_a[begin : begin + 53]) == list(range(53))


@pytest.mark.parametrize("change", ["rewritten", "before", "longer", "no hashes"])
def test_what_can_not_be_told_from_other_data_is_an_error(tmp_path: Path, change: str) -> None:
    data = tmp_path / "data"
    hashes = () if change == "no hashes" else ("xxh64",)
    write_mds(data, 50, 107, hashes)

    def opened() -> StreamingDataset:
        return StreamingDataset(str(data), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)

    run = opened()
    take(run, 3)
    state = saved(run)
    if change in ("rewritten", "longer"):
        for path in data.iterdir():
            path.unlink()
        (tmp_path / "data 50").rename(tmp_path / "gone")
        write_mds(data, 50 if change == "longer" else 51, 109 if change == "longer" else 108, hashes)
    if change == "rewritten":
        (data / "index.json").write_text((data / "index.json").read_text().replace("00051", "00050"))
        for path in data.glob("00051*"):
            path.rename(data / path.name.replace("00051", "00050"))
    write_mds(data, 200, 230, hashes)
    if change == "before":
        index = json.loads((data / "index.json").read_text())
        index["shards"] = index["shards"][-1:] + index["shards"][:-1]
        (data / "index.json").write_text(json.dumps(index))
    with pytest.raises(StateError, match="belongs to another dataset") as caught:
        opened().load_state_dict(state)
    assert "change_streams" not in str(caught.value)
    with pytest.raises(StateError, match=r"'data' has .* samples now\. It had 57 .* not provably the first of them"):
        opened().load_state_dict(state, change_streams=True)
    if change == "no hashes":
        del state["streams"]["data"]["versions"]
        grown = opened()
        grown.load_state_dict(state, change_streams=True)
        assert sorted(take(run, 3) + take(grown))


def test_a_packed_state_is_as_good(tmp_path: Path) -> None:
    """Its hashes are cut, and the order depends on whole ones."""
    for number in range(66):
        write_jsonl(tmp_path / f"s{number}", 100 * number, 100 * number + 4)

    def opened() -> StreamingDataset:
        streams = [Stream(str(tmp_path / f"s{number}"), format="jsonl") for number in range(66)]
        return StreamingDataset(streams=streams, shuffle=True, batch_size=8, num_canonical_nodes=1)

    run = opened()
    seen = take(run, 20)
    state = saved(run)
    assert "packed" in state
    write_jsonl(tmp_path / "s7", 704, 710)
    run = opened()
    run.load_state_dict(state, change_streams=True)
    seen += take(run, 3)
    again = opened()
    again.load_state_dict(saved(run))
    seen += take(again)
    assert sorted(seen) == sorted([*(100 * n + i for n in range(66) for i in range(4)), *range(704, 710)])


def test_a_chain_that_chooses_samples_stays_the_same_inside_an_epoch(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data, 0, 60)

    def opened(odd: bool = True) -> StreamingDataset:
        dataset = StreamingDataset(str(data), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
        return dataset.filter(is_odd, name="odd") if odd else dataset

    run = opened()
    seen = [int(sample["x"]) for sample in islice(run, 7)]
    state = saved(run)
    write_mds(data, 60, 90)
    with pytest.raises(StateError, match=r"whose chain was filter\(odd"):
        opened(odd=False).load_state_dict(state, change_streams=True)
    grown = opened()
    grown.load_state_dict(state, change_streams=True)
    assert sorted(seen + [int(sample["x"]) for sample in grown]) == list(range(1, 90, 2))


def is_odd(sample: dict[str, Any]) -> bool:
    return bool(sample["x"] % 2)


def test_a_static_partition_goes_on_where_whole_passes_have_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data, 0, 60)

    def opened(rank: int = 0, **options: Any) -> StreamingDataset:
        return StreamingDataset(
            str(data), shuffle=True, batch_size=5, world=World(rank, 2), partition_algo=RoundRobin(), **options
        )

    runs = [opened(rank) for rank in range(2)]
    assert sorted(flat(map(take, runs))) == list(range(60))
    state = saved(runs[0])
    part = opened(epoch_size=40)
    take(part)
    partly = saved(part)
    write_mds(data, 60, 100)
    grown = [opened(rank) for rank in range(2)]
    for one in grown:
        one.load_state_dict(state, change_streams=True)
    for _ in range(2):
        assert sorted(flat(map(take, grown))) == list(range(100))
    with pytest.raises(StateError, match="files were appended to stream 'data' while a pass over it was begun"):
        opened(epoch_size=40).load_state_dict(partly, change_streams=True)


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data, 0, 100)
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 5, "num_canonical_nodes": 1}
    run = StreamingDataset(str(data), **settings)
    take(run, 5)
    state = saved(run)
    write_mds(data, 100, 150)
    grown = StreamingDataset(str(data), **settings)
    grown.load_state_dict(state, change_streams=True)
    good = saved(grown)
    (entry,) = good["origin"]["appended"]["data"]
    wrongs: list[Any] = [
        {"data": [7]},
        {"data": [{}]},
        {"data": [{**entry, "samples": 99}]},
        {"data": [{**entry, "samples": 150}]},
        {"data": [{**entry, "consumed": 26}]},
        {"data": [{**entry, "consumed": -1}]},
        {"data": [{**entry, "begun": 26}]},
        {"data": [{**entry, "inside": 1}]},
        {"data": [{**entry, "block_size": 0}]},
        {"data": [{**entry, "passed": [1, "x"]}]},
        {"data": [{"samples": 100}]},
        {"other": [entry]},
        7,
    ]
    for wrong in wrongs:
        with pytest.raises(StateError):
            StreamingDataset(str(data), **settings).load_state_dict(
                {**good, "origin": {**good["origin"], "appended": wrong}}
            )
    with pytest.raises(StateError, match=r"'rest' must name every stream, with .* samples in all"):
        StreamingDataset(str(data), **settings).load_state_dict(
            {**good, "origin": {**good["origin"], "rest": {"data": 7}}}
        )

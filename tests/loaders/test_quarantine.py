"""A quarantine: listed samples are left out, all others stay where they are, on all ranks and after any resume."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from stoker import (
    KeepIds,
    ReadOptions,
    SkipIds,
    SkipSteps,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.cluster import World
from stoker.errors import ConfigError, StateError
from stoker.partitions import Contiguous, RoundRobin
from support import write_columns

STREAMS = ("a", "b")
SAMPLES = 240
TOTAL = len(STREAMS) * SAMPLES


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams whose column is the id that samples have in both together."""
    out = tmp_path_factory.mktemp("data")
    for number, name in enumerate(STREAMS):
        write_columns(out / name, {"id": np.arange(number * SAMPLES, (number + 1) * SAMPLES)}, size_limit=286)
    return out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quarantine"
    path.touch()
    return path


def add(file: Path, *lines: Any) -> None:
    with file.open("a") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


def opened(data: Path, quarantine: Any = None, **settings: Any) -> StreamingDataset:
    chosen = {"shuffle": True, "batch_size": 8, "read": ReadOptions(quarantine=quarantine), **settings}
    return StreamingDataset(streams=[Stream(local=data / name) for name in STREAMS], **chosen)


def opened_at(state: dict[str, Any], data: Path, **settings: Any) -> StreamingDataset:
    dataset = opened(data, **settings)
    dataset.load_state_dict(state)
    return dataset


def ids_in(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def read(dataset: StreamingDataset) -> list[list[int]]:
    return ids_in(dataset.batches())


def check(found: list[list[int]], plain: list[list[int]], out: set[int]) -> None:
    """Batches are those without a quarantine, but for the samples that are left out."""
    assert [len(batch) for batch in found] == [len(batch) for batch in plain]
    for batch, wanted in zip(found, plain, strict=True):
        assert out.isdisjoint(batch)
        assert [one for one in wanted if one not in out] == [
            one for one, number in zip(batch, wanted, strict=True) if number not in out
        ]


ORDERS: dict[str, dict[str, Any]] = {
    "block": {},
    "in order": {"shuffle": False},
    "mosaicml": {"shuffle_algo": "py1e"},
    "stratified": {"batching_method": "stratified"},
    "stream by stream": {"batching_method": "per_stream"},
    "round robin": {"partition_algo": RoundRobin()},
    "contiguous": {"partition_algo": Contiguous()},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("listed", ["some", "first", "most"])
def test_listed_samples_are_left_out_and_others_stay(data: Path, file: Path, order: str, listed: str) -> None:
    worlds = [World(rank, 2, 2) for rank in range(2)]
    plain = [read(opened(data, **ORDERS[order], world=world)) for world in worlds]
    out = {
        "some": set(random.Random(3).sample(range(TOTAL), 60)),
        "first": {one for batches in plain for batch in batches[:3] for one in batch},
        "most": set(random.Random(4).sample(range(TOTAL), 300)),
    }[listed]
    add(file, *sorted(out))
    for rank, world in enumerate(worlds):
        dataset = opened(data, **ORDERS[order], world=world, quarantine=file)
        found = read(dataset)
        check(found, plain[rank], out)
        assert [dataset.ids_of(n, rank, 0).tolist() for n in range(len(found))] == found
        whole = opened(data, **ORDERS[order], quarantine=file, world=world)
        taken = ids_in(islice(whole.batches(), 7))
        again = opened(data, **ORDERS[order], quarantine=file, world=world)
        again.load_state_dict(whole.state_dict())
        assert taken + read(again) == found


@pytest.mark.parametrize("kind", ["steps", "positions"])
def test_steps_give_their_places_to_those_before(data: Path, file: Path, kind: str) -> None:
    plain = read(opened(data))
    add(
        file,
        {"epoch": 0, "steps": [5, 8], "global_batch": 8} if kind == "steps" else {"epoch": 0, "positions": [40, 64]},
    )
    dataset = opened(data, quarantine=file)
    found = read(dataset)
    assert found == plain[:5] + plain[2:5] + plain[8:]
    plain_next = opened(data)
    plain_next.set_epoch(1)
    assert read(dataset) == read(plain_next)
    ranks = [opened(data, quarantine=file, batch_size=4, world=World(rank, 2, 2)) for rank in range(2)]
    together = [[*one, *other] for one, other in zip(*(read(rank) for rank in ranks), strict=True)]
    assert [sorted(batch) for batch in together] == [sorted(batch) for batch in found]


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 4), (2, 7), (3, 5), (1, 20)])
def test_steps_near_the_beginning_give_their_places_to_as_many_after_them(data: Path, begin: int, end: int) -> None:
    """So none of them comes for two: the first steps have too few before them."""
    plain = read(opened(data))
    length = end - begin
    found = read(opened(data, quarantine=SkipSteps(begin, end, epoch=0, global_batch=8)))
    from_step = [
        step if not begin <= step < end else step - length if step >= length else step + length
        for step in range(len(plain))
    ]
    assert [sorted(batch) for batch in found] == [sorted(plain[step]) for step in from_step]


def test_of_steps_without_as_many_before_or_after_others_come(data: Path) -> None:
    plain = read(opened(data))
    found = read(opened(data, quarantine=SkipSteps(1, len(plain), epoch=0, global_batch=8)))
    assert {one for batch in found for one in batch} == set(plain[0])


@pytest.mark.parametrize("world_size", [1, 2])
def test_values_are_as_good_as_the_lines_that_they_stand_for(data: Path, file: Path, world_size: int) -> None:
    steps = SkipSteps(5, 8, epoch=0, global_batch=8)
    values = [steps, SkipIds([400, 3, 17])]
    add(file, steps.as_dict(), 3, 17, 400)
    for rank in range(world_size):
        settings: dict[str, Any] = {"batch_size": 8 // world_size, "world": World(rank, world_size, world_size)}
        wanted = read(opened(data, quarantine=file, **settings))
        whole = opened(data, quarantine=values, **settings)
        taken = ids_in(islice(whole.batches(), 4))
        assert taken + read(opened_at(whole.state_dict(), data, quarantine=file, **settings)) == wanted
        assert (
            taken + read(opened_at(whole.state_dict(), data, quarantine=[*values, SkipIds([])], **settings)) == wanted
        )
        longer = opened_at(whole.state_dict(), data, quarantine=[*values, SkipIds([wanted[9][0]])], **settings)
        check(read(longer), wanted[4:], {wanted[9][0]})
        with pytest.raises(StateError, match="add a further SkipIds or SkipSteps at the list's end"):
            opened_at(whole.state_dict(), data, quarantine=[steps, SkipIds([2, 3, 17, 400])], **settings)


def test_a_single_value_is_enough(data: Path) -> None:
    plain = read(opened(data))
    assert (
        read(opened(data, quarantine=SkipSteps(40, 64, epoch=0, global_batch=1))) == plain[:5] + plain[2:5] + plain[8:]
    )
    check(read(opened(data, quarantine=SkipIds([3, 17]))), plain, {3, 17})
    assert read(opened(data, quarantine=[])) == plain


def test_ids_of_a_file_are_values_too(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([17, 3]))
    check(read(opened(data, quarantine=[SkipIds(tmp_path / "ids.npy")])), read(opened(data)), {3, 17})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SkipSteps(3, 3, epoch=0, global_batch=8), "0 <= begin < end"),
        (lambda: SkipSteps(-1, 3, epoch=0, global_batch=8), "0 <= begin < end"),
        (lambda: SkipSteps(1, 3, epoch=-1, global_batch=8), "epoch >= 0"),
        (lambda: SkipSteps(1, 3, epoch=0, global_batch=0), "all ranks take in a step"),
        (lambda: SkipSteps(1, 1 << 61, epoch=0, global_batch=8), "all ranks take in a step"),
        (lambda: SkipSteps(1, 3, epoch=0), "global_batch"),  # type: ignore[call-arg]
    ],
)
def test_steps_that_make_no_sense_are_an_error(make: Callable[[], SkipSteps], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([17], r"quarantine\[0\] must be .*SkipIds.*such as"),
        (KeepIds([3]), r"quarantine must be .*such as"),
        ([SkipIds([480])], r"quarantine=\[SkipIds\(1 ids\)\]: sample 480 is not in a dataset of 480 samples"),
        ([SkipSteps(70, 71, epoch=0, global_batch=8)], "positions from 560 on"),
    ],
)
def test_values_that_make_no_sense_are_an_error(data: Path, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(opened(data, quarantine=value))


def test_steps_are_no_subset(data: Path) -> None:
    wrong: Any = SkipSteps(1, 3, epoch=0, global_batch=8)
    with pytest.raises(ConfigError, match=r"quarantine=\[SkipSteps"):
        opened(data, subset=wrong)
    ids: Any = range(10)
    with pytest.raises(ConfigError, match=r"ids KeepIds\(\[1, 2\]\)"):
        opened(data, subset=ids)


def test_lines_hold_from_the_next_epoch_or_resume_on(data: Path, file: Path) -> None:
    plain, dataset = opened(data), opened(data, quarantine=file)
    wanted = read(plain)
    batches = dataset.batches()
    taken = ids_in(islice(batches, 10))
    out = {wanted[20][0], wanted[3][1]}
    add(file, *out)
    state = dataset.state_dict()
    assert state["quarantine"]["lines"] == 0
    assert taken + ids_in(batches) == wanted
    check(read(dataset), read(plain), out)
    assert dataset.state_dict()["quarantine"]["lines"] == 2
    dataset.load_state_dict(state)  # on all ranks, after the same step: the file is read anew
    check(read(dataset), wanted[10:], out)


def test_a_state_needs_the_lines_that_it_was_taken_with(data: Path, file: Path, tmp_path: Path) -> None:
    add(file, 3, 17)
    dataset = opened(data, quarantine=file)
    list(islice(dataset.batches(), 3))
    state = json.loads(json.dumps(dataset.state_dict()))
    with pytest.raises(StateError, match="give quarantine="):
        opened(data).load_state_dict(state)
    other = tmp_path / "other"
    add(other, 3, 18)
    with pytest.raises(StateError, match="add lines at its end"):
        opened(data, quarantine=other).load_state_dict(state)
    with pytest.raises(StateError, match="gives samples other ids"):
        opened(data, quarantine=file).load_state_dict(state, change_streams=True)
    with pytest.raises(StateError, match="should have lines and xxh64"):
        opened(data, quarantine=file).load_state_dict(state | {"quarantine": {"lines": -1, "xxh64": "zz"}})
    add(file, 19)
    resumed = opened(data, quarantine=file)
    resumed.load_state_dict(state)
    assert {3, 17, 19}.isdisjoint(one for batch in read(resumed) for one in batch)


def test_lines_that_change_are_an_error(data: Path, file: Path) -> None:
    add(file, 3, 17)
    dataset = opened(data, quarantine=file)
    read(dataset)
    file.write_text("3\n")
    with pytest.raises(ConfigError, match="change and remove none"):
        read(dataset)


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_read_the_same_lines(data: Path, file: Path, columnar: bool, persistent: bool) -> None:
    plain = opened(data)
    out = {3, 17, 200, 333}
    add(file, *out)
    loader = StreamingDataLoader(
        opened(data, quarantine=file), num_workers=2, columnar=columnar, persistent_workers=persistent
    )
    found = []
    for step, batch in enumerate(loader):
        if step == 2:
            add(file, 5)  # workers that begin later than others must not know it before they do
        found.append(batch["id"].tolist())
    check(found, read(plain), out)
    assert loader.state_dict()["quarantine"]["lines"] == 4
    check(ids_in(loader), read(plain), out | {5})


@pytest.mark.processes
def test_workers_of_a_plain_loader_read_the_same_lines(data: Path, file: Path) -> None:
    add(file, 3, 17)
    found = ids_in(DataLoader(opened(data, quarantine=file), batch_size=8, num_workers=2))
    check(found, read(opened(data)), {3, 17})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "line 1: expected an id"),
        ("true", "line 1: expected an id"),
        ('{"sample": 1.5}', "line 1: expected an id"),
        ('{"epoch": 0, "steps": [3, 3], "global_batch": 8}', "line 1: expected an id"),
        ('{"epoch": 0, "steps": [3, 4]}', "line 1: expected an id"),
        ('{"sample": 3, "epoch": 0, "positions": [3, 4]}', "line 1: expected an id"),
        ('{"sample": 3, "epoch": 0}', "line 1: expected an id"),
        ('{"epoch": 0, "positions": [1000000, 1000001]}', "positions from 1000000 on"),
        ('{"epoch": 0, "steps": [3, 4], "global_batch": 8, "positions": [3, 4]}', "line 1: expected an id"),
        ('{"epoch": 0, "positions": [-1, 4]}', "line 1: expected an id"),
        ("480", "line 1: sample 480 is not in a dataset of 480 samples"),
        ("-1", "line 1: sample -1 is not"),
        ('{"sample": 3, "row": 99}', "it is of other data"),
        ('{"sample": 3, "url": "s3://bucket/elsewhere.mds"}', "it is of other data"),
    ],
)
def test_a_line_that_makes_no_sense_is_an_error(data: Path, file: Path, line: str, message: str) -> None:
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=message):
        read(opened(data, quarantine=file))


def test_a_line_may_say_where_the_sample_lies(data: Path, file: Path) -> None:
    where = opened(data).where(300)
    add(file, {"sample": 300, "url": where.url, "shard": where.shard, "row": where.row, "reason": "a bad one"})
    check(read(opened(data, quarantine=file)), read(opened(data)), {300})


def test_a_line_is_of_its_own_stream_where_these_are_listed_in_another_order(
    data: Path, file: Path, tmp_path: Path
) -> None:
    """Files of all streams have the same names; data that was copied elsewhere is still known by them."""
    twin = shutil.copytree(data / "a", tmp_path / "twin")
    for cached in (False, True):
        streams = [
            Stream(remote=str(one), local=str(tmp_path / f"cache-{one.name}") if cached else None)
            for one in (data / "a", twin)
        ]
        where = StreamingDataset(streams=streams, batch_size=8).where(100)
        for url in (where.url, where.file, f"file://{where.url}"):
            line = {"sample": 100, "url": url, "shard": where.shard, "row": where.row}
            file.write_text(json.dumps(line) + "\n")
            left = StreamingDataset(streams=streams, batch_size=8, read=ReadOptions(ids="number", quarantine=file))
            assert 100 not in [number for batch in left.batches() for number in batch["number"]]
            swapped = StreamingDataset(streams=streams[::-1], batch_size=8, read=ReadOptions(quarantine=file))
            with pytest.raises(ConfigError, match=r"twin/.* and by the line .*/a/.* it is of other data"):
                read(swapped)
        file.write_text(json.dumps({**line, "url": f"s3://elsewhere/{Path(str(where.url)).name}"}) + "\n")
        read(StreamingDataset(streams=streams[::-1], batch_size=8, read=ReadOptions(quarantine=file)))


def test_a_line_may_be_of_a_run_with_a_cache(data: Path, file: Path, tmp_path: Path) -> None:
    """Its URL is that of the dataset; older lists name the file of the cache, and where that came from."""
    cached = StreamingDataset(data / "a", local=tmp_path / "cache", batch_size=8)
    in_place = StreamingDataset(data / "a", batch_size=8)
    cases: list[tuple[StreamingDataset, dict[str, Any]]] = [(cached, {}), (in_place, {"local": tmp_path / "cache"})]
    for told, read_by in cases:
        where = told.where(100)
        file.write_text(json.dumps({"sample": 100, "url": where.url, "shard": where.shard, "row": where.row}) + "\n")
        assert where.url == str(data / "a" / Path(str(where.url)).name)
        left = StreamingDataset(data / "a", batch_size=8, read=ReadOptions(quarantine=file), **read_by)
        assert 100 not in [number for batch in read(left) for number in batch]
    where = cached.where(100)
    file.write_text(json.dumps({"sample": 100, "url": where.copy, "shard": where.shard, "row": where.row}) + "\n")
    assert str(where.copy).endswith(f"(from {where.url})")
    left = StreamingDataset(data / "a", batch_size=8, read=ReadOptions(quarantine=file))
    assert 100 not in [number for batch in read(left) for number in batch]
    file.write_text(json.dumps({"sample": 100, "url": str(cached.where(0).url)}) + "\n")
    with pytest.raises(ConfigError, match="it is of other data"):
        read(StreamingDataset(data / "a", batch_size=8, read=ReadOptions(quarantine=file)))


def test_half_a_line_and_no_file_are_errors(data: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match="Make an empty file"):
        opened(data, quarantine=file.parent / "none")
    with pytest.raises(ConfigError, match="give the path of a file, as each machine has it"):
        opened(data, quarantine="s3://bucket/quarantine")
    with pytest.raises(ConfigError, match=r"not a file but a directory\. Check the path\.?$"):
        opened(data, quarantine=file.parent)
    file.write_text("1\n2")
    with pytest.raises(ConfigError, match="the last line does not end"):
        opened(data, quarantine=file)


@pytest.mark.parametrize(
    "settings", [{"partition_algo": RoundRobin()}, {"shuffle_algo": "py1e"}, {"batching_method": "stratified"}]
)
def test_ranges_are_of_global_batches(data: Path, file: Path, settings: dict[str, Any]) -> None:
    add(file, {"epoch": 0, "positions": [0, 8]})
    with pytest.raises(ConfigError, match="exclude the samples by their ids"):
        read(opened(data, quarantine=file, **settings))


def test_everything_can_not_be_left_out(data: Path, file: Path) -> None:
    add(file, *range(TOTAL))
    with pytest.raises(ConfigError, match="leave out fewer"):
        read(opened(data, quarantine=file))


def test_a_shard_loader_refuses_it(data: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match="leave quarantine="):
        StreamingShardLoader(opened(data, quarantine=file))

"""``ids_of`` and ``where``: which samples a step has, from the order alone, and where they lie.

``--lineages 1000`` reads so many random runs instead of 24.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import BadSamples, Chain, HashSplit, ReadOptions, SkipIds, Stream, StreamingDataset
from stoker.cluster import World
from stoker.errors import ConfigError
from support import environ, write_columns

STREAMS = ("a", "b", "c")
SAMPLES = 200
QUARANTINED = range(3, SAMPLES, 9)
BAD = frozenset(range(0, len(STREAMS) * SAMPLES, 17))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three streams of shards whose column is the id that samples have in all of them together."""
    out = tmp_path_factory.mktemp("data")
    for number, name in enumerate(STREAMS):
        write_columns(out / name, {"id": np.arange(number * SAMPLES, (number + 1) * SAMPLES)}, size_limit=200)
    with (out / "quarantine").open("w") as file:
        file.writelines(f"{number}\n" for number in QUARANTINED)
    return out


def settings(data: Path, chance: random.Random) -> dict[str, Any]:
    """A mixture, a subset, or one stream, in any order."""
    found: dict[str, Any] = {
        "shuffle": chance.random() < 0.8,
        "shuffle_seed": chance.randrange(100),
        "shuffle_algo": chance.choice(["block", "global", "py1e", "py2s"]),
        "batch_size": chance.choice([1, 3, 8]),
        "num_canonical_nodes": chance.choice([None, 4]),
        "read": ReadOptions(ids="number"),
    }
    if chance.random() < 0.5:
        found["transform"] = Chain().map(doubled).random_map(noisy)
        if chance.random() < 0.5:
            found["transform"] = found["transform"].map(raises_for_bad)
            found["on_bad_sample"] = BadSamples("skip", max_share=None)
    if chance.random() < 0.5:
        found["read"] = ReadOptions(ids="number", quarantine=data / "quarantine")
    native = found["shuffle_algo"] in ("block", "global")
    kind = chance.choice(["one", "mixture", "subset"] if native else ["one", "mixture"])
    if kind == "mixture":
        weights: dict[str, Any] = {"proportion": 1 / len(STREAMS)} if chance.random() < 0.5 else {"repeat": 1.5}
        return found | {"streams": [Stream(local=data / name, **weights) for name in STREAMS]}
    if kind == "subset":
        listed = SkipIds(chance.sample(range(SAMPLES), 20))
        found["subset"] = chance.choice(
            [listed, HashSplit(0, 0.7, seed=chance.randrange(9)), [listed, HashSplit(0.2, 1)]]
        )
    elif native:
        found["remainder"] = chance.choice(["pad", "drop", "uneven"])
    return found | {"local": data / "a"}


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], "number": sample["number"], "twice": 2 * sample["id"]}


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"noise": rng.random()}


def raises_for_bad(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) in BAD:
        raise ValueError("a bad one")
    return sample


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--lineages")))


def test_the_ids_of_a_step_are_those_that_are_delivered(data: Path, seed: int) -> None:
    chance = random.Random(seed)
    chosen = settings(data, chance)
    ranks, later = chance.choice([1, 2, 4]), chance.choice([1, 2, 4])

    def opened(world_size: int) -> list[StreamingDataset]:
        return [StreamingDataset(**chosen, world=World(rank, world_size, world_size)) for rank in range(world_size)]

    compare(opened(ranks), chance.choice(opened(ranks)))
    compare(opened(ranks), StreamingDataset(**chosen), World(0, ranks, ranks))
    stopped = opened(ranks)[0]
    before = [[*map(int, batch.get("id", []))] for batch in islice(stopped.batches(), chance.randrange(6))]
    resumed, teller = opened(later), chance.choice(opened(later))
    for one in (*resumed, teller):
        one.load_state_dict(stopped.state_dict())
    after = compare(resumed, teller)
    if later == ranks and teller.epoch_reader.resume.upcoming().position:
        delivered = [*before, *after]
        for n in some_of(len(delivered)):
            assert teller_ids(teller, n, 0, 0, skips=stopped.leaves_out) == delivered[n]


def teller_ids(teller: StreamingDataset, *asked: Any, skips: str | bool, **how: Any) -> list[int]:
    ids: list[int] = teller.ids_of(*asked, **how).tolist()
    return [one for one in ids if one not in BAD] if skips else ids


def compare(datasets: list[StreamingDataset], teller: StreamingDataset, world: World | None = None) -> list[list[int]]:
    """Read two epochs on all ranks: each knows its own batches, and one that reads nothing, of any world, knows all.

    Returns what rank 0 read of the first of them.
    """

    def told(*asked: Any) -> list[int]:
        return teller_ids(teller, *asked, skips=datasets[0].leaves_out, world_size=world, since_resume=True)

    epoch, first = datasets[0].next_epoch, list[list[int]]()
    for number in (epoch, epoch + 1):
        read = [
            [[*map(int, batch.get("id", []))] for batch in told_by_itself(one, rank)]
            for rank, one in enumerate(datasets)
        ]
        first = first or read[0]
        for rank, batches in enumerate(read):
            for n in some_of(len(batches)):
                assert told(n, rank, number) == batches[n]
            with pytest.raises(ConfigError, match=f"rank {rank} has {len(batches)} steps"):
                told(len(batches), rank, number)
        if len(read[0]) > 1:
            together = [one for batches in read for one in (batches[1] if len(batches) > 1 else [])]
            assert told(1, None, number) == together
    return first


def told_by_itself(dataset: StreamingDataset, rank: int) -> Iterator[Any]:
    for n, batch in enumerate(dataset.batches()):
        if n in (0, 1, 4):
            ids = dataset.ids_of(n, rank, since_resume=True).tolist()
            assert list(batch.get("number", [])) == list(batch.get("id", []))
            assert dataset.epoch_reader.quarantine is None or set(ids).isdisjoint(QUARANTINED)
            assert [one for one in ids if not (dataset.leaves_out and one in BAD)] == list(batch.get("id", []))
        yield batch


def test_steps_after_a_resume_are_counted_from_the_epochs_beginning(data: Path) -> None:
    def opened(ranks: int, batch_size: int = 8) -> StreamingDataset:
        return StreamingDataset(local=data / "a", batch_size=batch_size, shuffle=True, world=World(0, ranks, ranks))

    first = opened(2)
    told = [first.ids_of(step).tolist() for step in range(12)]
    list(islice(first.batches(), 5))  # 80 samples
    for ranks, batch_size in ((2, 8), (4, 4), (1, 16)):
        resumed = opened(ranks, batch_size)
        resumed.load_state_dict(first.state_dict())
        batches = resumed.batches()
        for begun in (False, True):
            assert [sorted(resumed.ids_of(step)) for step in range(12)] == list(map(sorted, told))
            assert sorted(resumed.ids_of(0, since_resume=True)) == sorted(told[5])
            if not begun:
                assert [*map(int, next(batches)["id"])] == resumed.ids_of(5, 0).tolist()
        with pytest.raises(ConfigError, match=r"step 13 is not in epoch 0: .* has 13 steps"):
            resumed.ids_of(13)
    other = opened(4, 8)
    other.load_state_dict(first.state_dict())
    assert sorted(other.ids_of(1)) == sorted(told[2] + told[3])
    for step in (2, 3, 4):
        with pytest.raises(ConfigError, match=r"resumed at position 80.*4 ranks with batch_size 8.*since_resume=True"):
            other.ids_of(step)
    assert sorted(other.ids_of(0, since_resume=True)) == sorted(told[5] + told[6])
    assert other.ids_of(82, epoch=0, world_size=1, batch_size=1).tolist()[0] in told[5]
    assert len(other.ids_of(3, epoch=1)) == 32


def some_of(count: int) -> list[int]:
    return sorted({*range(min(3, count)), *range(0, count, max(1, count // 4)), count - 1} - {-1})


def test_a_sample_is_found_where_it_lies(data: Path) -> None:
    dataset = StreamingDataset(streams=[Stream(local=data / name) for name in STREAMS])
    for sample in (0, SAMPLES - 1, SAMPLES, 2 * SAMPLES + 50, -1):
        found = dataset.where(sample)
        assert found.sample == (sample if sample >= 0 else 3 * SAMPLES - 1)
        assert found.url is not None
        assert found.stream == STREAMS[found.sample // SAMPLES]
        assert f"/{STREAMS[found.sample // SAMPLES]}/shard." in found.url
        alone = StreamingDataset(local=Path(found.url).parent)
        first = sum(shard.samples for shard in alone.shards if shard.raw[0].basename < Path(found.url).name)
        assert alone[first + found.row]["id"] == found.sample
    with pytest.raises(IndexError, match="600"):
        dataset.where(600)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"step": -1}, "step must be at least 0"),
        ({"step": 0, "epoch": -1}, "epoch must be at least 0"),
        ({"step": 0, "rank": 2}, "expected 0 to 1"),
        ({"step": 10**9}, "every rank has 13 steps"),
        ({"step": 0, "rank": 2, "world_size": 3, "batch_size": 0}, "batch_size must be at least 1"),
        ({"step": 0, "world_size": 0}, "world_size must be at least 1"),
        ({"step": 5, "world_size": 6}, "every rank has 5 steps"),
        ({"step": 10**30}, "below 2"),
        ({"step": 0.5}, "step"),
    ],
)
def test_a_step_that_is_not_there_is_refused(data: Path, asked: dict[str, Any], message: str) -> None:
    dataset = StreamingDataset(local=data / "a", batch_size=8, world=World(1, 2, 2))
    with pytest.raises(ConfigError, match=message):
        dataset.ids_of(**asked)


def stoker(*arguments: Any, code: int = 0) -> str:
    command = [sys.executable, "-m", "stoker", "order", *map(str, arguments)]
    done = subprocess.run(
        command, env=environ(COLUMNS="160"), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.processes
def test_the_command_prints_the_samples_of_a_step(data: Path) -> None:
    cluster = (data / "a", "--nodes", 2, "--ranks", 2, "--batch-size", 8, "--seed", 7, "--step", 3)
    dataset = StreamingDataset(local=data / "a", batch_size=8, shuffle=True, shuffle_seed=7, world=World(0, 4, 2))
    printed = json.loads(stoker(*cluster, "--samples", "--json"))
    assert printed["step"] == 3
    assert [line["sample"] for line in printed["samples"]] == dataset.ids_of(3).tolist()
    assert [line["rank"] for line in printed["samples"]] == [rank for rank in range(4) for _ in range(8)]
    for line in printed["samples"]:
        found = dataset.where(line["sample"])
        assert (line["shard"], line["row"]) == (found.shard, found.row)
        assert found.url is not None
        assert line["url"].endswith(found.url.removeprefix("file://"))
    assert str(int(dataset.ids_of(3, rank=2)[0])) in stoker(*cluster, "--rank", 2, "--samples")
    without = StreamingDataset(
        local=data / "a",
        batch_size=8,
        shuffle=True,
        shuffle_seed=7,
        world=World(0, 4, 2),
        read=ReadOptions(quarantine=data / "quarantine"),
    )
    printed = json.loads(stoker(*cluster, "--samples", "--json", "--quarantine", data / "quarantine"))
    assert [line["sample"] for line in printed["samples"]] == without.ids_of(3).tolist() != dataset.ids_of(3).tolist()
    shards = json.loads(stoker(*cluster, "--json"))["shards"]
    assert sum(line["samples"] for line in shards) == 32


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step", 1000), "rank 0 has 7 steps"),
        (("--step", 1, "--rank", 4), "expected 0 to 0"),
        (("--samples",), "add --step N, the step to print. For what nodes fetch in a whole epoch, use stoker simulate"),
        (("--rank", 0), "add --step N, the step to print"),
        (("--step", 1, "--since-resume"), "--since-resume is for --resume"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(data: Path, arguments: tuple[Any, ...], message: str) -> None:
    assert message in stoker(data / "a", *arguments, code=1)

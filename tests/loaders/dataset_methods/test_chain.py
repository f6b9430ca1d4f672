"""Chains: random numbers belong to the sample, whatever reads it, in which order, and after any stop."""

from __future__ import annotations

import pickle
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import (
    BadSamples,
    Chain,
    ReadOptions,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.cluster import World
from stoker.errors import ConfigError, TransformError
from support import write_columns

SAMPLES = 400


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chain") / "data"
    for name in ("a", "b"):
        write_columns(out / name, {"id": np.arange(SAMPLES), "x": np.ones((SAMPLES, 4), np.float32)}, size_limit=1500)
    return out


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        **sample,
        "x": sample["x"] + rng.standard_normal(4).astype(np.float32),
        "n": np.int64(rng.integers(1 << 40)),
    }


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "x": sample["x"] * 2}


def flip(sample: dict[str, Any], generator: Any) -> dict[str, Any]:
    import torch

    return {**sample, "flip": np.int64(torch.randint(1 << 40, (1,), generator=generator).item())}


CHAIN = Chain().map(doubled).random_map(noise).random_map(flip, generator="torch")


def told(samples: Any) -> list[tuple[Any, ...]]:
    return [(int(s["id"]), np.asarray(s["x"]).tobytes(), int(s["n"]), int(s["flip"])) for s in samples]


def rows(batches: Any) -> list[tuple[Any, ...]]:
    return [row for b in batches for row in told({k: b[k][i] for k in b} for i in range(len(b["id"])))]


def opened(data: Path, **settings: Any) -> StreamingDataset:
    given: dict[str, Any] = {"shuffle": True, "batch_size": 16, "transform": CHAIN}
    return StreamingDataset(data / "a", **(given | settings))


@pytest.mark.processes
def test_whatever_reads_a_sample_its_numbers_are_the_same(data: Path) -> None:
    whole = told(opened(data))
    assert len({one[2] for one in whole}) == len({one[3] for one in whole}) == SAMPLES
    by_id = sorted(whole)
    assert told(opened(data, read=ReadOptions(read_threads=0))) == whole
    assert told(opened(data, read=ReadOptions(read_threads=5))) == whole
    assert rows(opened(data).batches()) == whole
    assert rows(opened(data, on_bad_sample="skip").batches()) == whole
    assert told(opened(data, on_bad_sample="replace", read=ReadOptions(read_threads=0))) == whole
    assert sorted(told(opened(data, shuffle=False))) == by_id
    assert sorted(told(opened(data, shuffle_algo="global"))) == by_id
    dataset = opened(data)
    assert sorted(told(dataset[number] for number in range(SAMPLES))) == by_id
    assert sorted(told(dataset[:])) == by_id
    for workers, context in ((1, "fork"), (2, "spawn")):
        for columnar in (False, True):
            with StreamingDataLoader(
                opened(data), num_workers=workers, multiprocessing_context=context, columnar=columnar
            ) as loader:
                assert rows(loader) == whole
    ranks = [rows(opened(data, world=World(rank, 4, 4), batch_size=4).batches()) for rank in range(4)]
    assert sorted(row for rank in ranks for row in rank) == by_id


def test_a_generator_is_philox_and_makes_others_of_its_own(data: Path) -> None:
    def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        state: Any = rng.bit_generator.state
        again = np.random.Generator(np.random.Philox(**state["state"]))
        assert state["buffer_pos"] == 4
        copied = pickle.loads(pickle.dumps(rng))
        numbers = again.random(3).tolist()
        assert rng.random(3).tolist() == copied.random(3).tolist() == numbers
        children = [child.random() for one in (rng, copied) for child in (*one.spawn(2), *one.spawn(1))]
        assert children[:3] == children[3:]
        seed: Any = rng.bit_generator.seed_seq
        assert np.random.PCG64(seed).random_raw() > 0
        return {"id": sample["id"], "children": np.array(children[:3])}

    first, second = (
        {int(one["id"]): one["children"].tolist() for one in opened(data, transform=Chain().random_map(drawn))}
        for _ in range(2)
    )
    assert first == second
    assert len({one for children in first.values() for one in children}) == 3 * SAMPLES


def test_a_run_resumes_with_the_same_numbers(data: Path) -> None:
    whole = told(opened(data))
    for taken in random.Random(5).sample(range(SAMPLES), 8):
        first = opened(data)
        before = told(islice(first, taken))
        second = opened(data)
        second.load_state_dict(first.state_dict())
        assert before + told(second) == whole


def test_numbers_differ_by_epoch_seed_stream_and_step(data: Path) -> None:
    dataset = opened(data)
    first, second = sorted(told(dataset)), sorted(told(dataset))
    assert all(one[0] == other[0] and one[2:] != other[2:] for one, other in zip(first, second, strict=True))
    assert told(dataset[number] for number in range(5)) == second[:5]
    other = sorted(told(opened(data, shuffle_seed=1)))
    assert not {one[2] for one in first} & {one[2] for one in other}
    renamed = Chain().map(doubled).random_map(noise, "another").random_map(flip, generator="torch")
    changed = sorted(told(opened(data, transform=renamed)))
    assert not {one[2] for one in first} & {one[2] for one in changed}
    assert [one[3] for one in first] == [one[3] for one in changed]
    streams = [Stream(local=data / name) for name in ("a", "b")]
    mixed = told(StreamingDataset(streams=streams, shuffle=True, batch_size=16, transform=CHAIN))
    assert len({one[2] for one in mixed}) == 2 * SAMPLES
    alone = [Stream(local=data / name) for name in ("b", "a")]
    turned = told(StreamingDataset(streams=alone, shuffle=True, batch_size=16, transform=CHAIN))
    assert sorted(mixed) == sorted(turned)


def test_a_sample_that_comes_twice_has_other_numbers_each_time(data: Path) -> None:
    stream = [Stream(local=data / "a", repeat=3.0)]
    settings: dict[str, Any] = {"shuffle": True, "transform": CHAIN}
    whole = told(StreamingDataset(streams=stream, batch_size=12, **settings))
    assert len(whole) == len({one[2] for one in whole}) == 3 * SAMPLES
    ranks = [
        told(StreamingDataset(streams=stream, batch_size=4, world=World(rank, 3, 3), **settings)) for rank in range(3)
    ]
    assert sorted(whole) == sorted(row for rank in ranks for row in rank)


def test_methods_add_to_the_chain_of_a_new_dataset(data: Path) -> None:
    dataset = opened(data, transform=doubled)
    made = dataset.random_map(noise).random_map(flip, generator="torch")
    assert made.chain.names == ("transform", "noise", "flip")
    assert repr(made.chain) == "Chain().map(transform).random_map(noise).random_map(flip, generator='torch')"
    assert dataset.chain.names == ("transform",)
    assert [one[2:] for one in told(made)] == [one[2:] for one in told(opened(data))]
    assert not dataset.chain.of_epoch
    assert next(iter(dataset)).keys() == {"id", "x"}
    with pytest.raises(ConfigError, match=r"call map\(\), filter\(\) and other steps first"):
        made.map(doubled)
    assert StreamingDataset(data / "a").chain == Chain()

    class Tagged(StreamingDataset):
        tag = 0

        def __getitem__(self, index: Any) -> Any:
            return {**super().__getitem__(index), "tag": self.tag}

    tagged = Tagged(data / "a", batch_size=8)
    tagged.tag = 7
    sample = next(iter(tagged.random_map(noise)))
    assert (sample["tag"], sample.keys()) == (7, {"id", "x", "n", "tag"})


def test_chains_are_values() -> None:
    assert Chain().map(doubled).random_map(noise) == Chain().map(doubled).random_map(noise)
    assert hash(Chain().map(doubled)) == hash(Chain().map(doubled))
    assert Chain().map(doubled) != Chain().map(doubled, "other") != Chain()
    assert Chain().map(doubled).map(len, "length")({"x": np.ones(2)}) == 1
    with pytest.raises(ConfigError, match=r"two steps of the name 'noise', .* name='second'"):
        Chain().random_map(noise).random_map(noise)
    assert Chain().map(lambda sample: sample + 1).map(lambda sample: sample * 2)(3) == 8
    with pytest.raises(ConfigError, match=r"random_map\(\) needs a dataset"):
        CHAIN({"x": 1})


@pytest.mark.processes
def test_errors_and_bad_samples_of_a_chain(data: Path) -> None:
    def fails(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if int(sample["id"]) % 40 == 7:
            raise ValueError("seven")
        return sample

    chain = CHAIN.random_map(fails, "fails")
    with pytest.raises(TransformError, match="seven"):
        told(opened(data, transform=chain))
    good = [one for one in told(opened(data)) if one[0] % 40 != 7]
    skip = BadSamples("skip", max_share=None)
    for threads in (0, 2):
        read = ReadOptions(read_threads=threads)
        assert told(opened(data, transform=chain, on_bad_sample=skip, read=read)) == good
        assert rows(opened(data, transform=chain, on_bad_sample=skip, read=read).batches()) == good
    with StreamingDataLoader(opened(data, transform=chain, on_bad_sample=skip), num_workers=2) as loader:
        assert rows(loader) == good
    replaced = told(opened(data, transform=chain, on_bad_sample="replace"))
    assert len(replaced) == SAMPLES
    assert set(replaced) == set(good)
    with StreamingShardLoader(opened(data)) as work:
        assert sorted(rows(work)) == sorted(told(opened(data)))
    with pytest.raises(ConfigError, match="transform= of arrays makes one sample of one"):
        StreamingShardLoader({"x": np.ones(4)}, transform=CHAIN)
    assert StreamingShardLoader(opened(data, transform=Chain().map(doubled))).next()["x"][0, 0] == 2


def test_a_function_in_the_wrong_one_of_map_and_random_map_is_told_the_other(data: Path) -> None:
    dataset: Any = StreamingDataset(data / "a")
    with pytest.raises(ConfigError, match=r"takes random numbers beside the sample: use random_map\(\)"):
        dataset.map(lambda sample, rng: sample, "drawing")
    with pytest.raises(ConfigError, match=r"only the sample, and no random numbers: use map\(\)"):
        dataset.random_map(lambda sample: sample, "plain")
    # One that takes either, and one that does not tell, are called as they are asked to be.
    chain: Any = Chain()
    either = chain.map(lambda *both: both, "either").random_map(lambda sample, rng=None: sample, "may draw").map(dict)
    assert either.names == ("either", "may draw", "dict")


def test_messages_of_methods_name_the_class_that_was_called(data: Path) -> None:
    dataset: Any = StreamingDataset(data / "a")
    with pytest.raises(ConfigError, match=r"StreamingDataset.zip: other must be a StreamingDataset, got 'x' \(str\)"):
        dataset.zip("x")
    with pytest.raises(ConfigError, match=r"StreamingDataset.rename: .*; write columns=\{'a': 'b'\}"):
        dataset.rename("a", "b")
    with pytest.raises(ConfigError, match=r"positional arguments; name them, as in name="):
        dataset.zip(dataset, "b")

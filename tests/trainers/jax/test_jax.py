"""JAX: each sample comes once in the arrays of all processes, or the batch is refused."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stoker.jax
from stoker import MDSWriter, StreamingDataset, World
from stoker.errors import ConfigError
from stoker.partitions import RoundRobin
from trainers.launch import launch

SCRIPT = Path(__file__).with_name("jax_run.py")


@pytest.fixture(scope="module")
def sharding() -> NamedSharding:
    """Over two devices of this process."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))


def test_processes_that_hold_the_same_rows_read_the_same_samples(data: Path) -> None:
    seen = launch(Path(sys.executable), SCRIPT, 2, "--data", data, "--variant", "tensor")
    assert not seen.error
    assert seen.ranks[0] == seen.ranks[1]
    assert sorted(one for step in seen.ranks[0] for one in step) == list(range(100))


def test_arrays_have_one_shape_and_the_mask_tells_samples(data: Path, sharding: NamedSharding) -> None:
    dataset = StreamingDataset(str(data), batch_size=8)
    batches = list(stoker.jax.batches(dataset, sharding, mask="real"))
    assert {batch["x"].shape for batch in batches} == {(8, 8)}
    assert {batch["x"].sharding for batch in batches} == {sharding}
    assert np.concatenate([batch["id"][batch["real"]] for batch in batches]).tolist() == list(range(100))
    whole = list(stoker.jax.batches(StreamingDataset(str(data), remainder="drop"), sharding, 8))
    assert np.concatenate([batch["id"] for batch in whole]).tolist() == list(range(96))
    assert len(list(stoker.jax.batches(StreamingDataset(str(data), batch_size=20), sharding))) == 5


def test_repeated_samples_are_masked(data: Path, sharding: NamedSharding, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last batch of 99 samples for 4 ranks has 3: one comes twice.
    found: list[Any] = []
    for rank in range(4):
        world = World(rank, 4)
        monkeypatch.setattr(stoker.jax, "world", lambda sharding, world=world: world)
        dataset = StreamingDataset(str(data), batch_size=4, epoch_size=99, world=world)
        for batch in stoker.jax.batches(dataset, sharding, mask="real"):
            found += batch["id"][batch["real"]].tolist()
    assert sorted(found) == list(range(99))


def test_a_state_counts_the_batches_that_were_taken(data: Path, sharding: NamedSharding) -> None:
    dataset = StreamingDataset(str(data), batch_size=10, shuffle=True)
    batches = stoker.jax.batches(dataset, sharding)
    head = [next(batches)["id"].tolist() for _ in range(3)]
    resumed = StreamingDataset(str(data), batch_size=10, shuffle=True)
    resumed.load_state_dict(dataset.state_dict())
    rest = [batch["id"].tolist() for batch in stoker.jax.batches(resumed, sharding)]
    assert sorted(chain.from_iterable(head + rest)) == list(range(100))


@pytest.mark.parametrize(
    ("how", "given", "said"),
    [
        ({}, {}, "needs batch_size"),
        ({"batch_size": 8}, {}, 'remainder="drop"'),
        ({"batch_size": 5}, {}, "batch of 5 samples"),
        ({"batch_size": 8}, {"mask": "id"}, "name of a column"),
        ({"batch_size": 8, "remainder": "uneven"}, {"mask": "real"}, "wait for ever"),
        ({"batch_size": 8, "world": World(0, 2)}, {"mask": "real"}, "stoker.jax.world"),
    ],
)
def test_what_would_go_wrong_is_refused(
    data: Path, sharding: NamedSharding, how: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        list(stoker.jax.batches(StreamingDataset(str(data), **how), sharding, **given))


def test_a_partition_that_repeats_samples_is_refused(
    data: Path, sharding: NamedSharding, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0, 2)
    monkeypatch.setattr(stoker.jax, "world", lambda sharding: world)
    dataset = StreamingDataset(str(data), batch_size=4, epoch_size=97, partition_algo=RoundRobin(), world=world)
    with pytest.raises(ConfigError, match="does not say which"):
        list(stoker.jax.batches(dataset, sharding, mask="real"))


def test_numbers_that_jax_would_cut_are_refused(tmp_path: Path, sharding: NamedSharding) -> None:
    with MDSWriter({"id": "int", "text": "str"}, str(tmp_path)) as writer:
        writer.write_batch({"id": np.arange(4) << 40, "text": ["a"] * 4})
    for columns, said in ((["id"], "do not fit int32"), (["text"], "not a jax.Array")):
        with pytest.raises(ConfigError, match=said):
            list(stoker.jax.batches(StreamingDataset(str(tmp_path), batch_size=4, columns=columns), sharding))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of the 100 samples by number; labels of all but each tenth by id, in another order."""
    out = tmp_path_factory.mktemp("others")
    with MDSWriter({"score": "float32"}, str(out / "scores")) as writer:
        writer.write_batch({"score": np.arange(100, dtype=np.float32) / 2})
    kept = [number for number in range(99, -1, -1) if number % 10 != 4]
    with MDSWriter({"id": "int", "label": "int"}, str(out / "labels")) as writer:
        writer.write_batch({"id": np.array(kept), "label": np.array(kept) % 7})
    return out


def beside(data: Path, others: Path, missing: Any, **settings: Any) -> StreamingDataset:
    dataset = StreamingDataset(str(data), batch_size=10, shuffle=True, **settings)
    scores, labels = StreamingDataset(str(others / "scores")), StreamingDataset(str(others / "labels"))
    return dataset.zip(scores).join(labels, on="id", missing=missing)


def test_columns_of_zips_and_joins_are_arrays(data: Path, others: Path, sharding: NamedSharding) -> None:
    def filled(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "label": np.array([-1 if label is None else label for label in batch["label"]])}

    dataset = beside(data, others, "none").batch_map(filled)
    batches = stoker.jax.batches(dataset, sharding)
    read = [next(batches) for _ in range(4)]
    resumed = beside(data, others, "none").batch_map(filled)
    resumed.load_state_dict(dataset.state_dict())
    read += stoker.jax.batches(resumed, sharding)
    ids = np.concatenate([batch["id"] for batch in read])
    assert sorted(ids.tolist()) == list(range(100))
    assert np.concatenate([batch["score"] for batch in read]).tolist() == (ids / 2).tolist()
    expected = [-1 if number % 10 == 4 else number % 7 for number in ids.tolist()]
    assert np.concatenate([batch["label"] for batch in read]).tolist() == expected
    assert {batch["label"].sharding for batch in read} == {sharding}


def test_samples_that_have_no_other_are_replaced_or_refused(data: Path, others: Path, sharding: NamedSharding) -> None:
    replaced = beside(data, others, "raise", on_bad_sample="replace")
    batches = list(stoker.jax.batches(replaced, sharding, mask="real"))
    ids = np.concatenate([batch["id"] for batch in batches])
    assert len(ids) == 100
    assert set(ids.tolist()) == {number for number in range(100) if number % 10 != 4}
    assert np.concatenate([batch["label"] for batch in batches]).tolist() == (ids % 7).tolist()
    with pytest.raises(
        ConfigError, match=r"join\(missing='leave_out'\).*use missing='none', or on_bad_sample='replace'"
    ):
        next(stoker.jax.batches(beside(data, others, "leave_out"), sharding))
    with pytest.raises(ConfigError, match="column 'label' is a list, which is not a jax"):
        list(stoker.jax.batches(beside(data, others, "none"), sharding))
    with pytest.raises(ConfigError, match=r"on_bad_sample='skip'.*use 'replace'"):
        next(stoker.jax.batches(beside(data, others, "raise", on_bad_sample="skip"), sharding))

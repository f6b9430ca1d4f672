"""Which samples a step had and where they lie: with joins, filters and bad samples, and of other loaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import (
    MDSWriter,
    ReadOptions,
    ShardConfig,
    SkipIds,
    StreamingConfig,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError
from stoker.loaders.shard_loader import Adaptive
from support import write_samples

SAMPLES = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lineage")
    write_samples(out / "data", ({"id": number, "key": f"k{number}"} for number in range(SAMPLES)), size_limit=700)
    with MDSWriter({"key": "str", "note": "str"}, out / "notes", size_limit=700) as writer:
        for number in range(SAMPLES):
            if has_note(number):
                writer.write({"key": f"k{number}", "note": f"note {number}"})
    return out


def has_note(number: int) -> bool:
    return number % 10 != 4


def opened(data: Path, **settings: Any) -> StreamingDataset:
    given: dict[str, Any] = {"shuffle": True, "shuffle_seed": 3, "batch_size": 8, "read": ReadOptions(ids="number")}
    return StreamingDataset(data / "data", **(given | settings))


def is_odd(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] % 2)


def twice(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample, sample]


def bad_one(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] % 7 == 3:
        raise ValueError("bad")
    return sample


def numbers(batch: Any) -> list[int]:
    return [int(number) for number in batch.get("number", [])]


# -- chains --------------------------------------------------------------------------------------------------------------


def test_a_step_has_what_filters_joins_and_functions_make_of_its_samples(data: Path) -> None:
    plain = opened(data, transform=None)
    dataset = (
        opened(data).join(StreamingDataset(data / "notes"), "key", missing="leave_out").filter(is_odd).flat_map(twice)
    )
    for step, batch in enumerate(dataset.batches()):
        ids = dataset.ids_of(step, epoch=0).tolist()
        assert ids == plain.ids_of(step, epoch=0).tolist()
        kept = [one for one in ids if has_note(one) and one % 2]
        assert numbers(batch) == [one for one in kept for _ in range(2)]
        for one in kept[:2]:
            found = dataset.where(one)
            assert found.url is not None
            assert found.url.startswith(str(data / "data"))
            assert found.sample == one


def test_ids_of_what_comes_instead_are_delivered_and_the_places_are_told(data: Path) -> None:
    for name, dataset in (
        ("bad", opened(data, on_bad_sample="replace").map(bad_one)),
        ("filtered", opened(data).filter(is_odd, dropped="replace")),
        ("missing", opened(data, on_bad_sample="replace").join(StreamingDataset(data / "notes"), "key")),
    ):
        fits = {"bad": lambda one: one % 7 != 3, "filtered": lambda one: one % 2, "missing": has_note}[name]
        for step, batch in enumerate(dataset.batches()):
            ids = dataset.ids_of(step, epoch=0).tolist()
            assert [one for one in ids if fits(one)] == [
                one for one, place in zip(numbers(batch), ids, strict=True) if fits(place)
            ]
            assert all(fits(one) for one in numbers(batch))
            assert [int(one) for one in batch["id"]] == numbers(batch)


def test_samples_are_left_out_by_id_and_step_with_joins_and_filters(data: Path, tmp_path: Path) -> None:
    listed = tmp_path / "quarantine"
    listed.write_text('17\n{"epoch": 0, "steps": [3, 5], "global_batch": 8}\n')
    notes = StreamingDataset(data / "notes")
    whole = opened(data).join(notes, "key", missing="none").filter(is_odd)
    without = (
        opened(data, read=ReadOptions(ids="number", quarantine=listed))
        .join(notes, "key", missing="none")
        .filter(is_odd)
    )
    for step, (one, other) in enumerate(zip(whole.batches(), without.batches(), strict=True)):
        assert 17 not in numbers(other)
        assert numbers(other) == [number for number in without.ids_of(step, epoch=0).tolist() if number % 2]
        if step in (3, 4):
            assert numbers(other) != numbers(one)
        elif 17 not in numbers(one):
            assert numbers(other) == numbers(one)
    skipping = opened(data, subset=SkipIds([17, 18])).join(notes, "key", missing="leave_out")
    found = {number for batch in skipping.batches() for number in numbers(batch)}
    assert found == {number for number in range(SAMPLES) if has_note(number)} - {17, 18}


# -- the shard loader ----------------------------------------------------------------------------------------------------


def loaders(data: Path, world: int, **config: Any) -> list[StreamingShardLoader]:
    given = {"batch_size": 6, "checkpoint_interval": None} | config
    return [
        StreamingShardLoader(opened(data, world=World(rank, world, world)), StreamingConfig(world, rank, **given))
        for rank in range(world)
    ]


@pytest.mark.parametrize("config", [{}, {"remainder": "drop"}, {"remainder": "join"}, {"shuffle_seed": 5}], ids=str)
def test_a_shard_loader_tells_the_samples_of_each_step(data: Path, config: dict[str, Any]) -> None:
    ranks = loaders(data, 3, **config)
    for epoch in range(2):
        read = [[numbers(batch) for batch in loader if not batch.get("_filler", np.zeros(1))[0]] for loader in ranks]
        teller = ranks[1]
        for step in (0, 1, 4, min(map(len, read)) - 1):
            assert [teller.ids_of(step, rank).tolist() for rank in range(3)] == [batches[step] for batches in read]
            assert teller.ids_of(step).tolist() == [one for batches in read for one in batches[step]]
            assert teller.ids_of(step, epoch=epoch).tolist() == teller.ids_of(step).tolist()
        with pytest.raises(ConfigError, match="every rank has"):
            teller.ids_of(1000)
    with pytest.raises(ConfigError, match="expected 0 to 2"):
        ranks[0].ids_of(0, 3)


def test_it_counts_from_the_epochs_beginning_also_where_it_was_restored(data: Path) -> None:
    (first,) = loaders(data, 1)
    before = [numbers(batch) for batch in islice(first, 5)]
    (again,) = loaders(data, 1)
    again.load_state_dict(first.state_dict())
    read = [numbers(batch) for batch in again]
    assert [again.ids_of(step).tolist() for step in range(5 + len(read))] == before + read
    assert [again.ids_of(step, since_resume=True).tolist() for step in range(len(read))] == read
    assert again.ids_of(0, epoch=1).tolist() == first.ids_of(0, epoch=1).tolist()


def test_a_plan_tells_the_samples_of_its_steps_also_after_a_change(data: Path) -> None:
    ranks = loaders(data, 2, batch_size=None, global_batch_size=16, weights=(1, 3), prefetch_buffer_size=8)
    read: list[list[list[int]]] = [[numbers(loader.next()) for _ in range(2)] for loader in ranks]
    for loader in ranks:
        loader.change_plan([1, 1])
    for batches, loader in zip(read, ranks, strict=True):
        batches.extend(numbers(batch) for batch in loader)
    for step in range(len(read[0])):
        assert [ranks[0].ids_of(step, rank).tolist() for rank in range(2)] == [batches[step] for batches in read]
    with pytest.raises(ConfigError, match="plan has 12 steps"):
        ranks[0].ids_of(12)
    with pytest.raises(ConfigError, match="may be changed"):
        ranks[0].ids_of(0, epoch=1)


def test_rows_of_arrays_are_told_and_leased_work_is_not(data: Path) -> None:
    config = StreamingConfig(1, 0, batch_size=6, shuffle_seed=2, checkpoint_interval=None)
    arrays = StreamingShardLoader({"number": np.arange(50)}, config)
    assert [numbers(batch) for batch in arrays] == [arrays.ids_of(step).tolist() for step in range(9)]
    with pytest.raises(ConfigError, match="set batch_size= in the config"):
        StreamingShardLoader({"number": np.arange(50)}, replace(config, batch_size=None)).ids_of(0)
    leased = replace(config, partition=Adaptive(), coordinator="memory://lineage")
    with pytest.raises(ConfigError, match="settled on the way"):
        StreamingShardLoader(opened(data), leased).ids_of(0)


# -- tokens --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokens")
    for file in range(3):
        rows = [[file * 1000 + number] * (number % 9) for number in range(60)]  # some are empty
        table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.uint32()))})
        pq.write_table(table, out / f"{file}.parquet", row_group_size=25)
    return out


def token_loaders(tokens: Path, world: int, **more: Any) -> Iterator[StreamingParquetLoader]:
    given: dict[str, Any] = {"batch_size": 3, "seq_len": 16, "pad_id": 0, "granularity": "row"}
    for rank in range(world):
        yield StreamingParquetLoader(tokens, ShardConfig(rank, world, seed=1), **(given | more))


@pytest.mark.parametrize("layout", ["concat", "pack", "truncate"])
@pytest.mark.parametrize("treatment", ["raise", "skip"])
def test_documents_of_a_step_of_tokens_are_told(tokens: Path, layout: Any, treatment: Any) -> None:
    ranks = list(token_loaders(tokens, 2, layout=layout, on_bad_sample=treatment))
    read = [[sorted(set(batch.document_ids.ravel().tolist()) - {-1}) for batch in loader] for loader in ranks]
    teller = next(token_loaders(tokens, 2, layout=layout, on_bad_sample=treatment))
    for step in (0, 1, 5, len(read[0]) - 1):
        assert [teller.ids_of(step, rank).tolist() for rank in range(2)] == [batches[step] for batches in read]
        assert teller.ids_of(step, epoch=0).tolist() == [one for batches in read for one in batches[step]]
    with pytest.raises(ConfigError, match="every rank has"):
        teller.ids_of(1000)


def test_they_are_told_while_an_epoch_is_read_and_after_a_resume(tokens: Path) -> None:
    (whole,) = token_loaders(tokens, 1)
    expected = [sorted(set(batch.document_ids.ravel().tolist()) - {-1}) for batch in whole]
    (loader,) = token_loaders(tokens, 1)
    batches = iter(loader)
    for step in range(4):
        batch = next(batches)
        assert sorted(set(batch.document_ids.ravel().tolist()) - {-1}) == loader.ids_of(step).tolist() == expected[step]
    (resumed,) = token_loaders(tokens, 1)
    resumed.load_state_dict(loader.state_dict())
    assert [resumed.ids_of(step, epoch=0).tolist() for step in (0, 3, 4, 5)] == [expected[n] for n in (0, 3, 4, 5)]
    assert resumed.ids_of(0, since_resume=True).tolist() == expected[4]
    assert [sorted(set(batch.document_ids.ravel().tolist()) - {-1}) for batch in batches] == expected[4:]


def test_a_document_is_found_where_it_lies(tokens: Path) -> None:
    (loader,) = token_loaders(tokens, 1)
    for document in (0, 24, 25, 59, 60, 130, 179):
        found = loader.where(document)
        assert (found.sample, found.stream) == (document, None)
        assert found.url is not None
        file, inside = divmod(document, 60)
        assert found.url.endswith(f"{file}.parquet")
        assert (found.shard, found.row) == (3 * file + inside // 25, inside % 25)
    with pytest.raises(IndexError, match="180 rows"):
        loader.where(180)
    with pytest.raises(IndexError, match="from 0"):
        loader.where(-1)
    wrong: dict[str, Any] = {"quarantine": "q"}
    with pytest.raises(ConfigError, match="LMStream"):
        StreamingParquetLoader(tokens, **wrong)

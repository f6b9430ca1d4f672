"""Small shards that are read in place are opened many at a time: with the same values, checks and errors as one by one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Stream, StreamingDataset
from stoker.errors import CorruptDataError, DatasetChangedError, ObjectNotFoundError, StokerError
from stoker.reading import shard_pool
from stoker.reading.opening.load_shard import load_shard
from stoker.reading.samples import read_samples
from support import write_columns

SHARDS, ROWS, BAD = 70, 5, 40


@pytest.fixture
def data(tmp_path: Path) -> Path:
    columns = {"id": np.arange(SHARDS * ROWS), "text": [f"text {number}" for number in range(SHARDS * ROWS)]}
    return write_columns(tmp_path / "data", columns, shard=ROWS, hashes=())


def rows_of(pool: Any, shard: int) -> Any:
    batch = read_samples(pool, np.full(ROWS, shard), np.arange(ROWS))
    return np.asarray(batch["id"]).tolist(), batch["text"]


def expected(shard: int) -> Any:
    ids = list(range(shard * ROWS, (shard + 1) * ROWS))
    return ids, [f"text {number}" for number in ids]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def no_header(file: Path) -> None:
    file.write_bytes(b"\xff" * file.stat().st_size)


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def written_over(file: Path) -> None:
    file.write_bytes(file.with_name("shard.00039.mds").read_bytes())


def replaced_by_an_old_one(file: Path) -> None:
    shutil.copy2(file.with_name("shard.00039.mds"), file.with_name("new"))
    file.with_name("new").rename(file)


def link_to_another(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.with_name("shard.00039.mds"))


def rewritten(file: Path) -> None:
    data = file.read_bytes()
    time.sleep(0.02)
    file.write_bytes(data)


def link_to_rewritten(file: Path) -> None:
    shutil.copyfile(file, file.with_name("other"))
    file.unlink()
    file.symlink_to(file.with_name("other"))


@pytest.mark.parametrize(
    ("damage", "errors"),
    [
        (cut, CorruptDataError),
        (longer, CorruptDataError),
        (no_header, (CorruptDataError, DatasetChangedError)),
        (fifo, ObjectNotFoundError),
        (directory, StokerError),
        (os.unlink, ObjectNotFoundError),
        (written_over, DatasetChangedError),
        (replaced_by_an_old_one, DatasetChangedError),
        (link_to_another, DatasetChangedError),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_bad_file_among_many_is_an_error_of_its_own(data: Path, damage: Callable[[Path], Any], errors: Any) -> None:
    dataset = StreamingDataset(data)
    file = data / f"shard.{BAD:05}.mds"
    damage(file)
    alone = StreamingDataset(data)
    pool = dataset.epoch_reader.pool
    pool.expect(range(SHARDS))
    pool.prefetch(range(SHARDS))
    for shard in range(SHARDS):
        if shard == BAD:
            with pytest.raises(errors, match=file.name) as raised:
                rows_of(pool, shard)
            # One that is whole is as it should be for those who open the dataset afterwards.
            if damage not in (written_over, replaced_by_an_old_one, link_to_another):
                with pytest.raises(StokerError) as once_more:
                    rows_of(alone.epoch_reader.pool, shard)
                if damage is not no_header:
                    assert str(raised.value) == str(once_more.value)
        else:
            assert rows_of(pool, shard) == expected(shard)
    assert dataset.stats().cache_hits >= SHARDS - 1
    dataset.close()


def test_a_dataset_that_is_written_anew_while_small_shards_are_opened_is_an_error(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(data)
    shutil.copytree(data, tmp_path / "new")
    (data / "index.json").write_bytes((tmp_path / "new" / "index.json").read_bytes() + b"\n")
    pool = dataset.epoch_reader.pool
    pool.prefetch(range(SHARDS))
    with pytest.raises(DatasetChangedError):
        rows_of(pool, 3)
    dataset.close()


def test_links_to_small_shards_are_followed(data: Path, tmp_path: Path) -> None:
    data.rename(tmp_path / "real")
    data.mkdir()
    for file in (tmp_path / "real").iterdir():
        (data / file.name).symlink_to(file)
    rows = [int(sample["id"]) for sample in StreamingDataset(data)]
    assert rows == list(range(SHARDS * ROWS))


def test_small_shards_of_several_streams_are_opened_many_at_a_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data, tmp_path / "more")
    cut(tmp_path / "more" / f"shard.{BAD:05}.mds")
    dataset = StreamingDataset(streams=[Stream(data), Stream(tmp_path / "more")])
    pool = dataset.epoch_reader.pool
    mixed = [shard for pair in zip(range(SHARDS), range(SHARDS, 2 * SHARDS), strict=True) for shard in pair]
    alone: list[int] = []

    def load_alone(pool: Any, shard: int, *, demanded: bool) -> Any:
        alone.append(shard)
        return load_shard(pool, shard, demanded=demanded)

    monkeypatch.setattr(shard_pool, "load_shard", load_alone)
    pool.expect(mixed)
    pool.prefetch(mixed)
    for shard in mixed:
        if shard == SHARDS + BAD:
            with pytest.raises(CorruptDataError, match=f"more.*shard.{BAD:05}.mds"):
                rows_of(pool, shard)
        else:
            assert rows_of(pool, shard) == expected(shard % SHARDS)
    assert set(alone) == {SHARDS + BAD}
    dataset.close()


def test_few_small_shards_stay_open(data: Path) -> None:
    dataset = StreamingDataset(data, shuffle=True, batch_size=4)
    pool = dataset.epoch_reader.pool
    pool.most_open = 8
    for _ in range(2):
        found = sorted(number for batch in dataset.batches() for number in np.asarray(batch["id"]).tolist())
        assert found == list(range(SHARDS * ROWS))
        assert pool.ready(range(SHARDS)) <= 8 + 1
    assert dataset.stats().cache_hits >= SHARDS
    dataset.close()


def part_rows(pool: Any, file: int) -> Any:
    return np.asarray(read_samples(pool, np.full(ROWS, file), np.arange(ROWS))["id"]).tolist()


@pytest.mark.parametrize(
    ("damage", "errors"),
    [
        (cut, CorruptDataError),
        (longer, CorruptDataError),
        (fifo, ObjectNotFoundError),
        (directory, StokerError),
        (os.unlink, ObjectNotFoundError),
        (rewritten, CorruptDataError),
        (link_to_rewritten, CorruptDataError),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_bad_file_among_many_small_parts_is_an_error_of_its_own(
    tmp_path: Path, damage: Callable[[Path], Any], errors: Any
) -> None:
    for number in range(SHARDS):
        ids = pa.array(np.arange(number * ROWS, (number + 1) * ROWS))
        pq.write_table(pa.table({"id": ids, "x": ids}), tmp_path / f"{number:05}.parquet")
    dataset = StreamingDataset(tmp_path, format="parquet", columns=["id"])
    file = tmp_path / f"{BAD:05}.parquet"
    damage(file)
    pool = dataset.epoch_reader.pool
    pool.expect(range(SHARDS))
    pool.prefetch(range(SHARDS))
    for number in range(SHARDS):
        if number == BAD:
            with pytest.raises(errors, match=file.name):
                part_rows(pool, number)
        else:
            assert part_rows(pool, number) == list(range(number * ROWS, (number + 1) * ROWS))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    dataset.close()


def test_row_groups_are_read_or_mapped_by_their_own_size(tmp_path: Path) -> None:
    small, large = np.arange(2000), np.random.default_rng(0).integers(0, 1 << 60, 40_000)
    with pq.ParquetWriter(tmp_path / "data.parquet", pa.schema([("id", pa.int64())])) as writer:
        for values in (small, large, small + 5):
            writer.write_table(pa.table({"id": values}))
    dataset = StreamingDataset(tmp_path, format="parquet")
    pool = dataset.epoch_reader.pool
    pool.prefetch(range(3))
    for shard, values in enumerate((small, large, small + 5)):
        rows = np.arange(len(values))
        assert (np.asarray(read_samples(pool, np.full(len(values), shard), rows)["id"]) == values).all()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len(maps) == 1
    dataset.close()

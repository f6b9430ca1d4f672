"""Checkpoints in a folder at any URL: whole, the latest, off the samples' way."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from s3server import Bucket
from stoker.concurrency.shared.counters import Counts
from stoker.errors import ConfigError, StateError, StorageError
from stoker.loaders.shard_loader import StreamingConfig, StreamingShardLoader
from stoker.pipeline.state.checkpoint import Checkpoint, CheckpointFolder

DATA = {"x": np.arange(1000)}


def loader(url: Any, rank: int = 0, world: int = 1, **config: Any) -> StreamingShardLoader:
    return StreamingShardLoader(
        DATA, StreamingConfig(world, rank, checkpoint_url=url, **{"remainder": "drop", **config})
    )


def test_a_checkpoint_is_written_at_the_interval_by_what_is_done(tmp_path: Path) -> None:
    one = loader(tmp_path, checkpoint_interval=100)
    for number in range(350):
        one.next()
        if number in (99, 100):
            one._checkpoints().flush()
            # Sample 100 is done when the next one is asked for.
            assert (tmp_path / "rank-000000.json").exists() == (number == 100)
    one.close()
    found = Checkpoint.from_dict(json.loads((tmp_path / "rank-000000.json").read_text()))
    assert (found.position, found.processed) == (300, ((0, 300),))
    assert one.get_stats().checkpoints >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["rank-000000.json"]


def test_no_interval_no_checkpoint_but_those_requested(tmp_path: Path) -> None:
    one = loader(tmp_path, checkpoint_interval=None)
    list(one)
    one.close()
    assert not list(tmp_path.iterdir())
    assert one.save_checkpoint().epoch == 1
    assert one.get_stats().checkpoints == 1


def test_after_a_crash_the_latest_one_is_resumed(tmp_path: Path) -> None:
    one = loader(tmp_path, checkpoint_interval=100, shuffle_seed=4)
    had = [int(one.next()["x"]) for _ in range(250)]
    one._checkpoints().flush()
    other = loader(tmp_path, checkpoint_interval=100, shuffle_seed=4)
    found = other.restore_latest()
    assert found is not None
    assert found.position == 200
    rest = [int(sample["x"]) for sample in other]
    assert sorted(had[:200] + rest) == list(range(1000))
    assert set(had[200:]) <= set(rest)


def test_ranks_in_step_all_continue_from_the_same_one(tmp_path: Path) -> None:
    """The group's checkpoint is rank 0's, however far each of the others had written its own."""
    group = [loader(tmp_path, rank, 3, batch_size=10, checkpoint_interval=10 * (rank + 1)) for rank in range(3)]
    for one in group:
        for _ in range(9):
            one.next()
        one.close()
    restored = [loader(tmp_path, rank, 3, batch_size=10) for rank in range(3)]
    assert {one.restore_latest().position for one in restored} == {240}  # type: ignore[union-attr]
    rest = [number for one in restored for batch in one for number in batch["x"].tolist()]
    assert len(rest) == len(set(rest)) == 750


def test_workers_that_are_not_in_step_continue_from_their_own(tmp_path: Path) -> None:
    for rank, samples in ((0, 31), (1, 57)):
        one = loader(tmp_path, rank, 2, remainder="uneven", checkpoint_interval=10)
        for _ in range(samples):
            one.next()
        one.close()
    positions = []
    for rank in range(2):
        other = loader(tmp_path, rank, 2, remainder="uneven")
        other.restore_latest()
        positions.append(500 - sum(1 for _ in other))
    assert positions == [30, 50]


def test_where_there_is_none_the_run_begins(tmp_path: Path) -> None:
    one = loader(tmp_path / "none")
    assert one.restore_latest() is None
    with pytest.raises(ConfigError, match="checkpoint_url is not set: set it in the config"):
        StreamingShardLoader(DATA).restore_latest()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 2}'])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank-000000.json").write_bytes(content)
    with pytest.raises(StateError, match="rank-000000"):
        loader(tmp_path).restore_latest()


def test_a_folder_that_can_not_be_written_does_not_stop_the_samples(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    one = loader(tmp_path / "file", checkpoint_interval=10)
    assert sum(1 for _ in one) == 1000
    with pytest.raises(StorageError):
        one.save_checkpoint()
    one.close()


def _checkpoint(position: int) -> Checkpoint:
    return Checkpoint("lockstep", 0, position, 1, 0, 1, 0.0, ((0, position),), {})


def test_writing_never_waits_and_only_the_latest_is_written(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, None, counts := Counts())
    held, begun = threading.Event(), threading.Event()

    def slow() -> Checkpoint:
        begun.set()
        assert held.wait(PATIENCE)
        return _checkpoint(1)

    folder.save_soon(slow)
    assert begun.wait(PATIENCE)
    for position in range(2, 100):
        folder.save_soon(lambda position=position: _checkpoint(position))  # type: ignore[misc]
    held.set()
    folder.flush()
    found = folder.load(0)
    assert found is not None
    assert found.position == 99
    assert int(counts.totals()[0].sum()) == 2  # the one under way, and the last


def test_a_reader_never_sees_half_of_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, None, Counts())
    folder.save(_checkpoint(1))
    done = threading.Event()

    def write() -> None:
        for position in range(1, 300):
            folder.save(
                Checkpoint("lockstep", 0, position, 1, 0, 1, 0.0, ((0, position),), {"x": "y" * (position * 50)})
            )
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while not done.is_set():
        found = folder.load(0)
        assert found is not None
        assert found.position >= last
        last = found.position
    writer.join()


@pytest.mark.s3
def test_an_object_store_will_do(bucket: Bucket) -> None:
    config: dict[str, Any] = {"checkpoint_interval": 300, "storage_options": bucket.storage_options}
    one = loader(f"{bucket.url}/run/7", **config)
    for _ in range(700):
        one.next()
    one.close()
    other = loader(f"{bucket.url}/run/7", **config)
    found = other.restore_latest()
    assert found is not None
    assert found.position == 600
    assert sum(1 for _ in other) == 400

"""The pool of open shards: what is interrupted keeps nobody waiting."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE
from stoker import StreamingDataset
from stoker.cache.disk.in_use import Users
from stoker.writing.shard_formats import writer_of
from support import make_dataset


def test_a_shard_whose_opening_was_interrupted_is_opened_by_the_next_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(tmp_path / "data", 20, size_limit=1000)
    pool = StreamingDataset(tmp_path / "data").epoch_reader.pool

    def interrupted() -> None:
        raise KeyboardInterrupt

    # As Ctrl-C does after the shard was noted as coming, and before it is loaded.
    with monkeypatch.context() as patched:
        patched.setattr(pool.times, "awaiting", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.get(0)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(pool.get(0)), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found
    pool.close()


def test_a_shard_of_two_files_is_opened_where_those_in_use_fill_the_limit(tmp_path: Path) -> None:
    with writer_of("npy")({"x": "ndarray:int64:4"}, tmp_path / "data", size_limit=400) as out:
        out.write_batch({"x": np.arange(400).reshape(100, 4)})
    limit = 2 * sum(path.stat().st_size for path in (tmp_path / "data").glob("*00000*"))
    dataset = StreamingDataset(str(tmp_path / "data"), local=tmp_path / "cache", cache_limit=limit)
    pool = dataset.epoch_reader.pool
    shards = range(len(pool.index.shards))
    assert len(shards) > 3
    assert len(pool.index.shards[0].raw) == 2
    pool.expect(set(shards))  # all that are opened stay
    found = [np.asarray(pool.get(shard).read(np.array([0]))["x"])[0, 0] for shard in shards]
    assert found == [4 * first for first in np.cumsum([0, *(one.samples for one in pool.index.shards)])[:-1].tolist()]
    dataset.close()
    held = [path for path in (tmp_path / "cache").glob("*/shard*") if path.is_file()]
    assert sum(path.stat().st_size for path in held) > limit
    with Users() as users:
        assert not any(map(users.uses, held))


def test_threads_open_more_shards_than_are_kept(tmp_path: Path) -> None:
    """Each gets readers of the shards that it asks for, while the others open and drop them."""
    make_dataset(tmp_path / "data", 60, size_limit=600)
    pool = StreamingDataset(tmp_path / "data").epoch_reader.pool
    shards = len(pool.index)
    assert shards > 8
    pool.most_open = 4
    readers = [pool.get(shard) for shard in range(shards)]
    assert len(pool._open.readers) == 4
    failed: list[Exception] = []

    def read(step: int) -> None:
        try:
            for number in range(2000):
                # Mostly shards that are open, whose use is noted without the pool's lock.
                shard = number * step % shards if number % 8 == 0 else number % 4
                assert pool.get(shard).where == readers[shard].where
                assert 0 <= pool.ready(range(shards)) <= shards
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(step,)) for step in (3, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(pool._open.readers) <= 5
    pool.close()


def test_the_reader_that_was_used_longest_ago_is_dropped_first(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 20, size_limit=600)
    pool = StreamingDataset(tmp_path / "data").epoch_reader.pool
    pool.most_open = 3
    for shard in (0, 1, 2, 0):
        pool.get(shard)
    pool.get(3)
    assert list(pool._open.readers) == [2, 0, 3]
    pool.close()

"""A limited cache under several processes: within its limit, never a wrong byte, never stuck."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from stoker import StreamingDataset, World
from stoker.index.index import load_index
from stoker.storage import open_store
from support import check_sample, ids_of, make_dataset

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("no_debris"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

SAMPLES = 1800
SHARD = 4096
RANKS = 3


@pytest.fixture(scope="module")
def remotes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of about 140 shards, 550 kB, plain and packed."""
    out = tmp_path_factory.mktemp("limit")
    for name, compression in (("plain", None), ("packed", "zstd")):
        make_dataset(out / name, SAMPLES, least=150, size_limit=SHARD, compression=compression, hashes=["xxh3_64"])
    return out


def held(cache: Path, names: dict[str, int]) -> int:
    """Bytes of shard files in the cache, those under way included."""
    room_file = next(cache.glob("*/.stoker/room"), None)
    if room_file is None:
        return 0
    sizes: dict[int, int] = {}
    # While we look, nobody may add or remove files; a part may still get its final name, so each counts by its inode.
    with open(room_file) as room:
        fcntl.flock(room, fcntl.LOCK_EX)
        for path in cache.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.name in names or path.name.endswith(".part"):
                    status = path.stat()
                    sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def read(options: dict[str, Any], rank: int, seed: int, results: Any) -> None:
    """Read an epoch as one rank, by a way that the seed chooses, and check every byte."""
    dataset = StreamingDataset(**options, world=World(rank, RANKS, RANKS))
    if seed % 3 == 2:
        ids = random.Random(seed).choices(range(SAMPLES), k=SAMPLES // RANKS)
        found = [check_sample(dataset[number], 150) for number in ids]
        assert found == ids
        results.put([])
        return
    if seed % 3:
        results.put(ids_of(dataset.batches(), 150))
    else:
        results.put(ids_of(dataset, 150))


def run_ranks(options: dict[str, Any], seeds: list[int]) -> tuple[list[list[int]], int]:
    """What each of three processes read, and the most that was in the cache meanwhile."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    names = load_index(open_store(options["remote"])).file_sizes()
    children = [
        context.Process(target=read, args=(options, rank, seed, results), daemon=True)
        for rank, seed in enumerate(seeds)
    ]
    for child in children:
        child.start()
    most, deadline = 0, time.monotonic() + PATIENCE
    found: list[list[int]] = []
    while len(found) < len(children):
        most = max(most, held(Path(options["local"]), names))
        assert all(child.exitcode in (None, 0) for child in children)
        assert time.monotonic() < deadline, "they hang"
        time.sleep(0.02)
        while not results.empty():
            found.append(results.get())
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0
    return found, most


@pytest.mark.slow
@pytest.mark.parametrize(("name", "keep_zip"), [("plain", False), ("packed", False), ("packed", True)])
@pytest.mark.parametrize("seeds", [[0, 1, 0], [1, 2, 2]])
def test_processes_that_read_at_once_stay_within_the_limit(
    remotes: Path, tmp_path: Path, seeds: list[int], name: str, keep_zip: bool
) -> None:
    limit = 60 * SHARD
    options: dict[str, Any] = {
        "remote": remotes / name,
        "local": tmp_path / "cache",
        "cache_limit": limit,
        "shuffle": True,
        "num_canonical_nodes": 2,
        "batch_size": 8,
        "keep_zip": keep_zip,
    }
    found, most = run_ranks(options, seeds)
    assert limit // 2 < most <= limit
    if 2 not in seeds:
        assert sorted(number for ids in found for number in ids) == list(range(SAMPLES))
    # The limit is kept from one run to the next, and by a run of another limit.
    found, most = run_ranks({**options, "cache_limit": limit // 2}, [0, 1, 2])
    assert most <= limit


def test_a_limit_too_small_for_what_is_read_at_once_still_finishes(
    remotes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        "remote": remotes / "packed",
        "local": tmp_path / "cache",
        "cache_limit": SHARD + 100,
        "shuffle": True,
        "num_canonical_nodes": 4,
        "batch_size": 32,
    }
    found, _ = run_ranks(options, [0, 1, 2])
    assert {number for ids in found for number in ids} <= set(range(SAMPLES))
    dataset = StreamingDataset(**options)
    assert sorted(check_sample(sample, 150) for sample in dataset) == list(range(SAMPLES))
    assert "cache_limit" in caplog.text

"""Chains on the shard loader: in lockstep, by a plan, leased and replayed, the samples are those of the dataset alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import Adaptive, Chain, ReadOptions, StreamingConfig, StreamingDataset, StreamingShardLoader
from stoker.coordination import CoordinationSettings
from stoker.errors import ConfigError, StateError, TransformError
from stoker.partitions import RoundRobin
from support import write_columns

SAMPLES = 211
QUICK = CoordinationSettings(lease=3600.0, heartbeat=0.1, split=0.05, attempts=3, grid=16)
_names = count()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shard_chains")
    for folder in ("data", "names"):
        numbers = np.array([number for number in range(SAMPLES) if folder == "data" or number % 5 != 3])
        columns = {"id": numbers} if folder == "data" else {"id": numbers, "name": -numbers}
        write_columns(root / folder, columns, size_limit=300)
    return root


def not_thirds(sample: dict[str, Any]) -> bool:
    return int(sample["id"]) % 3 != 1


def copies(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**sample, "turn": turn} for turn in range(int(sample["id"]) % 4)]


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": int(rng.integers(1 << 40))}


def failing(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) % 20 == 7:
        raise ValueError("seven")
    return sample


def counted(columns: dict[str, Any]) -> dict[str, Any]:
    rows = len(columns["id"])
    return {**columns, "n": np.full(rows, rows), "c": np.full(rows, int(np.sum(columns["id"])))}


CHAINS = {
    "filter": Chain().filter(not_thirds).random_map(noise),
    "flat_map": Chain().map(failing).flat_map(copies).filter(not_thirds).random_map(noise),
    "replaced": Chain().filter(not_thirds, dropped="replace").random_map(noise),
    "enumerated": Chain().enumerate("at").map(failing),
    "batch_map": Chain().filter(not_thirds).batch_map(counted).flat_map(copies).random_map(noise),
}


def opened(data: Path, name: str, **settings: Any) -> StreamingDataset:
    if name == "joined":
        other = StreamingDataset(data / "names")
        chain = Chain().join(other, on="id", missing="leave_out").random_map(noise)
    else:
        chain = CHAINS[name]
    given: dict[str, Any] = {
        "shuffle": True,
        "shuffle_seed": 3,
        "on_bad_sample": "skip",
        "num_canonical_nodes": 1,
    } | settings
    return StreamingDataset(data / "data", transform=chain, **given)


def rows_of(items: Iterator[Any]) -> list[dict[str, int]]:
    """All samples, of batches or one by one."""
    found = []
    for item in items:
        if np.ndim(item.get("id", ())) == 0:
            item = {key: [value] for key, value in item.items()}
        found += [dict(zip(item, map(int, row), strict=True)) for row in zip(*item.values(), strict=True)]
    return found


def in_order(rows: list[dict[str, int]]) -> list[Any]:
    return sorted(sorted(row.items()) for row in rows)


def workers(data: Path, name: str, world: int, how: dict[str, Any], **settings: Any) -> list[StreamingShardLoader]:
    made = []
    for rank in range(world):
        config = StreamingConfig(world, rank, checkpoint_interval=None, patience=PATIENCE, **how)
        made.append(StreamingShardLoader(opened(data, name, **settings), config))
    return made


def leased(**more: Any) -> dict[str, Any]:
    return {"partition": Adaptive(), "coordinator": f"memory://chains{next(_names)}", "coordination": QUICK, **more}


def all_of(loaders: list[StreamingShardLoader]) -> list[dict[str, int]]:
    """What all have, which take samples at once."""
    found: list[list[dict[str, int]]] = [[] for _ in loaders]
    errors: list[BaseException] = []

    def take(rank: int) -> None:
        try:
            found[rank] = rows_of(iter(loaders[rank]))
        except BaseException as error:  # shown by the test's thread
            errors.append(error)

    threads = [threading.Thread(target=take, args=(rank,), daemon=True) for rank in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors, errors
    return [row for part in found for row in part]


WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {"remainder": "uneven"},
    "lockstep batches": {"batch_size": 7, "remainder": "uneven"},
    "joined batches": {"batch_size": 7, "remainder": "join"},
    "planned": {"global_batch_size": 12},
    "leased": {},
    "leased batches": {"batch_size": 4},
}


@pytest.mark.parametrize("name", [*CHAINS, "joined"])
@pytest.mark.parametrize("way", WAYS)
def test_samples_are_those_of_the_dataset(data: Path, name: str, way: str) -> None:
    if name == "batch_map" and way in ("lockstep", "leased"):
        with pytest.raises(ConfigError, match=r"batch_map\(\) needs batches, .* set batch_size="):
            workers(data, name, 2, WAYS[way] if way == "lockstep" else leased())
        return
    dataset = opened(data, name, batch_size=7)
    plain = rows_of(dataset.batches())
    for threads in (0, 2):
        how = leased(**WAYS[way]) if way.startswith("leased") else WAYS[way]
        loaders = workers(data, name, 2, how, read=ReadOptions(read_threads=threads))
        found = all_of(loaders)
        found = [
            {key: value for key, value in row.items() if key != "_filler"} for row in found if not row.get("_filler")
        ]
        came, wanted = found, plain
        if name == "batch_map":  # of other batches
            found, wanted = (
                [{key: value for key, value in row.items() if key not in "nc"} for row in rows]
                for rows in (found, plain)
            )
        if way == "planned":  # what does not fill a global batch is left out
            kept = [row for row in in_order(wanted) if row in in_order(found)]
            assert kept == in_order(found)
            assert len(wanted) - len(found) < 12 * 4
        else:
            assert in_order(found) == in_order(wanted)
        stats = [one.stats() for one in loaders]
        if way != "planned":
            assert sum(one.filtered for one in stats) == dataset.stats().filtered
            assert sum(one.bad_samples for one in stats) == dataset.stats().bad_samples
        if way.startswith("leased"):
            assert loaders[0].progress().finished
            replay = {"partition": Adaptive(replay=loaders[0].assignment()), **WAYS[way]}
            assert in_order(all_of(workers(data, name, 2, replay))) == in_order(came)
        for one in loaders:
            one.close()


def test_batches_of_leased_work_are_those_that_are_committed(data: Path) -> None:
    loader = workers(data, "batch_map", 1, leased(batch_size=4))[0]
    for batch in loader:
        for row in rows_of(iter([batch])):
            assert row["n"] <= 4
        assert len(loader.last_positions()) <= 4
    loader.close()


def test_a_commit_waits_for_all_that_came_of_one_sample(data: Path) -> None:
    loader = workers(data, "flat_map", 1, leased(commit="explicit"))[0]
    seen: list[int] = []
    while (sample := loader.next()) is not None:
        seen.append(int(sample["id"]))
        loader.commit()
        done = loader.progress().committed
        (position,) = loader.last_positions()
        rest = sum(1 for turn in range(seen[-1] % 4) if seen[-1] % 3 != 1) - seen.count(seen[-1])
        assert done == position + (rest == 0), "committed with its last sample, and not before"
    loader.commit()
    assert loader.progress().finished
    loader.close()


def test_a_checkpoint_is_of_whole_samples(data: Path) -> None:
    plain = rows_of(iter(workers(data, "flat_map", 1, {})[0]))
    loader = workers(data, "flat_map", 1, {})[0]
    state, taken, refused = None, 0, 0
    for number, _ in enumerate(iter(loader), 1):
        if loader._worker.among:
            with pytest.raises(StateError, match=r"between samples that flat_map\(\) made of one"):
                loader.state_dict()
            refused += 1
        else:
            state, taken = loader.state_dict(), number
        if number == 40:
            break
    assert refused
    assert state is not None
    again = workers(data, "flat_map", 1, {})[0]
    again.load_state_dict(state)
    assert rows_of(iter(again)) == plain[taken:]


def test_an_error_between_samples_of_one_repeats_none(data: Path) -> None:
    """An iteration that is given up between them goes on behind those that it delivered."""
    plain = rows_of(iter(workers(data, "flat_map", 1, {})[0]))
    loader = workers(data, "flat_map", 1, {})[0]
    first = [loader.next() for _ in range(12)]
    loader._worker._stop()  # as after an error of what is read ahead
    assert rows_of(iter(first)) + rows_of(iter(loader)) == plain


def test_saving_waits_until_all_of_a_sample_came(data: Path, tmp_path: Path) -> None:
    config = StreamingConfig(checkpoint_interval=1, checkpoint_url=tmp_path / "saved")
    with StreamingShardLoader(opened(data, "flat_map"), config) as loader:
        assert len(rows_of(iter(loader))) == len(rows_of(iter(opened(data, "flat_map", batch_size=7))))


def test_what_has_no_meaning_is_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"filter\(\) leaves 2 ranks .*dropped='replace', or remainder='uneven'"):
        _ = workers(data, "filter", 2, {}, on_bad_sample="raise")
    with pytest.raises(ConfigError, match=r"flat_map\(\) leaves 2 ranks"):
        _ = workers(data, "flat_map", 2, {"remainder": "pad"}, on_bad_sample="raise")
    loader = workers(data, "enumerated", 1, leased(partition=Adaptive(RoundRobin())))
    with pytest.raises(ConfigError, match=r"enumerate\(\) needs positions that are the same on any cluster"):
        loader[0].next()
    with pytest.raises(ConfigError, match=r"random_map\(\): transform= of arrays makes one sample of one"):
        StreamingShardLoader({"id": np.arange(9)}, transform=Chain().random_map(noise))
    dataset = StreamingDataset(data / "data").filter(lambda _: False, "none")
    nothing = StreamingShardLoader(dataset, StreamingConfig(2, 1, batch_size=105, remainder="join"))
    with pytest.raises(TransformError, match="all samples are bad or left out"):
        list(nothing)

"""Bad samples in a StreamingShardLoader: good ones come once, steps stay equal, runs resume, bad ones are committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_data import write_with_bad

from stoker import Adaptive, BadSamples, StreamingConfig, StreamingDataset, StreamingShardLoader
from stoker.coordination import CoordinationSettings, StalledError
from stoker.errors import ConfigError, DecodeError, TooManyBadSamplesError, TransformError
from stoker.partitions import Contiguous, RoundRobin

SAMPLES = 300
BAD = frozenset({0, 1, 5, 63, 64, 119, 120, 121, 122, 200, 298, 299})
GOOD = set(range(SAMPLES)) - BAD
QUICK = CoordinationSettings(lease=2.0, heartbeat=0.25, split=0.05, attempts=2, grid=16)
KINDS = [
    "samples",
    "batches",
    "joined",
    "static",
    "planned",
    "leased",
    "leased batches",
    "replayed",
    "replayed batches",
]
_names = count()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_bad(tmp_path_factory.mktemp("bad") / "data", SAMPLES, BAD)


def raises_for_bad(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) in BAD:
        raise ValueError("a bad one")
    return sample


def config_of(kind: str, rank: int = 0, world: int = 1, **more: Any) -> StreamingConfig:
    settings: dict[str, Any] = {"checkpoint_interval": None}
    if "batches" in kind or kind in ("joined", "static"):
        settings["batch_size"] = 6
    if kind == "joined":
        settings["remainder"] = "join"
    if kind == "planned":
        settings |= {"global_batch_size": 12, "weights": tuple(range(1, world + 1))}
    if kind.startswith(("leased", "replayed")):
        settings |= {"partition": Adaptive(), "coordinator": f"memory://bad{next(_names)}", "coordination": QUICK}
    return StreamingConfig(world, rank, **settings | more)


Make = Callable[..., StreamingShardLoader]


@pytest.fixture(params=["decoding", "transform", "arrays"])
def make(request: pytest.FixtureRequest, data: Path) -> Make:
    """Makes loaders of which the samples in ``BAD`` are bad, for one reason or another."""

    def made(config: StreamingConfig, on_bad_sample: Any = "skip", **settings: Any) -> StreamingShardLoader:
        settings = {"shuffle": True, "batch_size": 6, **settings}
        if request.param == "arrays":
            if "partition_algo" in settings:
                config = config.with_partition(settings["partition_algo"])
            arrays = {"id": np.arange(SAMPLES)}
            return StreamingShardLoader(arrays, config, transform=raises_for_bad, on_bad_sample=on_bad_sample)
        if request.param == "transform":
            settings |= {"transform": raises_for_bad, "columns": ["id"]}
        return StreamingShardLoader(StreamingDataset(data, on_bad_sample=on_bad_sample, **settings), config)

    return made


def numbers(items: Any) -> list[int]:
    return [int(number) for item in items for number in np.atleast_1d(item.get("id", ()))]


def steps(loader: StreamingShardLoader) -> Iterator[list[int]]:
    for item in loader:
        yield [] if "_filler" in item and item["_filler"].any() else numbers([item])


def config_again(kind: str, make: Make) -> StreamingConfig:
    """A config of the kind; of a replay, of a run that was recorded."""
    config = config_of(kind)
    if not kind.startswith("replayed"):
        return config
    with make(config) as recorded:
        for _ in recorded:
            pass
        return replace(config, partition=Adaptive(replay=recorded.assignment()), coordinator=None)


@pytest.mark.parametrize("kind", KINDS)
def test_good_samples_come_once_and_replaced_ones_in_their_places(make: Make, kind: str) -> None:
    config = config_again(kind, make)
    with make(config) as loader:
        found = numbers(loader)
        assert sorted(found) == sorted(GOOD)
        assert loader.stats().bad_samples == len(BAD)
    with make(config_again(kind, make), "replace") as loader:
        replaced = numbers(loader)
        assert len(replaced) == SAMPLES
        assert set(replaced) == GOOD
        if not kind.startswith("leased"):  # leases come in an order of their own
            rest = iter(replaced)
            assert all(number in rest for number in found)  # the good ones, in the same order
    with make(config_again(kind, make), "raise") as loader, pytest.raises((DecodeError, TransformError)):
        numbers(loader)


@pytest.mark.parametrize("kind", ["batches", "joined", "static", "planned"])
@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_ranks_take_as_many_steps_as_without_bad_samples(make: Make, kind: str, on_bad_sample: str) -> None:
    more = {"partition_algo": Contiguous()} if kind == "static" else {}
    ranks = [make(config_of(kind, rank, 3), on_bad_sample, **more) for rank in range(3)]
    found = [list(steps(rank)) for rank in ranks]
    assert [len(rank) for rank in ranks] == [*map(len, found)]
    assert len({*map(len, found)}) == 1
    whole = Counter(number for rank in found for step in rank for number in step)
    assert set(whole) == GOOD
    if on_bad_sample == "skip" and kind != "static":  # whose smaller parts are padded
        assert max(whole.values()) == 1
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("kind", ["samples", "batches", "planned", "leased", "replayed", "replayed batches"])
@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_a_run_resumes_after_any_sample(make: Make, kind: str, on_bad_sample: str) -> None:
    config = config_again(kind, make)
    with make(config, on_bad_sample) as loader:
        whole = numbers(loader)
    length = -(-len(whole) // 12) if kind == "planned" else len(whole) // (6 if "batches" in kind else 1)
    for taken in (1, length // 3, length - 2):
        config = config if kind.startswith("replayed") else config_of(kind)
        first = make(config, on_bad_sample)
        before = numbers(islice(first, taken))
        state = json.loads(json.dumps(first.state_dict()))
        bad_before = first.stats().bad_samples
        first.close()
        with make(config, on_bad_sample) as second:
            second.load_state_dict(state)
            assert before + numbers(second) == whole
            if kind != "leased":  # others may have read some of it before they stopped
                assert bad_before + second.stats().bad_samples == len(BAD)


def test_what_replaces_is_the_same_in_any_world(make: Make) -> None:
    wholes = []
    for world in (1, 2, 3):
        ranks = [
            [*steps(make(config_of("planned", rank, world, weights=(1,) * world), "replace"))] for rank in range(world)
        ]
        wholes.append([number for parts in zip(*ranks, strict=True) for part in parts for number in part])
    assert wholes[0] == wholes[1] == wholes[2]


def test_samples_one_by_one_of_ranks_in_step_are_replaced_not_left_out(data: Path) -> None:
    dataset = StreamingDataset(data, on_bad_sample="skip")
    with pytest.raises(ConfigError, match=r"on_bad_sample='skip' leaves 2 ranks.*batch_size="):
        StreamingShardLoader(dataset, StreamingConfig(2, 0))
    parts = [
        StreamingShardLoader(
            StreamingDataset(data, on_bad_sample="skip", remainder="uneven", partition_algo=RoundRobin()),
            StreamingConfig(2, rank),
        )
        for rank in range(2)
    ]
    assert sorted(number for part in parts for number in numbers(part)) == sorted(GOOD)
    with pytest.raises(ConfigError, match="give it to the StreamingDataset"):
        StreamingShardLoader(dataset, on_bad_sample="skip")


def test_none_still_means_the_end_of_the_epoch(make: Make) -> None:
    with make(config_of("samples", prefetch_buffer_size=16)) as loader:
        for _ in range(2):
            found = []
            while (sample := loader.next()) is not None:
                found.append(int(sample["id"]))
            assert sorted(found) == sorted(GOOD)
            assert loader.next() is None
            loader.reset()
        assert loader.stats().bad_samples == 2 * len(BAD)


@pytest.mark.parametrize("kind", ["samples", "batches", "planned", "leased", "leased batches"])
def test_limits_hold_and_lists_have_each_once(make: Make, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "bad.jsonl"
    with make(config_of(kind), BadSamples(max_bad=len(BAD), file=file), shuffle=False) as loader:
        assert len(numbers(loader)) == len(GOOD)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(line["sample"] for line in lines) == sorted(BAD)
    with make(config_of(kind), BadSamples(max_bad=5), shuffle=False) as loader:
        found: list[int] = []
        for _ in range(2):  # it is no end, and no other error either
            with pytest.raises(TooManyBadSamplesError, match="6 bad samples, and max_bad=5"):
                found.extend(numbers(iter(loader.next, None)))
        if kind == "leased":  # nothing was committed that was not delivered, or bad
            assert loader.get_checkpoint().position == 120  # 0, 1, 5, 63, 64, and 119 are bad
    limited = make(config_of(kind), BadSamples(max_in_a_row=3), shuffle=False)
    with limited, pytest.raises(TooManyBadSamplesError, match="4 bad samples in a row"):
        numbers(limited)


@pytest.mark.parametrize("commit", ["next", "explicit"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_leased_work_commits_bad_samples_and_positions_name_good_ones(
    data: Path, commit: Any, batch_size: int | None
) -> None:
    config = config_of("leased", batch_size=batch_size, commit=commit)
    dataset = StreamingDataset(data, on_bad_sample="skip")
    with StreamingShardLoader(dataset, config) as loader:
        found: dict[int, int] = {}
        while (item := loader.next()) is not None:
            here = numbers([item])
            found |= dict(zip(loader.last_positions(), here, strict=True))
            if commit == "explicit":
                loader.commit()
        assert found == {number: number for number in GOOD}  # not shuffled: a sample's id is its position
        progress = loader.progress()
        assert (progress.finished, progress.committed, progress.again) == (True, SAMPLES, 0)


def test_a_worker_that_takes_over_does_not_meet_what_was_passed(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    config = config_of("leased", world=2, prefetch_buffer_size=4)
    listed = BadSamples("skip", file=file)
    first = StreamingShardLoader(StreamingDataset(data, on_bad_sample=listed), config)
    before = numbers(islice(first, 2))
    first.close()  # its buffer is read again by others
    second = StreamingShardLoader(StreamingDataset(data, on_bad_sample=listed), replace(config, rank=1))
    after = numbers(second)
    second.close()
    # The last that it was given may not have been done.
    assert sorted({*before, *after}) == sorted(GOOD)
    assert len(before + after) <= len(GOOD) + 1
    lines = Counter(json.loads(line)["sample"] for line in file.read_text().splitlines())
    assert lines == dict.fromkeys(BAD, 1)


def test_a_strict_worker_gives_back_what_it_can_not_read(data: Path) -> None:
    config = config_of("leased")
    with StreamingShardLoader(StreamingDataset(data), config) as loader:
        found, errors = [], []
        while True:
            try:
                found += numbers([loader.next()])
            except DecodeError as error:
                errors.append(error.sample)
            except StalledError as error:
                assert "does not decode" in str(error)  # noqa: PT017 - it ends the loop
                break
        assert set(errors) <= BAD
        assert max(Counter(errors).values()) == QUICK.attempts
        assert set(found) <= GOOD


def test_fillers_are_of_good_samples_and_an_epoch_without_any_says_so(data: Path) -> None:
    first = {"id": np.arange(13)}  # two batches of one rank, and one of the other

    def all_but(good: set[int]) -> Any:
        def transform(sample: Any) -> Any:
            if int(sample["id"]) not in good:
                raise ValueError("a bad one")
            return sample

        return transform

    for good in ({0, 4, 12}, {12}):
        ranks = [
            StreamingShardLoader(
                first,
                StreamingConfig(2, rank, batch_size=6, remainder="join"),
                transform=all_but(good),
                on_bad_sample="skip",
            )
            for rank in range(2)
        ]
        found = [list(rank) for rank in ranks]
        assert [*map(len, found)] == [2, 2]
        fillers = [batch for part in found for batch in part if batch["_filler"].any()]
        assert len(fillers) == 1
        assert set(numbers(fillers)) <= good
        assert fillers[0]["_filler"].all()
        real = [batch for part in found for batch in part if not batch["_filler"].any()]
        assert sorted(numbers(real)) == sorted(good)
    with pytest.raises(TransformError, match="all samples are bad"):
        list(
            StreamingShardLoader(
                first,
                StreamingConfig(2, 1, batch_size=6, remainder="join"),
                transform=all_but(set()),
                on_bad_sample="skip",
            )
        )

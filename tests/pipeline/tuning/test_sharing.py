"""The tuner beside others: it runs nobody's code in threads that is not without it, and takes its share of the machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from test_tuner import RandomRules, digest, seen_rules

from stoker import ReadOptions, StreamingConfig, StreamingDataLoader, StreamingDataset, StreamingShardLoader
from stoker.cluster import LoaderWorker
from stoker.formats.mds.encodings import Encoding, register_encoding
from stoker.pipeline.tuning import tuner
from stoker.pipeline.tuning.knobs import Knob, KnobRange
from stoker.pipeline.tuning.tuner import Tuner
from support import write_columns

pytestmark = pytest.mark.usefixtures("awake_tuners")

AUTO = ReadOptions(tune="auto")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 shards of 40 samples."""
    rng = np.random.default_rng(0)
    noise = np.concatenate([rng.integers(0, 255, (40, 256), np.uint8) for _ in range(20)])
    return write_columns(tmp_path_factory.mktemp("tuned") / "data", {"x": noise, "n": np.arange(800)}, shard=40)


class Mine(Encoding):
    """An encoding that is not stoker's."""

    size = 1

    def encode(self, value: Any) -> bytes:
        return bytes([value])

    def decode(self, data: Any) -> int:
        return bytes(data)[0]


@pytest.fixture
def mine() -> None:
    """The encoding ``mine``, registered."""
    register_encoding("mine", Mine)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def threads(given: list[Any]) -> KnobRange:
    ranges: Mapping[Knob, KnobRange] = given[-1][0]
    return ranges[Knob.READ_THREADS]


def test_code_that_may_not_be_thread_safe_gets_no_threads(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: None
) -> None:
    """An encoding that is not stoker's decodes in the consumer's thread, with the tuner as without it."""
    given = seen_rules(monkeypatch)
    write_columns(tmp_path, {"m": list(range(100))}, {"m": "mine"})
    with StreamingDataset(tmp_path, batch_size=8, read=AUTO) as dataset:
        assert list(next(dataset.batches())["m"]) == list(range(8))
    assert (threads(given).start, threads(given).fixed) == (0, True)
    with StreamingDataset(data, batch_size=8, transform=same, read=AUTO) as chain:
        next(chain.batches())  # functions of a dataset are in threads, as ever
    assert threads(given).start > 0
    assert not threads(given).fixed


def test_functions_of_a_shard_loader_and_unpickling_get_no_threads(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = seen_rules(monkeypatch)
    with StreamingDataset(data, batch_size=8, read=AUTO) as dataset:
        next(dataset.batches())
    assert (threads(given).start, threads(given).fixed) == (0, False)
    with StreamingDataset(data, batch_size=8, read=replace(AUTO, allow_unsafe_types=True)) as dataset:
        next(dataset.batches())
    assert (threads(given).start, threads(given).fixed) == (0, True)
    for transform, fixed in ((None, False), (same, True)):
        with StreamingShardLoader(
            StreamingDataset(data, transform=transform, read=AUTO), StreamingConfig(batch_size=8)
        ) as loader:
            next(iter(loader))
        assert (threads(given).start, threads(given).fixed) == (0, fixed)


def test_workers_and_ranks_share_a_machine(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 workers of each of 2 ranks on 2 processors: a quarter of the memory each, and no threads or processes."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(tuner, "tuned_memory", lambda sharers: (1 << 30) // sharers)
    monkeypatch.setattr(tuner, "_reading", WeakSet())
    given: list[Any] = []

    def rules(self: Tuner, ranges: Any, memory: Any) -> RandomRules:
        assert self._given is not None
        given.append((ranges, memory, self._given[2]))
        return RandomRules(ranges, memory)

    monkeypatch.setattr(Tuner, "rules", rules)
    with StreamingDataset(data, batch_size=8, transform=same, read=AUTO) as dataset:
        reader = dataset.epoch_reader
        assert reader._tuner is not None
        for number in range(2):
            worker = LoaderWorker(number, 2, token=1)
            reader._tuner.begin(
                replace(reader.settings.amounts, sharers=4),
                batch_size=8,
                chunk_bytes=1 << 20,
                threads=0,
                tune_threads=False,
                processes=0,
                tune_processes=False,
                worker=worker,
            )
    assert [memory.budget for _, memory, _ in given] == [1 << 28] * 2
    assert [processors for *_, processors in given] == [1.0] * 2
    for ranges, *_ in given:
        assert ranges[Knob.READ_THREADS].fixed
        assert ranges[Knob.READ_PROCESSES].fixed
        assert ranges[Knob.CHUNKS_AHEAD].fixed


def test_datasets_of_a_process_share_its_memory(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are read at once; one that is dropped makes room for the next."""
    monkeypatch.setattr(tuner, "tuned_memory", lambda sharers: 1200 // sharers)
    monkeypatch.setattr(tuner, "_reading", WeakSet())

    def begun(**read: Any) -> StreamingDataset:
        dataset = StreamingDataset(data, batch_size=8, read=replace(AUTO, **read))
        next(dataset.batches())
        return dataset

    def budget(dataset: StreamingDataset) -> int:
        assert dataset.epoch_reader._tuner is not None
        return dataset.epoch_reader._tuner.budget(1, LoaderWorker())

    first, second, third = begun(), begun(), begun()
    assert [budget(one) for one in (first, second, third)] == [1200, 600, 400]
    assert budget(begun(tune_memory=5000)) == 5000
    del second, third
    assert budget(first) == 1200
    assert budget(begun()) == 600


def test_runs_that_stop_in_a_trial_resume_with_the_same_samples(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tuner that changes its mind after each step, and without; what is closed in a trial is closed."""

    def opened(tune: Any) -> StreamingDataset:
        return StreamingDataset(data, shuffle=True, batch_size=8, transform=same, read=ReadOptions(tune=tune))

    monkeypatch.setattr(Tuner, "rules", lambda _, ranges, memory: RandomRules(ranges, memory))
    with opened("off") as dataset:
        whole = [digest([batch]) for batch in dataset.batches()]
    rng = np.random.default_rng(0)
    for before, after in (("auto", "off"), ("off", "auto"), ("auto", "auto")):
        for stop in rng.integers(1, len(whole), 4).tolist():
            dataset = opened(before)
            batches = dataset.batches()
            found = [digest([next(batches)]) for _ in range(stop)]
            state = dataset.state_dict()
            dataset.close()
            del batches
            with opened(after) as resumed:
                resumed.load_state_dict(state)
                found += [digest([batch]) for batch in resumed.batches()]
            assert found == whole


@pytest.mark.processes
def test_a_fork_in_a_trial_changes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataLoader forks its workers while another loop over the same dataset is in a trial; both go on."""
    monkeypatch.setattr(Tuner, "rules", lambda _, ranges, memory: RandomRules(ranges, memory))
    with StreamingDataset(data, shuffle=True, batch_size=8, transform=same, read=ReadOptions(tune="off")) as dataset:
        expected = digest(dataset.batches())
        second = digest(dataset.batches())
    with StreamingDataset(data, shuffle=True, batch_size=8, transform=same, read=AUTO) as dataset:
        here = dataset.batches()
        first = [next(here) for _ in range(10)]
        context = multiprocessing.get_context("fork")
        worker = StreamingDataLoader(dataset, num_workers=1, columnar=True, multiprocessing_context=context)
        assert digest(worker) in (expected, second)
        assert digest([*first, *here]) == expected

"""Tuners of running pipelines: nothing that they set changes a sample, what is set stays, and their decisions are listed."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from simulated_runner import SimulatedRunners

from patience import PATIENCE
from slow_store import slow_store
from stoker import (
    ReadOptions,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.concurrency.shared.counters import Counts
from stoker.errors import ConfigError
from stoker.pipeline.execution import measured
from stoker.pipeline.execution.in_processes import InProcesses
from stoker.pipeline.tuning.knobs import Knob, KnobChange, KnobRange, MemoryUse, Tick, Why
from stoker.pipeline.tuning.rules import Controller
from stoker.pipeline.tuning.tuned_run import TunedRun
from stoker.pipeline.tuning.tuner import Tuner, TuningDecision, decisions, note_decision
from support import write_columns

pytestmark = pytest.mark.usefixtures("awake_tuners")

SAMPLES = 3000


class RandomRules:
    """Sets knobs at random, after each chunk."""

    tick_seconds, tick_chunks, idle, rests = 0.0, 1, False, False
    tick_limit = math.inf, 0.0
    made = 0

    def __init__(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> None:
        self._ranges, self._memory = ranges, memory
        self._rng = np.random.default_rng(RandomRules.made)
        RandomRules.made += 1
        self.values = {knob: one.start for knob, one in ranges.items()}

    @property
    def confirmed_values(self) -> dict[Knob, int]:
        return self.values

    def restarted(self, *, goes_on: bool, settles: bool) -> None:
        pass

    def bar(self, *knobs: Knob) -> None:
        pass

    def observe(self, tick: Tick) -> list[KnobChange]:
        knob = Knob(int(self._rng.integers(len(Knob))))
        bounds, before = self._ranges[knob], self.values[knob]
        if bounds.fixed:
            return []
        least = {Knob.READ_THREADS: min(1, bounds.start), Knob.DOWNLOAD_THREADS: 0}.get(knob, 1)
        self.values[knob] = after = int(self._rng.integers(least, min(bounds.most, 64) + 1))
        return [KnobChange(knob, before, after, Why.READING, kept=True)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 shards of 50 samples."""
    rng = np.random.default_rng(0)
    noise = np.concatenate([rng.integers(0, 255, (50, 256), np.uint8) for _ in range(SAMPLES // 50)])
    return write_columns(tmp_path_factory.mktemp("tuned") / "data", {"x": noise, "n": np.arange(SAMPLES)}, shard=50)


@pytest.fixture(scope="module")
def bucket(data: Path) -> Iterator[dict[str, Any]]:
    """The same in a bucket, as arguments of a dataset."""
    with slow_store(data.parent, 0.0) as options:
        yield {"remote": "s3://any/data", "storage_options": options}


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": sample["x"] ^ rng.integers(0, 255, 256, np.uint8), "n": sample["n"]}


def uneven(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["n"])
    # Arrays in most batches and lists in others, whatever is read with them.
    length, dtype = 3 + (number % 37 == 0), np.float32 if number % 91 else np.float64
    return {**sample, "ragged": np.full(length, number, np.int32), "dtypes": dtype(number)}


def not_each_fifth(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 5)


def even_of_both(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "twice": 2 * np.asarray(batch["n"])}


def digest(batches: Any) -> str:
    found = hashlib.sha256()
    for batch in batches:
        found.update(np.ascontiguousarray(batch["x"]).tobytes())
        found.update(np.asarray(batch["n"]).tobytes())
        for name in ("ragged", "dtypes"):
            for values in [batch[name]] if isinstance(batch.get(name), np.ndarray) else batch.get(name, ()):
                found.update(repr((values.dtype, values.shape, values.tobytes())).encode())
    return found.hexdigest()


def loaders(data: Path, bucket: dict[str, Any], cache: Path, **read: Any) -> Iterator[tuple[str, Any]]:
    """Epochs of loaders on the pipeline."""
    for kind in ("disk", "memory"):
        given: dict[str, Any] = {
            "batch_size": 16,
            "shuffle": True,
            "read": ReadOptions(cache=kind, **read),
            "local": cache / kind if kind == "disk" else None,
            **bucket,
        }
        with StreamingDataset(**given) as plain:
            yield f"columns {kind}", plain.batches()
            yield f"samples {kind}", iter(plain)
        with StreamingDataset(**given).random_map(augment) as chain:
            yield f"chain {kind}", chain.batches()
            yield f"chain of samples {kind}", iter(chain)
        with StreamingDataset(transform=uneven, **given) as ragged:
            yield f"ragged {kind}", ragged.batches()
        with StreamingDataset(**given).filter(not_each_fifth).batch_map(even_of_both) as filtered:
            yield f"filtered {kind}", filtered.batches()
        with StreamingDataset(on_bad_sample="skip", **given) as lenient:
            yield f"lenient {kind}", lenient.batches()
    dataset = StreamingDataset(data, read=ReadOptions(**read))
    with StreamingShardLoader(dataset, StreamingConfig(batch_size=16)) as shards:
        yield "shard loader", shards


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(2))
def test_random_decisions_change_no_sample(
    data: Path, bucket: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    untuned = {name: digest(epoch) for name, epoch in loaders(data, bucket, tmp_path / "off", tune="off")}
    RandomRules.made = 1000 * seed
    monkeypatch.setattr(Tuner, "rules", lambda _, ranges, memory: RandomRules(ranges, memory))
    tuned = {name: digest(epoch) for name, epoch in loaders(data, bucket, tmp_path / "on", tune="auto")}
    assert tuned == untuned
    assert RandomRules.made > 1000 * seed + 10


@pytest.mark.parametrize("functions", [True, False])
def test_statistics_tell_how_many_threads_there_are_now(
    data: Path, monkeypatch: pytest.MonkeyPatch, functions: bool
) -> None:
    rules, seen = [], set()

    def made(_: Tuner, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> RandomRules:
        rules.append(RandomRules(ranges, memory))
        return rules[-1]

    monkeypatch.setattr(Tuner, "rules", made)
    with StreamingDataset(data, batch_size=16, read=ReadOptions(tune="auto")) as dataset:
        chain = dataset.random_map(augment) if functions else dataset
        for _ in range(3):
            for _ in chain.batches():
                execution, threads = chain.stats().execution, rules[-1].values[Knob.READ_THREADS]
                assert execution is not None
                assert (execution.run_in, execution.workers) == ("threads" if threads else "consumer", threads)
                seen.add(threads)
    assert len(seen) > 1


@pytest.mark.processes
def test_tuners_of_workers_change_no_sample_and_are_listed(
    bucket: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tuner, "rules", lambda _, ranges, memory: RandomRules(ranges, memory))
    found = {}
    RandomRules.made = 0
    for tune in ("off", "auto"):
        # Of a batch or two each, there are many steps to decide after.
        read = ReadOptions(tune=tune, tune_memory=None if tune == "off" else "80kb")
        dataset = StreamingDataset(local=tmp_path / tune, shuffle=True, batch_size=16, read=read, **bucket)
        found[tune] = digest(StreamingDataLoader(dataset, num_workers=2, columnar=True))
        decisions = dataset.stats().tuning
    assert found["auto"] == found["off"]
    assert {one.worker for one in decisions} == {0, 1}
    # Workers have threads of their own only where the user says so.
    assert {one.setting for one in decisions} <= {"predownload", "download_threads"}


def seen_rules(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Mapping[Knob, KnobRange], MemoryUse]]:
    """What rules are made for, from now on."""
    given: list[tuple[Mapping[Knob, KnobRange], MemoryUse]] = []
    rules = Tuner.rules

    def seen(self: Tuner, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> Controller:
        given.append((ranges, memory))
        return rules(self, ranges, memory)

    monkeypatch.setattr(Tuner, "rules", seen)
    return given


@pytest.mark.processes
def test_what_the_user_sets_is_not_tuned(
    data: Path, bucket: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = seen_rules(monkeypatch)
    read = ReadOptions(tune="auto", read_threads=2, download_threads=3)
    with StreamingDataset(local=tmp_path, predownload=64, batch_size=8, read=read, **bucket) as dataset:
        next(dataset.batches())
        assert dataset.epoch_reader.pool.width.value == 3
    fixed = {knob: one.start for knob, one in given[0][0].items() if one.fixed}
    assert fixed == {Knob.READ_THREADS: 2, Knob.PREDOWNLOAD: 64, Knob.DOWNLOAD_THREADS: 0, Knob.READ_PROCESSES: 0}
    with StreamingDataset(data, batch_size=8, read=ReadOptions(tune="auto", read_threads=0)) as dataset:
        next(dataset.batches())
    assert given[1][0][Knob.READ_THREADS] == KnobRange(0, given[1][0][Knob.READ_THREADS].most, 2, fixed=True)
    assert given[1][0][Knob.CHUNKS_AHEAD].fixed
    with StreamingDataset(data, batch_size=8, read=ReadOptions(tune="off")) as dataset:
        next(dataset.batches())
        assert dataset.stats().tuning == ()
    assert len(given) == 2
    with StreamingDataset(data, batch_size=8) as dataset:
        next(dataset.batches())
    assert len(given) == 3, "the tuner is on by default"


@pytest.mark.processes
def test_memory_that_is_given_bounds_what_is_held(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = seen_rules(monkeypatch)
    read = ReadOptions(cache="memory", tune="auto", tune_memory="200kb")
    with StreamingDataset(batch_size=16, read=read, **bucket) as dataset:
        assert sum(len(batch["n"]) for batch in dataset.batches()) == SAMPLES
    ranges, memory = given[0]
    assert memory.budget == 200 << 10
    assert 0 < ranges[Knob.PREDOWNLOAD].most * memory.sample_bytes <= memory.budget
    assert ranges[Knob.PREDOWNLOAD].start == ranges[Knob.PREDOWNLOAD].most // 2
    for wrong in (0, "0b"):
        with pytest.raises(ConfigError, match="tune_memory"):
            ReadOptions(tune="auto", tune_memory=wrong)
    with pytest.raises(ConfigError, match="leave out tune='off'"):
        ReadOptions(tune="off", tune_memory="1gb")


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


@pytest.fixture
def functions_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions take 2 ms for a sample by a simulated clock, and no processor; this process has one."""
    SimulatedRunners(2_000_000, monkeypatch)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})


def first_kept(dataset: StreamingDataset, epochs: int) -> TuningDecision:
    """The first decision that stays, in so many epochs."""
    for _ in itertools.chain.from_iterable(dataset.batches() for _ in range(epochs)):
        if any(one.kept for one in dataset.stats().tuning):
            break
    return next(one for one in dataset.stats().tuning if one.kept)


TUNED = ReadOptions(tune="auto", tune_memory="1gb")


@pytest.mark.usefixtures("functions_that_wait")
def test_threads_are_added_for_functions_that_wait(data: Path) -> None:
    with StreamingDataset(data, batch_size=8, transform=same, read=TUNED) as dataset:
        first = first_kept(dataset, 5)
    assert (first.setting, first.before, first.after, first.worker) == ("read_threads", 1, 2, None)
    assert first.gain == pytest.approx(0.5, abs=0.05)
    assert first.samples > 0
    assert "reading" in first.why


@pytest.mark.usefixtures("functions_that_wait")
def test_epochs_of_a_twentieth_of_a_second_are_tuned(tmp_path: Path) -> None:
    write_columns(tmp_path, {"n": np.arange(24)})
    with StreamingDataset(tmp_path, batch_size=4, transform=same, read=TUNED) as dataset:
        for _ in range(2):  # which are measured in parts: the first one fetches
            assert sum(len(batch["n"]) for batch in dataset.batches()) == 24
        assert dataset.epoch_reader._tuner is not None
        assert dataset.epoch_reader._tuner._tuning is not None
        begun = dataset.epoch_reader._tuner._tuning.samples
        first = first_kept(dataset, 600)
    assert (first.setting, first.before, first.after) == ("read_threads", 1, 2)
    assert (first.samples - begun) % 24 == 0, "whole epochs are measured"


@pytest.mark.usefixtures("functions_that_wait")
def test_processes_are_added_for_functions_that_wait(data: Path) -> None:
    read = replace(TUNED, run_in="processes")
    with StreamingDataset(data, batch_size=8, read=read).map(same) as dataset:
        first = first_kept(dataset, 5)
    assert (first.setting, first.before, first.after) == ("read_processes", 1, 2)
    assert first.gain == pytest.approx(0.5, abs=0.05)


@pytest.fixture
def awaited_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is chosen that processes read, the next step waits for them: nothing is decided while they start."""
    ready: Callable[[InProcesses[Any]], bool] = vars(InProcesses)["ready"].fget

    def awaited(runner: InProcesses[Any]) -> bool:
        end = time.monotonic() + PATIENCE
        while not ready(runner):
            assert time.monotonic() < end, "the processes do not come"
            time.sleep(0.001)
        return True

    monkeypatch.setattr(InProcesses, "ready", property(awaited))


@pytest.mark.processes
@pytest.mark.usefixtures("awaited_processes")
@pytest.mark.parametrize(("run_in", "clearly"), [("processes", 0.0), ("auto", 0.0), ("auto", math.inf)])
def test_random_numbers_of_processes_change_no_sample(
    data: Path, monkeypatch: pytest.MonkeyPatch, run_in: Literal["processes", "auto"], clearly: float
) -> None:
    """Also of threads or processes that are chosen by measurement, whatever is measured."""
    found = {}
    RandomRules.made = 0
    monkeypatch.setattr(measured, "CLEARLY", clearly)
    for tune in ("off", "auto"):
        # Of a batch each, there are steps enough to measure, and to decide, however long one takes.
        memory = None if tune == "off" else "40kb"
        read = ReadOptions(tune=tune, tune_memory=memory, run_in=run_in, start_method="fork")
        with StreamingDataset(data, batch_size=16, shuffle=True, read=read).map(same).random_map(augment) as dataset:
            # "auto" measures in the first epoch, and then knows.
            found[tune] = digest(dataset.batches()), digest(dataset.batches())
            decisions = dataset.stats().tuning
        monkeypatch.setattr(Tuner, "rules", lambda _, ranges, memory: RandomRules(ranges, memory))
    assert found["auto"] == found["off"]
    assert {one.setting for one in decisions} & {"read_processes", "read_threads"}


def test_an_epoch_keeps_what_the_one_before_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[TunedRun] = []
    begin = Tuner.begin

    def seen(*given: Any, **settings: Any) -> TunedRun:
        begun.append(begin(*given, **settings))
        return begun[-1]

    monkeypatch.setattr(Tuner, "begin", seen)
    with StreamingDataset(data, batch_size=16, read=ReadOptions(tune="auto")) as dataset:
        next(dataset.batches())
        assert dataset.epoch_reader._tuner is not None
        tuning = dataset.epoch_reader._tuner._tuning
        assert tuning is not None
        tuning.rules.values[Knob.READ_THREADS] = 2
        batches = dataset.batches()
        next(batches)
        assert dataset.epoch_reader._tuner._tuning is tuning
        assert [run.threads for run in begun] == [0, 2]
        del batches


def test_decisions_of_a_process_that_is_gone_make_room() -> None:
    counts = Counts()
    for number in range(40):
        change = KnobChange(Knob.PREDOWNLOAD, number, number + 1, Why.LOOKAHEAD, gain=-0.125)
        note_decision(counts, change, samples=10 * number, seconds=float(number), worker=None)
    found = decisions(counts)
    assert [one.before for one in found] == list(range(8, 40)), "the latest 32"
    last = found[-1]
    assert (last.setting, last.after, last.kept, last.gain, last.samples) == ("predownload", 40, False, -0.125, 390)
    assert (last.seconds, last.worker) == (39.0, None)

"""Functions that run in processes: the same batches, samples, errors, bad samples, states and counts as in threads."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_in_functions import as_tokens, bad_ones, copies, file_of, larger, noise, odd_ones, refuse, some, summed

from stoker import (
    BadSamples,
    LMStream,
    MDSWriter,
    ReadOptions,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
    Trace,
)
from stoker.errors import ConfigError, DecodeError, StokerError, TooManyBadSamplesError, TransformError
from stoker.pipeline.workers.config import StreamingConfig

pytestmark = [pytest.mark.processes]

SAMPLES = 260
FORK = ReadOptions(run_in="processes", start_method="fork", read_processes=2)
SPAWN = ReadOptions(run_in="processes", read_processes=2)
AUTO = ReadOptions(run_in="auto", start_method="fork", read_processes=2, read_threads=2)
THREADS = ReadOptions(read_threads=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run_in") / "data"
    columns = {"id": "int", "x": "ndarray:float32:3", "text": "str", "raw": "bytes", "doc": "json"}
    with MDSWriter(columns, out, size_limit=2500, hashes=[]) as writer:
        for number in range(SAMPLES):
            x = np.full(3, number, np.float32)
            writer.write({"id": number, "x": x, "text": f"t{number}", "raw": bytes(number % 7), "doc": [number]})
    return out


def opened(data: Path, read: ReadOptions, **settings: Any) -> StreamingDataset:
    given: dict[str, Any] = {"remote": data, "shuffle": True, "batch_size": 12, "read": read}
    return StreamingDataset(**(given | settings))


Made = Callable[[StreamingDataset], StreamingDataset]
CHAINS: dict[str, Made] = {
    "none": lambda dataset: dataset,
    "map": lambda dataset: dataset.map(larger),
    "random": lambda dataset: dataset.map(larger).random_map(noise),
    "filter": lambda dataset: dataset.filter(odd_ones).random_map(noise),
    "few are left": lambda dataset: dataset.filter(some).map(larger),
    "replace": lambda dataset: dataset.filter(odd_ones, dropped="replace").random_map(noise),
    "flat": lambda dataset: dataset.flat_map(copies).random_map(noise),
    "batch": lambda dataset: dataset.random_map(noise).batch_map(summed).rename({"x": "y"}),
    "columns": lambda dataset: dataset.select(["id", "x", "doc"]).enumerate().map(larger),
}


def told(value: Any) -> Any:
    """All that there is to compare of a value: types, dtypes, shapes, bytes."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes(), value.flags.writeable
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [told(one) for one in value]
    return type(value).__name__, bytes(value) if isinstance(value, memoryview) else value


def all_told(values: Any) -> list[Any]:
    return [told(value) for value in values]


@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_the_same_bytes_wherever_functions_run_and_wherever_a_run_resumes(data: Path, name: str) -> None:
    make, draw = CHAINS[name], random.Random(name)
    expected = all_told(make(opened(data, ReadOptions(read_threads=0))).batches())
    assert all_told(make(opened(data, THREADS)).batches()) == expected
    for read in (FORK, AUTO) if name != "random" else (FORK, AUTO, SPAWN):
        dataset, step = make(opened(data, read)), draw.randrange(1, len(expected))
        batches = dataset.batches()
        found = all_told(islice(batches, step))
        state = dataset.state_dict()
        del batches  # ends its processes
        resumed = make(opened(data, FORK))
        resumed.load_state_dict(state)
        assert found == expected[:step]
        assert all_told(resumed.batches()) == expected[step:]
        if name == "few are left":
            assert all_told(make(opened(data, read)).batches()) == expected


@pytest.mark.parametrize("name", ["none", "random", "filter", "replace", "flat"])
def test_samples_are_the_same_one_by_one(data: Path, name: str) -> None:
    make = CHAINS[name]
    expected = all_told(make(opened(data, THREADS)))
    for read in (FORK, AUTO):
        dataset = make(opened(data, read))
        first = all_told(islice(dataset, 30))
        state = None if name == "flat" else dataset.state_dict()
        assert first == expected[:30]
        if state is not None:
            resumed = make(opened(data, FORK))
            resumed.load_state_dict(state)
            assert all_told(resumed) == expected[30:]


@pytest.mark.parametrize(
    ("treatment", "read"), [("skip", FORK), ("replace", FORK), ("replace", SPAWN)], ids=["skip", "replace", "spawned"]
)
def test_bad_samples_are_dealt_with_as_in_threads(
    data: Path, tmp_path: Path, treatment: Any, read: ReadOptions
) -> None:
    found: list[Any] = []
    for number, options in enumerate((THREADS, read)):
        bad = BadSamples(treatment, file=tmp_path / f"bad{number}.jsonl")
        dataset = opened(data, options, on_bad_sample=bad).map(bad_ones).random_map(noise)
        batches = all_told(dataset.batches())
        found.append((batches, (tmp_path / f"bad{number}.jsonl").read_text(), dataset.stats().bad_samples))
    assert found[0] == found[1]
    assert found[0][2] == len([number for number in range(SAMPLES) if number % 11 == 4])
    for options in (THREADS, FORK):
        dataset = opened(data, options, on_bad_sample=BadSamples(treatment, max_bad=3)).map(bad_ones)
        with pytest.raises(TooManyBadSamplesError, match="max_bad=3") as raised:
            list(dataset.batches())
        found.append(str(raised.value))
    assert found[2] == found[3]


@pytest.mark.parametrize("read", [FORK, SPAWN, AUTO], ids=["fork", "spawn", "auto"])
def test_an_error_names_its_sample_and_has_its_cause(data: Path, read: ReadOptions) -> None:
    errors = []
    for options in (THREADS, read):
        dataset, batches = opened(data, options).map(bad_ones), []
        with pytest.raises(TransformError) as raised:
            batches.extend(all_told(dataset.batches()))
        error = raised.value
        assert isinstance(error.__cause__, ValueError)
        errors.append((str(error), error.sample, error.shard, error.row, error.url, str(error.__cause__), len(batches)))
    assert errors[0] == errors[1]
    with pytest.raises(TransformError, match="sample 77") as raised:
        list(opened(data, FORK if read is SPAWN else read).map(refuse))
    assert "number 77" in str(raised.value.__cause__)


def test_what_can_not_be_sent_is_an_error_that_names_the_sample(data: Path) -> None:
    for ask in (StreamingDataset.batches, iter):
        with pytest.raises(TransformError, match=r"\(sample 77\).*can not be sent from a process"):
            list(ask(opened(data, FORK).map(file_of)))
    # It is found out by measuring with one of the first chunks, or later by a process.
    assert (
        len(list(opened(data, ReadOptions(run_in="auto")).map(lambda sample: {**sample, "file": threading.Lock()})))
        == SAMPLES
    )


def test_functions_that_a_fresh_process_can_not_have_are_an_error(data: Path) -> None:
    dataset = opened(data, SPAWN).map(lambda sample: sample)
    with pytest.raises(ConfigError, match=r"can not be sent.*start_method='fork'"):
        next(dataset.batches())
    auto = opened(data, ReadOptions(run_in="auto", read_threads=2)).map(lambda sample: sample)
    assert len(list(auto)) == SAMPLES
    execution = auto.stats().execution
    assert execution is not None
    assert execution.run_in == "threads"
    assert "can not be sent" in execution.reason


def test_counts_and_states_are_those_of_threads(data: Path) -> None:
    told = []
    # With the tuner the number of reads depends on time.
    for read in (replace(THREADS, tune="off"), replace(FORK, tune="off")):
        dataset = opened(data, read).filter(odd_ones).map(larger)
        list(dataset.batches())
        stats = dataset.stats()
        told.append(
            (
                stats.samples_loaded,
                stats.local_samples,
                stats.remote_samples,
                stats.reads,
                stats.filtered,
                stats.bad_samples,
            )
        )
        assert stats.mean_load_time > 0
        assert (
            dataset.state_dict() == opened(data, read).filter(odd_ones).map(larger).state_dict() | dataset.state_dict()
        )
        assert stats.execution is not None
        assert (stats.execution.run_in, stats.execution.workers) == (
            ("threads", 2) if read.run_in == "threads" else ("processes", 2)
        )
    assert told[0] == told[1]


def test_a_dataset_is_fetched_once_for_all_processes(data: Path, tmp_path: Path) -> None:
    def read_by(read: ReadOptions, limit: str | None) -> tuple[Any, ...]:
        where: dict[str, Any] = {"local": tmp_path / f"{limit}{read.run_in}", "cache_limit": limit}
        with opened(data, read, remote=f"file://{data}", **where).random_map(noise) as dataset:
            batches = all_told(dataset.batches())
            stats = dataset.stats()
        if limit is not None:  # some comes twice, and may be there when a process wants it
            return batches, stats.remote_samples + stats.local_samples
        # Two processes may look for a shard at once: each counts a miss, and one of them fetches it.
        return batches, stats.remote_samples, stats.local_samples, stats.bytes_fetched

    for limit in (None, "20kb"):
        assert read_by(FORK, limit) == read_by(THREADS, limit)


def test_views_and_read_only_arrays_come_as_such(data: Path) -> None:
    found = []
    for read in (THREADS, FORK):
        options = ReadOptions(
            views=True, read_threads=read.read_threads, run_in=read.run_in, start_method=read.start_method
        )
        dataset = opened(data, options)
        found.append(all_told(dataset.batches()))
        assert isinstance(next(iter(dataset))["raw"], memoryview)
    assert found[0] == found[1]


def test_images_are_loaded_in_the_process_and_damaged_ones_are_errors_of_their_samples(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with MDSWriter({"id": "int", "image": "jpeg"}, tmp_path / "data") as out:
        for number in range(20):
            file = io.BytesIO()
            image.new("RGB", (64, 48), (number, 0, 0)).save(file, "JPEG")
            out.write({"id": number, "image": file.getvalue()[: 400 if number == 13 else None]})
    dataset = StreamingDataset(tmp_path / "data", read=FORK, batch_size=4, on_bad_sample="skip")
    sizes = {sample["id"]: sample["image"].size for sample in dataset}
    assert sizes == {number: (64, 48) for number in range(20) if number != 13}
    with pytest.raises(DecodeError, match="sample 13"):
        list(StreamingDataset(tmp_path / "data", read=FORK, batch_size=4))


class Doubled(StreamingDataset):
    """A subclass whose method makes the samples."""

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return sample["id"], index, len(sample["noise"])


def test_a_method_of_a_subclass_runs_here_after_the_functions_that_run_in_processes(data: Path) -> None:
    dataset = Doubled(data, batch_size=12, read=FORK).random_map(noise)
    assert list(dataset) == [(number, number, 4) for number in range(SAMPLES)]
    with pytest.raises(ConfigError, match="a method of a subclass"):
        next(iter(Doubled(data, batch_size=12, read=FORK, on_bad_sample="skip")))


def test_other_loaders_run_functions_in_processes(data: Path) -> None:
    def columns(read: ReadOptions) -> list[Any]:
        loader = StreamingDataLoader(opened(data, read).random_map(noise), columnar=True)
        return [(batch["noise"].numpy().tobytes(), batch["text"]) for batch in loader]

    assert columns(FORK) == columns(THREADS)

    def lines(read: ReadOptions) -> list[Any]:
        config = StreamingConfig(rank=0, world_size=2, batch_size=None)
        return all_told(StreamingShardLoader(opened(data, read).map(larger), config))

    assert lines(FORK) == lines(THREADS)

    def tokens(read: ReadOptions) -> list[Any]:
        stream = LMStream(opened(data, read).map(as_tokens), "tokens", 2, 16, layout="concat", endless=False)
        return [told(batch.input_ids) for batch in stream]

    assert tokens(FORK) == tokens(THREADS)


def test_a_trace_has_the_spans_of_processes(data: Path, tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        for _ in opened(data, FORK).map(larger).batches():
            pass
    stages = {stage.stage: stage for stage in trace.profile().stages}
    assert {"decode", "transform", "collate", "send", "wait"} <= stages.keys()


def test_options_that_contradict_each_other_are_errors() -> None:
    for options, match in (
        ({"run_in": "process"}, "run_in must be"),
        ({"read_processes": 2}, "run_in='processes'"),
        ({"start_method": "fork"}, "run_in='processes'"),
        ({"run_in": "processes", "read_threads": 2}, "read_processes="),
        ({"run_in": "auto", "read_threads": 0}, "read_threads=0"),
        ({"run_in": "processes", "read_processes": 0}, "at least 1"),
        ({"run_in": "processes", "start_method": "clone"}, "start_method must be"),
    ):
        with pytest.raises(StokerError, match=match):
            ReadOptions(**options)

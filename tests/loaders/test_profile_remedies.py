"""What a profile says to change is there: every argument and method that it names, of the loader that was traced."""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import stoker
from stoker import (
    Adaptive,
    LMStream,
    ReadOptions,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
    Trace,
)
from stoker.cli import COMMANDS
from stoker.concurrency.spans.recorder import Stage, note_settings
from stoker.errors import ConfigError
from stoker.loaders.loader_options import LoaderOptions
from stoker.pipeline.stats.bottleneck import LoaderSettings, describe_bottleneck
from stoker.pipeline.stats.rank_times import KINDS, BottleneckKind, RankTimes
from stoker.pipeline.stats.trace_files import read_trace
from support import write_columns

NAMED = re.compile(r"(?:(\w+)=(?:(\w+)\((\w+)=\))?|(\w+)\(\)) of (?:the|a) (\w+)(?: \((?:not given|now ([^)]*))\))?")
COMMAND = re.compile(r"stoker ([a-z]+)")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("remedies") / "data"
    columns = {"id": np.arange(24), "text": ["ab"] * 24, "tokens": np.ones((24, 4), np.uint16)}
    write_columns(out, columns, size_limit=200)
    pq.write_table(pa.table({"tokens": [[1, 2, 3, 4]] * 24}), out / "tokens.parquet")
    return out


def opened(data: Path | str, **settings: Any) -> StreamingDataset:
    return StreamingDataset(data, batch_size=2, **settings)


def sharded(data: Path, **settings: Any) -> StreamingShardLoader:
    return StreamingShardLoader(opened(data), StreamingConfig(**settings))


def texts(data: Path) -> LMStream:
    return LMStream(opened(data), "text", 2, 4, tokenizer=lambda some: [[1, 2, 3] for _ in some])


def leased(data: Path) -> StreamingShardLoader:
    run = f"sqlite://{data.parent}/{uuid.uuid4().hex}.sqlite"
    settings = {"coordinator": run, "partition": Adaptive()}
    return sharded(data, prefetch_buffer_size=8, **settings)


TRACED: dict[str, Callable[[Path], Iterable[Any]]] = {
    "samples": opened,
    "batches": lambda data: opened(data, predownload=8, read=ReadOptions(read_threads=2)).batches(),
    "memory": lambda data: opened(f"file://{data}", read=ReadOptions(cache="memory")).batches(),
    "limit": lambda data: opened(f"file://{data}", local=data.parent / "cache", cache_limit=1_000_000, columns=["id"]),
    "processes": lambda data: opened(
        data, read=ReadOptions(run_in="processes", read_processes=2, start_method="fork")
    ).batches(),
    "auto": lambda data: opened(data, read=ReadOptions(run_in="auto", start_method="fork")).batches(),
    "loader": lambda data: StreamingDataLoader(opened(data)),
    "columnar": lambda data: StreamingDataLoader(opened(data), columnar=True),
    "torch": lambda data: DataLoader(opened(data), batch_size=2),
    "tokens": lambda data: StreamingParquetLoader(data / "tokens.parquet", seq_len=4, batch_size=2),
    "loader of tokens": lambda data: StreamingDataLoader(
        StreamingParquetLoader(data / "tokens.parquet", seq_len=4, batch_size=2, read=ReadOptions(download_threads=3))
    ),
    "stream": lambda data: LMStream(opened(data), "tokens", 2, 4),
    "stream of text": texts,
    "lockstep": lambda data: sharded(data, batch_size=2),
    "one by one": sharded,
    "planned": lambda data: sharded(data, global_batch_size=4),
    "leased": leased,
    "arrays": lambda _: StreamingShardLoader({"id": np.arange(24)}),
}


def settings_of(traced: Iterable[Any], path: Path) -> LoaderSettings:
    """The settings that are noted, as a trace's file has them."""
    with Trace(path) as trace:
        assert list(traced)
    close = getattr(traced, "close", None)
    if close is not None:
        close()
    return LoaderSettings(process.loaders for process in read_trace(trace.path)[0])


def times(stage: int, *, workers: int = 0, idle: bool = False, full: bool = False) -> RankTimes:
    """Times of a rank that waited for one stage alone."""
    waits = np.zeros(len(Stage) + 1)
    waits[stage] = 8.0
    makers, computing = max(1, workers), 0.1 if idle else 8.0
    return RankTimes(0, 0.1, 10.0, 8.0, waits, float(full), 1.0, 8.0, 0.1, 1e6, makers, workers, computing)


def all_remedies(settings: LoaderSettings) -> dict[str, str]:
    """Each sentence that there may be, by what it is of."""
    found = {}
    for stage in KINDS:
        for workers in (0, 2):
            for idle in (False, True):
                for full in (False, True):
                    rank = times(stage, workers=workers, idle=idle, full=full)
                    text = describe_bottleneck(rank, 16, settings)
                    found[f"{rank.kind}, {workers} workers, idle={idle}, full={full}"] = text
    return found


def check(sentence: str) -> None:
    """See that all it names exists."""
    for argument, options, option, method, name, _ in NAMED.findall(sentence):
        kind = DataLoader if name == "DataLoader" else getattr(stoker, name)
        if method:
            assert callable(getattr(kind, method)), sentence
            continue
        known = {*inspect.signature(kind.__init__).parameters}
        if name == "StreamingDataLoader":
            known |= {*LoaderOptions.__annotations__}
        assert argument in known, sentence
        if options:
            assert option in inspect.signature(getattr(stoker, options)).parameters, sentence
    rest = NAMED.sub("", sentence)
    assert not re.search(r"\w=|\(\)", rest), f"not said of which loader: {rest}"
    for command in COMMAND.findall(sentence):
        assert command in COMMANDS, sentence


def test_settings_of_a_process_without_spans_are_read(tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        note_settings("StreamingDataset", {"columns=": "id"})
    (process,) = read_trace(trace.path)[0]
    assert process.loaders == {"StreamingDataset": {"columns=": "id"}}
    with pytest.raises(ConfigError, match="no span of a consumer"):
        trace.profile()


@pytest.mark.processes
@pytest.mark.parametrize("kind", TRACED)
def test_remedies_are_of_the_loader_that_was_traced(data: Path, tmp_path: Path, kind: str) -> None:
    settings = settings_of(TRACED[kind](data), tmp_path / "trace.json")
    assert settings.loaders
    said = all_remedies(settings)
    for sentence in said.values():
        check(sentence)
    loaders = {*settings.loaders, "DataLoader"}
    for sentence in said.values():
        named = {name for *_, name, _ in NAMED.findall(sentence)}
        assert named <= loaders | {"StreamingDataLoader"}, sentence
        if "num_workers" in sentence and "StreamingDataLoader" in named - loaders:
            assert settings.loaders == ("StreamingDataset",), sentence
    kinds = {text.partition(",")[0] for text in said}
    assert kinds == {*get_args(BottleneckKind)} - {"consumer"}


def test_nothing_is_named_of_a_loader_that_is_not_known() -> None:
    for sentence in all_remedies(LoaderSettings()).values():
        check(sentence)
        assert sentence[-1] == "."


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("batches", "predownload", 8),
        ("batches", "read_threads", 2),
        ("limit", "cache_limit", 1_000_000),
        ("limit", "columns", "id"),
        ("processes", "read_processes", 2),
        ("loader", "columnar", False),
        ("loader of tokens", "download_threads", 3),
        ("leased", "prefetch_buffer_size", 8),
        ("planned", "global_batch_size", 4),
    ],
)
def test_settings_have_the_values_that_were_given(
    data: Path, tmp_path: Path, kind: str, name: str, value: object
) -> None:
    setting = settings_of(TRACED[kind](data), tmp_path / "trace.json").find(name)
    assert setting is not None
    assert setting.value == value


@pytest.mark.parametrize(
    ("kind", "names", "not_names"),
    [
        ("samples", ["batches() of the StreamingDataset"], ["columnar="]),
        ("batches", [], ["columnar=", "batches()"]),
        ("loader", ["columnar= of the StreamingDataLoader (now False)"], ["batches()"]),
        ("columnar", [], ["columnar=", "batches()"]),
        ("tokens", ["batch_size= of the StreamingParquetLoader (now 2)"], ["columnar=", "batches()"]),
        ("stream", ["batch_size= of the LMStream (now 2)"], ["columnar=", "batches()"]),
        ("leased", ["config=StreamingConfig(batch_size=) of the StreamingShardLoader"], ["columnar=", "batches()"]),
    ],
)
def test_the_way_to_whole_columns_is_that_of_the_loader(
    data: Path, tmp_path: Path, kind: str, names: list[str], not_names: list[str]
) -> None:
    settings = settings_of(TRACED[kind](data), tmp_path / "trace.json")
    said = describe_bottleneck(times(Stage.SEND), 16, settings)
    assert all(name in said for name in names), said
    assert not any(name in said for name in not_names), said

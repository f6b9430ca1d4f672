"""Wrong arguments of public classes and functions: a ConfigError that names the argument, never a raw Python error."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from typing_extensions import TypeAliasType

import stoker
from stoker import KeepIds, MDSWriter, Stream, StreamingDataset, World, partitions
from stoker.arguments import check_argument
from stoker.errors import ConfigError
from stoker.formats.mds import encodings as registry
from stoker.formats.mds.encodings import Encoding
from stoker.partitions import RoundRobin
from stoker.tokens import MegatronWriter, Ragged
from wrong_arguments import OUT, Nonsense, Valid, check_arguments, nothing


class Mine(Encoding):
    """An encoding of a user's."""

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: Any) -> Any:
        return data


def _folder(name: str, **valid: Any) -> Valid:
    return lambda root: {"out": OUT, "columns": {"x": name}, **valid}


def _at(name: str, folder: str = "data", **valid: Any) -> Valid:
    return lambda root: {name: root / folder, **valid}


def _of(**valid: Any) -> Valid:
    return lambda _: valid


def _over(**valid: Any) -> Valid:
    return lambda root: {"dataset": StreamingDataset(local=root / "data"), **valid}


def _first(made: Any) -> None:
    """Take the first of what it yields, where it yields anything, and leave it."""
    with contextlib.closing(made):
        next(iter(made), None)


def _abort(writer: Any) -> None:
    writer.abort()


CASES: dict[str, tuple[Valid, Callable[[Any], object]]] = {
    "stoker.Adaptive": (_of(), nothing),
    "stoker.writers.CSVWriter": (_folder("str"), _abort),
    "stoker.partitions.Contiguous": (_of(), nothing),
    "stoker.partitions.Elastic": (_of(), nothing),
    "stoker.partitions.HashBased": (_of(num_partitions=2), nothing),
    "stoker.Audio": (_of(data=b"RIFF"), nothing),
    "stoker.BadSamples": (_of(), nothing),
    "stoker.Chain": (_of(), nothing),
    "stoker.HashSplit": (_of(low=0, high=1), nothing),
    "stoker.writers.JSONWriter": (_folder("str"), _abort),
    "stoker.KeepIds": (_of(ids=[1]), nothing),
    "stoker.Trace": (lambda root: {"path": root / "trace.json"}, nothing),
    "stoker.Lengths": (_of(lengths="x", max_tokens=10), nothing),
    "stoker.LocalDataset": (_at("local"), nothing),
    "stoker.LMStream": (_over(column="x", batch_size=2, seq_len=4), lambda stream: next(iter(stream), None)),
    "stoker.MDSWriter": (_folder("int"), _abort),
    "stoker.tokens.MegatronSource": (_at("paths", "megatron"), nothing),
    "stoker.Mesh": (_of(shape={"dp": 1}), nothing),
    "stoker.partitions.RangeBased": (_of(ranges=[(0, 5)]), nothing),
    "stoker.tokens.RawSource": (_at("paths", "raw", dtype="uint16", row_tokens=4), nothing),
    "stoker.ReadOptions": (_of(), nothing),
    "stoker.partitions.RoundRobin": (_of(), nothing),
    "stoker.Schedule": (_of(points=((0, (("a", 1.0),)),)), nothing),
    "stoker.ShardConfig": (_of(rank=0, world_size=1), nothing),
    "stoker.SkipIds": (_of(ids=[1]), nothing),
    "stoker.SkipSteps": (_of(begin=3, end=4, epoch=0, global_batch=8), nothing),
    "stoker.partitions.Stratified": (_of(label_column="x"), nothing),
    "stoker.Stream": (_at("local"), nothing),
    "stoker.StreamingConfig": (_of(), nothing),
    "stoker.StreamingDataLoader": (_over(), nothing),
    "stoker.StreamingDataset": (_at("local"), _first),
    "stoker.StreamingParquetLoader": (_at("source", "tokens", seq_len=4), _first),
    "stoker.StreamingShardLoader": (_over(), _first),
    "stoker.writers.TSVWriter": (_folder("str"), _abort),
    "stoker.Video": (_of(data=b"nonsense"), nothing),
    "stoker.media.as_audio": (_of(columns="flac"), nothing),
    "stoker.media.as_video": (_of(columns="mp4"), nothing),
    "stoker.Where": (_of(column="x", op="==", value=1), nothing),
    "stoker.World": (_of(), nothing),
    "stoker.writers.XSVWriter": (_folder("str", separator=";"), _abort),
    "stoker.open_writer": (_folder("int", format="mds"), _abort),
    "stoker.merge_index": (_at("urls", "parts"), nothing),
    "stoker.rebuild_index": (_at("url", exist_ok=True), nothing),
    "stoker.formats.mds.encodings.register_encoding": (_of(name="mine", encoding=Mine, replace=True), nothing),
    "stoker.train_validation_split": (_of(), nothing),
    "stoker.convert": (
        lambda root: {"source": root / "data", "destination": OUT, "processes": 1},
        nothing,
    ),
    "stoker.streams.conditions.Where.function": (_of(columns="x", fn=len, name="mine"), nothing),
    "stoker.writing.image_folders.JPEGWriter": (
        lambda _: {"out": OUT, "columns": {"image": "jpeg", "label": "int"}},
        _abort,
    ),
    "stoker.writing.image_folders.PNGWriter": (
        lambda _: {"out": OUT, "columns": {"image": "png", "label": "int"}},
        _abort,
    ),
    "stoker.writing.megatron_writer.MegatronShardWriter": (_folder("ndarray:uint16"), _abort),
    "stoker.writing.parquet_writer.ParquetWriter": (_folder("int"), _abort),
    "stoker.writing.shard_formats.TFRecordWriter": (_folder("int"), _abort),
    "stoker.writing.shard_formats.TarWriter": (_folder("int"), _abort),
    "stoker.coordination.CoordinationSettings": (_of(), nothing),
    "stoker.inspection.caches.list_caches": (lambda root: {"directories": [root / "empty"]}, nothing),
    "stoker.inspection.caches.prune_caches": (lambda root: {"directories": [root / "empty"]}, nothing),
    "stoker.image.ColorJitter": (_of(), nothing),
    "stoker.image.Decode": (_of(), nothing),
    "stoker.image.Normalize": (_of(), nothing),
    "stoker.image.mixup": (
        _of(images=[[0.5], [0.25]], labels=[0, 1], classes=2, rng=np.random.default_rng(0)),
        nothing,
    ),
    "stoker.image.Resize": (_of(size=8), nothing),
    "stoker.image.CenterCrop": (_of(size=8), nothing),
    "stoker.image.RandomResizedCrop": (_of(size=8), nothing),
    "stoker.image.to_tensor": (_of(images=[[[0.5]]]), nothing),
    "stoker.inspect": (_at("url"), nothing),
    "stoker.inspect_tokens": (_at("source", "tokens"), nothing),
    "stoker.verify": (_at("url"), nothing),
    "stoker.order.mixture.schedule.Schedule.parse": (_of(points={0: {"a": 1}}), nothing),
    "stoker.tokens.LMSettings": (_of(seq_len=4), nothing),
    "stoker.tokenize": (
        lambda root: {"src": root / "text", "dst": OUT, "tokenizer": root / "tokenizer.json", "processes": 1},
        nothing,
    ),
}
"""Name of a public function or class to arguments with which it works, and what to do with what it returns."""

# What users do not call: results, errors, base classes, protocols.
OTHERS = {
    "LMBatch",
    "Loader",
    "Step",
    "StokerError",
    "StreamStats",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets that the functions work on."""
    root = tmp_path_factory.mktemp("arguments")
    for place in ("data", "parts/0"):
        with MDSWriter({"x": "ndarray:uint16:4"}, root / place) as writer:
            writer.write_batch({"x": np.arange(40, dtype=np.uint16).reshape(10, 4)})
    for place in ("empty", "raw", "tokens", "text", "megatron"):
        (root / place).mkdir()
    with MegatronWriter(root / "megatron" / "part", np.uint16) as documents:
        documents.write(Ragged.of([np.arange(3, dtype=np.uint16)]))
    words = Tokenizer(WordLevel({"some": 0, "words": 1}, unk_token="words"))
    words.save(str(root / "tokenizer.json"))
    np.arange(40, dtype=np.uint16).tofile(root / "raw" / "part.bin")
    pq.write_table(pa.table({"tokens": [[1, 2, 3, 4, 5]] * 20}), root / "tokens" / "part.parquet")
    (root / "text" / "a.txt").write_text("some words")
    return root


def test_the_table_has_all_that_is_public() -> None:
    public = {name for name in stoker.__all__ if not name.startswith("_")}
    tested = {name.rpartition(".")[2] for name in CASES}
    assert public <= tested | OTHERS
    assert public >= {name.split(".")[1] for name in CASES if name.count(".") == 1} | OTHERS
    assert set(partitions.__all__) <= tested | {"Partition"}
    for name in ("conversion", "tokens", "inspection"):
        module = import_module(f"stoker.{name}")
        functions = {
            one
            for one in module.__all__
            if inspect.isfunction(getattr(module, one)) and hasattr(getattr(module, one), "__wrapped__")
        }
        assert functions <= {case.rpartition(".")[2] for case in CASES}


@pytest.fixture(autouse=True)
def _no_encodings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {**registry._registered})
    monkeypatch.setattr(registry, "_cache", {**registry._cache})


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_argument_is_an_error_of_our_own(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, use = CASES[name]
    check_arguments(name, lambda: make(root), use, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": "10"},
            r"batch_size must be an integer or None, got '10' \(str\); write batch_size=10, without",
        ),
        ({"batch_size": 4.0}, r"got 4.0 \(float\); write batch_size=4"),
        ({"batch_size": True}, "batch_size must be an integer or None, got True"),
        ({"shuffle": "yes"}, r"shuffle must be True or False, got 'yes' \(str\); write shuffle=True"),
        ({"epoch_size": 0.5}, "epoch_size must be an integer, a string or None, got 0.5"),
        (
            {"transform": [len]},
            "transform must be a function .*; for several, give one function that calls them in turn",
        ),
        ({"columns": "x"}, r"for a single one, write columns=\['x'\]"),
        ({"columns": {"x": float}}, "columns must be a list of strings"),
        ({"subset": len}, r"subset must be .*; conditions are written Where\('column', '>', 3\)"),
        (
            {"partition_algo": RoundRobin},
            r"must be a string or a Partition, got <class .*RoundRobin'>; such as \"round_robin\"",
        ),
        ({"partition_algo": 2}, r"must be a string or a Partition, got 2 \(int\); such as \"round_robin\""),
        ({"partition_algo": "round-robin"}, "partition 'round-robin' is unknown; did you mean 'round_robin'?"),
        ({"partition_algo": "hash"}, "HashBased: missing a required argument: 'num_partitions'"),
        ({"schedule": None}, r"no argument 'schedule': it is sampling_method=Schedule\(...\)"),
        ({"partition": RoundRobin()}, "argument 'partition' is unknown; did you mean 'partition_algo'?"),
        ({"remainder": "padd"}, "'pad', 'drop' or 'uneven', got 'padd' .*; did you mean 'pad'"),
        ({"epoch_size": "0.5"}, "epoch_size must be at least 1 sample, got '0.5'"),
        ({"local": "s3://bucket/x"}, "local is a directory, got 's3://bucket/x': give a URL as remote="),
        ({"remote": "s3:/bucket/x"}, "'s3:/bucket/x' is not a URL: write 's3://bucket/x'"),
        ({"remote": "s3:bucket/x"}, "'s3:bucket/x' is not a URL: write 's3://bucket/x'"),
        ({"local": ""}, "an empty string is not a path: is a variable not set"),
        ({"streams": "s3://bucket"}, r"streams must be a list of Stream objects .*; give Stream\(...\) objects"),
        ({"storage_options": "secret"}, "storage_options must be a dict or None, got a str$"),
        ({"batchsize": 3}, "argument 'batchsize' is unknown; did you mean 'batch_size'"),
        ({"num_canonical_nodes": 2**64}, "num_canonical_nodes must be below"),
    ],
)
def test_a_message_says_what_to_write(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(**{"local": root / "data", **options})


def test_the_source_needs_no_name(root: Path) -> None:
    assert StreamingDataset(root / "data").size == StreamingDataset(remote=root / "data").size
    assert StreamingDataset(streams=[Stream(root / "data")]).size == StreamingDataset(local=root / "data").size


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        (("a", "b"), {}, "name them, as in local="),
        (("a",), {"remote": "b"}, "multiple values for argument 'remote'"),
        ((), {"source": "a"}, "no argument 'source': it is called remote="),
        (("a",), {"views": True}, r"no argument 'views': it is in read=ReadOptions\(views=...\)"),
        (("a",), {"download_threads": 2}, r"read=ReadOptions\(download_threads=...\)"),
        (("a",), {"mesh": 2}, "it is replication="),
        (("a",), {"drop_last": True}, "argument 'drop_last' is unknown; known: remote, .* remainder, "),
        (("a",), {"streams": [Stream("b")]}, "give streams=, or remote="),
        (([Stream("a")],), {}, r"remote\[0\] must be .*write streams=\["),
    ],
)
def test_what_contradicts_the_source_or_lies_elsewhere_is_reported(
    positional: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(*positional, **named)


def test_numbers_of_numpy_are_as_good_as_those_of_python(root: Path) -> None:
    options: dict[str, Any] = {
        "batch_size": np.int64(4),
        "shuffle": np.bool_(True),
        "shuffle_seed": np.uint32(7),
        "epoch_size": 1e1,
        "columns": np.array(["x"]),
        "world": World(np.int32(0), np.int64(1)),  # type: ignore[arg-type]
    }
    dataset = StreamingDataset(local=root / "data", **options)
    state = json.loads(json.dumps(dataset.state_dict()))
    plain = StreamingDataset(
        local=root / "data", batch_size=4, shuffle=True, shuffle_seed=7, epoch_size=10, columns=["x"]
    )
    assert state == plain.state_dict()
    assert type(dataset.batch_size) is int


def test_more_elements_than_are_looked_at_stay_as_they_are() -> None:
    numbers = [*range(5000)]
    assert KeepIds(numbers).ids.tolist() == numbers
    assert KeepIds(np.arange(5000)).ids.tolist() == numbers
    with pytest.raises(ConfigError, match="ids are integers in one dimension, found float64"):
        KeepIds([*range(2000), 0.5])  # type: ignore[list-item]


ScalarT = TypeVar("ScalarT")
Column = TypeAliasType("Column", np.ndarray[Any, np.dtype[ScalarT]], type_params=(ScalarT,))
Kind = TypeAliasType("Kind", type | str | np.dtype)


@pytest.mark.parametrize(
    ("hint", "good", "said"),
    [
        (Kind, "int32", "a dtype"),
        (Kind | None, None, "a dtype or None"),
        (Column[np.int64], np.zeros(1, np.int64), "an array"),
        (dict[str, Column[np.int64]], {"x": np.zeros(1, np.int64)}, "a dict of arrays"),
    ],
)
def test_a_named_annotation_is_what_it_stands_for(hint: Any, good: Any, said: str) -> None:
    """NumPy's own, such as ``DTypeLike``, have names from 2.5 on, which Python 3.12 and later get."""
    assert check_argument("f", "a", hint, good) is good
    with pytest.raises(ConfigError, match=f"^f: a must be {said}, got "):
        check_argument("f", "a", hint, Nonsense())

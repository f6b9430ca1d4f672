"""Samples made in memory: the same wherever and whenever they are made, and no file is touched."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import Stream, StreamingDataset
from stoker.cluster import World
from stoker.errors import ConfigError

COLUMNS = {
    "n": "number",
    "image": "ndarray:uint8:8,9,3",
    "wide": "ndarray:float64:3000",
    "half": "float16",
    "flag": "bool",
    "label": "label:7",
    "blob": "bytes:33",
}


def make(samples: int = 500, **options: Any) -> StreamingDataset:
    given = {"samples": samples, "columns": COLUMNS, "shard_samples": 60, **options}
    return StreamingDataset(format="synthetic", format_options=given)


def described(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, bytes) else np.asarray(value).tobytes() for name, value in sample.items()}


@pytest.mark.processes
def test_samples_depend_on_seed_column_and_number_alone() -> None:
    dataset = make()
    assert len(dataset.index) == 9
    samples = [described(sample) for sample in dataset]
    assert [int(dataset[n]["n"]) for n in (0, 61, 499)] == [0, 61, 499]
    other = make(shard_samples=7)
    ids = np.array([499, 3, 3, 250])
    batch = other.read(ids)
    for place, number in enumerate(ids.tolist()):
        assert described({name: column[place] for name, column in batch.items()}) == samples[number]
    assert len({sample["image"] for sample in samples}) > 480
    assert len({sample["blob"] for sample in samples}) > 480
    assert {int(sample["label"]) for sample in dataset} == set(range(7))
    first, second = described(make(seed=1)[0]), described(make(seed=2)[0])
    assert first["wide"] != second["wide"]
    code = f"""
        import hashlib
        from stoker import StreamingDataset
        options = {{"samples": 500, "columns": {COLUMNS!r}, "shard_samples": 60}}
        sample = StreamingDataset(format="synthetic", format_options=options)[77]
        print(hashlib.sha256(sample["image"].tobytes() + sample["wide"].tobytes() + sample["blob"]).hexdigest())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    import hashlib

    mine = samples[77]["image"] + samples[77]["wide"] + samples[77]["blob"]
    assert done.stdout.strip() == hashlib.sha256(mine).hexdigest()


def test_values_are_of_the_dtype_and_finite() -> None:
    batch = make().read(np.arange(500))
    kinds = {name: (column.dtype.name, column.shape[1:]) for name, column in batch.items() if name != "blob"}  # type: ignore[union-attr]
    assert kinds == {
        "n": ("int64", ()),
        "image": ("uint8", (8, 9, 3)),
        "wide": ("float64", (3000,)),
        "half": ("float16", ()),
        "flag": ("bool", ()),
        "label": ("int64", ()),
    }
    assert all(len(value) == 33 for value in batch["blob"])
    for name in ("wide", "half"):
        column: Any = batch[name]
        assert np.isfinite(column).all()
        assert 0 <= column.min() < column.max() <= 1
    assert set(np.asarray(batch["flag"]).view(np.uint8).tolist()) == {0, 1}


def test_samples_that_are_alike_are_not_copied() -> None:
    batch: dict[str, Any] = dict(make(distinct=False).read(np.arange(400)))
    assert batch["image"].strides[0] == batch["wide"].strides[0] == 0
    assert batch["n"].tolist() == list(range(400))
    assert len(set(batch["label"].tolist())) == 1
    assert len(set(batch["blob"])) == 1


def test_ranks_share_the_samples_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    seen: list[int] = []
    for rank in range(4):
        world = World(rank, 4)
        options = {"samples": 400, "columns": {"n": "number"}}
        dataset = StreamingDataset(format="synthetic", format_options=options, world=world, shuffle=True, batch_size=10)
        seen += [int(sample["n"]) for sample in dataset]
    assert sorted(seen) == list(range(400))
    assert not (tmp_path / "cache").exists()


def test_streams_of_synthetic_samples_are_mixed() -> None:
    streams = [
        Stream(format="synthetic", name=name, format_options={"samples": 100, "columns": {"n": "number"}, "seed": seed})
        for seed, name in enumerate(("a", "b"))
    ]
    dataset = StreamingDataset(streams=streams)
    assert dataset.size == 200
    assert sorted(int(sample["n"]) for sample in dataset) == sorted([*range(100), *range(100)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": COLUMNS}, "samples=None: a whole number"),
        ({"samples": -1, "columns": COLUMNS}, "samples=-1"),
        ({"samples": 10}, "give columns"),
        ({"samples": 10, "columns": {"x": "object"}}, "column 'x': 'object' is not a kind"),
        ({"samples": 10, "columns": {"x": "ndarray:uint8:0"}}, "column 'x'"),
        ({"samples": 10, "columns": {"x": "ndarray:uint8:100000,100000"}}, "more than 1 GiB"),
        ({"samples": 10, "columns": {"x": "label:0"}}, "at least one class"),
        ({"samples": 10, "columns": {"x": "bytes:x"}}, "column 'x'"),
        ({"samples": 10, "columns": {"x": "int8"}, "seed": -1}, "seed=-1"),
        ({"samples": 10, "columns": {"x": "int8"}, "distinct": 1}, "distinct=1"),
        ({"samples": 10, "columns": {"x": "int8"}, "shard_samples": 0}, "shard_samples=0"),
        ({"samples": 1 << 40, "columns": {"x": "int8"}, "shard_samples": 1}, "raise shard_samples"),
        ({"samples": 10, "columns": {"x": "int8"}, "rows": 1}, "setting 'rows' is unknown; known: columns"),
    ],
)
def test_settings_that_make_no_sense_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(format="synthetic", format_options=options)

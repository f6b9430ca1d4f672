"""Counts and sizes: a data set that is not the workload's gives no result that passes, and a damaged file has a name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bench_threads import run_in_threads

from stoker.cluster import World
from stoker.errors import ObjectNotFoundError
from stoker_bench.loaders.base import LoaderJob, SplitListing
from stoker_bench.loaders.listing import data_files, list_split, used_files
from stoker_bench.measure.content import look_at
from stoker_bench.measure.generation import make_data
from stoker_bench.ranks.control.client import RankFailedError
from stoker_bench.results.counts import count_findings
from stoker_bench.results.results import schema
from stoker_bench.results.rules import content_rule
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Workload

TINY = (
    "compute.seconds=0.001",
    "dataset.files=6",
    "dataset.samples_per_file=4",
    "dataset.record_bytes=20000",
    "reader.batch_size=2",
    "reader.threads=1",
)
THREADS = {"stoker": "reader.threads=1", "torch": "reader.threads=0"}
"""Of loaders, without processes."""


def workload(*settings: str) -> Workload:
    return read_workload(None, [*TINY, *settings], environ={}, dotenv=None).workload


def bench(tmp_path: Path, *settings: str) -> dict[str, Any]:
    resolved = read_workload(None, [*TINY, *settings], environ={}, dotenv=None)
    result = run_in_threads(resolved, results=tmp_path / "r", url=str(tmp_path / "d"))
    jsonschema.validate(result, schema())
    return result


def reasons(result: dict[str, Any], rule: str) -> list[str]:
    return [one["reason"] for one in result["findings"] if one["rule"] == rule and one["invalid"]]


@pytest.mark.parametrize("loader", ["stoker", "torch"])
def test_fewer_files_than_the_workload_says_are_an_error_before_anything_is_timed(loader: str, tmp_path: Path) -> None:
    make_data(workload(), str(tmp_path / "d"))
    with pytest.raises(ObjectNotFoundError, match=r"has 6 of the workload's 7 files: generate them first"):
        bench(tmp_path, "dataset.files=7", f"reader.loader={loader}", THREADS[loader])
    assert not (tmp_path / "r").exists()
    (tmp_path / "d" / "train").rename(tmp_path / "d" / "other")
    with pytest.raises(ObjectNotFoundError, match=r"has 0 of .*, or give by --data what has them in train/"):
        bench(tmp_path, f"reader.loader={loader}", THREADS[loader])
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("loader", "kind"), [*(("stoker", kind) for kind in ("npz", "hdf5", "parquet")), ("torch", "hdf5")]
)
def test_of_more_files_the_first_are_read_and_nothing_is_said(loader: str, kind: str, tmp_path: Path) -> None:
    made = workload(f"dataset.format={kind}")
    make_data(made, str(tmp_path / "d"))
    result = bench(tmp_path, f"dataset.format={kind}", "dataset.files=4", f"reader.loader={loader}", THREADS[loader])
    assert result["epochs"][0]["samples"] == 16
    listed = result["listing"]["train"]
    assert (listed["files"], listed["used"]) == (6, 4)
    files = sorted((tmp_path / "d" / "train").glob("img*"))
    assert listed["bytes"] == sum(one.stat().st_size for one in files[:4])
    assert not {one["rule"] for one in result["findings"]} & {"files", "sizes", "last batch"}


def test_dlio_s_subset_is_the_first_by_name_whatever_the_folder(tmp_path: Path) -> None:
    made = workload("dataset.subfolders=2")
    make_data(made, str(tmp_path))
    job = LoaderJob(replace(made, dataset=replace(made.dataset, files=3)), "train", str(tmp_path), World(), 0, 1)
    names = [one.rpartition("/")[2] for one in data_files(job)]
    every = sorted(one.name for one in (tmp_path / "train").rglob("*.npz"))
    assert len(every) == 6
    assert names == every[:3]


@pytest.mark.parametrize(("kind", "size", "word"), [("npz", 10000, "more"), ("tfrecord", 40000, "less")])
def test_samples_of_another_size_make_a_run_invalid(kind: str, size: int, word: str, tmp_path: Path) -> None:
    make_data(workload(f"dataset.format={kind}"), str(tmp_path / "d"))
    result = bench(tmp_path, f"dataset.format={kind}", f"dataset.record_bytes={size}")
    (said,) = reasons(result, "sizes")
    assert re.search(rf"a sample of train has 20,\d+ bytes of its file in the mean, {word} than the {size:,}", said)
    assert result["verdict"] == "invalid"


@pytest.mark.parametrize(
    "settings",
    [
        *([f"dataset.format={kind}"] for kind in ("npz", "npy", "hdf5", "tfrecord", "parquet", "arrow", "tar", "mds")),
        *([f"dataset.format={kind}"] for kind in ("csv", "jsonl", "megatron", "indexed_binary")),
        *([f"dataset.format={kind}", "dataset.samples_per_file=1"] for kind in ("jpeg", "png")),
        ["dataset.record_bytes_stdev=9000", "dataset.samples_per_file=1", "dataset.files=40"],
        ["dataset.compression=zip"],
        ["dataset.record_bytes=100"],
        ["dataset.settings={dims: [25, 40], dtype: float32}", "dataset.format=hdf5"],
    ],
)
def test_what_the_generator_makes_has_the_workload_s_counts_and_sizes(settings: list[str], tmp_path: Path) -> None:
    made = workload(*settings)
    make_data(made, str(tmp_path))
    found = list_split(LoaderJob(made, "train", str(tmp_path), World(), 0, 1))
    assert (found.files, found.used) == (made.dataset.files, made.dataset.files)
    told: dict[str, Any] = {"listing": {"train": vars_of(found)}, "epochs": [], "world": {"ranks": 1}}
    assert list(count_findings(told, made)) == []


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_sizes_of_images_may_differ_by_a_factor_of_two_in_the_mean(kind: str) -> None:
    def found(mean: int, *settings: str) -> list[str]:
        made = workload(
            f"dataset.format={kind}", "dataset.samples_per_file=1", "dataset.record_bytes=300000", *settings
        )
        listing = SplitListing(6, 6, None, 6 * mean, mean // 2, mean * 3, 0.0)
        result: dict[str, Any] = {"listing": {"train": vars_of(listing)}, "epochs": [], "world": {"ranks": 1}}
        assert all(invalid for _, invalid, _ in count_findings(result, made))
        return [reason for rule, _, reason in count_findings(result, made) if rule == "sizes"]

    assert not found(165_000)
    assert not found(600_000)
    assert "less than the 300,000" in found(140_000)[0]
    assert "more than the 300,000" in found(640_000)[0]
    assert not found(640_000, "dataset.settings={dims: [800, 800]}")


def vars_of(found: SplitListing) -> dict[str, Any]:
    return {name: getattr(found, name) for name in SplitListing.__slots__}


def told(samples: int, **more: Any) -> dict[str, Any]:
    """A result in which an epoch delivered so many samples."""
    epoch = {"kind": "train", "epoch": 0, "complete": True, "samples": samples, "loader": {"last_batches": 1} | more}
    return {"listing": {}, "epochs": [epoch], "world": {"ranks": 3}}


def test_samples_beyond_the_last_batches_have_to_be_delivered() -> None:
    made = workload("dataset.files=100", "dataset.samples_per_file=1", "reader.batch_size=5")
    assert list(count_findings(told(100), made)) == []
    ((rule, invalid, reason),) = count_findings(told(90), made)
    assert (rule, invalid) == ("last batch", False)
    assert reason == "10 of the 100 samples of epoch 0 were not delivered"
    assert [one[2] for one in count_findings(told(99), made)] == ["1 of the 100 samples of epoch 0 was not delivered"]
    ((rule, invalid, reason),) = count_findings(told(85), made)
    assert (rule, invalid) == ("last batch", True)
    assert "15 of the 100 samples of epoch 0 were not delivered, more than the 14 of batches" in reason
    assert not any(invalid for _, invalid, _ in count_findings(told(80, last_batches=2), made))
    ((_, invalid, reason),) = count_findings(told(105), made)
    assert invalid
    assert "5 samples came twice" in reason
    two = told(99)
    two["epochs"].append(two["epochs"][0] | {"epoch": 1, "samples": 50})  # a remark does not hide what comes later
    ((_, invalid, reason),) = count_findings(two, made)
    assert invalid
    assert "50 of the 100 samples of epoch 1 were not delivered" in reason
    limited = replace(made, train=replace(made.train, steps=4))
    assert list(count_findings(told(60), limited)) == []
    assert any(invalid for _, invalid, _ in count_findings(told(30), limited))


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        *(("stoker", kind) for kind in ("npz", "hdf5", "tfrecord", "parquet", "png")),
        # It opens files as the other loader does: one format of several samples, one of one.
        *(("torch", kind) for kind in ("parquet", "png")),
    ],
)
def test_a_damaged_file_is_named(loader: str, kind: str, tmp_path: Path) -> None:
    more = (f"dataset.format={kind}", f"dataset.samples_per_file={1 if kind == 'png' else 4}", "reader.threads=0")
    make_data(workload(*more), str(tmp_path / "d"))
    path = sorted((tmp_path / "d" / "train").glob("img*"))[3]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3] + bytes(len(data) - len(data) // 3))
    with pytest.raises(RankFailedError, match=path.name):
        bench(tmp_path, *more, f"reader.loader={loader}")
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    assert not result["valid"]
    assert path.name in result["failure"]


@pytest.mark.parametrize("kind", ["npy", "hdf5", "parquet", "jpeg", "csv"])
def test_files_that_storage_need_not_read_are_no_data(kind: str, tmp_path: Path) -> None:
    """Zeros, which no device need keep, and files that are not those that were generated."""
    settings = (f"dataset.format={kind}", "dataset.files=4", "dataset.record_bytes=60000", "compute.seconds=0")
    made = read_workload(None, settings, environ={}, dotenv=None).workload
    make_data(made, str(tmp_path))
    job = LoaderJob(made, "train", str(tmp_path), World(), 0, 1)

    def broken() -> list[str]:
        found = {"content": look_at(made, str(tmp_path), used_files(job))}
        return [one.reason for one in content_rule(found, made)]

    assert not broken()
    files = [tmp_path / "train" / one.key for one in used_files(job)]
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 3 : len(data) // 3 * 2] = bytes(len(data) // 3)
        path.write_bytes(data)
    (said,) = broken()
    assert "not those of its seed" in said
    for path in (tmp_path / "train").glob("_generated.json"):
        path.unlink()
    for path in files:
        path.write_bytes(files[0].read_bytes())
    (said,) = broken()
    assert "of 16 blocks of the files" in said
    for path in files:
        path.write_bytes(bytes(len(path.read_bytes())))
    (said,) = broken()
    assert "blocks of the files are one byte again and again, such as zeros" in said

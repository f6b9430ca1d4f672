"""Bad samples of a conversion's source: left out, listed once and bounded; all others are written."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from stopped_runs import StoppedError, run, stopping_at

from stoker import BadSamples, ReadOptions, StreamingDataset
from stoker.cli import main
from stoker.errors import ConfigError, EncodingError, StokerError, TooManyBadSamplesError, TransformError
from support import files_of, write_samples

SAMPLES = 400
BAD = [0, 1, 7, 120, 121, 122, 255, 399]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of some 12 shards, of which every sample can be read."""
    folder = tmp_path_factory.mktemp("source") / "mds"
    write_samples(str(folder), ({"id": number, "text": f"text {number}"} for number in range(SAMPLES)), size_limit=1200)
    return folder


def picky(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample itself, unless it is one of ``BAD``."""
    if sample["id"] in BAD:
        raise ValueError(f"not {sample['id']}")
    return sample


def ids_of(folder: Path) -> list[int]:
    return [int(sample["id"]) for sample in StreamingDataset(local=str(folder))]


def listed(file: Path) -> list[int]:
    return [json.loads(line)["sample"] for line in file.read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the conversion's record."""
    return {name: data for name, data in files_of(folder).items() if name != ".stoker_convert.json"}


@pytest.mark.parametrize("to", ["mds", "parquet", "json"])
def test_a_sample_whose_transform_raises_is_left_out_and_listed(source: Path, tmp_path: Path, to: str) -> None:
    listing = tmp_path / "bad.jsonl"
    with pytest.raises(TransformError, match="sample 0 "):
        run(source, tmp_path / "strict", to=to, transform=picky)
    done = run(
        source, tmp_path / "out", to=to, transform=picky, shard_samples=37, on_bad_sample=BadSamples(file=listing)
    )
    assert (done.samples_read, done.samples, done.bad_samples) == (SAMPLES, SAMPLES - len(BAD), len(BAD))
    assert done.tasks > 8
    assert ids_of(tmp_path / "out") == [number for number in range(SAMPLES) if number not in BAD]
    assert listed(listing) == BAD
    one = json.loads(listing.read_text().splitlines()[3])
    rows = StreamingDataset(local=str(source)).where(120)
    assert (one["shard"], one["row"], one["column"]) == (rows.shard, rows.row, None)
    assert one["url"] == rows.url
    assert "not 120" in one["reason"]
    left = StreamingDataset(local=str(source), read=ReadOptions(quarantine=listing))
    assert {sample["id"] for sample in left} == set(ids_of(tmp_path / "out"))


@pytest.mark.parametrize("shuffle", ["none", "global"])
def test_a_stopped_run_gives_the_same_files_and_the_same_list(source: Path, tmp_path: Path, shuffle: str) -> None:
    options: dict[str, Any] = {
        "transform": picky,
        "shard_samples": 30,
        "shuffle": False if shuffle == "none" else shuffle,
        "split": {"a": 0.75, "b": 0.25},
    }
    whole = run(source, tmp_path / "whole", **options, on_bad_sample=BadSamples(file=tmp_path / "whole.jsonl"))
    asked = BadSamples(file=tmp_path / "bad.jsonl")
    for samples in (100, 130, 300):
        with pytest.raises(StoppedError):
            run(source, tmp_path / "out", **options, on_bad_sample=asked, progress=stopping_at(samples))
    done = run(source, tmp_path / "out", **options, on_bad_sample=asked)
    assert done.resumed > 0
    assert (done.samples, done.bad_samples) == (whole.samples, whole.bad_samples)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert (tmp_path / "bad.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(listed(tmp_path / "bad.jsonl")) == BAD


@pytest.mark.processes
def test_several_processes_write_and_list_the_same(source: Path, tmp_path: Path) -> None:
    for processes in (1, 3):
        asked = BadSamples(file=tmp_path / f"{processes}.jsonl")
        out = tmp_path / str(processes)
        run(source, out, transform=picky, shard_samples=20, processes=processes, on_bad_sample=asked)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "3.jsonl").read_bytes()


def test_a_list_that_lacks_its_end_is_completed_without_listing_twice(source: Path, tmp_path: Path) -> None:
    asked = BadSamples(file=tmp_path / "bad.jsonl")
    with pytest.raises(StoppedError):  # after the last task, before the end
        run(
            source,
            tmp_path / "out",
            transform=picky,
            shard_samples=50,
            on_bad_sample=asked,
            progress=stopping_at(SAMPLES),
        )
    lines = (tmp_path / "bad.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "bad.jsonl").write_bytes(b"".join(lines[:2]))
    run(source, tmp_path / "out", transform=picky, shard_samples=50, on_bad_sample=asked)
    assert listed(tmp_path / "bad.jsonl") == BAD


@pytest.mark.parametrize(
    ("limits", "last"),
    [
        ({"max_bad": 3}, [0, 1, 7, 120]),
        ({"max_in_a_row": 2}, [0, 1, 7, 120, 121, 122]),
        ({"max_share": 0.004}, BAD[:5]),
    ],
)
def test_limits_end_the_conversion_and_more_allowed_continues_it(
    source: Path, tmp_path: Path, limits: dict[str, Any], last: list[int]
) -> None:
    file = tmp_path / "bad.jsonl"
    options: dict[str, Any] = {"transform": picky, "shard_samples": 25}
    with pytest.raises(TooManyBadSamplesError, match=next(iter(limits))) as caught:
        run(source, tmp_path / "out", **options, on_bad_sample=BadSamples(**limits, file=file))
    assert caught.value.sample == last[-1]
    assert listed(file) == last
    assert not (tmp_path / "out" / "index.json").exists()
    done = run(source, tmp_path / "out", **options, on_bad_sample=BadSamples(file=file))
    assert done.resumed > 0
    assert listed(file) == BAD
    assert ids_of(tmp_path / "out") == [number for number in range(SAMPLES) if number not in BAD]


@pytest.mark.processes
def test_limits_hold_over_all_processes(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    asked = BadSamples(max_bad=4, file=file)
    with pytest.raises(TooManyBadSamplesError, match="max_bad=4"):
        run(source, tmp_path / "out", transform=picky, shard_samples=25, processes=2, on_bad_sample=asked)
    assert listed(file) == BAD[:5]


def test_a_run_that_met_a_bad_sample_goes_on_without_it_but_not_back(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"transform": later, "shard_samples": 25}
    with pytest.raises(TransformError, match="sample 255 "):
        run(source, tmp_path / "out", **options)
    with pytest.raises(StoppedError):
        run(source, tmp_path / "out", **options, on_bad_sample="skip", progress=stopping_at(SAMPLES))
    with pytest.raises(ConfigError, match="a run before left out 1 bad sample"):
        run(source, tmp_path / "out", **options)
    assert run(source, tmp_path / "out", **options, on_bad_sample="skip").bad_samples == 1
    with pytest.raises(ConfigError, match="finished conversion that left out 1 bad sample"):
        run(source, tmp_path / "out", **options)
    with pytest.raises(ConfigError, match="does not list them"):
        run(source, tmp_path / "out", **options, on_bad_sample=BadSamples(file=tmp_path / "new.jsonl"))
    assert run(source, tmp_path / "out", **options, on_bad_sample="skip").bad_samples == 1


def later(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 255:
        raise ValueError("not this one")
    return sample


def test_damaged_samples_and_shards_are_left_out(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "in"
    copy.mkdir()
    for file in source.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    table = StreamingDataset(local=str(copy))
    shards = sorted(copy.glob("shard.*"))
    cut, broken = 5, 0  # the first shard tells the columns
    data = shards[cut].read_bytes()
    shards[cut].write_bytes(data[:-3])
    shards[broken].write_bytes(b"\xff" * shards[broken].stat().st_size)
    bad = [number for number in range(SAMPLES) if table.where(number).shard == broken]
    bad += [max(number for number in range(SAMPLES) if table.where(number).shard == cut)]
    with pytest.raises(StokerError, match="shard"):
        run(copy, tmp_path / "strict")
    done = run(copy, tmp_path / "out", shard_samples=64, on_bad_sample=BadSamples(file=tmp_path / "bad.jsonl"))
    assert listed(tmp_path / "bad.jsonl") == bad
    assert done.bad_samples == len(bad)
    assert ids_of(tmp_path / "out") == [number for number in range(SAMPLES) if number not in bad]


def test_values_that_do_not_fit_their_column_are_left_out_with_their_sample(tmp_path: Path) -> None:
    texts = [str(number) if number % 50 else "many" for number in range(300)]
    table = pa.table({"id": list(range(300)), "n": texts, "small": [number * 255 for number in range(300)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=40)
    bad = [number for number in range(300) if not number % 50 or number * 255 > 65535]
    options: dict[str, Any] = {"columns": {"n": "int", "small": "uint16"}, "shard_samples": 70}
    with pytest.raises(EncodingError, match="'n'"):
        run(tmp_path / "in.parquet", tmp_path / "strict", **options)
    asked = BadSamples(file=tmp_path / "bad.jsonl")
    run(tmp_path / "in.parquet", tmp_path / "out", **options, on_bad_sample=asked)
    assert listed(tmp_path / "bad.jsonl") == bad
    assert ids_of(tmp_path / "out") == [number for number in range(300) if number not in bad]
    columns = [json.loads(line)["column"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert columns == ["n" if not number % 50 else "small" for number in bad]


def test_what_fits_of_several_that_a_transform_makes_is_written_and_the_sample_listed_once(
    source: Path, tmp_path: Path
) -> None:
    asked = BadSamples(file=tmp_path / "bad.jsonl")
    options: dict[str, Any] = {"transform": thrice, "columns": {"id": "int16"}, "split": {"a": 0.5, "b": 0.5}}
    done = run(source, tmp_path / "out", **options, shard_samples=45, on_bad_sample=asked)
    written = sorted(ids_of(tmp_path / "out" / "a") + ids_of(tmp_path / "out" / "b"))
    made = [sample["id"] for number in range(SAMPLES) for sample in thrice({"id": number})]
    assert written == sorted(number for number in made if number < 1 << 15)
    assert listed(tmp_path / "bad.jsonl") == [number for number in range(SAMPLES) if number % 20 == 3]
    assert done.bad_samples == 20


def thrice(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Three samples, of which two do not fit for each twentieth one."""
    large = 1 << 15 if sample["id"] % 20 == 3 else 1000
    return [{"id": sample["id"] + large * of} for of in range(3)]


def test_a_damaged_row_group_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": np.arange(300)}), file, row_group_size=50, use_dictionary=False, compression="zstd")
    chunk = pq.ParquetFile(file).metadata.row_group(3).column(0)
    with open(file, "r+b") as damaged:
        damaged.seek(chunk.data_page_offset)
        damaged.write(b"\xff" * 40)
    done = run(file, tmp_path / "out", shard_samples=70, on_bad_sample=BadSamples(file=tmp_path / "bad.jsonl"))
    assert done.bad_samples == 50
    assert listed(tmp_path / "bad.jsonl") == list(range(150, 200))
    assert ids_of(tmp_path / "out") == [*range(150), *range(200, 300)]


@pytest.mark.parametrize("to", ["png", "mds"])
def test_pictures_that_are_none_are_left_out(tmp_path: Path, to: str) -> None:
    (tmp_path / "in").mkdir()
    for number in range(60):
        file = io.BytesIO()
        Image.fromarray(np.full((4, 4, 3), number * 4, np.uint8)).save(file, "JPEG")
        (tmp_path / "in" / f"{number:03}.jpeg").write_bytes(b"no picture" if number in (3, 40) else file.getvalue())
    options: dict[str, Any] = {"to": to} if to == "png" else {"transform": size_of, "decode": True}
    done = run(tmp_path / "in", tmp_path / "out", **options, on_bad_sample=BadSamples(file=tmp_path / "bad.jsonl"))
    assert (done.samples, done.bad_samples) == (58, 2)
    assert listed(tmp_path / "bad.jsonl") == [3, 40]
    line = json.loads((tmp_path / "bad.jsonl").read_text().splitlines()[0])
    assert line["url"].endswith("003.jpeg")
    assert len(StreamingDataset(local=str(tmp_path / "out"))) == 58


def size_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {"width": sample["image"].width}


def test_what_is_not_the_samples_fault_is_an_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for file in source.iterdir():
        (tmp_path / "in" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(TransformError, match="no_such_module"):
        run(tmp_path / "in", tmp_path / "one", transform=importing, on_bad_sample="skip")
    os.unlink(sorted((tmp_path / "in").glob("shard.*"))[4])
    with pytest.raises(StokerError, match=r"shard\.00004"):
        run(tmp_path / "in", tmp_path / "two", on_bad_sample="skip")


def importing(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 200:
        raise ModuleNotFoundError("no_such_module")
    return sample


def test_replace_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="a conversion writes each sample once"):
        run(source, tmp_path / "out", on_bad_sample="replace")
    monkeypatch.setenv("STOKER_ON_BAD_SAMPLE", "raise")
    with pytest.raises(TransformError, match="not 0"):
        run(source, tmp_path / "out", transform=picky, on_bad_sample="skip")
    assert not (tmp_path / "out").exists()


def test_the_command_leaves_bad_samples_out_and_says_how_many(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{Path(__file__).stem}:picky"
    command = ["convert", str(source), str(tmp_path / "out"), "--map", name, "--processes", "1"]
    skip = ["--on-bad-sample", "skip", "--bad-samples", str(tmp_path / "bad.jsonl")]
    assert main([*command, "--max-bad", "3"]) == 1
    assert "--on-bad-sample skip" in capsys.readouterr().err
    assert main([*command, *skip, "--max-bad", "3"]) == 1
    assert "max_bad=3" in capsys.readouterr().err
    with caplog.at_level(logging.WARNING):
        assert main([*command, *skip]) == 0
    assert "392 samples of 400 read, 8 bad samples left out, in" in capsys.readouterr().out
    assert listed(tmp_path / "bad.jsonl") == BAD
    assert "bad sample, left out" in caplog.text

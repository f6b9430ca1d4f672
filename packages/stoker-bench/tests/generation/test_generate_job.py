"""Making a data set: the same from any number of workers, completed after any end, nothing half made."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from generated import SPECS, content, of_directory, of_store, small

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset
from stoker.errors import ConfigError, ObjectNotFoundError, StorageError, StorageFullError
from stoker.storage import open_store
from stoker.storage.unfinished import MARK
from stoker_bench.generation import DatasetSpec, file_names, generate
from stoker_bench.generation.formats import images
from stoker_bench.generation.marker import MANIFEST
from support import environ, run_script

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["parquet-fixed", "mds", "tar-images", "megatron"])
def test_any_number_of_threads_makes_the_same(name: str, tmp_path: Path) -> None:
    spec = small(name, files=12)
    for threads in (1, 2, 5):
        report = generate(spec, tmp_path / str(threads), threads=threads)
        assert (report.made, report.kept, report.complete) == (len(file_names(spec)), 0, True)
        assert report.bytes == sum((tmp_path / str(threads) / name).stat().st_size for name in file_names(spec))
    assert of_directory(tmp_path / "1") == of_directory(tmp_path / "2") == of_directory(tmp_path / "5")


def test_threads_do_not_each_make_what_files_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    pictures = images._pictures

    def counted(noise: Any, height: int, width: int) -> Any:
        made.append((height, width))
        time.sleep(0.05)  # the other threads come meanwhile
        return pictures(noise, height, width)

    monkeypatch.setattr(images, "_pictures", counted)
    images.strips_of.cache_clear()
    generate(DatasetSpec(format="jpeg", files=12, dims=(48, 64)), tmp_path, threads=4)
    assert made == [(48, 64)]


@pytest.mark.processes
def test_four_processes_make_the_same_as_one(tmp_path: Path) -> None:
    seen: list[int] = []
    stored: list[tuple[int, float]] = []
    for name in ("mds-images", "jsonl"):
        spec = small(name, files=12)
        one = generate(spec, tmp_path / name / "1")
        stored.clear()
        many = generate(
            spec, tmp_path / name / "4", processes=4, progress=seen.append, stored=lambda *one: stored.append(one)
        )
        assert sum(size for size, _ in stored) == many.bytes
        assert len(stored) == many.made
        assert all(0 < seconds < many.seconds for _, seconds in stored)
        assert of_directory(tmp_path / name / "1") == of_directory(tmp_path / name / "4")
        assert (many.made, many.bytes) == (one.made, one.bytes)
    assert sum(seen) > one.bytes


@pytest.mark.processes
@pytest.mark.parametrize(("processes", "threads"), [(1, 2), (3, 1)])
def test_a_killed_run_is_completed_and_not_restarted(processes: int, threads: int, tmp_path: Path) -> None:
    arguments = {**SPECS["mds"], "files": 150, "samples_per_file": 100, "subfolders": 3}
    spec = DatasetSpec(**arguments)
    place = tmp_path / "killed"
    made_of = [json.dumps(arguments), str(place), str(processes), str(threads)]
    script = [sys.executable, str(HERE / "generate_process.py"), *made_of]
    run = subprocess.Popen(script, env=environ())
    try:
        while len(_shards(place)) < 10:
            assert run.poll() is None
            time.sleep(0.01)
        children = _children(run.pid)
    finally:
        run.kill()
        run.wait()
    _wait_until_gone(children)
    there = _shards(place)
    assert 10 <= len(there) < 150
    assert not (place / "index.json").exists()
    before = {path: path.stat().st_mtime_ns for path in there}
    report = generate(spec, place)
    assert (report.kept, report.made, report.complete) == (len(there), 150 - len(there), True)
    assert {path: path.stat().st_mtime_ns for path in there} == before, "what was whole stays as it is"
    generate(spec, tmp_path / "whole")
    assert of_directory(place) == of_directory(tmp_path / "whole")
    # each sample is there once
    assert len(StreamingDataset(local=str(place), batch_size=1)) == 15_000


def _shards(place: Path) -> list[Path]:
    return list(place.rglob("*.mds")) if place.exists() else []


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def _wait_until_gone(processes: list[int]) -> None:
    until = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{process}").exists() and _state(process) != "Z" for process in processes):
        assert time.monotonic() < until, "processes stay that nobody waits for"
        time.sleep(0.02)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_finished_data_set_is_left_as_it_is(tmp_path: Path) -> None:
    spec = small("npz")
    generate(spec, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = generate(spec, tmp_path)
    assert (report.made, report.kept, report.bytes, report.complete) == (0, 2, 0, True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", ["mds-zstd", "npy", "tar"])
def test_files_that_are_missing_or_of_a_wrong_size_are_made_again(name: str, tmp_path: Path) -> None:
    spec = small(name, files=5)
    generate(spec, tmp_path)
    whole = of_directory(tmp_path)
    first, second = (tmp_path / file for file in file_names(spec)[:2])
    first.unlink()
    if name != "mds-zstd":  # of what is compressed nobody knows the size
        second.write_bytes(second.read_bytes()[:-1])
    report = generate(spec, tmp_path)
    assert report.made == (1 if name == "mds-zstd" else 2)
    assert of_directory(tmp_path) == whole


def test_hosts_make_their_shares_and_the_last_writes_the_index(tmp_path: Path) -> None:
    spec = small("mds", files=7, valid_files=2)
    reports = [generate(spec, tmp_path / "three", host=(number, 3)) for number in (2, 0, 1)]
    assert [report.made for report in reports] == [3, 3, 3]
    assert [report.complete for report in reports] == [False, False, True]
    generate(spec, tmp_path / "one")
    assert of_directory(tmp_path / "three") == of_directory(tmp_path / "one")
    again = generate(spec, tmp_path / "three", host=(1, 3))
    assert (again.made, again.kept, again.complete) == (0, 3, True)


def test_a_last_host_that_was_killed_before_the_index_is_run_again(tmp_path: Path) -> None:
    spec = small("mds", files=6)
    generate(spec, tmp_path / "whole")
    for number in (0, 1):
        generate(spec, tmp_path / "hosts", host=(number, 2))
    (tmp_path / "hosts" / "index.json").unlink()
    marker = json.loads((tmp_path / "hosts" / MANIFEST).read_text())
    (tmp_path / "hosts" / MANIFEST).write_text(json.dumps({**marker, "complete": False}))
    assert generate(spec, tmp_path / "hosts", host=(1, 2)).complete
    assert of_directory(tmp_path / "hosts") == of_directory(tmp_path / "whole")


def test_other_files_and_other_data_sets_are_not_touched(tmp_path: Path) -> None:
    spec = small("npy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'notes.txt'.*choose an empty place"):
        generate(spec, tmp_path / "mine")
    generate(spec, tmp_path / "data")
    before = of_directory(tmp_path)
    with pytest.raises(ConfigError, match="seed is 0, not 1"):
        generate(dataclasses.replace(spec, seed=1), tmp_path / "data")
    with pytest.raises(ConfigError, match="or resume"):
        generate(spec, tmp_path / "data", resume=False)
    (tmp_path / "data" / MANIFEST).write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        generate(spec, tmp_path / "data")
    (tmp_path / "data" / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="part-00000"):
        generate(spec, tmp_path / "data")
    del before[f"data/{MANIFEST}"]
    assert of_directory(tmp_path) == before


def test_the_manifest_tells_of_every_file(tmp_path: Path) -> None:
    spec = small("tar", hashes=("sha256",))
    generate(spec, tmp_path)
    told = json.loads((tmp_path / MANIFEST).read_text())
    found = of_directory(tmp_path)
    assert told["complete"]
    assert told["samples"] == 80
    assert {one["name"]: one["hashes"]["sha256"] for one in told["files"]} == {
        name: digest for name, digest in found.items() if name != MANIFEST
    }


def test_an_error_in_one_thread_ends_all_and_leaves_only_whole_files(tmp_path: Path) -> None:
    spec = DatasetSpec(format="npy", files=40, record_bytes=1 << 20, samples_per_file=3)
    calls = []

    def fail(size: int) -> None:
        calls.append(size)
        if len(calls) == 50:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(spec, tmp_path, threads=3, progress=fail)
    left = [path for path in tmp_path.iterdir() if path.name != MARK]
    with pytest.raises(ObjectNotFoundError, match="are being written, or their writer was stopped"):
        StreamingDataset(remote=tmp_path, format="npy")
    assert 0 < len(left) < 40
    assert all(path.stat().st_size == len(content(spec, 0)) for path in left)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker-generate")]
    report = generate(spec, tmp_path)
    assert (report.kept, report.made) == (len(left), 40 - len(left))
    assert not (tmp_path / MARK).exists()


def test_the_manifest_of_before_of_an_unfinished_data_set_is_completed(tmp_path: Path) -> None:
    spec = small("npy", files=5)
    generate(spec, tmp_path)
    whole = of_directory(tmp_path)
    told = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(
        json.dumps({"spec": told["spec"], "libraries": told["libraries"], "complete": False})
    )
    (tmp_path / file_names(spec)[3]).unlink()
    with pytest.raises(ConfigError, match="seed is 0, not 1"):
        generate(dataclasses.replace(spec, seed=1), tmp_path)
    report = generate(spec, tmp_path)
    assert (report.kept, report.made, report.complete) == (4, 1, True)
    assert of_directory(tmp_path) == whole


def test_a_full_disk_is_reported_as_such(tmp_path: Path) -> None:
    spec = DatasetSpec(format="npy", record_bytes=1 << 20, samples_per_file=8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))
    try:
        with pytest.raises(StorageFullError, match="part-00000"):
            generate(spec, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == [MARK]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["parquet-fixed", "tfrecord", "mds-zstd", "arrow", "tar", "npz"])
def test_memory_does_not_grow_with_the_file(name: str) -> None:
    arguments = {**SPECS[name], "record_bytes": 1_000_000, "columns": (), "stdev": 0, "samples_per_file": 300}
    if arguments["format"] == "parquet":
        arguments["page_bytes"] = 1 << 20
    arguments.pop("row_group_size", None)
    if name == "mds-zstd":
        arguments["samples_per_file"] = 150
    code = (
        "import json, resource, sys\n"
        "from stoker_bench.generation import DatasetSpec, iterate_file\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "small = DatasetSpec(**{**json.loads(sys.argv[1]), 'samples_per_file': 20})\n"
        "for chunk in iterate_file(small, 0): pass\n"
        "before = peak()\n"
        "print(sum(len(chunk) for chunk in iterate_file(DatasetSpec(**json.loads(sys.argv[1])), 0)), peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)], env=environ(), capture_output=True, text=True, check=True
    )
    size, grown = map(int, done.stdout.split())
    assert size >= 150_000_000
    assert grown < 48 << 10, "KiB"


# -- object stores -------------------------------------------------------------------------------------------------------


@pytest.mark.s3
@pytest.mark.parametrize("name", ["parquet-fixed", "mds", "tar-images", "npz"])
def test_s3_gets_the_same_as_a_directory(name: str, tmp_path: Path, bucket: Bucket) -> None:
    spec = small(name, files=4, valid_files=1)
    generate(spec, tmp_path)
    report = generate(spec, f"{bucket.url}/a", threads=2, storage_options=bucket.storage_options)
    store = open_store(f"{bucket.url}/a", bucket.storage_options)
    assert of_store(store) == of_directory(tmp_path)
    assert (report.made, report.complete) == (5, True)
    store.delete(file_names(spec)[1])
    assert generate(spec, f"{bucket.url}/a", storage_options=bucket.storage_options).kept == 4
    assert of_store(store) == of_directory(tmp_path)


@pytest.mark.s3
def test_files_of_several_parts_reach_s3_whole_or_not_at_all(bucket: Bucket) -> None:
    spec = DatasetSpec(format="tar", files=2, record_bytes=3 << 20, samples_per_file=7)
    options = bucket.storage_options
    seen: list[int] = []

    def fail(size: int) -> None:
        seen.append(size)
        if sum(seen) > 15 << 20:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(spec, bucket.url, storage_options=options, threads=1, progress=fail)
    store = open_store(bucket.url, options)
    assert [item.key for item in store.list()] == [MARK]
    generate(spec, bucket.url, storage_options=options)
    for number, name in enumerate(file_names(spec)):
        assert store.get(name, max_bytes=1 << 30) == content(spec, number)


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_reported_as_such(bucket: Bucket) -> None:
    with pytest.raises(StorageError, match="bucket"):
        generate(small("npy"), f"{bucket.url}-other", storage_options=bucket.storage_options)


@pytest.mark.parametrize("arguments", [{"threads": 0}, {"processes": 0}, {"host": (2, 2)}, {"host": (-1, 2)}])
def test_workers_that_make_no_sense_are_refused(arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        generate(small("npy"), tmp_path / "data", **arguments)
    assert not os.path.exists(tmp_path / "data")


@pytest.mark.parametrize(
    ("kind", "compression", "library"),
    [("mds", "zstd:3", "cramjam"), ("mds", "gz", "zlib"), ("jsonl", "gz", "zlib"), ("npz", "zip", "zlib")],
)
def test_files_of_another_version_of_what_compresses_them_are_not_completed(
    tmp_path: Path, kind: str, compression: str, library: str
) -> None:
    made = DatasetSpec(format=kind, files=2, samples_per_file=3, record_bytes=100, compression=compression)
    generate(made, tmp_path)
    manifest = json.loads((tmp_path / "_generated.json").read_text())
    manifest["libraries"][library] += "-of-others"
    (tmp_path / "_generated.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=f"holds another dataset .{library} is .*-of-others"):
        generate(made, tmp_path)


@pytest.mark.parametrize("column", ["t=tokens:8", "t=str:100"])
def test_tokens_and_text_of_before_they_were_made_otherwise_are_not_completed(tmp_path: Path, column: str) -> None:
    made = DatasetSpec(format="mds", columns=(column,), files=2, samples_per_file=3)
    generate(made, tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    del manifest["libraries"]["stoker.generation.words"]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"holds another dataset .stoker\.generation\.words is None"):
        generate(made, tmp_path)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("no_debris")
def test_a_kill_at_any_step_leaves_what_the_next_run_completes() -> None:
    (counts,) = run_script([HERE / "kill_generate.py"])
    assert len(counts) == 2
    assert min(counts.values()) > 10

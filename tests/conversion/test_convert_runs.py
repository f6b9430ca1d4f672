"""Conversions by several processes that are killed, interrupted, or on a cluster, to disks and to object stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset
from stoker.conversion import convert
from stoker.errors import ConfigError, StokerError
from stoker.storage import open_store
from support import environ, files_of, ids_of, make_dataset, start_script

pytestmark = [pytest.mark.processes]

JOB = Path(__file__).parent / "convert_job.py"
SAMPLES = 400
MDS = {"size_limit": 4096, "slowly": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("source") / "mds", SAMPLES)


def start(source: Path, out: Path, markers: Path, **options: Any) -> subprocess.Popen[str]:
    markers.mkdir(exist_ok=True)
    return start_script(
        JOB, source, out, json.dumps({**MDS, **options}), CONVERT_JOB_MARKERS=str(markers), PYTHONPATH=str(JOB.parent)
    )


def workers(markers: Path, wanted: int, caller: int) -> list[int]:
    """Processes that are at work, once there are so many; the caller itself looks at the first samples, too."""
    for _ in range(600):
        found = [int(path.name) for path in markers.iterdir() if path.name != str(caller)]
        alive = [pid for pid in found if is_alive(pid)]
        if len(alive) >= wanted:
            return alive
        time.sleep(0.05)
    raise AssertionError(f"{wanted} processes did not begin to work")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])  # Ray tells there of workers that died, too
    return found


def ids_in(folder: Path) -> list[int]:
    return ids_of(StreamingDataset(local=str(folder)))


def contents(folder: Path) -> dict[str, bytes]:
    """The dataset's files: all but the job's record."""
    found = files_of(folder)
    del found[".stoker_convert.json"]
    return found


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes in one go."""
    out = tmp_path_factory.mktemp("expected") / "out"
    convert(source, out, size_limit=4096, processes=1, transform=same)
    return contents(out)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


@pytest.mark.usefixtures("no_debris")
def test_a_killed_process_is_noticed_and_its_task_done_by_another(
    source: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    markers = tmp_path / "markers"
    process = start(source, tmp_path / "out", markers, processes=2)
    for pid in workers(markers, 2, process.pid):
        os.kill(pid, signal.SIGKILL)
        (markers / str(pid)).unlink(missing_ok=True)
    done = ended(process)
    assert done["retried"] == 2
    assert contents(tmp_path / "out") == expected


@pytest.mark.usefixtures("no_debris")
def test_a_killed_run_is_completed_and_not_restarted(source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    markers, out = tmp_path / "markers", tmp_path / "out"
    process = start(source, out, markers, processes=2)
    pids = workers(markers, 2, process.pid)
    while not list(out.glob("_convert/task-*.json")):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for _ in range(200):  # its processes notice, and end
        if not any(is_alive(pid) for pid in pids):
            break
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in pids)
    assert not (out / "index.json").exists()
    with pytest.raises(StokerError):
        StreamingDataset(local=str(out))
    done = ended(start(source, out, markers, processes=1))
    assert 0 < done["resumed"] < done["tasks"]
    assert contents(out) == expected


@pytest.mark.usefixtures("no_debris")
def test_ctrl_c_leaves_what_the_same_command_completes(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "stoker",
        "convert",
        str(source),
        str(out),
        "--size-limit",
        "4kb",
        "--processes",
        "2",
    ]
    command += ["--map", "convert_job:slowly"]
    (tmp_path / "markers").mkdir()
    env = environ(CONVERT_JOB_MARKERS=str(tmp_path / "markers"), PYTHONPATH=str(JOB.parent))
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = workers(tmp_path / "markers", 2, process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to all of them
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "the same command continues from there" in err
    assert "Traceback" not in err
    assert not any(is_alive(pid) for pid in pids)
    assert not (out / "index.json").exists()
    again = subprocess.run([*command, "--json"], env={**env, "CONVERT_JOB_DELAY": "0"}, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["samples"] == SAMPLES
    assert ids_in(out) == list(range(SAMPLES))


def test_what_always_kills_its_process_is_an_error_that_names_the_samples(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StokerError, match=r"3 processes were killed at samples \d+ to \d+, the last by signal 9"):
        convert(source, tmp_path / "out", size_limit=16384, processes=2, transform=suicidal, columns={"id": "int"})


def suicidal(sample: dict[str, Any]) -> dict[str, Any] | None:
    if 100 < sample["id"] < 150 and parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def test_an_error_in_a_process_is_raised_as_it_is(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StokerError, match=r"sample 333 \(row \d+ of shard.*transform raised ValueError: no good"):
        convert(source, tmp_path / "out", size_limit=4096, processes=2, transform=failing)
    with pytest.raises(ConfigError, match="processes=1"):
        convert(source, tmp_path / "two", size_limit=4096, processes=2, transform=lambda sample: sample)


def failing(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 333:
        raise ValueError("no good")
    return sample


@pytest.mark.s3
@pytest.mark.parametrize("to", ["mds", "parquet"])
def test_from_one_prefix_of_a_store_to_another(
    source: Path, tmp_path: Path, bucket: Bucket, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    options = bucket.storage_options
    convert(source, f"{bucket.url}/in", size_limit=8192, processes=1, compression="zstd", storage_options=options)
    done = convert(
        f"{bucket.url}/in", f"{bucket.url}/out", to=to, size_limit=16384, processes=2, storage_options=options
    )
    assert done.samples == SAMPLES
    keys = [item.key for item in open_store(f"{bucket.url}/out", options).list()]
    assert not [key for key in keys if "_convert/" in key]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]  # of a source only what is needed
    dataset = StreamingDataset(
        remote=f"{bucket.url}/out",
        local=str(tmp_path / "read"),
        storage_options=options,
        **({"format": "parquet"} if to == "parquet" else {}),  # type: ignore[arg-type]
    )
    assert [sample["id"] for sample in dataset] == list(range(SAMPLES))


@pytest.mark.s3
def test_images_of_a_bucket_and_a_run_that_stopped(tmp_path: Path, bucket: Bucket) -> None:
    store = open_store(f"{bucket.url}/photos", bucket.storage_options)
    for number in range(40):
        store.put(f"{'ab'[number % 2]}/{number:03}.jpg", b"\xff\xd8\xff" + number.to_bytes(2, "little") * 50)
    where = f"{bucket.url}/out"
    options: dict[str, Any] = {"storage_options": bucket.storage_options, "shard_samples": 8, "processes": 1}

    class StoppedError(Exception):
        pass

    def progress(done: int, total: int) -> None:
        if done > 16:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert(f"{bucket.url}/photos", where, **options, progress=progress)
    done = convert(f"{bucket.url}/photos", where, **options)
    assert (done.resumed, done.tasks, done.samples) == (2, 5, 40)
    assert done.columns["image"] == "jpeg"
    assert len(list(open_store(where, bucket.storage_options).list())) == 7  # with the record

"""Processes that are killed or stopped at any moment: whole data or none, no wrong byte, no hang, no debris."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holding_server import HoldingServer, run_holding_server

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset
from support import cache_of, check_sample, ids_of, make_dataset, run_script, start_script

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("no_debris")]

HERE = Path(__file__).parent
SAMPLES = 300
EVERYTHING = list(range(SAMPLES))
HELD = "shard.00003.mds"


def test_random_moments() -> None:
    (counts,) = run_script([HERE / "kill_many.py", "--rounds", 54])
    assert counts["writer"] + counts["reader"] + counts["pair"] == 54
    assert counts["reader killed"] > 15
    assert counts["writer killed, readable: nothing"] > 7


def test_every_step_that_writers_and_readers_take_with_files() -> None:
    (counts,) = run_script([HERE / "kill_steps.py"])
    assert min(counts.values()) > 15


def test_every_step_that_jobs_take_with_files() -> None:
    (counts,) = run_script([HERE / "kill_jobs.py"])
    assert len(counts) == 4
    assert min(counts.values()) > 10


@pytest.mark.s3
def test_random_moments_with_an_s3_server(bucket: Bucket) -> None:
    options = ["--remote", f"{bucket.url}/kills", "--storage-options", json.dumps(bucket.storage_options)]
    kinds = ["writer remote", "writer both", "reader plain", "pair packed"]
    options += [part for kind in kinds for part in ("--kind", kind)]
    (counts,) = run_script([HERE / "kill_many.py", "--rounds", 12, *options])
    assert (counts["writer"], counts["reader"], counts["pair"]) == (6, 3, 3)


# -- in the middle of a download ---------------------------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """About 15 shards."""
    return make_dataset(tmp_path / "remote", SAMPLES, hashes=["xxh3_64"])


class Reader:
    """``http_reader.py`` in a process group of its own."""

    def __init__(self, server: HoldingServer, cache: Path, timeout: float = PATIENCE, workers: int = 0) -> None:
        self.process = start_script(HERE / "http_reader.py", server.url, cache, timeout, workers)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def begun(self) -> None:
        """Wait until it begins to read."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == '"begun"', self.process.communicate()

    def finish(self) -> None:
        """It must come to its end, with every sample right."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError("the reader hangs") from None
        assert self.process.returncode == 0, err
        assert json.loads(out.splitlines()[-1]) == EVERYTHING

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def eventually(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience} s: {what}"
        time.sleep(0.02)


def sound(server: HoldingServer, cache: Path) -> None:
    """A fresh reader finds all shards in the cache, by their hashes, and removes what the killed one left."""
    before = len(server.requests)
    dataset = StreamingDataset(remote=server.url, local=cache, validate_hash="xxh3_64")
    assert ids_of(dataset) == EVERYTHING
    assert server.requests[before:] == ["index.json"]
    assert not list(cache.rglob("*.part"))


def test_a_reader_takes_over_from_one_killed_in_the_middle_of_a_download(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with run_holding_server(remote, HELD) as server:
        victim = Reader(server, cache)
        assert server.half_sent.wait(PATIENCE)
        other = Reader(server, cache)
        other.begun()
        time.sleep(0.3)  # it waits for the victim's download
        assert other.process.poll() is None
        assert server.requests.count(HELD) == 1
        victim.end()
        other.finish()
        assert server.requests.count(HELD) == 2
        sound(server, cache)


def test_a_reader_continues_next_to_one_stopped_in_the_middle_of_a_download(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with run_holding_server(remote, HELD) as server:
        stopped = Reader(server, cache)
        assert server.half_sent.wait(PATIENCE)
        stopped.signal(signal.SIGSTOP)
        others = [Reader(server, cache, timeout=1.5) for _ in range(2)]
        for other in others:
            other.finish()
        server.go_on.set()
        stopped.signal(signal.SIGCONT)
        stopped.finish()
        sound(server, cache)


def test_a_stopped_process_that_holds_the_count_of_a_limited_cache_is_not_waited_for(
    remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    options: dict[str, Any] = {"remote": remote, "local": cache, "cache_limit": "40kb", "download_timeout": 0.3}
    StreamingDataset(**options)
    with open(cache_of(cache) / ".stoker" / "room", "wb") as room:
        fcntl.flock(room, fcntl.LOCK_EX)
        assert check_sample(StreamingDataset(**options)[7]) == 7
    assert "continuing without it" in caplog.text


def test_nothing_outlives_a_killed_main_process(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with run_holding_server(remote, HELD) as server:
        victim = Reader(server, cache, workers=2)
        assert server.half_sent.wait(PATIENCE)
        group = victim.process.pid
        # The main process, two workers, and a helper for one or both, as forked processes can not use obstore.
        assert len(alive(group)) >= 4
        victim.end()
        eventually(lambda: not alive(group), "the workers and their helpers end")
        server.go_on.set()
        Reader(server, cache).finish()
        sound(server, cache)


def alive(group: int) -> list[int]:
    """Processes of a group that are no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found

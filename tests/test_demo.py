"""``make demo`` at a small size, through its command line: what it proves, leaves behind and does when stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from patience import PATIENCE

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[1] / "examples"


def start(out: Path, tmp: Path) -> subprocess.Popen[str]:
    """The demo, in a process group of its own, with a folder for temporary files of its own."""
    tmp.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py"), "--small", "--out", str(out)],
        env={**os.environ, "TMPDIR": str(tmp), "COLUMNS": "100", "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@dataclass(frozen=True)
class Finished:
    out: Path
    tmp: Path
    status: int
    printed: str
    group: int

    def batches(self, job: str, rank: int) -> list[NDArray[np.int64]]:
        with np.load(self.out / f"{job}-rank{rank}.npz") as record:
            return np.split(record["ids"], np.cumsum(record["lengths"])[:-1])

    def merged(self, job: str, ranks: int) -> NDArray[np.int64]:
        parts = [self.batches(job, rank) for rank in range(ranks)]
        steps = max(len(part) for part in parts)
        return np.concatenate([part[step] for step in range(steps) for part in parts if step < len(part)])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("demo")
    process = start(folder / "out", folder / "tmp")
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, printed
    return Finished(folder / "out", folder / "tmp", process.returncode, printed, process.pid)


def index_of(out: Path) -> list[dict[str, dict[str, int | str]]]:
    shards: list[dict[str, dict[str, int | str]]] = json.loads((out / "store" / "index.json").read_text())["shards"]
    return shards


def test_every_sample_comes_once_in_the_order_of_one_process(demo: Finished) -> None:
    samples = sum(shard["samples"] for shard in index_of(demo.out))  # type: ignore[misc]
    resumed = np.concatenate([demo.merged("before", 2), demo.merged("after", 3)])
    assert np.array_equal(np.sort(resumed), np.arange(samples))
    assert not np.array_equal(resumed, np.arange(samples))
    assert np.array_equal(resumed, demo.merged("alone", 1))


def test_it_stops_and_resumes_in_mid_epoch_at_the_border_of_a_global_batch(demo: Finished) -> None:
    state = json.loads((demo.out / "state.json").read_text())
    assert state["position"] == len(demo.merged("before", 2)) == 96 * len(demo.batches("before", 0))
    assert {len(batch) for rank in range(2) for batch in demo.batches("before", rank)} == {48}
    assert {len(batch) for rank in range(3) for batch in demo.batches("after", rank)[:-1]} == {32}
    assert len(demo.merged("after", 3)) > 96


def test_the_store_holds_many_compressed_shards_with_hashes(demo: Finished) -> None:
    shards = index_of(demo.out)
    assert len(shards) >= 30
    for shard in shards:
        stored = shard["zip_data"]
        assert sorted(stored["hashes"]) == ["sha1", "xxh64"]  # type: ignore[arg-type]
        assert (demo.out / "store" / str(stored["basename"])).stat().st_size == stored["bytes"]


def test_it_says_what_it_proved_and_measured(demo: Finished) -> None:
    for words in ("every sample came exactly once", "a single process sees", "samples/s", "MB/s", "All checks passed"):
        assert words in demo.printed
    assert "✗" not in demo.printed
    shards = len(index_of(demo.out))
    for processes in (2, 3):
        told = re.search(rf"fetched by {processes} processes +(\d+) of {shards} shards: ([\d.]+) MB down", demo.printed)
        assert told is not None
        assert 0 < int(told[1]) <= shards
        assert float(told[2]) > 0


def test_it_draws_the_shuffle(demo: Finished) -> None:
    image = pytest.importorskip("PIL.Image")
    with image.open(demo.out / "shuffle.png") as picture:
        picture.load()
        assert picture.width > 1000
        # Five processes, each in a colour of its own.
        assert len({color for count, color in picture.convert("RGB").getcolors(1 << 24) if count > 500}) >= 5


def test_it_leaves_no_process_and_no_temporary_file(demo: Finished) -> None:
    assert group_is_empty(demo.group)
    assert list(demo.tmp.iterdir()) == []


def test_it_leaves_alone_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    precious = tmp_path / "out" / "precious.txt"
    precious.write_text("mine")
    process = start(tmp_path / "out", tmp_path / "tmp")
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "--out" in printed
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_stopped_while_it_streams_it_ends_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path / "out", tmp_path / "tmp")
    try:
        first_log = tmp_path / "out" / "before-rank1.log"
        limit = time.monotonic() + PATIENCE
        while not first_log.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, printed
        assert "Traceback" not in printed
        assert group_is_empty(process.pid)
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        if not group_is_empty(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_that_fails_is_reported_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    launch = import_module("demo_launch")
    missing = (tmp_path / "missing").as_uri()
    job = launch.Job("lost", missing, tmp_path, launch.Shuffle(1, 1), world_size=2, batch_size=4, predownload=8)
    with pytest.raises(launch.JobError, match=r"rank . of 2 ended with exit status 1:\nObjectNotFoundError: .*missing"):
        launch.run_job(job, lambda rank, samples: None)


class TestProof:
    """The proof finds what it is there to find."""

    @pytest.fixture
    def proof(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        return import_module("demo_proof")

    @pytest.mark.parametrize(
        ("ids", "kept"),
        [([2, 0, 1], True), ([2, 0], False), ([2, 0, 1, 1], False), ([2, 0, 3], False), ([-1, 0, 1, 2], False)],
    )
    def test_a_missing_repeated_or_unknown_sample(self, proof: ModuleType, ids: Sequence[int], kept: bool) -> None:
        assert proof.every_sample_once(np.array(ids), 3).kept is kept

    def test_two_samples_that_were_swapped(self, proof: ModuleType) -> None:
        batches = [np.array([3, 1]), np.array([0, 2])]
        assert proof.same_order(batches, batches).kept
        assert not proof.same_order(batches, [np.array([1, 3]), np.array([0, 2])]).kept
        assert not proof.same_order(batches, batches[:1]).kept

    def test_a_row_with_another_rows_tokens(self, proof: ModuleType) -> None:
        Record = import_module("demo_record").Record  # noqa: N806
        written = np.array([7, 8, 9], dtype=np.uint32)
        lengths = np.array([2, 1])
        right = Record(np.array([2, 0, 1]), lengths, np.array([9, 7, 8], dtype=np.uint32))
        wrong = Record(np.array([2, 0, 1]), lengths, np.array([9, 8, 7], dtype=np.uint32))
        assert proof.content_is_right([right], written).kept
        assert not proof.content_is_right([wrong], written).kept

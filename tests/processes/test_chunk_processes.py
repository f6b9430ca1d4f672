"""Processes that run functions: none hangs, none is left, and one that ends is an error, whoever is killed or dropped."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import ReadOptions, StreamingDataset
from stoker.concurrency.processes import WorkerProcess
from stoker.errors import ConfigError, StokerError
from stoker.pipeline.batch_ring import Ring
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.chunk_process import ChunkAnswer, ChunkTask, serve_chunks
from stoker.pipeline.execution.in_processes import InProcesses
from support import write_columns

pytestmark = [pytest.mark.processes]

HERE = Path(__file__).parent
FORK = ReadOptions(run_in="processes", start_method="fork", read_processes=2)
SAMPLES = 400


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("killed") / "data"
    return write_columns(out, {"id": np.arange(SAMPLES)}, size_limit=2000)


def opened(data: Path, read: ReadOptions = FORK) -> StreamingDataset:
    return StreamingDataset(data, batch_size=4, read=read)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def exits(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) == 150:
        os._exit(3)
    return sample


def killed(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) == 150:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def readers() -> list[int]:
    """The processes of this one that read."""
    return [child.pid or 0 for child in multiprocessing.active_children() if child.name.startswith("stoker-read")]


def exists(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + PATIENCE
    while any(map(exists, pids)):
        assert time.monotonic() < until, "a process was left behind"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("function", "said"),
    [(killed, "was killed by SIGKILL"), (exits, "ended with exit code 3")],
    ids=["killed", "exit"],
)
def test_a_process_that_ends_is_an_error_that_says_how_and_what_it_was_to_read(
    data: Path, function: Any, said: str
) -> None:
    seen: list[Any] = []
    with pytest.raises(StokerError, match=said) as raised:
        seen.extend(opened(data).map(function).batches())
    assert sum(len(batch["id"]) for batch in seen) <= 150
    assert "the first of them" in raised.value.__notes__[0]
    assert readers() == []


def test_a_process_that_is_killed_while_it_waits_for_work_is_an_error(data: Path) -> None:
    batches = opened(data).map(same).batches()
    next(batches)
    pids = readers()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(StokerError, match="was killed by SIGKILL"):
        list(batches)
    wait_until_gone(pids)


def test_a_copy_of_this_process_that_does_not_begin_is_an_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.pipeline.execution.in_processes.serve_chunks", lambda *_: time.sleep(10 * PATIENCE))
    monkeypatch.setattr("stoker.pipeline.execution.in_processes._BEGINS_WITHIN", 0.1)
    dataset = StreamingDataset(data, batch_size=10, read=ReadOptions(run_in="processes", start_method="fork")).map(same)
    with pytest.raises(StokerError, match=r"has not begun .*start_method=.spawn."):
        next(iter(dataset.batches()))


def test_a_process_that_can_not_take_what_it_is_sent_ends_and_is_not_waited_for(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reader = opened(data).epoch_reader
    task = ChunkTask(reader.settings, 0, True, 1)
    worker = WorkerProcess("test", serve_chunks, Ring(), reader.pool, None, task, start_method="fork")
    try:
        assert pickle.loads(worker.receive_bytes() or b"") == ChunkAnswer()
        worker.send(b"no request")
        assert worker.join(PATIENCE) == 1
    finally:
        worker.stop()
    assert "UnpicklingError" in capfd.readouterr().err


def test_processes_end_with_the_iteration_and_when_it_is_dropped(data: Path) -> None:
    dataset = opened(data).map(same)
    batches = dataset.batches()
    assert len(list(islice(batches, 3))) == 3
    pids = readers()
    assert pids
    del batches
    assert readers() == []
    wait_until_gone(pids)
    kept = list(dataset.batches())
    assert readers() == []
    # Batches stay as they are when the processes that made them are gone, and memory is not used again under them.
    list(dataset.batches())
    assert [int(number) for batch in kept for number in batch["id"]] == list(range(SAMPLES))


def test_further_processes_are_given_work_when_they_are_there(data: Path) -> None:
    """None waits for the start of one, and one that does not come is done without."""
    reader = opened(data).epoch_reader
    task = ChunkTask(reader.settings, 0, True, 1)
    places = np.arange(4)
    chunk = Chunk([4], places, np.zeros(4, np.int64), places, (0,))
    runner: InProcesses[Chunk] = InProcesses(reader.pool.get, 1, task, reader.pool, None, Ring())  # type: ignore[arg-type]

    def read() -> None:
        assert list(runner.submit(chunk)().values["id"]) == [0, 1, 2, 3]

    def read_until(count: int) -> None:
        until = time.monotonic() + PATIENCE
        while runner.changing or runner.workers != count:
            read()
            assert time.monotonic() < until

    try:
        read_until(1)
        spent, first = runner.processor_time, readers()
        runner.resize(2)
        assert (runner.changing, runner.ahead) == (True, 2)
        read_until(2)
        assert len(readers()) == 2
        assert runner.ahead == 4
        assert runner.processor_time > spent
        runner.resize(3)
        [late] = set(readers()) - set(first) - {process.worker.pid for process in runner._processes}
        os.kill(late, signal.SIGKILL)
        read_until(2)
        runner.resize(1)
        read_until(1)
        runner.resize(2)
        runner.resize(1)  # it is not needed before it is there
        assert not runner.changing
        read()
    finally:
        runner.close()
    assert readers() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_the_process_that_reads(data: Path, how: signal.Signals) -> None:
    command = [
        sys.executable,
        str(HERE / "chunk_reader_script.py"),
        str(data),
        "spawn" if how == signal.SIGKILL else "fork",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        pids += [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        assert all(map(exists, set(pids)))
        process.send_signal(how)
        _, said = process.communicate(timeout=PATIENCE)
    assert (how == signal.SIGINT) == ("KeyboardInterrupt" in said)
    wait_until_gone(pids)


def test_a_child_that_is_forked_in_the_middle_goes_on_by_itself(data: Path) -> None:
    batches = opened(data).map(same).batches()
    first = list(chain.from_iterable(next(batches)["id"] for _ in range(5)))
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(theirs, bytes(int(number) % 256 for batch in batches for number in batch["id"]))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        left = told.read()
    os.waitpid(pid, 0)
    assert list(left) == [number % 256 for number in range(len(first), SAMPLES)]
    assert first + [int(number) for batch in batches for number in batch["id"]] == list(range(SAMPLES))


def read_in_daemon(data: Path, pipe: Any) -> None:
    try:
        next(opened(data).map(same).batches())
    except ConfigError as error:
        pipe.send(str(error))
    auto = opened(data, read=ReadOptions(run_in="auto", start_method="fork", read_threads=2)).map(same)
    pipe.send(sum(len(batch["id"]) for batch in auto.batches()))


def draws(sample: dict[str, Any]) -> dict[str, Any]:
    return {"drawn": np.random.rand()}  # noqa: NPY002 - the generator that all threads of a process share


def test_a_process_draws_that_was_forked_while_a_thread_drew(data: Path) -> None:
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        found.put([float(drawn) for batch in opened(data).map(draws).batches() for drawn in batch["drawn"]])

    with np.random.get_bit_generator().lock:  # type: ignore[attr-defined]
        threading.Thread(target=read, daemon=True).start()
        try:
            drawn = found.get(timeout=PATIENCE)
        finally:
            for pid in readers():  # one that waits for ever
                os.kill(pid, signal.SIGKILL)
    assert len(set(drawn)) == SAMPLES  # each process draws others


def test_a_daemonic_process_starts_none(data: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=read_in_daemon, args=(data, theirs), daemon=True)
    process.start()
    assert "is daemonic" in ours.recv()
    assert ours.recv() == SAMPLES
    process.join()


def test_a_script_that_lacks_its_guard_is_told_so(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from stoker import ReadOptions, StreamingDataset\n"
        "def same(sample):\n    return sample\n"
        f"dataset = StreamingDataset({str(data)!r}, batch_size=4, read=ReadOptions(run_in='processes', read_processes=1))\n"
        "next(dataset.map(same).batches())\n"
    )
    found = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == 1
    assert 'if __name__ == "__main__"' in found.stderr.splitlines()[-1]

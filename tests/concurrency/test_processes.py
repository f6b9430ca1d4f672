"""Functions that other processes call: in order, with their errors, and without a hang whatever happens to a process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from stoker.concurrency.processes import TaskProcesses, WorkerProcess, sendable, stop_workers
from stoker.errors import ConfigError, StokerError
from stoker.types import StartMethod
from support import environ

pytestmark = [pytest.mark.processes]

_NAMES: dict[str, Any] = {"does": "works", "call": "work()", "remedy": "Work less"}
_LARGE = 4 << 20  # more than a pipe holds


def in_processes(
    function: Callable[..., Any], shared: Any, arguments: Iterable[Any], processes: int, ahead: int
) -> Generator[Any]:
    """Results alone."""
    made: TaskProcesses[Any, Any, Any] = TaskProcesses(function, processes, **_NAMES)
    with closing(made.run(shared, arguments, ahead=ahead)) as found:
        for _, result in found:
            yield result


def slower_first(value: int, number: int) -> tuple[int, int, bool, int]:
    time.sleep(0.05 if number == 0 else 0)
    return number, value, parent_process() is not None, os.getpid()


def test_results_come_in_order_and_processes_are_started_as_needed() -> None:
    found = list(in_processes(slower_first, 7, range(40), 3, ahead=2))
    assert [(number, value, child) for number, value, child, _ in found] == [(number, 7, True) for number in range(40)]
    assert 1 < len({pid for *_, pid in found}) <= 3
    assert len({pid for *_, pid in in_processes(slower_first, 7, [0], 3, ahead=2)}) == 1
    assert list(in_processes(slower_first, 7, [], 3, ahead=2)) == []


def enlarged(_: None, data: bytes) -> bytes:
    return data * 2


def test_large_arguments_and_results_do_not_wait_for_each_other() -> None:
    some = [bytes([number]) * _LARGE for number in range(12)]
    found = in_processes(enlarged, None, some, 2, ahead=3)
    for number, data in enumerate(found):
        assert data == some[number] * 2


def failing(_: None, number: int) -> int:
    if number == 5:
        raise ConfigError("five is too many")
    if number == 7:
        raise ZeroDivisionError("seven")
    return number


def test_an_error_comes_where_its_result_would_or_before() -> None:
    found = in_processes(failing, None, range(6), 2, ahead=2)
    assert next(found) == 0
    with pytest.raises(ConfigError, match="five is too many"):
        list(found)
    with pytest.raises(StokerError, match="ZeroDivisionError: seven") as caught:
        list(in_processes(failing, None, [7], 2, ahead=2))
    assert "in failing" in caught.value.__notes__[0]


class _UnsendableError(ConfigError):
    def __reduce__(self) -> tuple[Any, ...]:
        raise pickle.PicklingError("no")


def test_an_error_that_can_not_be_sent_says_what_it_said() -> None:
    assert type(sendable(_UnsendableError("mine"))) is StokerError
    assert str(sendable(_UnsendableError("mine"))) == "mine"


def named(_: None, number: int) -> tuple[int, bytes]:
    return os.getpid(), bytes(_LARGE)


def test_a_process_that_is_killed_in_the_middle_of_an_answer_is_an_error() -> None:
    found = in_processes(named, None, range(100), 1, ahead=3)
    pid, _ = next(found)
    wchan = Path(f"/proc/{pid}/syscall")
    for _ in range(600):  # its next answer fills the pipe, as nobody takes it
        if wchan.read_text().startswith("1 "):  # write(2) of x86-64
            break
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StokerError, match=r"a process that works was killed by signal 9.*Work less"):
        list(found)


def test_processes_are_gone_when_the_caller_has_had_enough() -> None:
    found = in_processes(named, None, range(100), 2, ahead=3)
    pids = {next(found)[0] for _ in range(6)}
    found.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


_SCRIPT = """
import sys
from test_processes import in_processes, named
if __name__ == "__main__":
    for pid, _ in in_processes(named, None, iter(int, 1), 2, ahead=3):
        print(pid, flush=True)
"""


def until_the_end(pipe: Any) -> None:
    while True:
        pipe.send(pipe.recv() + 1)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_processes_end_when_nothing_more_is_sent_to_them(start_method: StartMethod) -> None:
    """Not for want of patience: a copy has what its parent had of its own pipe, and of those of others."""
    some = [WorkerProcess("test", until_the_end, start_method=start_method) for _ in range(3)]
    try:
        for number, worker in enumerate(some):
            worker.send(pickle.dumps(number))
            assert worker.receive_bytes() == pickle.dumps(number + 1)
        for worker in some:
            worker.finish()
            assert worker.join(PATIENCE) == 0
    finally:
        stop_workers(some)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    run = subprocess.Popen(
        [sys.executable, str(script)],
        env=environ(PYTHONPATH=os.pathsep.join(sys.path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert run.stdout is not None
        pids = {int(run.stdout.readline()) for _ in range(8)}
        if number == signal.SIGKILL:
            run.kill()
        else:
            os.killpg(run.pid, number)  # as a terminal does: to all of them
        _, said = run.communicate(timeout=PATIENCE)
        assert said.count("Traceback") == (number == signal.SIGINT)  # that of the script itself
        end = time.monotonic() + PATIENCE
        while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < end, left
            time.sleep(0.02)
    finally:
        run.kill()

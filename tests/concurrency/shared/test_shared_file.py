"""Memory shared by processes: its lock keeps all threads of all processes out, and never fails for a cycle that is none."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker.concurrency.shared.file import SharedFile
from stoker.errors import StokerError

pytestmark = pytest.mark.processes

_ROUNDS = 400


def hold_crosswise(files: list[SharedFile], ready: Any, results: Any) -> None:
    """Two threads, each with a file of its own; both files are also wanted by the two threads of another process."""
    failures: list[str] = []
    numbers = [np.frombuffer(file.map(4096), np.int64) for file in files]

    def work(own: int) -> None:
        try:
            for _ in range(_ROUNDS):
                with files[own].locked():
                    before = int(numbers[own][0])
                    time.sleep(0)  # the other thread gets its file meanwhile
                    numbers[own][0] = before + 1
        except OSError as error:
            failures.append(repr(error))

    ready.wait(PATIENCE)
    threads = [threading.Thread(target=work, args=(own,)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(failures)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_threads_of_two_processes_that_hold_two_files_crosswise_do_not_fail_and_lose_no_count(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    files = [SharedFile("test-crosswise", 4096) for _ in range(2)]
    ready, results = context.Barrier(2), context.Queue()
    children = [context.Process(target=hold_crosswise, args=(files, ready, results)) for _ in range(2)]
    for child in children:
        child.start()
    failures = [results.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join()
    assert failures == [[], []]
    assert [int(np.frombuffer(file.map(4096), np.int64)[0]) for file in files] == [2 * _ROUNDS] * 2


def test_a_child_that_is_forked_while_a_thread_holds_the_lock_neither_waits_for_that_thread_nor_has_its_lock() -> None:
    file = SharedFile("test-fork", 4096)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with file.locked():
            held.set()
            let_go.wait(PATIENCE)

    def take(connection: Any) -> None:
        connection.send("begun")
        with file.locked():
            connection.send("taken")

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    child = context.Process(target=take, args=(theirs,))
    child.start()
    assert ours.poll(PATIENCE)
    assert ours.recv() == "begun"
    assert not ours.poll(0.2)  # the thread of this process has it still
    let_go.set()
    assert ours.poll(PATIENCE)
    assert ours.recv() == "taken"
    child.join()
    thread.join()


def test_the_lock_of_a_killed_process_is_free_although_it_had_forked_a_child_meanwhile() -> None:
    file = SharedFile("test-kill", 4096)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def hold() -> None:
        held = threading.Event()

        def keep() -> None:
            with file.locked():
                held.set()
                time.sleep(600)

        threading.Thread(target=keep, daemon=True).start()
        held.wait(PATIENCE)
        grandchild = os.fork()
        if not grandchild:
            time.sleep(600)
        theirs.send(grandchild)
        time.sleep(600)

    child = context.Process(target=hold)
    child.start()
    assert ours.poll(PATIENCE)
    grandchild = ours.recv()
    try:
        child.kill()
        child.join()
        with file.locked():
            pass
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_thread_that_has_the_lock_may_take_it_again() -> None:
    file = SharedFile("test-nested", 4096)
    with file.locked(), file.locked():
        pass
    child = multiprocessing.get_context("fork").Process(target=_take, args=(file,))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0


def _take(file: SharedFile) -> None:
    with file.locked():
        pass


def test_a_claim_stays_when_the_process_closes_another_descriptor_of_the_file() -> None:
    file = SharedFile("test-kept-claims", 4096)
    assert file.claim(0)
    file.map(4096).close()
    os.close(os.open(f"/proc/self/fd/{file._file.number}", os.O_RDWR))
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(file.claim(0) + 2 * file.claim(1)))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 2


def test_a_number_is_claimed_by_one_process_until_it_ends() -> None:
    file = SharedFile("test-claims", 4096)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def claim() -> None:
        theirs.send(file.claim(0))
        theirs.recv()

    child = context.Process(target=claim)
    child.start()
    assert ours.recv() is True
    assert not file.claim(0)
    assert file.claim(1)
    child.kill()
    child.join()
    assert file.claim(0)


def test_a_limit_on_the_size_of_files_is_an_error_that_names_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        SharedFile("small", 4096)
        with pytest.raises(StokerError, match=r"memory of 8192 bytes that processes share.*ulimit -f"):
            SharedFile("large", 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

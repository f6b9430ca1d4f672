"""A file that processes find by a name: one for all of them, claims that end with their process, nothing that stays."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import secrets
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.concurrency.shared import node_file
from stoker.concurrency.shared.node_file import NodeFile, open_file_of, path_for_others
from stoker.errors import StokerError, StorageError


@pytest.fixture
def name() -> str:
    return f"stoker-test-{secrets.token_hex(8)}"


def sockets(name: str) -> int:
    """Sockets of this name in the abstract namespace that somebody listens on."""
    return Path("/proc/net/unix").read_text().count(f"@{name}")


@pytest.mark.processes
def test_who_comes_later_has_the_same_file(name: str) -> None:
    files = [NodeFile(name, 100) for _ in range(3)]
    files[1].write(3, b"abc")
    assert [file.read(0, 7) for file in files] == [b"\0\0\0abc\0"] * 3
    assert files[0].claim(5)
    assert not files[2].claim(5)
    assert files[2].claim(6)
    files[0].release(5)
    assert files[2].claim(5)
    assert NodeFile(f"{name}-other", 100).read(3, 3) == bytes(3)


@pytest.mark.processes
def test_the_file_outlives_its_maker_and_the_name_does_not(name: str) -> None:
    first, second = NodeFile(name, 100), NodeFile(name, 100)
    first.write(0, b"a")
    del first
    assert second.read(0, 1) == b"a"
    third = NodeFile(name, 100)
    assert third.read(0, 1) == b"\0"
    del second, third
    assert not sockets(name)


def _tell_first_byte(name: str, told: Any) -> None:
    told.send(NodeFile(name, 100).read(0, 1))


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_has_the_file_of_the_one_that_started_it_whoever_has_the_name_by_then(name: str, method: Any) -> None:
    """As another job made it, which has ended: the workers of a loader share with their main process."""
    other, mine = NodeFile(name, 100), NodeFile(name, 100)
    mine.write(0, b"a")
    del other  # nobody listens any more
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_tell_first_byte, args=(name, theirs))
    child.start()
    theirs.close()
    assert ours.recv() == b"a"
    child.join()
    assert child.exitcode == 0


@pytest.mark.processes
def test_who_has_the_file_of_a_maker_that_is_gone_can_offer_it(name: str) -> None:
    """So that those who come later share with those who are there."""
    first, second = NodeFile(name, 100), NodeFile(name, 100)
    first.write(0, b"a")
    second.offer()  # the first does
    del first
    second.offer()
    second.offer()
    assert NodeFile(name, 100).read(0, 1) == b"a"
    del second
    assert not sockets(name)


@pytest.mark.processes
def test_many_that_begin_at_once_have_one_file(name: str) -> None:
    files: list[NodeFile] = []
    threads = [threading.Thread(target=lambda: files.append(NodeFile(name, 8))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files[7].write(0, b"together")
    assert {file.read(0, 8) for file in files} == {b"together"}


@pytest.mark.processes
def test_connections_are_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More processes than the queue of a socket holds."""
    monkeypatch.setattr(node_file, "_BACKLOG", 2)
    first = NodeFile(name, 8)
    for number in range(10):
        assert NodeFile(name, 8).read(0, 1) == bytes([number])
        first.write(0, bytes([number + 1]))


@pytest.mark.processes
def test_connections_to_one_that_writes_nothing_are_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to a main process whose workers, new ones in each epoch, read for it."""
    monkeypatch.setattr(node_file, "_BACKLOG", 2)
    first = NodeFile(name, 8)
    first.write(0, b"a")
    for _ in range(10):
        first.offer()
        assert NodeFile(name, 8).read(0, 1) == b"a"


@pytest.mark.processes
def test_who_connects_for_ever_is_not_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of any user can."""
    monkeypatch.setattr(node_file, "_BACKLOG", 8)
    first = NodeFile(name, 8)
    asking: list[socket.socket] = []

    class Flooded:
        def __init__(self, plain: socket.socket) -> None:
            self._plain = plain

        def accept(self) -> Any:
            assert len(asking) < 100
            asking.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            asking[-1].connect(self._plain.getsockname())
            return self._plain.accept()

        def close(self) -> None:
            self._plain.close()

    assert first._listening is not None
    first._listening = Flooded(first._listening)  # type: ignore[assignment]
    first.write(0, b"a")
    assert first.read(0, 1) == b"a"
    assert asking
    for one in asking:
        one.close()


def make_hidden(name: str, pipe: Any) -> None:
    """Make the file in a process that others may not look at."""
    assert not ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    try:
        NodeFile(name, 8)
    except StokerError as error:
        pipe.send(str(error))
    pipe.close()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_whose_files_are_hidden_shares_none(name: str) -> None:
    context: Any = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    child = context.Process(target=make_hidden, args=(name, theirs), daemon=True)
    child.start()
    theirs.close()
    assert "hidden in /proc" in pipe.recv()
    child.join()


def test_nothing_is_shared_by_a_proc_of_another_pid_namespace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, this process's number is another's, whose files are not written to."""
    own = os.getpid()
    file = os.memfd_create(name)
    assert os.path.samestat(os.stat(path_for_others(file)), os.fstat(file))
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(StorageError, match="another PID namespace"):
        path_for_others(file)
    with pytest.raises(StorageError, match="another PID namespace"):
        NodeFile(name, 8)
    os.close(file)


@pytest.mark.processes
def test_a_name_that_something_else_has_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_file, "_PAUSE", 0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(f"\0{name}-{os.geteuid()}-{os.readlink('/proc/self/ns/pid')}")
        with pytest.raises(StokerError, match=f"@{name}.* does not give its file"):  # nobody listens
            NodeFile(name, 8)
        squatter.listen()
        with pytest.raises(StokerError, match=f"@{name}.* does not give its file"):
            NodeFile(name, 8)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        address = f"\0{name}-{os.getuid()}-{os.readlink('/proc/self/ns/pid')}"
        with pytest.raises(StokerError, match="another user or container"):
            node_file._find(name, address)


def test_a_number_that_is_another_file_by_now_is_not_opened(name: str, tmp_path: Path) -> None:
    file = os.memfd_create(name)
    assert os.path.samestat(os.fstat(open_file_of(os.getpid(), file, name)), os.fstat(file))
    for wrong in (f"{name}x", name[:-1]):
        with pytest.raises(FileNotFoundError):
            open_file_of(os.getpid(), file, wrong)
    os.mkfifo(tmp_path / "pipe")  # which would wait to be opened
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    os.dup2(pipe, file)
    with pytest.raises(FileNotFoundError):
        open_file_of(os.getpid(), file, name)
    os.close(file)
    os.close(pipe)


def claim_and_wait(name: str, pipe: Any) -> None:
    file = NodeFile(name, 8)
    pipe.send((file.read(0, 1), file.claim(1), file.claim(2)))
    pipe.recv()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_killed_process_gives_up_its_claims(method: str, name: str) -> None:
    """A forked one has a description of the file of its own: its claims are not its parent's."""
    file = NodeFile(name, 8)
    file.write(0, b"a")
    assert file.claim(1)
    context: Any = multiprocessing.get_context(method)
    pipe, theirs = context.Pipe()
    child = context.Process(target=claim_and_wait, args=(name, theirs), daemon=True)
    child.start()
    assert pipe.recv() == (b"a", False, True)
    assert not file.claim(2)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert file.claim(2)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_name_of_a_parent_that_let_go(name: str) -> None:
    file = NodeFile(name, 8)
    file.write(0, b"a")
    context: Any = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    child = context.Process(target=theirs.recv, daemon=True)
    child.start()
    del file
    assert NodeFile(name, 8).read(0, 1) == b"\0"
    child.kill()
    child.join()
    pipe.close()

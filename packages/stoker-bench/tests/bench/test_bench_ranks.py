"""Ranks meet, and none waits for one that is gone."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from patience import PATIENCE
from stoker.cluster import World
from stoker.errors import ConfigError
from stoker_bench.measure.calibration import copy_of_host
from stoker_bench.ranks import world as worlds
from stoker_bench.ranks.control.client import Link, RankFailedError
from stoker_bench.ranks.control.messages import Channel
from stoker_bench.ranks.control.server import Server
from stoker_bench.ranks.world import find_world, read_threads

Join = Callable[..., Link]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(3, "token", "digest", join_seconds=PATIENCE)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Links are closed: their sockets would be left to the garbage collection, in whatever thread."""
    yield
    while OPENED:
        OPENED.pop().close()


OPENED: list[Link] = []


def join(server: Server, rank: int, digest: str = "digest", token: str = "token") -> Link:
    OPENED.append(Link(lambda: ("127.0.0.1", server.port, token), rank, digest, join_seconds=PATIENCE))
    return OPENED[-1]


def until_joined(server: Server, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(server._processes) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.processes
def test_all_ranks_get_what_all_ranks_gave(server: Server) -> None:
    links = [join(server, rank) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for turn in range(50):
            got = list(pool.map(lambda link, turn=turn: link.gather("x", [link.rank, turn]), links))
            assert got == [[[rank, turn] for rank in range(3)]] * 3
    for link in links:
        link.close()
    assert server.failure is None


@pytest.mark.processes
def test_a_rank_that_dies_is_an_error_on_those_that_wait_and_on_those_that_work(server: Server) -> None:
    links = [join(server, rank) for rank in range(3)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(links[0].gather, "x")
        links[2]._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does it for a killed process
        with pytest.raises(RankFailedError, match=r"rank 2 \(.*process \d+\) ended without a word"):
            waiting.result(timeout=PATIENCE)
    assert server.failed.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while links[1]._failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(RankFailedError, match="rank 2"):
        links[1].check()
    with pytest.raises(RankFailedError, match="rank 2"):
        links[1].barrier()


@pytest.mark.processes
def test_a_rank_s_own_reason_is_reported_by_all(server: Server) -> None:
    links = [join(server, rank) for rank in range(3)]
    links[1].fail("no such bucket")
    with pytest.raises(RankFailedError, match=r"rank 1 .*: no such bucket"):
        links[0].barrier()


@pytest.mark.processes
def test_a_rank_that_writes_before_it_reads_that_the_run_has_failed_says_why(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, begin = Link._listen, threading.Event()

    def late(link: Link) -> None:
        if link.rank == 0:
            assert begin.wait(PATIENCE)
        listen(link)

    monkeypatch.setattr(Link, "_listen", late)
    links = [join(server, rank) for rank in range(3)]
    links[1].fail("no such bucket")
    assert select.select([links[0]._connection], [], [], PATIENCE)[0]  # why it failed has come, and is not read
    links[0]._connection.shutdown(socket.SHUT_WR)  # from here on nothing can be sent
    links[0]._write({"op": "beat"})
    begin.set()
    with pytest.raises(RankFailedError, match=r"rank 1 .*: no such bucket"):
        links[0].barrier()


@pytest.mark.processes
def test_a_rank_that_leaves_while_others_wait_is_an_error(server: Server) -> None:
    links = [join(server, rank) for rank in range(3)]
    links[0].close()
    with pytest.raises(RankFailedError, match=r"rank 0 ended while others wait"):
        links[1].barrier()


@pytest.mark.processes
def test_a_rank_that_waits_in_its_loader_ends_when_another_one_dies() -> None:
    """Such as one whose storage never answers; it would not look whether the run goes on."""
    server = Server(2, "token", "digest", join_seconds=PATIENCE)
    code = (
        "import sys, time; from stoker_bench.ranks.control.client import Link\n"
        "Link(lambda: ('127.0.0.1', int(sys.argv[1]), 'token'), 0, 'digest', fatal=True, grace=0.2).barrier()\n"
        "print('loading', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stuck:
        other = join(server, 1)
        other.barrier()
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == "loading\n"
        other._connection.shutdown(socket.SHUT_RDWR)
        said = stuck.communicate(timeout=PATIENCE)[1]
    assert stuck.returncode == 1
    assert "rank 1" in said
    assert "was busy for 0.2 s more, and is ended" in said
    server.close()


@pytest.mark.processes
def test_other_settings_are_refused(server: Server) -> None:
    first = join(server, 0)
    second = join(server, 1, digest="other")
    with pytest.raises(RankFailedError, match=r"rank 1 .* was started with other settings"):
        second.barrier()
    with pytest.raises(RankFailedError, match="rank 1"):
        first.barrier()


@pytest.mark.processes
def test_a_stranger_without_the_token_harms_nobody(server: Server) -> None:
    links = [join(server, rank) for rank in range(2)]
    stranger = join(server, 2, token="guess")
    with pytest.raises(RankFailedError):
        stranger.barrier()
    links.append(join(server, 2))
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda link: link.gather("x", link.rank), links)) == [[0, 1, 2]] * 3


@pytest.mark.processes
def test_ranks_that_never_come_are_named() -> None:
    server = Server(3, "token", "digest", join_seconds=3600)
    try:
        link = join(server, 0)
        until_joined(server, 1)
        assert server._late.interval == 3600
        server._late.function(*server._late.args)  # as the timer does it then
        with pytest.raises(RankFailedError, match=r"after 3600 s rank 1 has not started, nor 1 others"):
            link.barrier()
    finally:
        server.close()


@pytest.mark.processes
def test_nobody_at_the_address_is_an_error_that_says_where(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RankFailedError, match=f"rank 1: rank 0 did not answer for 0.2 s .*{port}"):
        Link(lambda: ("127.0.0.1", port, ""), 1, "", join_seconds=0.2)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (3, 8, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (1, 2, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, (1, 4, 2)),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_NTASKS_PER_NODE": "2",
            },
            (2, 4, 2),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # in a batch script, which is no rank
    ],
)
def test_ranks_are_found_where_a_launcher_started_them(
    environ: dict[str, str], place: tuple[int, int, int] | None
) -> None:
    found = find_world(environ)
    assert (None if found is None else (found.rank, found.world_size, found.local_world_size)) == place


def test_threads_are_shared_by_the_ranks_of_the_host_and_not_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "processor_count", lambda: 64)
    assert read_threads("auto", 8) == 8
    assert read_threads("auto", 16) == 4
    assert read_threads("auto", 200) == 1
    assert read_threads(1, 1) == 1  # one is one, and no word for "as you like"
    assert read_threads(0, 8) == 0


def test_an_address_that_is_none_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_BENCH_COORDINATOR", "host")
    with pytest.raises(ConfigError, match="must be host:port, got 'host'"):
        worlds.meet(World(0, 2, 1), tmp_path, "digest")


def test_a_failure_never_lands_in_the_middle_of_an_answer() -> None:
    """Of many MB, which one thread writes while another one tells why the run ends."""
    ours, theirs = socket.socketpair()

    def write(size: int) -> None:
        for _ in range(60):
            channel.send({"value": "x" * size})
            threading.Event().wait(0.001)

    with ours, theirs:
        channel = Channel(ours)
        writers = [threading.Thread(target=write, args=[size]) for size in (1_000_000, 3)]
        for one in writers:
            one.start()
        with theirs.makefile("rb") as lines:
            sizes = [len(json.loads(lines.readline())["value"]) for _ in range(120)]
        for one in writers:
            one.join()
    assert sorted(sizes) == [3] * 60 + [1_000_000] * 60


def test_ranks_of_each_host_read_its_own_copy_in_memory() -> None:
    """Those of all hosts opened the first one's folder, which others have not."""
    told = [{"url": "/dev/shm/a", "files": 2}, None, {"url": "/dev/shm/b", "files": 2}, None]
    worlds_of = [World(rank, 4, local_world_size=2) for rank in range(4)]
    assert [copy_of_host(told, world)["url"][-1] for world in worlds_of] == ["a", "a", "b", "b"]
    told[2] = {"url": "/dev/shm/b", "files": 3}
    assert {copy_of_host(told, world)["error"] for world in worlds_of} == {
        "hosts have memory for 2 files and others for 3: lower metric.calibrate_bytes"
    }
    told[2] = {"error": "no memory"}
    assert all(copy_of_host(told, world) == told[2] for world in worlds_of)

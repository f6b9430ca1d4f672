"""Ranks are bound to cores or NUMA nodes of their host, unless their launcher has done so."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

import pytest
from bench_example import real_run

from patience import PATIENCE
from stoker_bench.ranks.binding import Topology, bound, choose_binding, own_processors, read_topology
from stoker_bench.results.report_files import read_run

How = Literal["cores", "numa"]


def system(folder: Path, *, nodes: int, cores: int, threads: int) -> Path:
    """A description of a host as Linux has it: processors of all nodes are numbered thread by thread."""
    count = nodes * cores
    for node in range(nodes):
        there = folder / f"node/node{node}"
        there.mkdir(parents=True)
        members = [f"{node * cores + at * count}-{(node + 1) * cores - 1 + at * count}" for at in range(threads)]
        (there / "cpulist").write_text(",".join(members) + "\n")
    (folder / f"node/node{nodes}").mkdir()
    (folder / f"node/node{nodes}/cpulist").write_text("\n")  # a node of memory alone
    for processor in range(count * threads):
        there = folder / f"cpu/cpu{processor}/topology"
        there.mkdir(parents=True)
        siblings = ",".join(str(processor % count + at * count) for at in range(threads))
        (there / "thread_siblings_list").write_text(siblings + "\n")
    return folder


@pytest.fixture
def two(tmp_path: Path) -> Topology:
    """Two nodes of four cores with two threads: 16 processors."""
    return read_topology(system(tmp_path, nodes=2, cores=4, threads=2))


def parts(how: How, topology: Topology, ranks: int, allowed: range | list[int]) -> list[tuple[int, ...]]:
    told = [list(allowed)] * ranks
    return [choose_binding(how, told, number, topology).processors for number in range(ranks)]


def test_the_description_of_linux_is_read(two: Topology) -> None:
    assert two.nodes == {0: frozenset([*range(4), *range(8, 12)]), 1: frozenset([*range(4, 8), *range(12, 16)])}
    assert [sorted(core) for core in two.cores] == [[at, at + 8] for at in range(8)]


def test_ranks_share_out_the_cores_with_all_their_threads(two: Topology) -> None:
    assert parts("cores", two, 4, range(16)) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]
    thirds = parts("cores", two, 3, range(16))
    assert sorted(one for part in thirds for one in part) == list(range(16))
    assert parts("cores", two, 2, [1, 2, 9, 12]) == [(1, 9), (2, 12)]
    assert parts("cores", two, 16, range(16)) == [(one,) for at in range(8) for one in (at, at + 8)]
    shared = parts("cores", two, 4, [0, 8])
    assert shared == [(0,), (0,), (8,), (8,)]
    assert "share" in choose_binding("cores", [[0]] * 2, 1, two).said


def test_ranks_have_a_node_each_or_share_one(two: Topology) -> None:
    nodes = [tuple(sorted(two.nodes[node])) for node in (0, 1)]
    assert parts("numa", two, 2, range(16)) == nodes
    assert parts("numa", two, 4, range(16)) == [nodes[0], nodes[0], nodes[1], nodes[1]]
    assert parts("numa", two, 1, range(16)) == nodes[:1]
    assert parts("numa", two, 2, [0, 1, 4]) == [(0, 1), (4,)]
    one = choose_binding("numa", [[4, 5]] * 2, 1, two)
    assert (one.processors, one.nodes) == ((4, 5), (1,))
    assert one.said == "to the one NUMA node there is, 2 processors"


def test_what_a_launcher_has_bound_stays(two: Topology) -> None:
    hows: tuple[How, ...] = ("cores", "numa")
    for how in hows:
        found = choose_binding(how, [[0, 1, 2, 3], [4, 5]], 1, two)
        assert (found.processors, found.nodes, found.bound) == ((4, 5), (1,), False)
        assert "launcher" in found.said


def test_threads_that_run_are_bound_too_and_it_ends_with_the_block() -> None:
    before, seen = own_processors(), list[list[int]]()
    begin, end = threading.Event(), threading.Event()

    def look() -> None:
        begin.wait(PATIENCE)
        seen.append(own_processors())
        end.set()

    thread = threading.Thread(target=look)
    thread.start()
    with bound("cores", [before] * len(before), 0) as binding:
        assert binding is not None
        assert own_processors() == [before[0]] == list(binding.processors)
        begin.set()
        assert end.wait(PATIENCE)
    thread.join(PATIENCE)
    assert seen == [[before[0]]]
    assert own_processors() == before
    with bound("none", [], 0) as nothing:
        assert nothing is None


@pytest.mark.processes
def test_ranks_of_a_run_have_processors_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("there is one processor")
    settings = ("reader.loader=bench_loaders:Affinity", "reader.bind=cores")
    real_run(tmp_path / "out", *settings, ranks=2, url=str(tmp_path), processes=True)
    result = read_run(tmp_path / "out")
    bindings = [rank["binding"] for rank in result["ranks"]]
    assert not {*bindings[0]["processors"]} & {*bindings[1]["processors"]}
    assert {*bindings[0]["processors"], *bindings[1]["processors"]} <= {*mine}
    assert all(one["bound"] for one in bindings)
    assert "each rank is bound to " in result["world"]["said"]
    notes = result["epochs"][0]["loader"]["notes"]
    told = [(str(one["processors"]), str(len(one["processors"]))) for one in bindings]
    assert all(any(part in notes for part in pair) for pair in told)

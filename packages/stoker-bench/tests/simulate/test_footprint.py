"""Predictions of what a node fetches, opens and holds, against nodes that run here, and for clusters that run nowhere."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from stoker.cli.order import RunArgs
from stoker.errors import ConfigError
from stoker_bench.cli.simulate import predict_footprint
from stoker_bench.simulate import footprint
from stoker_bench.simulate.footprint import TotalSizes
from support import run_script, write_columns

SCRIPT: Final = Path(__file__).with_name("measured_node.py")


class Handler(SimpleHTTPRequestHandler):
    """Serves files and counts requests and bytes by the first part of the path."""

    protocol_version = "HTTP/1.1"
    requests: Counter[str]
    sent: Counter[str]

    def do_GET(self) -> None:
        time.sleep(0.002)
        self.requests[self.path.split("/")[1]] += 1
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        self.sent[self.path.split("/")[1]] += len(data)
        outputfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """A web server of a folder: its URL, and requests and bytes by the first part of the path."""
    requests, sent = Counter[str](), Counter[str]()
    handler = type("Counting", (Handler,), {"requests": requests, "sent": sent})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests, sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write(folder: Path, shards: int, rows: int, width: int) -> TotalSizes:
    """A dataset of shards of one size."""
    columns = {"id": np.arange(shards * rows), "x": np.zeros((shards * rows, width), np.uint8)}
    write_columns(folder, columns, shard=rows)
    return TotalSizes(shards, shards * rows, sum(file.stat().st_size for file in folder.glob("*.mds")))


def args(**given: Any) -> RunArgs:
    """Arguments of ``stoker simulate``."""
    chosen: dict[str, Any] = {
        "url": None,
        "split": None,
        "nodes": 1,
        "ranks": 1,
        "workers": 0,
        "batch_size": 32,
        "shuffle": "block",
        "seed": 9176,
        "canonical_nodes": None,
        "block_size": None,
        "epoch": 0,
        "epoch_size": None,
        "remainder": "pad",
        "partition": "elastic",
        "resume": None,
        "quarantine": None,
    }
    return RunArgs(**chosen | given)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("nodes", "ranks", "shards", "rows", "width", "ahead"),
    [
        (2, 2, 200, 100, 400, 1000),
        (3, 1, 120, 60, 4000, 500),
        (1, 1, 1200, 64, 8, 32_000),
        (1, 1, 60, 20_000, 8, 1 << 20),
    ],
)
def test_nodes_that_run_here_take_what_was_predicted(
    tmp_path: Path, nodes: int, ranks: int, shards: int, rows: int, width: int, ahead: int
) -> None:
    size = write(tmp_path / "data", shards, rows, width)
    found = predict_footprint(args(nodes=nodes, ranks=ranks), size, fetches=8, predownload=ahead)
    (tmp_path / "again").symlink_to("data")  # whose requests are not counted
    samples = cached = 0
    with serve(tmp_path) as (url, requests, sent):
        for node in range(nodes):
            cache = tmp_path / f"cache{node}"
            (held,) = run_script([SCRIPT, f"{url}/data", cache, node * ranks, ranks, nodes * ranks, 32, ahead])
            samples += held["samples"]
            cached += sum(file.stat().st_size for file in cache.rglob("*.mds"))
            told = {name: held[name] for name in ("memory", "descriptors")}
            if ranks == 1:
                for again in range(2):  # what threads have freed at the same time may stay theirs: the least counts
                    if told["memory"] > found.process_memory * 1.2 or told["descriptors"] > found.descriptors * 1.2:
                        other = tmp_path / f"again{node}-{again}"
                        (more,) = run_script([SCRIPT, f"{url}/again", other, node, 1, nodes, 32, ahead])
                        told = {name: min(value, more[name]) for name, value in told.items()}
                assert told["memory"] == pytest.approx(found.process_memory, rel=0.2)
            if shards >= 1000:  # enough fetches for the most that are under way to be seen
                assert told["descriptors"] == pytest.approx(found.descriptors, rel=0.2)
    assert found.exact
    measured = [samples, requests["data"], sent["data"], cached]
    assert [one / nodes for one in measured] == pytest.approx(
        [found.samples, found.requests, found.bytes, found.cached_bytes], rel=0.2
    )


@pytest.mark.parametrize("shuffle", ["block", "shard", "global", "none"])
@pytest.mark.parametrize(("nodes", "canonical", "limit"), [(4, 4, None), (6, 4, None), (4, 4, 40_000_000)])
def test_a_part_of_a_dataset_tells_what_all_of_it_does(
    shuffle: str, nodes: int, canonical: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = args(nodes=nodes, ranks=2, shuffle=shuffle, canonical_nodes=canonical)
    size = TotalSizes(8000, 800_000, 800_000_000)
    part = predict_footprint(chosen, size, cache_limit=limit, predownload=400)
    monkeypatch.setattr(footprint, "_LEAST_SHARDS", size.shards)
    whole = predict_footprint(chosen, size, cache_limit=limit, predownload=400)
    assert whole.exact > part.exact
    for name in (
        "steps",
        "samples",
        "fetched_shards",
        "bytes",
        "cached_bytes",
        "cache_needed",
        "open_shards",
        "memory",
    ):
        assert getattr(part, name) == pytest.approx(getattr(whole, name), rel=0.2), name


def test_a_cluster_that_is_not_there_is_predicted() -> None:
    size = TotalSizes(10**7, 10**12, 4 * 10**15)
    divided = predict_footprint(args(nodes=10_000, ranks=8, canonical_nodes=10_000), size)
    assert divided.fetched_shards == pytest.approx(1000, rel=0.05)
    assert divided.samples == 10**8
    # Where canonical nodes are fewer, many nodes fetch each shard.
    shared = predict_footprint(args(nodes=10_000, ranks=8), size)
    assert shared.fetched_shards > 100 * divided.fetched_shards


def test_sizes_that_make_no_sense_are_refused() -> None:
    for numbers in ((0, 1, 1), (3, 2, 1), (1, 1, 0)):
        with pytest.raises(ConfigError, match="at least a sample a shard"):
            TotalSizes(*numbers)
    with pytest.raises(ConfigError, match="py1e"):
        predict_footprint(args(shuffle="py1e"), TotalSizes(10, 100, 1000))
    with pytest.raises(ConfigError, match="nothing to predict"):
        predict_footprint(args(epoch_size=0), TotalSizes(10, 100, 1000))

"""``stoker simulate`` as a process: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from stoker import StreamingDataset
from stoker.cluster import World
from stoker.order.partition_strategies import Contiguous
from support import environ, make_dataset

pytestmark = pytest.mark.processes

SAMPLES = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compressed dataset of about thirty shards, with a name that must be escaped."""
    out = tmp_path_factory.mktemp("data") / "a <b> & [red]c"
    make_dataset(out / "train", SAMPLES, compression="zstd")
    return out


def stoker(*arguments: Any, code: int = 0) -> tuple[str, str]:
    """Run the command; what it says on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *map(str, arguments)],
        env=environ(COLUMNS="160"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def as_json(*arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stoker("simulate", *arguments, "--json")[0])
    return found


class Page(HTMLParser):
    """Every tag closed, and every reference it makes."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def test_it_says_who_reads_what(data: Path) -> None:
    found = as_json(data, "--split", "train", "--nodes", 2, "--ranks", 3, "--batch-size", 4, "--list-shards")
    settings = found["settings"]
    assert (settings["samples"], settings["shuffle"], settings["batch_size"]) == (SAMPLES, "block", 4)
    assert found["cluster"] == {"nodes": 2, "ranks_per_node": 3, "ranks": 6}
    assert found["evaluated"]["exact"]
    assert found["steps"] == -(-SAMPLES // 24)
    assert sum(found["balance"]["samples"]) == SAMPLES
    assert len(found["time"]["first_batch_of_ranks"]) == 6
    assert {name for node in found["nodes"] for name in node} == {
        "node",
        "samples",
        "shards",
        "fetches",
        "bytes",
        "refetched_bytes",
        "shared_shards",
        "shared_bytes",
        "in_use_bytes",
        "cache_needed",
        "evictions",
        "over_limit_bytes",
        "first_use",
    }
    # What the files have, as the dataset itself would fetch them.
    index = StreamingDataset(local=data / "train").index
    sizes = [sum(file.bytes for file in shard.stored) for shard in index.shards]
    for node in found["nodes"]:
        assert node["bytes"] == sum(sizes[shard] for shard in node["first_use"]["shards"])
    assert found["bytes"] == sum(sizes)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--canonical-nodes", 4], {"num_canonical_nodes": 4}),
        (["--shuffle", "global", "--epoch-size", 700], {"shuffle_algo": "global", "epoch_size": 700}),
        (["--partition", "contiguous", "--block-size", 64], {"partition_algo": Contiguous(), "shuffle_block_size": 64}),
        (["--shuffle", "py1s", "--canonical-nodes", 2], {"shuffle_algo": "py1s", "num_canonical_nodes": 2}),
    ],
    ids=["elastic", "global", "contiguous", "py1s"],
)
def test_it_speaks_of_the_order_that_a_dataset_reads(
    data: Path, tmp_path: Path, arguments: list[Any], options: dict[str, Any]
) -> None:
    """The shards that node 1 is said to use at each step first are those that its ranks then read."""
    common = ["--nodes", 2, "--ranks", 2, "--batch-size", 8, "--seed", 5, "--epoch", 1, "--list-shards"]
    found = as_json(data / "train", *common, *arguments)
    assert found["settings"]["epoch"] == 1
    first: dict[int, int] = {}
    samples = 0
    for rank in (2, 3):
        dataset = StreamingDataset(
            remote=data / "train",
            local=tmp_path / "cache",
            shuffle=True,
            shuffle_seed=5,
            batch_size=8,
            world=World(rank, 4, 2),
            **options,
        )
        starts = [0, *dataset.index.sizes.cumsum().tolist()]
        for _ in dataset.batches():
            pass
        for step, batch in enumerate(dataset.batches()):
            samples += len(batch["id"])
            for number in batch["id"]:
                shard = max(k for k, start in enumerate(starts[:-1]) if start <= number)
                first[shard] = min(step, first.get(shard, step))
    node = found["nodes"][1]
    assert dict(zip(node["first_use"]["shards"], node["first_use"]["steps"], strict=True)) == first
    assert node["samples"] == samples


def test_the_tables_name_settings_nodes_and_findings(data: Path) -> None:
    out, err = stoker(
        "simulate", data / "train", "--nodes", 3, "--ranks", 1, "--canonical-nodes", 2, "--cache-limit", "20kb"
    )
    assert err == ""
    assert "a <b> & [red]c" in out
    for words in ("canonical nodes", "first batch on all ranks after", "cache needed by a node", "1,000"):
        assert words in out
    assert re.search(r"warning: .* make --canonical-nodes a multiple of the 3 nodes, such as 3", " ".join(out.split()))
    assert re.search(r"warning: .*Raise\s+--cache-limit", out, re.DOTALL)


@pytest.mark.parametrize("nodes", [2, 11])
def test_the_page_needs_nothing_else(data: Path, tmp_path: Path, nodes: int) -> None:
    file = tmp_path / "run.html"
    slow = ["--bandwidth", "10kb", "--step-time", 0.01, "--predownload", 16, "--cache-limit", "30kb"]
    stoker("simulate", data / "train", "--nodes", nodes, "--ranks", 2, "--batch-size", 2, *slow, "--html", file)
    text = file.read_text()
    page = Page(text)
    assert page.references
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert "script" not in page.tags
    assert not re.search(r"url\(|@import|https?://", text)
    assert page.tags.count("svg") == 5
    assert any("a <b> & [red]c" in words for words in page.words)
    assert page.tags.count("b") == 6  # those of the tiles, and none of the dataset's name
    for words in ("Shards in use", "Downloads", "Cache", "Samples of a rank", "Waiting", "step", "ranks"):
        assert words in page.words, words


def test_a_state_is_resumed(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(local=data / "train", shuffle=True, shuffle_seed=3, batch_size=10, world=World(0, 2, 2))
    running = dataset.batches()
    for _ in range(20):
        next(running)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(dataset.state_dict()))
    found = as_json(data / "train", "--ranks", 2, "--batch-size", 10, "--seed", 3, "--resume", state)
    assert found["settings"]["position"] == 400
    assert found["settings"]["seed"] == 3
    assert found["samples"] == SAMPLES - 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: COMMAND"),
        (("simulate",), "one of the arguments URL --size is required"),
        (("simulate", "x", "--size", "1", "1", "1"), "not allowed with argument URL"),
        (("simulate", "x", "--nodes", "0"), "argument --nodes: must be an integer of at least 1, got '0'"),
        (("simulate", "x", "--nodes", "many"), "got 'many'"),
        (("simulate", "x", "--bandwidth", "fast"), "'fast' is not a size in bytes"),
        (("simulate", "x", "--bandwidth", "0"), "must be above 0"),
        (("simulate", "x", "--step-time", "nan"), "must be seconds above 0, got 'nan'"),
        (("simulate", "x", "--latency", "-1"), "must be seconds from 0, got '-1'"),
        (("simulate", "x", "--shuffle", "well"), "invalid choice: 'well'"),
        (("simulate", "x", "--block-size", "0"), "argument --block-size: must be above 0"),
    ],
)
def test_arguments_that_can_not_be_read_end_with_2(arguments: tuple[str, ...], message: str) -> None:
    out, err = stoker(*arguments, code=2)
    assert out == ""
    assert message in err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data, tmp: [tmp / "nothing"], "nothing does not exist"),
        (lambda data, tmp: [data, "--split", "../train"], "may leave the place"),
        (lambda data, tmp: ["gopher://bucket/data"], "gopher"),
        (lambda data, tmp: [data / "train", "--resume", tmp / "none.json"], "none.json can not be read: No such file"),
        (lambda data, tmp: [data / "train", "--resume", tmp / "list.json"], "list.json: a state is a dict"),
        (lambda data, tmp: [data / "train", "--resume", tmp / "torn.json"], "not JSON"),
        (lambda data, tmp: [data / "train", "--html", tmp / "no" / "such.html"], "such.html can not be written"),
    ],
)
def test_errors_end_with_1_and_a_sentence(data: Path, tmp_path: Path, make: Any, message: str) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "torn.json").write_text('{"epoch"')
    out, err = stoker("simulate", *make(data, tmp_path), code=1)
    assert out == ""
    assert err.startswith("stoker simulate: ")
    assert message in err
    assert "Traceback" not in err


def test_a_reader_that_has_had_enough_is_no_error(data: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "stoker", "simulate", str(data / "train"), "--json"]
    try:
        done = subprocess.run(
            command, env=environ(), stdout=write, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
        )
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_node_is_predicted_from_sizes_alone(data: Path) -> None:
    said, _ = stoker("simulate", "--size", "10k", "1m", "1gb", "--nodes", 4)
    assert "requests" in said
    assert "descriptors of a process" in said
    by_url = as_json(data, "--split", "train", "--predict", "--nodes", 2)
    sizes = [str(by_url["size"][name]) for name in ("shards", "samples", "bytes")]
    assert as_json("--size", *sizes, "--nodes", 2) == by_url
    for wrong, said in (
        (["--size", "1", "x", "1"], "'x' is not a count"),
        (["--size", *sizes, "--html", "a.html"], "--html: of no meaning with --size"),
        (["--size", *sizes, "--split", "train", "--predict"], "--split: of no meaning with --size"),
        (
            [data, "--predict", "--step-time", 1, "--bandwidth", "1gb"],
            "--bandwidth, --step-time: of no meaning with --predict",
        ),
        ([data, "--predict", "--latency", 0], "--latency: of no meaning"),
        ([data, "--predict", "--epoch", 1, "--quarantine", "q.jsonl"], "--epoch, --quarantine: of no meaning"),
        ([data / "train", "--list-shards"], "--list-shards is for --json"),
        (["--size", *sizes, "--shuffle", "py1e"], "predictions are for none"),
    ):
        assert said in stoker("simulate", *wrong, code=1)[1]

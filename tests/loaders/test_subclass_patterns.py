"""Datasets as programs for mosaicml-streaming define them give the samples that they give there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

import subclass_patterns as patterns

from peer import Peer, needs_peer, run_peer
from stoker import StreamingDataLoader, StreamingDataset
from support import write_samples

ROWS = 53
OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "shuffle": True,
    "shuffle_algo": "py1e",
    "shuffle_seed": 11,
    "num_canonical_nodes": 2,
    "partition_algo": "relaxed",
}

each_pattern = pytest.mark.parametrize("name", patterns.PATTERNS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("patterns") / "data"
    write_samples(out, patterns.samples(ROWS), patterns.COLUMNS, size_limit="2kb")
    return str(out)


@each_pattern
@pytest.mark.parametrize("options", [OPTIONS, {**OPTIONS, "shuffle": False}, {"batch_size": 4, "shuffle": True}])
def test_iteration_gives_what_single_samples_are(data: str, name: str, options: dict[str, Any]) -> None:
    order = StreamingDataset(local=data, stream_config={"repeat": 2.0} if name == "text_of_tokens" else None, **options)
    ids = [[int(sample["text"].split()[-1]) for sample in order] for _ in range(2)]
    found = patterns.epochs(StreamingDataset, name, data, options)
    single = patterns.PATTERNS[name](StreamingDataset)(local=data, **options)
    expected = [[patterns.words(single[number]) for number in epoch] for epoch in ids]
    if name == "chained":  # numbers samples as they are iterated
        expected = [[{**sample, "number": ("int", n)} for n, sample in enumerate(epoch)] for epoch in expected]
    assert found == expected


@pytest.mark.processes
@each_pattern
def test_workers_give_the_same(data: str, name: str) -> None:
    expected = patterns.epochs(StreamingDataset, name, data, OPTIONS, 1)[0]
    dataset = patterns.PATTERNS[name](StreamingDataset)(local=data, **OPTIONS)
    loader = StreamingDataLoader(dataset, num_workers=2, collate_fn=list)
    found = [patterns.words(sample) for batch in loader for sample in batch]
    loader.close()
    if name == "chained":  # each worker numbers its own
        for sample in (*found, *expected):
            del sample["number"]
    assert found == expected


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with run_peer(tmp_path_factory.mktemp("peer")) as process:
        yield process


@needs_peer
@pytest.mark.processes
@each_pattern
@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_are_those_of_mosaicml_streaming(data: str, name: str, shuffle: bool, peer: Peer) -> None:
    options = {**OPTIONS, "shuffle": shuffle}
    theirs = peer.call("pattern", name=name, local=data, options=options)
    assert patterns.epochs(StreamingDataset, name, data, options) == theirs

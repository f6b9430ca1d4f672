"""Byte identity with the reference implementation, run live, and each side reading the other's datasets."""

from __future__ import annotations

import string
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cases
import stoker
from peer import Peer, needs_peer, run_peer
from stoker import StreamingDataset, merge_index
from stoker.digests import hash_names
from stoker.formats.common.compression import compression_names
from support import files_of, write_samples

pytestmark = [needs_peer, pytest.mark.processes]

MDS_CASES = {**cases.stable_samples(), **cases.image_samples()}
TEXT_CASES = cases.text_samples()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with run_peer(tmp_path_factory.mktemp("peer")) as running:
        yield running


def write(kind: str, columns: dict[str, str], samples: list[dict[str, Any]], out: Path, **options: Any) -> None:
    write_samples(out, samples, columns, writer=getattr(stoker.writers, f"{kind.upper()}Writer"), **options)


def both(
    peer: Peer, tmp: Path, kind: str, columns: dict[str, str], samples: list[dict[str, Any]], **options: Any
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files that stoker writes, and those that the peer writes, which hashes only what it is told to."""
    options = {"hashes": [], **options}
    write(kind, columns, samples, tmp / "ours", **options)
    peer.call("write", kind=kind, columns=columns, options=options, samples=samples, out=str(tmp / "theirs"))
    return files_of(tmp / "ours"), files_of(tmp / "theirs")


def read(root: Path) -> list[Any]:
    dataset = StreamingDataset(local=root, allow_unsafe_types=True)
    return [cases.describe(dataset[i]) for i in range(len(dataset))]


@pytest.mark.parametrize("name", MDS_CASES)
def test_every_encoding_gives_the_peers_bytes_and_values(peer: Peer, tmp_path: Path, name: str) -> None:
    columns, samples = MDS_CASES[name]
    ours, theirs = both(peer, tmp_path, "mds", columns, samples, size_limit=1 << 20)
    assert ours == theirs
    assert read(tmp_path / "theirs") == peer.call("read", root=str(tmp_path / "ours"))


@pytest.mark.parametrize("name", TEXT_CASES)
def test_text_formats_give_the_peers_bytes_and_values(peer: Peer, tmp_path: Path, name: str) -> None:
    kind, columns, options, samples = TEXT_CASES[name]
    ours, theirs = both(peer, tmp_path, kind, columns, samples, size_limit=60, hashes=["sha1"], **options)
    assert ours == theirs
    assert len(ours) >= 5
    assert read(tmp_path / "theirs") == peer.call("read", root=str(tmp_path / "ours"))


@pytest.mark.parametrize("limit", [420, 777, 1000, "1kb", None])
def test_shards_are_cut_where_the_peer_cuts_them(peer: Peer, tmp_path: Path, limit: Any) -> None:
    columns, samples = MDS_CASES["many"]
    ours, theirs = both(peer, tmp_path, "mds", columns, samples, size_limit=limit)
    assert ours == theirs


def test_a_batch_gives_the_peers_bytes(peer: Peer, tmp_path: Path) -> None:
    columns, samples = MDS_CASES["many"]
    peer.call(
        "write", kind="mds", columns=columns, options={"size_limit": 900}, samples=samples, out=str(tmp_path / "theirs")
    )
    with stoker.MDSWriter(columns, tmp_path / "ours", size_limit=900, hashes=()) as writer:
        for part in _batched(samples, 9):
            writer.write_batch({name: [sample[name] for sample in part] for name in columns})
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs")


@pytest.mark.parametrize("hashes", [hash_names(), ["md5", "xxh3_64"]])
def test_hashes_are_the_peers(peer: Peer, tmp_path: Path, hashes: list[str]) -> None:
    columns, samples = MDS_CASES["many"]
    ours, theirs = both(peer, tmp_path, "mds", columns, samples, size_limit=900, hashes=sorted(hashes))
    assert ours == theirs


@pytest.mark.parametrize("codec", [*compression_names(), "br:0", "br:5", "bz2:1", "gz:0", "gz:1", "zstd:1", "zstd:19"])
@pytest.mark.parametrize("kind", ["mds", "csv"])
def test_each_side_reads_what_the_other_compressed(peer: Peer, tmp_path: Path, codec: str, kind: str) -> None:
    columns, samples = MDS_CASES["many"] if kind == "mds" else TEXT_CASES["csv"][1::2]
    ours, theirs = both(peer, tmp_path, kind, columns, samples, size_limit=700, compression=codec, hashes=["sha1"])
    assert list(ours) == list(theirs)
    expected = peer.call("read", root=str(tmp_path / "ours"))
    assert expected == read(tmp_path / "theirs") == read(tmp_path / "ours")


def test_the_peer_reads_a_merged_index_and_the_other_way_round(peer: Peer, tmp_path: Path) -> None:
    columns, samples = MDS_CASES["many"]
    for part in range(3):
        write("mds", columns, samples[part::3], tmp_path / f"{part:02}", size_limit=700)
    merge_index(str(tmp_path))
    ours = peer.call("read", root=str(tmp_path))
    (tmp_path / "index.json").unlink()
    peer.call("merge", urls=None, out=str(tmp_path))
    assert read(tmp_path) == ours


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=40),
    "str": st.text(max_size=20),
    "int": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "str_int": st.integers(),
    "str_float": st.floats(),
    "str_decimal": st.decimals().map(lambda value: Decimal(value)),
    "json": st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    "ndarray": st.lists(st.integers(1, 5), min_size=1, max_size=4).map(lambda shape: np.full(shape, 7, np.int32)),
    "ndarray:uint16:3": st.lists(st.integers(0, 65535), min_size=3, max_size=3).map(
        lambda values: np.array(values, np.uint16)
    ),
    "ndarray:float32": st.integers(1, 300).map(lambda n: np.arange(n, dtype=np.float32)),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_generated_samples_give_the_peers_bytes(
    peer: Peer, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = st.text(string.ascii_letters + "_é ", min_size=1, max_size=4)
    columns = data.draw(st.dictionaries(names, st.sampled_from(sorted(_VALUES)), min_size=1, max_size=4))
    samples = data.draw(
        st.lists(st.fixed_dictionaries({name: _VALUES[kind] for name, kind in columns.items()}), max_size=12)
    )
    # A limit that holds any one sample: for a first one that is too large, the peer writes an empty shard.
    limit = data.draw(st.sampled_from([3000, 6000, None]))
    hashes = sorted(data.draw(st.sets(st.sampled_from(["sha1", "xxh64"]))))
    tmp = tmp_path_factory.mktemp("generated")
    ours, theirs = both(peer, tmp, "mds", columns, samples, size_limit=limit, hashes=hashes)
    assert ours == theirs


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_generated_lines_give_the_peers_bytes(
    peer: Peer, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["json", "csv", "tsv"]))
    text = st.text(max_size=8) if kind == "json" else st.text(string.printable.translate({9: None, 10: None, 44: None}))
    values = {"str": text, "int": st.integers(), "float": st.floats()}
    columns = data.draw(
        st.dictionaries(st.text("abcXYZ", min_size=1), st.sampled_from(sorted(values)), min_size=1, max_size=4)
    )
    samples = data.draw(st.lists(st.fixed_dictionaries({name: values[k] for name, k in columns.items()}), max_size=9))
    limit = data.draw(st.sampled_from([2000, None]))
    ours, theirs = both(peer, tmp_path_factory.mktemp("lines"), kind, columns, samples, size_limit=limit)
    assert ours == theirs


def _batched(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]

"""Shards as arrays: the same as objects in all that can be asked of them, and shared by processes."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import MDSWriter, Stream, StreamingDataset
from stoker.concurrency.shared import bytes as shared_bytes
from stoker.concurrency.shared.bytes import SharedBytes
from stoker.errors import FormatError, IndexFileError, StokerError
from stoker.formats.base import FileInfo, FilePart, ShardInfo
from stoker.index import columnar_shards
from stoker.index import index as index_module
from stoker.index.columnar_shards import ColumnarShards, to_columnar
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import INDEX_NAME, Index
from stoker.writers import CSVWriter, JSONWriter
from support import write_samples

SPECS = [{"column_names": ("a",)}, {"columns": {"b": "int"}, "separator": "\n"}]
HASHES = st.dictionaries(st.sampled_from(["sha1", "xxh64", "md5"]), st.text("0123456789abcdef", min_size=1), max_size=2)
FILES = st.builds(FileInfo, st.text(st.characters(exclude_characters="\0")), st.integers(-1, 2**63 - 1), HASHES)
SHARDS = st.builds(
    ShardInfo,
    st.sampled_from(["mds", "json"]),
    st.integers(0, 2**63 - 1) | st.just(0),
    st.lists(FILES, max_size=2).map(tuple),
    st.lists(FILES, max_size=2).map(tuple),
    st.sampled_from([None, "zstd", "gz:3"]),
    st.sampled_from(SPECS),
)


def columnar(shards: Sequence[ShardInfo]) -> ColumnarShards:
    found = to_columnar(shards)
    assert found is not None
    return found


@given(st.lists(SHARDS, min_size=1, max_size=20), st.integers(1, 7))
def test_arrays_hold_what_the_objects_held(shards: list[ShardInfo], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar_shards, "_CHUNK", chunk)
        made = columnar(shards)
        for one in (made, pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
            assert repr(list(one)) == repr([one[at] for at in range(len(one))]) == repr(shards)  # the types, too
            assert one == tuple(shards)
            assert tuple(shards) == one == made
    assert [made[at - len(shards)] for at in range(len(shards))] == shards
    assert made[1::2] == tuple(shards[1::2])
    assert all(one.spec is two.spec for one, two in zip(made, shards, strict=True))
    assert made.samples.tolist() == [shard.samples for shard in shards]
    wrapped = np.array([[file.bytes for file in shard.raw] + [0] * (2 - len(shard.raw)) for shard in shards])
    assert made.raw_bytes.tolist() == wrapped.sum(1).tolist()
    assert made != tuple(shards[:-1])
    with pytest.raises(IndexError):
        made[len(shards)]
    with pytest.raises(ValueError):
        made.samples[0] = 1


def test_shards_that_arrays_can_not_hold_stay_objects() -> None:
    spec = {"column_names": ("a",)}
    part = FilePart("a", 9, "", (1,), (2,), in_place=True)
    for file in (FileInfo("a\0b", 1, {}), FileInfo("a", 2**63, {}), FileInfo("a", 1, {}, part)):
        assert to_columnar([ShardInfo("mds", 1, (file,), (), None, spec)]) is None
    assert to_columnar([ShardInfo("mds", 1, (FileInfo("a", 1, {}),), (), None, spec, part)]) is None  # type: ignore[arg-type]


def entries(folder: Path) -> list[dict[str, Any]]:
    """Entries of shards of several formats and compressions."""
    found: list[dict[str, Any]] = []
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (MDSWriter, {}),
        (MDSWriter, {"compression": "zstd", "hashes": ["sha1", "xxh64"]}),
        (MDSWriter, {"compression": "gz:1"}),
        (JSONWriter, {"hashes": ["xxh64"]}),
        (CSVWriter, {"compression": "zstd:3"}),
    ]
    for number, (writer_class, more) in enumerate(kinds):
        with writer_class({"x": "int", "ý": "str"}, folder / str(number), size_limit=200, **more) as writer:
            for at in range(20):
                writer.write({"x": at, "ý": f"text {at}"})
        for entry in json.loads((folder / str(number) / INDEX_NAME).read_bytes())["shards"]:
            for key in entry:
                if key.startswith(("raw_", "zip_")) and entry[key]:
                    entry[key]["basename"] = f"{number}/{entry[key]['basename']}"
            found.append(entry)
    return found


@pytest.fixture
def pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of any length are arrays."""
    monkeypatch.setattr(index_module, "FEW", 1)


FACTS = ("samples", "columns", "compressed", "total_bytes", "largest_shard", "fingerprint", "content", "extra")


def test_an_index_of_arrays_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = entries(tmp_path)
    for chosen in (shards, shards[::-1], shards[:3], [one for one in shards if "sha1" in one["hashes"]]):
        data = json.dumps({"version": 2, "shards": chosen, "note": [1]}, sort_keys=True).encode()
        objects = Index.from_json(data, "x")
        monkeypatch.setattr(index_module, "FEW", 1)
        arrays = Index.from_json(data, "x")
        monkeypatch.undo()
        assert isinstance(objects.shards, tuple)
        assert isinstance(arrays.shards, ColumnarShards)
        for one in (arrays, pickle.loads(pickle.dumps(arrays)), ConcatIndex([arrays]), ConcatIndex([objects])):
            assert one.shards == objects.shards
            assert one.sizes.tolist() == objects.sizes.tolist()
            assert not one.sizes.flags.writeable
            for name in FACTS:
                if hasattr(one, name):
                    assert getattr(one, name) == getattr(objects, name), name
        assert arrays.to_json() == objects.to_json()
        assert arrays.file_entries() == objects.file_entries()
        assert arrays.file_sizes() == objects.file_sizes()
        joined, again = ConcatIndex([arrays, objects]), ConcatIndex([objects, objects])
        assert joined.shards == again.shards
        assert joined.shards[len(objects) - 1 : len(objects) + 1] == (objects.shards[-1], objects.shards[0])
        for name in (*FACTS[:6], "total_bytes"):
            assert getattr(joined, name) == getattr(again, name), name


@pytest.mark.usefixtures("pack_all")
def test_what_is_wrong_with_an_entry_is_said_as_ever(tmp_path: Path) -> None:
    first, second, *_ = entries(tmp_path)
    with pytest.raises(IndexFileError, match="shard 2 uses '0/"):
        Index.from_json(json.dumps({"version": 2, "shards": [first, second, first]}).encode(), "x")
    wrong = {**second, "column_encodings": ["int", "unheard-of"]}
    with pytest.raises(FormatError, match=r"shard 1: column 'ý'.*unheard-of"):
        Index.from_json(json.dumps({"version": 2, "shards": [first, wrong]}).encode(), "x")


def child(results: Connection, dataset: StreamingDataset, index: Index) -> None:
    """Send what a child process sees: samples, and whether its shards lie in the parent's file."""
    shards = index.shards
    assert isinstance(shards, ColumnarShards)
    results.send(
        ([one for batch in dataset.batches() for one in np.asarray(batch["x"]).tolist()], list(shards), inode(shards))
    )


def inode(shards: ColumnarShards) -> tuple[int, int]:
    """The file that holds them."""
    address = np.frombuffer(shards.data.view, np.uint8).ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return int(line.split()[4]), len(shards)
    raise AssertionError("not mapped")


def test_a_file_that_took_the_number_of_a_closed_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_bytes, "SHARED", 1)
    monkeypatch.setattr(shared_bytes, "spawning", lambda: True)
    monkeypatch.setattr(reduction, "DupFd", lambda file: file)  # as if a child were being spawned
    data, other = SharedBytes.of([b"some bytes"]), SharedBytes.of([b"more bytes"])
    receive, (file, identity) = data.__reduce__()
    os.dup2(other.__reduce__()[1][0], file)
    with pytest.raises(StokerError, match="something closed files"):
        receive(Descriptor(os.dup(file)), identity)
    assert receive(Descriptor(os.dup(file)), other.__reduce__()[1][1]).view == b"more bytes"


class Descriptor:
    """A descriptor that has arrived in a child."""

    def __init__(self, file: int) -> None:
        self.detach = lambda: file


@pytest.mark.processes
@pytest.mark.usefixtures("pack_all")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_read_the_same_memory(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_bytes, "SHARED", 1)
    for name in ("a", "b"):
        write_samples(tmp_path / name, ({"x": at} for at in range(100)), size_limit=200)
    dataset = StreamingDataset(streams=[Stream(tmp_path / "a"), Stream(tmp_path / "b")], shuffle=True, batch_size=8)
    index = dataset._opened.streams.locations[1].index
    assert isinstance(index.shards, ColumnarShards)
    samples = [one for batch in dataset.batches() for one in np.asarray(batch["x"]).tolist()]
    dataset.set_epoch(0)
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(theirs, dataset, index))  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE)
        assert ours.recv() == (samples, list(index.shards), inode(index.shards))
    finally:
        process.kill()
        process.join()
    assert dataset.shards[-1] == index.shards[-1]
    assert dataset.shards == dataset.shards[:]

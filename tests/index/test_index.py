"""The index: what it accepts, what it refuses and why, what it tells."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import MDSWriter
from stoker.errors import FormatError, IndexFileError, ObjectNotFoundError
from stoker.index.index import INDEX_NAME, Index, load_index
from stoker.storage import open_store
from stoker.writers import CSVWriter, JSONWriter


@pytest.fixture
def written(tmp_path: Path) -> Path:
    with MDSWriter({"x": "int", "y": "str"}, tmp_path / "mds", size_limit=400, compression="zstd", hashes="sha1") as w:
        for i in range(30):
            w.write({"x": i, "y": "abc"})
    return tmp_path / "mds"


@pytest.fixture
def obj(written: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((written / INDEX_NAME).read_bytes())
    return loaded


def parse(obj: Any) -> Index:
    return Index.from_json(json.dumps(obj).encode(), "there/index.json")


def test_an_index_tells_of_its_shards(written: Path) -> None:
    index = load_index(open_store(written))
    assert index.samples == 30
    assert index.sizes.dtype == np.int64
    assert index.sizes.sum() == 30
    assert len(index) == len(index.shards) == len(index.sizes) > 2
    assert index.columns == ("x", "y")
    assert index.compressed
    assert index.total_bytes == sum(shard.raw[0].bytes for shard in index.shards)
    assert index.largest_shard == max(shard.raw[0].bytes for shard in index.shards)
    assert index.file_sizes()["shard.00000.mds.zstd"] == (written / "shard.00000.mds.zstd").stat().st_size
    assert set(index.file_entries()) == set(index.file_sizes())
    with pytest.raises(ValueError):
        index.sizes[0] = 3


def test_an_index_is_written_as_it_was_read(written: Path, obj: dict[str, Any]) -> None:
    data = (written / INDEX_NAME).read_bytes()
    assert Index.from_json(data, "x").to_json() == data
    extra = json.dumps({**obj, "note": {"by": "us"}}, sort_keys=True).encode()
    assert Index.from_json(extra, "x").to_json() == extra


def test_text_formats_are_written_as_they_were_read(tmp_path: Path) -> None:
    for kind in (CSVWriter, JSONWriter):
        with kind({"b": "int", "a": "str"}, tmp_path / kind.__name__) as writer:
            writer.write({"a": "text", "b": 3})
        data = (tmp_path / kind.__name__ / INDEX_NAME).read_bytes()
        assert Index.from_json(data, "x").to_json() == data


def test_no_shards_are_a_dataset() -> None:
    index = parse({"version": 2, "shards": []})
    assert (index.samples, index.columns, index.largest_shard, index.total_bytes) == (0, (), 0, 0)
    assert not index.compressed


def test_an_index_survives_pickling(written: Path) -> None:
    index = load_index(open_store(written))
    again = pickle.loads(pickle.dumps(index))
    assert again.to_json() == index.to_json()
    assert again.fingerprint == index.fingerprint


# -- the fingerprint ---------------------------------------------------------------------------------------------------


def change(obj: dict[str, Any], do: Callable[[list[dict[str, Any]]], Any]) -> str:
    changed = copy.deepcopy(obj)
    do(changed["shards"])
    return parse(changed).fingerprint


def test_the_fingerprint_is_of_the_samples_alone(written: Path, obj: dict[str, Any]) -> None:
    same = parse(obj).fingerprint
    assert Index.from_json((written / INDEX_NAME).read_bytes(), "elsewhere").fingerprint == same

    def unpack(shards: list[dict[str, Any]]) -> None:
        for shard in shards:
            shard.update(compression=None, zip_data=None, hashes=[], size_limit=None)
            shard["raw_data"]["hashes"] = {}

    assert change(obj, unpack) == same
    # As when half of the shards were described elsewhere, with other settings.
    assert change(obj, lambda shards: shards[0].update(hashes=[], size_limit=7)) == same


@pytest.mark.parametrize(
    "do",
    [
        lambda shards: shards.pop(),
        lambda shards: shards.reverse(),
        lambda shards: shards[0]["raw_data"].update(basename="other"),
        lambda shards: shards[0]["raw_data"].update(bytes=shards[0]["raw_data"]["bytes"] + 1),
        lambda shards: shards[0].update(samples=shards[0]["samples"] - 1),
        lambda shards: [shard.update(column_names=["x", "z"]) for shard in shards],
        lambda shards: shards[1].update(column_names=["x", "z"]),
        lambda shards: [shard.update(column_encodings=["int64", "str"]) for shard in shards],
    ],
)
def test_the_fingerprint_tells_datasets_apart(obj: dict[str, Any], do: Callable[[list[dict[str, Any]]], Any]) -> None:
    assert change(obj, do) != parse(obj).fingerprint


# -- refused -----------------------------------------------------------------------------------------------------------


def put(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def do(obj: dict[str, Any]) -> None:
        at: Any = obj
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return do


def remove(*path: Any) -> Callable[[dict[str, Any]], None]:
    def do(obj: dict[str, Any]) -> None:
        at: Any = obj
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return do


S = ("shards", 1)
BAD: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (put("version", to=1), "version 1"),
    (put("version", to="2"), "version '2'"),
    (put("version", to=True), "version True"),
    (remove("version"), "version None"),
    (remove("shards"), "'shards' should be a list"),
    (put(*S, to=3), "shard 1: should be an object"),
    (put(*S, "version", to=3), "shard 1: shard version 3"),
    (put(*S, "format", to="zip"), "shard 1: shard format 'zip'"),
    (put(*S, "format", to=None), "shard format None"),
    (put(*S, "format", to=["mds"]), "shard format"),
    (remove(*S, "samples"), "shard 1: key 'samples' is missing"),
    (put(*S, "samples", to=-1), "-1 samples"),
    (put(*S, "samples", to=True), "'samples' should be int, found bool"),
    (put(*S, "samples", to=1.0), "'samples' should be int, found float"),
    (put(*S, "samples", to=10**6), "1000000 samples need at least"),
    (put(*S, "samples", to=10**30), "is impossible"),
    (put(*S, "raw_data", to=None), "'raw_data' should be dict"),
    (remove(*S, "raw_data", "bytes"), "key 'bytes' is missing"),
    (put(*S, "raw_data", "bytes", to=-1), "is impossible"),
    (put(*S, "raw_data", "bytes", to=2**32), "is impossible"),
    (put(*S, "raw_data", "basename", to=3), "'basename' should be str"),
    (put(*S, "raw_data", "hashes", to=[]), "'hashes' should be dict"),
    (put(*S, "raw_data", "hashes", to={"sha1": 3}), "not lower-case hex"),
    (put(*S, "raw_data", "hashes", to={"sha1": "ABCD"}), "not lower-case hex"),
    (put(*S, "zip_data", to=None), "lists no compressed file"),
    (put(*S, "compression", to=None), "names no compression"),
    (put(*S, "compression", to="zip"), "compression 'zip' is unknown"),
    (put(*S, "compression", to="zstd:99"), "levels of zstd"),
    (put(*S, "zip_data", "basename", to="shard.00001.mds"), "same name"),
    (put(*S, "zip_data", "basename", to="shard.00000.mds.zstd"), "as another shard does"),
    (put(*S, "zip_data", "basename", to="index.json"), "which is the index"),
    (put(*S, "column_names", to=["x"]), "have 1, 2 and 2 entries"),
    (put(*S, "column_names", to=["x", "x"]), "same name"),
    (put(*S, "column_names", to=["x", 3]), "list of strings"),
    (put(*S, "column_names", to="xy"), "'column_names' should be list"),
    (put(*S, "column_encodings", to=["int", "strange"]), "column 'y': encoding 'strange' is unknown"),
    (put(*S, "column_sizes", to=[4, None]), "column 'x' .int. should have size 8, found 4"),
    (put(*S, "column_sizes", to=[8, 0]), "column 'y' .str. should have size None, found 0"),
    (put(*S, "column_sizes", to=[8, []]), "integers and nulls"),
    (put(*S, "size_limit", to=[]), "'size_limit' should be"),
    (put(*S, "hashes", to="sha1"), "'hashes' should be list"),
]


@pytest.mark.parametrize(("do", "message"), BAD)
def test_a_bad_index_is_refused_with_where_and_why(
    obj: dict[str, Any], do: Callable[[dict[str, Any]], None], message: str
) -> None:
    do(obj)
    with pytest.raises(FormatError, match=message) as caught:
        parse(obj)
    assert "there/index.json" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "",
        ".",
        "..",
        "a//b",
        "a/",
        "a\\b",
        "C:x",
        "c:/x",
        "file://x",
        "a\0b",
        "a\nb",
        "./a",
        "a/./b",
        ".stoker/x.part",
        "x" * 2000,
        "\ud800",
    ],
)
def test_a_file_outside_of_the_dataset_is_refused(obj: dict[str, Any], name: str) -> None:
    for key in ("raw_data", "zip_data"):
        bad = copy.deepcopy(obj)
        bad["shards"][0][key]["basename"] = name
        with pytest.raises(IndexFileError, match="unsafe name"):
            parse(bad)


@pytest.mark.parametrize(
    "name", ["a/b/shard.00001.mds", "..a", "a..b", "é/世界.mds", "a b", "ab:c", ".hidden", "-x", "~"]
)
def test_unusual_names_inside_of_the_dataset_are_fine(obj: dict[str, Any], name: str) -> None:
    obj["shards"][0]["raw_data"]["basename"] = name
    assert parse(obj).shards[0].raw[0].basename == name


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100000, b'{"version": 2', b"\0" * 9]
)
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(IndexFileError, match="not an index"):
        Index.from_json(data, "there/index.json")


def test_a_missing_index_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=str(tmp_path)):
        load_index(open_store(tmp_path))


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
_ENTRY = {
    "column_encodings": ["int", "str"],
    "column_names": ["x", "y"],
    "column_sizes": [8, None],
    "compression": "zstd",
    "format": "mds",
    "hashes": ["sha1"],
    "raw_data": {"basename": "a", "bytes": 1000, "hashes": {"sha1": "00"}},
    "samples": 3,
    "size_limit": None,
    "version": 2,
    "zip_data": {"basename": "a.zstd", "bytes": 100, "hashes": {}},
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(_ENTRY)), st.sampled_from(["", "basename", "bytes", "hashes"]), _JUNK)
def test_no_value_in_an_entry_causes_another_error(key: str, inner: str, junk: Any) -> None:
    entry = copy.deepcopy(_ENTRY)
    if inner and isinstance(entry[key], dict):
        entry[key][inner] = junk  # type: ignore[index]
    else:
        entry[key] = junk
    with contextlib.suppress(FormatError):
        parse({"version": 2, "shards": [entry]}).to_json()

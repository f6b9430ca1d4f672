"""An index whose entries are alike is read by a regular expression: what is read, merged and refused is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import MDSWriter, merge_index
from stoker.errors import IndexFileError, StokerError
from stoker.index import index as index_module
from stoker.index import merge
from stoker.index.columnar_shards import to_columnar
from stoker.index.index import INDEX_NAME, Index
from stoker.index.parse_index import framed, pattern_of, read_regular_entries

COLUMNS = {"column_names": ["id", "text"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}
HEX = st.text("0123456789abcdef", min_size=1, max_size=16)
SAMPLES = st.integers(1, 50)


def entry(number: int, samples: int, hashes: dict[str, str], packed: dict[str, str] | None) -> dict[str, Any]:
    """An entry of an index, as MDSWriter writes it."""
    size = 8 + 16 * samples + number % 7
    name = f"shard.{number:05}.mds"
    return {
        **COLUMNS,
        "compression": None if packed is None else "zstd:3",
        "format": "mds",
        "hashes": list(hashes),
        "raw_data": {"basename": name, "bytes": size, "hashes": hashes},
        "samples": samples,
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None if packed is None else {"basename": f"{name}.zstd", "bytes": size // 2 + 1, "hashes": packed},
    }


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Entries that differ in files and samples alone."""
    names = draw(st.sampled_from([(), ("xxh64",), ("sha1", "xxh3_64")]))
    hashes = st.tuples(*[HEX] * len(names)).map(lambda found: dict(zip(names, found, strict=True)))
    zipped = draw(st.booleans())
    count = draw(st.integers(1, 30))
    return [entry(n, draw(SAMPLES), draw(hashes), draw(hashes) if zipped else None) for n in range(count)]


def written(shards: list[dict[str, Any]], *, sort: bool = True) -> bytes:
    return json.dumps({"version": 2, "shards": shards}, sort_keys=sort).encode()


def check_same(data: bytes) -> bool:
    """Whether an index is read by the regular expression; if so, the result is that of parsing it."""
    found = read_regular_entries(data, "here", INDEX_NAME)
    if found is None:
        return False
    parsed = Index.from_json(data, "here")
    assert repr(list(found.shards)) == repr(list(parsed.shards))  # the types, too
    assert (found.fingerprint, found.content) == (parsed.fingerprint, parsed.content)
    columnar = to_columnar(parsed.shards)
    assert columnar is not None
    assert bytes(found.shards.arrays) == bytes(columnar.arrays)
    assert found.shards.kinds == columnar.kinds
    return True


@given(entries(), st.booleans())
def test_entries_that_are_alike_are_read_as_they_are_parsed(shards: list[dict[str, Any]], sort: bool) -> None:
    assert check_same(written(shards, sort=sort))


def spoiled(shards: list[dict[str, Any]], at: int, how: str) -> None:
    one, file = shards[at], shards[at]["raw_data"]
    changes: dict[str, Any] = {
        "columns": lambda: one.update(column_names=["id", "other"]),
        "no samples": lambda: one.update(samples=0),
        "more samples than fit": lambda: one.update(samples=1 << 20),
        "too many samples": lambda: one.update(samples=1 << 40, raw_data={**file, "bytes": (1 << 32) - 1}),
        "too large": lambda: file.update(bytes=1 << 32),
        "negative": lambda: file.update(bytes=-1),
        "true": lambda: one.update(samples=True),
        "the same name": lambda: file.update(basename=shards[at - 1]["raw_data"]["basename"]),
        "the index's name": lambda: file.update(basename=INDEX_NAME),
        "unusual name": lambda: file.update(basename="ä b.mds"),
        "unsafe name": lambda: file.update(basename="../a.mds"),
        "private name": lambda: file.update(basename=".stoker/a.mds"),
        "no hash": lambda: file.update(hashes={}),
        "no hex": lambda: file.update(hashes={"sha1": "xyz"}),
        "another key": lambda: one.update(more=1),
    }
    changes[how]()


SPOILED = [
    "columns",
    "no samples",
    "more samples than fit",
    "too many samples",
    "too large",
    "negative",
    "true",
    "the same name",
    "the index's name",
    "unusual name",
    "unsafe name",
    "private name",
    "no hash",
    "no hex",
    "another key",
]


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("how", SPOILED)
def test_entries_that_are_not_alike_or_wrong_are_parsed(
    how: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [entry(number, 3 + number, {"sha1": "ab"}, None) for number in range(6)]
    spoiled(shards, at, how)
    data = written(shards)
    assert not check_same(data)
    # Asked for an index, all is as if there were no such expression.
    results = []
    for large in (1, 1 << 60):
        monkeypatch.setattr(index_module, "_LARGE", large)
        try:
            results.append(repr(list(Index.from_json(data, "here").shards)))
        except StokerError as error:
            results.append(repr(error))
    assert results[0] == results[1]


@given(entries(), st.data())
def test_no_change_of_a_byte_is_read_otherwise_than_it_is_parsed(
    shards: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = written(shards)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    entry_text = json.dumps(shards[0], sort_keys=True).encode()
    inserted = data.draw(
        st.sampled_from(
            [b"", b" ", b"0", b"1", b"9", b"-", b",", b", ", b'"', b"{", b"}", b"\\u0041", b"a", b"/", b"."]
        )
        | st.sampled_from([entry_text, b", " + entry_text])
        | st.binary(max_size=3)
    )
    end = cuts[0] if data.draw(st.booleans()) else min(cuts[1], cuts[0] + 2)
    changed = text[: cuts[0]] + inserted + text[end:]
    try:
        Index.from_json(changed, "here")
    except StokerError:
        assert read_regular_entries(changed, "here", INDEX_NAME) is None
    else:
        check_same(changed)


def test_an_entry_between_others_that_is_of_another_form_is_not_passed_over() -> None:
    # Of the same length as the one after it: what was counted is where it should be.
    shards = [entry(number, 3, {"sha1": "ab"}, None) for number in range(5)]
    text = written(shards)
    odd = json.dumps(entry(9, 3, {"sha1": "ab"}, None), sort_keys=True).replace('"id"', '"ID"').encode()
    assert len(odd) == len(json.dumps(shards[2], sort_keys=True))
    assert not check_same(text.replace(json.dumps(shards[2], sort_keys=True).encode(), odd))


def test_a_large_index_is_read_by_the_expression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [entry(number, 3, {"sha1": "ab"}, None) for number in range(2500)]
    monkeypatch.setattr(index_module, "parse_index", None)  # which is not asked
    index = Index.from_json(written(shards), "here")
    assert len(index) == 2500
    assert index.shards[7].raw[0].basename == "shard.00007.mds"


# -- merging -------------------------------------------------------------------------------------------------------------


def write_parts(root: Path, names: list[str], rows: list[int]) -> None:
    for name, count in zip(names, rows, strict=True):
        with MDSWriter({"id": "int"}, root / name, size_limit=200) as writer:
            writer.write_batch({"id": np.arange(count)})


def merged(root: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The merged index, which is the same however it is made."""
    found = []
    for alike in (merge._merge_alike, lambda *_: None):
        (root / INDEX_NAME).unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(merge, "_merge_alike", alike)
            index = merge_index(root)
        data = (root / INDEX_NAME).read_bytes()
        assert index.to_json() == data
        found.append((data, index.fingerprint, index.content, repr(list(index.shards))))
    assert found[0] == found[1]
    return found[0][0]


def test_parts_that_are_alike_are_merged_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path, ["a/00", "a/01", "b-2"], [100, 1, 30])
    calls: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(merge, "_shards_of", calls.append)  # the parts are not parsed
        merge_index(tmp_path)
    data = merged(tmp_path, monkeypatch)
    assert len(json.loads(data)["shards"]) > 20
    begin, end = framed(data)
    assert pattern_of(data, begin, end, "").as_written
    assert not calls


@pytest.mark.parametrize("folder", ["ä", 'a"b', "a b", "a..b", ".hidden"])
def test_folders_with_unusual_names_are_merged(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(tmp_path, [folder, "other"], [30, 30])
    assert json.loads(merged(tmp_path, monkeypatch))["shards"][0]["raw_data"]["basename"].endswith("/shard.00000.mds")


def test_parts_of_which_one_is_written_in_another_way_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path, ["a", "b", "c"], [30, 0, 40])
    index = tmp_path / "c" / INDEX_NAME
    index.write_text(json.dumps(json.loads(index.read_text()), indent=1))
    merged(tmp_path, monkeypatch)


def test_a_part_that_is_refused_is_refused_by_its_name(tmp_path: Path) -> None:
    write_parts(tmp_path, ["a", "b"], [30, 30])
    index = tmp_path / "b" / INDEX_NAME
    found = json.loads(index.read_text())
    found["shards"][1]["samples"] = 10_000
    index.write_text(json.dumps(found, sort_keys=True))
    with pytest.raises(IndexFileError, match=r"b/index\.json: shard 1: 10000 samples need"):
        merge_index(tmp_path)
    assert not (tmp_path / INDEX_NAME).exists()

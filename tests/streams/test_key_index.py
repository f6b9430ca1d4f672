"""The index of keys: it finds what a dict finds, and refuses what would be ambiguous."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from stoker import StreamingDataset
from stoker.errors import ConfigError
from stoker.streams import key_index
from stoker.streams.key_index import KeyIndex, hash_keys
from support import write_samples


def index_of(tmp_path: Path, *parts: Any) -> KeyIndex:
    """An index over streams that hold these keys."""
    datasets = []
    for number, keys in enumerate(parts):
        folder = tmp_path / f"part{number}"
        folder.mkdir()
        pq.write_table(pa.table({"key": pa.array(keys)}), folder / "table.parquet", row_group_size=37)
        datasets.append(StreamingDataset(folder))
    return KeyIndex([dataset._opened.streams.locations[0] for dataset in datasets], "key")


def drawn(kind: str, count: int, chance: np.random.Generator) -> list[Any]:
    numbers = chance.choice(1 << 40, count, replace=False)
    if kind == "consecutive":
        return list((chance.permutation(count) - 50).tolist())
    if kind == "integers":
        return list((numbers - (1 << 39)).tolist())
    return [f"{number}" if kind == "text" else b"%d" % number for number in numbers.tolist()]


@pytest.mark.parametrize("kind", ["consecutive", "integers", "text", "bytes"])
@pytest.mark.parametrize("count", [1, 2, 101, 500])
def test_keys_are_found_as_a_dict_finds_them(tmp_path: Path, kind: str, count: int) -> None:
    chance = np.random.default_rng(count)
    keys = drawn(kind, count, chance)
    cut = count // 3
    parts = [part for part in (keys[:cut], keys[cut:]) if part]
    index = index_of(tmp_path, *parts)
    places = {key: number for number, key in enumerate(keys)}
    others = drawn(kind, 50, np.random.default_rng(7))
    asked = [*keys, *others, *keys[:5], None]
    chance.shuffle(asked)
    expected = [places.get(key, -1) for key in asked]
    for one in (index, pickle.loads(pickle.dumps(index))):
        assert one.find(asked, "asked").tolist() == expected
    if kind in ("consecutive", "integers"):
        assert index.find(np.array(keys), "asked").tolist() == list(range(count))
    assert len(index) == count
    assert index.nbytes <= {"consecutive": 4, "integers": 12}.get(kind, 20) * count + 8


def test_hashes_of_which_one_half_is_equal_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = xxhash.xxh3_128_digest

    class Halves:
        @staticmethod
        def xxh3_128_digest(text: bytes) -> bytes:
            return bytes(7) + text[-1:] + bytes(real(text)[8:])

    monkeypatch.setattr(key_index, "xxhash", Halves)
    keys = [f"key {number}" for number in range(300)]
    index = index_of(tmp_path, keys)
    assert index.find([*keys, "none 1", "none x"], "asked").tolist() == [*range(300), -1, -1]


def test_two_samples_of_one_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"two samples have the key 'b': row 1 of .*part0.* and row 2 of .*part1"):
        index_of(tmp_path, ["a", "b", "c"], ["d", "e", "b", "b"])
    (tmp_path / "more").mkdir()
    with pytest.raises(ConfigError, match=r"the key 5: row 0 .*sample 0.* and row 3 .*sample 3.*; 1 samples"):
        index_of(tmp_path / "more", [5, 7, 6, 5])


def test_nulls_are_no_keys(tmp_path: Path) -> None:
    index = index_of(tmp_path, [None, "a", None, "b"])
    assert index.find(["b", None, "a"], "asked").tolist() == [3, -1, 1]
    assert len(index) == 2


def test_keys_of_other_types_are_refused(tmp_path: Path) -> None:
    for number, keys in enumerate(([1.5, 2.5], [True, False], [[1], [2]])):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ConfigError, match="keys are integers, text or bytes"):
            index_of(tmp_path / str(number), keys)
    index = index_of(tmp_path, [1, 2])
    with pytest.raises(ConfigError, match=r"asked holds text, and .* holds integers"):
        index.find(["1"], "asked")
    assert index.find(np.array([2, 1 << 63], np.uint64), "asked").tolist() == [1, -1]
    assert index.find([2, -1, 1 << 80, 1 << 63], "asked").tolist() == [1, -1, -1, -1]
    assert index.find([2, 1 << 80], "asked").tolist() == [1, -1]
    assert hash_keys(["\ud800"], "asked").kind == "text"


TOP = 1 << 64
KEYS = {
    "large": [TOP - 1, 1 << 63, 7, 0, (1 << 63) - 1, TOP - 3],
    "consecutive and large": [TOP - 2, TOP - 1, TOP - 3],
    "small": [-(1 << 63), 3 - (1 << 63), (1 << 63) - 1, -1, 0],
    "consecutive and small": [2 - (1 << 63), -(1 << 63), 1 - (1 << 63)],
}


@pytest.mark.parametrize("name", KEYS)
def test_integers_are_found_up_to_the_ends_of_their_types(tmp_path: Path, name: str) -> None:
    keys = KEYS[name]
    signed = min(keys) < 0
    index = index_of(tmp_path, pa.array(keys, pa.int64() if signed else pa.uint64()))
    places = {key: number for number, key in enumerate(keys)}
    asked = sorted({key % TOP for other in KEYS.values() for key in other} | {1, TOP - 4})
    signed_asked = [key - TOP if key >> 63 else key for key in asked]
    for values in (np.array(asked, np.uint64), asked, np.array(signed_asked, np.int64), signed_asked):
        assert index.find(values, "asked").tolist() == [places.get(int(key), -1) for key in values]
    mixed = [*asked, *signed_asked, 1 << 70, -(1 << 70)]
    assert index.find(mixed, "asked").tolist() == [places.get(key, -1) for key in mixed]


def test_two_samples_of_one_large_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"two samples have the key {TOP - 1}: row 1 .* and row 2"):
        index_of(tmp_path, pa.array([5, TOP - 1, TOP - 1], pa.uint64()))


def test_integers_that_fit_in_no_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds -1, and others of at least 2⁶³: .* Write them as text"):
        index_of(tmp_path, [1, -1], pa.array([TOP - 1], pa.uint64()))
    write_samples(tmp_path / "decimal", ({"key": key} for key in (1, 10**30)), {"key": "str_int"})
    location = StreamingDataset(tmp_path / "decimal")._opened.streams.locations[0]
    with pytest.raises(ConfigError, match=f"holds {10**30}, and others"):
        KeyIndex([location], "key")


@pytest.mark.parametrize("kind", ["consecutive", "integers", "text", "bytes"])
def test_a_sample_whose_key_is_another_now_is_told(tmp_path: Path, kind: str) -> None:
    keys = drawn(kind, 200, np.random.default_rng(3))
    index = index_of(tmp_path, keys[:90], keys[90:])
    ids = np.arange(200)[::-1].copy()
    stored: list[Any] = keys[::-1]
    changed = [*stored[:70], stored[71], stored[70], *stored[72:]]
    for asked in (None, stored):
        assert index.differs(ids, stored, asked) is None
        assert index.differs(ids, changed, asked) == 70
        assert index.differs(ids, [*stored[:5], None, *stored[6:]], asked) == 5
    if kind in ("consecutive", "integers"):
        array = np.array(stored)
        assert index.differs(ids, array, stored) is index.differs(ids, array, array) is None
        assert index.differs(ids, np.array(changed), array) == 70
        assert index.key_of(3) == keys[3]
    else:
        assert index.key_of(3) is None
    assert index.discard()
    assert index.discard()
    assert not index.path.exists()


@pytest.mark.parametrize("kind", ["consecutive", "integers", "text", "bytes"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, kind: str) -> None:
    keys = drawn(kind, 300, np.random.default_rng(1))
    index = index_of(tmp_path, keys)
    content = index.path.read_bytes()
    for at in (512, 512 + index.nbytes // 2, 512 + index.nbytes - 8, len(content) - 1):
        index.path.unlink()
        index.path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        again = pickle.loads(pickle.dumps(index))
        assert again.find(keys, "asked").tolist() == list(range(300))
        assert again.path.read_bytes() == content


@pytest.mark.parametrize("kind", ["consecutive", "integers", "text", "bytes"])
def test_an_index_that_finds_another_sample_is_told_by_the_key(tmp_path: Path, kind: str) -> None:
    """Whatever the index says, a sample has the key that was asked for."""
    keys = drawn(kind, 300, np.random.default_rng(1))
    index = index_of(tmp_path, keys)
    asked, positions = keys[40:60], index._positions.copy()
    positions[index._positions == 50] = 0
    index._positions = positions
    found = index.find(asked, "asked")
    stored = [keys[number] for number in found.tolist()]
    assert stored != asked
    assert index.differs(found, stored, asked) == asked.index(keys[50])
    if kind in ("consecutive", "integers"):
        for dtype in (object, np.int64):
            assert index.differs(found, stored, np.array(asked, dtype)) == asked.index(keys[50])
            assert index.differs(np.arange(40, 60), np.array(asked), np.array(asked, dtype)) is None
    assert index.differs(np.arange(40, 60), [*asked[:-1], None], asked) == 19

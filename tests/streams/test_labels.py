"""Labels: a column's values of all samples, computed once, kept, and right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import MDSWriter, merge_index
from stoker.cache.base import CacheSettings
from stoker.catalog.location import DatasetLocation, open_indexed
from stoker.errors import CacheError, ConfigError, ObjectNotFoundError, UnsafeDataError
from stoker.formats.base import ReadOptions
from stoker.reading.shard_pool import ShardPool
from stoker.streams import labels as labels_module
from stoker.streams import scan as scan_module
from stoker.streams.labels import column_labels, hash_values
from stoker.writers import CSVWriter, JSONWriter
from support import cache_of, start_script, write_samples

LANGUAGES = ("en", "de", "fr", "日本", "")
COLUMNS = {"id": "int", "lang": "str", "raw": "bytes", "small": "uint8", "score": "float32", "row": "ndarray:int16:2"}
HERE = Path(__file__).parent


def sample_of(number: int) -> dict[str, Any]:
    return {
        "id": number * 3 - 100,
        "lang": LANGUAGES[number * 7 % 5],
        "raw": bytes([number % 4]),
        "small": number % 200,
        "score": number / 8,
        "row": np.array([number, 0], np.int16),
    }


def write(out: Path, count: int = 300, **options: Any) -> Path:
    write_samples(str(out), map(sample_of, range(count)), COLUMNS, size_limit=1200, **options)
    return out


def location_of(remote: Path | None, local: Path | None, **settings: Any) -> DatasetLocation:
    return open_indexed(remote, local, None, settings=CacheSettings(**settings))


def kept_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / ".stoker").glob("*") if path.name.startswith(("classes", "hashes", "where")))


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function after whose call no shard may be read."""

    def forbid() -> None:
        def refuse(*_: object) -> Any:
            raise AssertionError("the data were read again")

        monkeypatch.setattr(ShardPool, "get", refuse)

    return forbid


# -- what labels are ---------------------------------------------------------------------------------------------------


def test_classes_of_integers_are_the_integers_in_the_narrowest_type(tmp_path: Path) -> None:
    location = location_of(None, write(tmp_path / "data"))
    found = column_labels(location, "id", "classes")
    assert found.tolist() == [sample_of(number)["id"] for number in range(300)]
    assert found.dtype == np.int16
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    assert column_labels(location, "small", "classes").dtype == np.uint8


def test_classes_of_text_are_indices_among_the_sorted_values(tmp_path: Path) -> None:
    location = location_of(None, write(tmp_path / "data"))
    for column, values in (("lang", sorted(LANGUAGES)), ("raw", [b"\0", b"\1", b"\2", b"\3"])):
        found = column_labels(location, column, "classes")
        assert found.dtype == np.uint8
        assert [values[code] for code in found] == [sample_of(number)[column] for number in range(300)]


def test_hashes_are_those_of_the_canonical_bytes(tmp_path: Path) -> None:
    location = location_of(None, write(tmp_path / "data"))
    canonical: dict[str, Any] = {
        "id": lambda value: value.to_bytes(8, "little", signed=True),
        "lang": str.encode,
        "raw": bytes,
        "small": lambda value: value.to_bytes(8, "little"),
        "score": lambda value: np.float64(value).tobytes(),
    }
    for column, convert in canonical.items():
        expected = [xxhash.xxh64_intdigest(convert(sample_of(number)[column])) for number in range(300)]
        found = column_labels(location, column, "hashes")
        assert found.dtype == np.uint64
        assert found.tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_hashes_of_integers_are_xxh64(values: list[int]) -> None:
    expected = [xxhash.xxh64_intdigest(value.to_bytes(8, "little", signed=True)) for value in values]
    assert hash_values(np.array(values, np.int64)).tolist() == expected
    assert hash_values(list(values)).tolist() == expected


def test_equal_values_of_different_types_hash_alike() -> None:
    assert len(set(hash_values(np.array([0.0, -0.0])).tolist())) == 1
    nans = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert len(set(hash_values(nans).tolist())) == 1
    expected = hash_values(np.array([7])).tolist()
    for dtype in ("u1", "i2", "u8"):
        assert hash_values(np.array([7], dtype)).tolist() == expected
    assert hash_values(np.array([True])).tolist() == hash_values([True]).tolist() == hash_values([1]).tolist()
    assert hash_values(np.array([0.5], np.float32)).tolist() == hash_values([0.5]).tolist()
    assert hash_values(["a"]).tolist() == hash_values([b"a"]).tolist() == [0xD24EC4F1A98C6E5B]


@pytest.mark.parametrize("writer", [JSONWriter, CSVWriter])
def test_text_formats_have_labels_too(tmp_path: Path, writer: Any) -> None:
    with writer(columns={"n": "int", "s": "str", "f": "float"}, out=str(tmp_path / "data"), size_limit=300) as file:
        for number in range(100):
            file.write({"n": number % 7 - 3, "s": f"x{number % 3}", "f": number / 2})
    location = location_of(None, tmp_path / "data")
    assert column_labels(location, "n", "classes").tolist() == [number % 7 - 3 for number in range(100)]
    assert column_labels(location, "s", "classes").tolist() == [number % 3 for number in range(100)]
    assert column_labels(location, "f", "hashes").tolist() == hash_values(np.arange(100) / 2).tolist()


def test_chunks_of_any_size_give_the_same_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_CHUNK_ROWS", 7)
    location = location_of(None, write(tmp_path / "data"))
    assert column_labels(location, "id", "classes").tolist() == [sample_of(number)["id"] for number in range(300)]
    values = sorted(LANGUAGES)
    found = column_labels(location, "lang", "classes")
    assert [values[code] for code in found] == [sample_of(number)["lang"] for number in range(300)]


def test_a_dataset_without_samples_has_no_labels(tmp_path: Path) -> None:
    location = location_of(None, write(tmp_path / "data", 0))
    assert column_labels(location, "lang", "classes").shape == (0,)
    assert column_labels(location, "lang", "hashes").shape == (0,)


# -- kept --------------------------------------------------------------------------------------------------------------


def test_labels_are_computed_once_and_kept_in_the_cache(
    tmp_path: Path, no_reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote, local = write(tmp_path / "remote"), tmp_path / "local"
    with caplog.at_level("INFO", "stoker.streams.labels"):
        first = column_labels(location_of(remote, local), "lang", "classes").tolist()
    assert [record.message for record in caplog.records] == [
        f"reading column 'lang' of all 300 samples of {cache_of(local)}, once, for its classes"
    ]
    no_reading()
    assert column_labels(location_of(remote, local), "lang", "classes").tolist() == first
    assert [path.name.split(".")[:2] for path in kept_files(cache_of(local))] == [["classes", "lang"]]
    assert not list(tmp_path.rglob("*.part"))
    assert sorted(os.listdir(remote)) == sorted(os.listdir(write(tmp_path / "fresh")))


def test_labels_of_a_local_dataset_lie_next_to_its_index(tmp_path: Path) -> None:
    column_labels(location_of(None, write(tmp_path / "data")), "lang", "classes")
    assert len(kept_files(tmp_path / "data")) == 1


def test_a_remote_directory_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    data = write(tmp_path / "data")
    before = sorted(os.listdir(data))
    column_labels(location_of(data, None), "lang", "classes")
    assert sorted(os.listdir(data)) == before
    assert len([path for root in (tmp_path / "cache").iterdir() for path in kept_files(root)]) == 1


def test_where_the_dataset_can_not_be_written_the_users_cache_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_reading: Any
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    data = write(tmp_path / "data")
    (data / ".stoker").write_text("in the way of the directory, also for root")
    first = column_labels(location_of(None, data), "lang", "classes").tolist()
    no_reading()
    assert column_labels(location_of(None, data), "lang", "classes").tolist() == first
    (tmp_path / "file").touch()
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(CacheError, match=r"can be saved in none of .*data, .*set STOKER_CACHE"):
        column_labels(location_of(None, data), "lang", "classes")


@pytest.mark.parametrize("damage", ["cut", "grown", "empty", "header", "array", "extra", "foreign"])
def test_a_torn_damaged_or_foreign_file_is_rebuilt(tmp_path: Path, damage: str) -> None:
    data = write(tmp_path / "data")
    expected = column_labels(location_of(None, data), "lang", "classes").tolist()
    (path,) = kept_files(data)
    content = path.read_bytes()
    if damage == "foreign":
        column_labels(location_of(None, data), "raw", "classes")
        content = next(other for other in kept_files(data) if other != path).read_bytes()
    changed = {
        "cut": content[:-1],
        "grown": content + b"\0",
        "empty": b"",
        "header": content[:30] + bytes([content[30] ^ 1]) + content[31:],
        "array": content[:512] + bytes([content[512] ^ 1]) + content[513:],
        "extra": content[:-1] + bytes([content[-1] ^ 1]),
        "foreign": content,
    }[damage]
    path.unlink()
    path.write_bytes(changed)
    assert column_labels(location_of(None, data), "lang", "classes").tolist() == expected


def test_a_dataset_that_was_rewritten_has_new_labels(tmp_path: Path) -> None:
    options: dict[str, Any] = {"columns": {"n": "int"}, "out": str(tmp_path / "data")}
    for factor in (1, 2):
        with MDSWriter(**options, exist_ok=True) as writer:
            for number in range(50):
                writer.write({"n": number * factor})
        location = location_of(None, tmp_path / "data")
        assert column_labels(location, "n", "classes").tolist() == [number * factor for number in range(50)]


def test_labels_survive_sweeping_and_eviction(tmp_path: Path, no_reading: Any) -> None:
    remote, local = write(tmp_path / "remote"), tmp_path / "local"
    location = location_of(remote, local)
    limited = location.limited(5000)
    expected = column_labels(limited, "lang", "classes").tolist()
    held = [path for path in local.glob("shard.*") if path.stat().st_size]
    assert sum(path.stat().st_size for path in held) <= 5000
    limited.cache.sweep()
    for shard in location.index.shards:
        limited.cache.fetch(shard)
    no_reading()
    assert column_labels(location_of(remote, local), "lang", "classes").tolist() == expected


def test_labels_leave_shards_in_the_cache_alone(tmp_path: Path) -> None:
    remote, local = write(tmp_path / "remote"), tmp_path / "local"
    location = location_of(remote, local)
    cache = location.cache
    for shard in location.index.shards:
        cache.fetch(shard)
    before = {path: path.stat().st_mtime_ns for path in local.glob("shard.*")}
    column_labels(location, "lang", "hashes")
    assert {path: path.stat().st_mtime_ns for path in local.glob("shard.*")} == before


# -- several processes -------------------------------------------------------------------------------------------------


def _result(child: subprocess.Popen[str]) -> list[Any]:
    out, problems = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, problems
    return list(map(json.loads, out.splitlines()))[-1]  # type: ignore[no-any-return]


@pytest.mark.processes
def test_of_several_processes_one_reads_the_data(tmp_path: Path) -> None:
    remote = write(tmp_path / "remote")
    children = [
        start_script(HERE / "label_process.py", remote, tmp_path / "local", 0.05, PYTHONHASHSEED=str(seed))
        for seed in range(3)
    ]
    results = [_result(child) for child in children]
    assert sum(made for made, _ in results) == 1
    values = sorted(LANGUAGES)
    assert [values[code] for code in results[0][1]] == [sample_of(number)["lang"] for number in range(300)]
    assert results[0][1] == results[1][1] == results[2][1]
    assert not list((tmp_path / "local").rglob("*.part"))


@pytest.mark.processes
def test_a_killed_process_leaves_the_work_to_the_next(tmp_path: Path) -> None:
    remote = write(tmp_path / "remote")
    child = start_script(HERE / "label_process.py", remote, tmp_path / "local", 30)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == '"ready"'
    while not list((tmp_path / "local").rglob("classes*.part")):
        assert child.poll() is None
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert list((tmp_path / "local").rglob("classes*.part"))
    values = sorted(LANGUAGES)
    found = column_labels(location_of(remote, tmp_path / "local"), "lang", "classes")
    assert [values[code] for code in found] == [sample_of(number)["lang"] for number in range(300)]
    assert not list((tmp_path / "local").rglob("*.part"))


@pytest.mark.processes
def test_a_stopped_process_is_not_waited_for(tmp_path: Path) -> None:
    remote = write(tmp_path / "remote")
    child = start_script(HERE / "label_process.py", remote, tmp_path / "local", 0.5)
    try:
        while not list((tmp_path / "local").rglob("classes*.part")):
            assert child.poll() is None
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGSTOP)
        found = column_labels(location_of(remote, tmp_path / "local", stall_timeout=0.2), "lang", "classes").tolist()
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert _result(child)[1] == found


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("words", "classes", r"no column 'words' .*it has id, lang, raw, row, score, small"),
        (
            "row",
            "classes",
            r"column 'row' holds int16 of shape \(2,\): labels are made of integer, bool, str and bytes",
        ),
        ("row", "hashes", r"labels are made of integer, bool, float, str and bytes columns"),
        ("score", "classes", r"column 'score' holds float32"),
        ("lang", "codes", r"kind='codes': expected 'classes' or 'hashes'"),
    ],
)
def test_what_can_not_be_a_label_is_said(tmp_path: Path, column: str, kind: Any, message: str) -> None:
    location = location_of(None, write(tmp_path / "data"))
    with pytest.raises(ConfigError, match=message):
        column_labels(location, column, kind)
    assert not kept_files(tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.part"))


def test_values_without_a_canonical_form_are_refused(tmp_path: Path) -> None:
    with MDSWriter(columns={"j": "json", "p": "pkl", "n": "str_int"}, out=str(tmp_path / "data")) as writer:
        writer.write({"j": {"a": 1}, "p": "x", "n": 10**30})
    location = location_of(None, tmp_path / "data")
    with pytest.raises(ConfigError, match=r"column 'j' holds dict"):
        column_labels(location, "j", "hashes")
    with pytest.raises(ConfigError, match=r"beyond int64"):
        column_labels(location, "n", "classes")
    with pytest.raises(UnsafeDataError):
        column_labels(location, "p", "hashes")
    assert column_labels(location, "p", "classes", options=ReadOptions(allow_unsafe_types=True)).tolist() == [0]


def test_unsigned_integers_beyond_int64_are_no_classes(tmp_path: Path) -> None:
    with MDSWriter(columns={"n": "uint64"}, out=str(tmp_path / "data")) as writer:
        writer.write({"n": 2**63})
    location = location_of(None, tmp_path / "data")
    with pytest.raises(ConfigError, match="9223372036854775808: classes are int64"):
        column_labels(location, "n", "classes")
    assert column_labels(location, "n", "hashes").tolist() == [xxhash.xxh64_intdigest((2**63).to_bytes(8, "little"))]


def test_a_column_of_two_types_has_no_classes(tmp_path: Path) -> None:
    for name, kind, value in (("one", "str", "a"), ("two", "int", 1)):
        with MDSWriter(columns={"x": kind}, out=str(tmp_path / name)) as writer:
            writer.write({"x": value})
    merge_index([str(tmp_path / "one"), str(tmp_path / "two")], out=str(tmp_path))
    location = location_of(None, tmp_path)
    with pytest.raises(ConfigError, match="not of one type in all shards"):
        column_labels(location, "x", "classes")
    assert len(column_labels(location, "x", "hashes")) == 2


def test_too_many_different_texts_are_no_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_module, "MOST_CLASSES", 4)
    location = location_of(None, write(tmp_path / "data"))
    with pytest.raises(ConfigError, match="more than 4 different values, too many for classes: divide by its hashes"):
        column_labels(location, "lang", "classes")
    assert len(column_labels(location, "raw", "classes")) == 300


def test_a_shard_that_is_missing_is_its_own_error(tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    next(iter(sorted(data.glob("shard.*")))).unlink()
    with pytest.raises(ObjectNotFoundError):
        column_labels(location_of(None, data), "lang", "classes")
    assert not list(data.rglob("*.part"))

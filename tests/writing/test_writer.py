"""Writers: what goes where, how shards are cut, what is refused, and how much memory waits."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from s3server import Bucket
from stoker import MDSWriter, StreamingDataset
from stoker.errors import ConfigError, EncodingError
from stoker.formats.mds.encodings import Encoding, register_encoding
from stoker.storage import open_store
from stoker.storage.types import PutData
from stoker.writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from stoker.writing.destination import Destination
from stoker.writing.shard_formats import TarWriter
from support import files_of

COLUMNS = {"x": "int", "y": "bytes"}


def sample(i: int) -> dict[str, Any]:
    return {"x": i, "y": bytes([i % 256]) * (i % 13)}


def write(out: Any, count: int = 50, **options: Any) -> None:
    with MDSWriter(COLUMNS, out, **{"size_limit": 500, **options}) as writer:
        for i in range(count):
            writer.write(sample(i))


def numbers(root: Path) -> list[int]:
    dataset = StreamingDataset(local=root)
    return [int(dataset[i]["x"]) for i in range(len(dataset))]


def stored(url: str, options: Any = None) -> dict[str, bytes]:
    store = open_store(url, options)
    return {item.key: store.get(item.key, max_bytes=1 << 30) for item in store.list()}


# -- where -------------------------------------------------------------------------------------------------------------


def test_every_way_to_say_where_writes_the_same(tmp_path: Path, bucket: Bucket) -> None:
    options: dict[str, Any] = {"compression": "zstd", "hashes": ["sha1", "xxh64"]}
    options["storage_options"] = bucket.storage_options
    plain = tmp_path / "plain"
    write(plain, compression="zstd", hashes=["xxh64", "sha1"])
    expected = files_of(plain)
    assert len(expected) > 3
    write(plain.with_name("url").as_uri(), compression="zstd", hashes=("sha1", "xxh64"))
    assert files_of(tmp_path / "url") == expected
    write(f"{bucket.url}/a", **options)
    assert stored(f"{bucket.url}/a", bucket.storage_options) == expected
    write((tmp_path / "pair", f"{bucket.url}/b"), keep_local=True, **options)
    assert stored(f"{bucket.url}/b", bucket.storage_options) == expected
    assert files_of(tmp_path / "pair") == expected
    write(str(tmp_path / "gone"), remote=f"{bucket.url}/c", **options)
    assert stored(f"{bucket.url}/c", bucket.storage_options) == expected
    assert not (tmp_path / "gone").exists()
    write("memory://writers", compression="zstd", hashes=["sha1", "xxh64"])
    assert stored("memory://writers") == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"out": ("a", "b", "c")},
        {"out": ("a", "memory://x"), "remote": "memory://y"},
        {"out": "memory://x", "remote": "memory://y"},
        {"out": "memory://x", "keep_local": True},
        {"out": ("memory://x", "memory://y")},
        {"out": "a", "compression": "zip"},
        {"out": "a", "compression": "zstd:99"},
        {"out": "a", "hashes": "sha0"},
        {"out": "a", "hashes": ["sha1", "nothing"]},
        {"out": "a", "size_limit": "much"},
        {"out": "a", "size_limit": 1 << 32},
        {"out": "a", "size_limit": -5},
        {"out": "a", "retry": -1},
        {"out": "a", "max_workers": -1},
        {"out": "a", "columns": {}},
        {"out": "a", "columns": {"x": "strange"}},
        {"out": "a", "exist_ok": True, "append": True},
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        MDSWriter(**{"columns": COLUMNS, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_argument_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'colour' is unknown"):
        MDSWriter(COLUMNS, tmp_path, colour="red")  # type: ignore[call-arg]


def test_the_index_says_what_was_requested(tmp_path: Path) -> None:
    write(tmp_path, compression="gz:1", hashes="md5", size_limit="1kb")
    entry = json.loads((tmp_path / "index.json").read_bytes())["shards"][0]
    assert (entry["compression"], entry["hashes"], entry["size_limit"]) == ("gz:1", ["md5"], 1024)
    assert set(entry["zip_data"]["hashes"]) == set(entry["raw_data"]["hashes"]) == {"md5"}


def test_no_samples_are_a_dataset(tmp_path: Path) -> None:
    write(tmp_path, count=0)
    assert json.loads((tmp_path / "index.json").read_bytes()) == {"shards": [], "version": 2}


# -- cutting -----------------------------------------------------------------------------------------------------------


def test_a_sample_beyond_the_limit_gets_a_shard_of_its_own_and_no_empty_one(tmp_path: Path) -> None:
    large = {"x": 1, "y": b"z" * 3000}
    for how in ("write", "batch"):
        with MDSWriter(COLUMNS, tmp_path / how, size_limit=500) as writer:
            if how == "write":
                for each in (large, sample(2), large, sample(3)):
                    writer.write(each)
            else:
                several = (large, sample(2), large, sample(3))
                writer.write_batch({name: [each[name] for each in several] for name in COLUMNS})
        shards = json.loads((tmp_path / how / "index.json").read_bytes())["shards"]
        assert [shard["samples"] for shard in shards] == [1, 1, 1, 1]
        assert numbers(tmp_path / how) == [1, 2, 1, 3]
    assert files_of(tmp_path / "write") == files_of(tmp_path / "batch")


_KINDS: dict[str, Any] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "ndarray:int16:3": st.integers(-9, 9).map(lambda v: np.full(3, v, np.int16)),
    "bytes": st.binary(max_size=60),
    "str": st.text(max_size=9),
    "ndarray:uint8": st.integers(1, 30).map(lambda n: np.arange(n, dtype=np.uint8)),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_batches_and_samples_in_any_mixture_write_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tmp = tmp_path_factory.mktemp("mixture")
    columns = data.draw(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(sorted(_KINDS)), min_size=1))
    rows = st.fixed_dictionaries({name: _KINDS[kind] for name, kind in columns.items()})
    groups = data.draw(st.lists(st.tuples(st.booleans(), st.lists(rows, max_size=12)), max_size=5))
    limit = data.draw(st.sampled_from([1, 350, 420, 700, None]))
    with (
        MDSWriter(columns, tmp / "one", size_limit=limit) as one,
        MDSWriter(columns, tmp / "many", size_limit=limit) as many,
    ):
        for as_arrays, group in groups:
            for each in group:
                one.write(each)
            batch: dict[str, Any] = {name: [each[name] for each in group] for name in columns}
            if as_arrays and group:
                for name, kind in columns.items():
                    if kind in ("int", "float32", "ndarray:int16:3"):
                        batch[name] = np.array(batch[name])
            if len(group) == 1:
                many.write(group[0])
            else:
                many.write_batch(batch)
    assert files_of(tmp / "one") == files_of(tmp / "many")


def test_a_large_value_is_written_whole_in_both_ways(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = [rng.bytes(int(size)) for size in rng.integers(0, 300_000, 60)]
    for how in ("write", "batch"):
        with MDSWriter({"y": "bytes", "x": "int"}, tmp_path / how, size_limit="3MB") as writer:
            if how == "batch":
                writer.write_batch({"y": values, "x": np.arange(60)})
            for number, value in enumerate(values if how == "write" else []):
                writer.write({"y": value, "x": number})
    assert files_of(tmp_path / "write") == files_of(tmp_path / "batch")
    dataset = StreamingDataset(local=tmp_path / "batch")
    assert [dataset[i]["y"] for i in range(60)] == values


def test_without_a_limit_there_is_one_shard_however_large(tmp_path: Path) -> None:
    with MDSWriter({"y": "bytes"}, tmp_path, size_limit=None) as writer:
        for _ in range(9):
            writer.write({"y": b"x" * (10 << 20)})
    assert [path.name for path in tmp_path.glob("*.mds")] == ["shard.00000.mds"]
    assert len(StreamingDataset(local=tmp_path)[8]["y"]) == 10 << 20


def test_values_may_be_changed_after_they_were_written(tmp_path: Path) -> None:
    array = np.zeros(4, np.int16)
    with MDSWriter({"a": "ndarray:int16:4"}, tmp_path) as writer:
        writer.write({"a": array})
        array[:] = 1
        writer.write_batch({"a": array[None]})
        array[:] = 2
    dataset = StreamingDataset(local=tmp_path)
    assert [dataset[i]["a"].tolist() for i in range(2)] == [[0] * 4, [1] * 4]


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_refused_sample_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with MDSWriter(COLUMNS, tmp_path) as writer:
        writer.write(sample(0))
        with pytest.raises(EncodingError, match=r"column 'x' of sample 1: expected an integer in .*, got float 1\.5"):
            writer.write({"x": 1.5, "y": b""})
        with pytest.raises(EncodingError, match="column 'y' of sample 1: expected bytes, got str 'text'"):
            writer.write({"x": 1, "y": "text"})
        with pytest.raises(EncodingError, match="sample 1 has no value for column 'y'; it has 'x', 'z'"):
            writer.write({"x": 1, "z": 3})
        with pytest.raises(EncodingError, match="sample 1: expected a mapping of columns, got list"):
            writer.write([1, b""])  # type: ignore[arg-type]
        with pytest.raises(EncodingError, match="column 'y' of sample 3: expected bytes, got int 5"):
            writer.write_batch({"x": [1, 2, 3], "y": [b"", b"", 5]})
        with pytest.raises(EncodingError, match="column 'x' of sample 2: expected an integer"):
            writer.write_batch({"x": [1, 2**70], "y": [b"", b""]})
        with pytest.raises(EncodingError, match="no column 'y'"):
            writer.write_batch({"x": [1]})
        with pytest.raises(EncodingError, match="differ in length"):
            writer.write_batch({"x": [1, 2], "y": [b""]})
        with pytest.raises(EncodingError, match="expected an array or a list"):
            writer.write_batch({"x": 3, "y": [b""]})
        with pytest.raises(EncodingError, match="expected rows"):
            writer.write_batch({"x": np.array(3), "y": [b""]})
        writer.write({**sample(1), "unknown": "ignored"})
        assert writer.samples_written == 2
    assert numbers(tmp_path) == [0, 1]


@pytest.mark.parametrize("size", [1 << 32, (1 << 32) - 100])
def test_a_value_that_fits_no_shard_is_refused(tmp_path: Path, size: int) -> None:
    value = bytes(size)  # the system gives such memory only where it is touched
    with MDSWriter({"y": "bytes"}, tmp_path, size_limit=None) as writer:
        writer.write({"y": b"small"})
        with pytest.raises(EncodingError, match=r"sample 1|4 GiB"):
            writer.write({"y": value})
        with pytest.raises(EncodingError, match=r"sample 1|4 GiB"):
            writer.write_batch({"y": [value]})
        writer.write({"y": b"more"})
    assert len(StreamingDataset(local=tmp_path)) == 2


class Liar(Encoding):
    """Says that its values have three bytes."""

    size = 3

    def encode(self, value: Any) -> bytes:
        return value  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> bytes:
        return data


def test_an_encoding_that_breaks_its_promise_is_caught_at_the_write(tmp_path: Path) -> None:
    register_encoding("test_liar", Liar, replace=True)
    with MDSWriter({"x": "test_liar"}, tmp_path) as writer:
        writer.write({"x": b"abc"})
        for wrong in (b"ab", "abc", None):
            with pytest.raises(EncodingError, match="column 'x' of sample 1"):
                writer.write({"x": wrong})
            with pytest.raises(EncodingError, match="column 'x' of sample 1"):
                writer.write_batch({"x": [wrong]})
    assert StreamingDataset(local=tmp_path)[0]["x"] == b"abc"


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    writer = MDSWriter(COLUMNS, tmp_path / "a")
    writer.write(sample(0))
    writer.finish()
    with pytest.raises(ConfigError, match="finished"):
        writer.write(sample(1))
    with pytest.raises(ConfigError, match="finished"):
        writer.write_batch({"x": [1], "y": [b""]})
    with pytest.raises(ConfigError, match="finished"):
        writer.finish()
    writer.abort()
    assert numbers(tmp_path / "a") == [0]
    writer = MDSWriter(COLUMNS, tmp_path / "b")
    writer.abort()
    with pytest.raises(ConfigError, match="aborted"):
        writer.write(sample(1))


# -- what is there already ---------------------------------------------------------------------------------------------


def test_a_dataset_is_not_overwritten_unasked(tmp_path: Path) -> None:
    write(tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match=r"index\.json exists: .*exist_ok=True"):
        write(tmp_path)
    (tmp_path / "index.json").unlink()
    with pytest.raises(ConfigError, match=r"shards without an index.*resume=True"):
        write(tmp_path)
    assert files_of(tmp_path) == {name: data for name, data in before.items() if name != "index.json"}


def test_other_files_and_datasets_below_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("hello")
    write(tmp_path / "below")
    write(tmp_path)
    write(tmp_path, count=3, exist_ok=True)
    assert (tmp_path / "README").read_text() == "hello"
    assert numbers(tmp_path) == [0, 1, 2]
    assert len(numbers(tmp_path / "below")) == 50


def test_a_dataset_is_replaced_without_a_trace(tmp_path: Path) -> None:
    write(tmp_path, compression="gz")
    (tmp_path / "shard.00077.mds").write_bytes(b"an unfinished writer's")
    write(tmp_path, count=8, exist_ok=True)
    write(tmp_path.with_name("fresh"), count=8)
    assert files_of(tmp_path) == files_of(tmp_path.with_name("fresh"))


def test_the_old_index_goes_before_the_first_new_shard(tmp_path: Path) -> None:
    write(tmp_path)
    with MDSWriter(COLUMNS, tmp_path, exist_ok=True):
        assert files_of(tmp_path) == {}
    (tmp_path / "index.json").write_text("not an index")
    write(tmp_path, count=2, exist_ok=True)
    assert numbers(tmp_path) == [0, 1]


# -- behind the caller -------------------------------------------------------------------------------------------------


def test_waiting_shards_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, put = threading.Event(), Destination.put

    def slow(self: Destination, key: str, data: PutData) -> None:
        gate.wait(PATIENCE)
        put(self, key, data)

    monkeypatch.setattr(Destination, "put", slow)
    accepted = 0

    def produce() -> None:
        nonlocal accepted
        with MDSWriter({"y": "bytes"}, tmp_path, size_limit=2000, max_workers=2) as writer:
            for number in range(1, 41):
                accepted = number
                writer.write({"y": b"x" * 1500})

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while accepted < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        producer.join(0.3)
        assert accepted <= 4  # two being stored, one full, and the sample that waits for room
    finally:
        gate.set()
        producer.join()
    assert accepted == 40
    assert len(StreamingDataset(local=tmp_path)) == 40


def test_progress_is_shown_where_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")
    write(tmp_path / "shown", progress_bar=True)
    assert "50 samples" in capfd.readouterr().err


@pytest.mark.parametrize("kind", [JSONWriter, CSVWriter, TSVWriter, XSVWriter])
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_text_formats_are_cut_compressed_and_read(tmp_path: Path, kind: Any, codec: str | None) -> None:
    own = {"separator": "|"} if kind is XSVWriter else {}
    with kind({"x": "int", "t": "str"}, tmp_path, size_limit=60, compression=codec, hashes="xxh64", **own) as writer:
        for i in range(10):
            writer.write({"x": i, "t": f"text {i}"})
        writer.write_batch({"x": np.arange(10, 20), "t": [f"text {i}" for i in range(10, 20)]})
    assert len(list(tmp_path.glob("shard*"))) >= 8
    assert numbers(tmp_path) == list(range(20))
    assert StreamingDataset(local=tmp_path)[7] == {"x": 7, "t": "text 7"}


def test_a_shard_ends_where_its_writer_says(tmp_path: Path) -> None:
    with MDSWriter({"x": "int"}, tmp_path) as writer:
        for number in range(7):
            writer.write({"x": number})
            if number in (0, 4):
                writer.end_shard()
                writer.end_shard()  # of an empty shard nothing is made
    assert [shard["samples"] for shard in json.loads((tmp_path / "index.json").read_text())["shards"]] == [1, 4, 2]
    with pytest.raises(ConfigError, match="finished"):
        writer.end_shard()


def test_keys_of_a_tar_begin_where_its_writer_says(tmp_path: Path) -> None:
    with TarWriter({"txt": "str"}, tmp_path, first=41) as writer:
        writer.write_batch({"txt": ["a", "b"]})
        writer.write({"txt": "c"})
        writer.write_batch({"txt": ["d"]})
    with TarWriter({"txt": "str"}, tmp_path, append=True) as writer:
        writer.write({"txt": "e"})
        writer.write_batch({"txt": ["f"]})
    for shard, numbers in ((0, (41, 42, 43, 44)), (1, (4, 5))):
        with tarfile.open(tmp_path / f"shard.{shard:05}.tar") as archive:
            assert archive.getnames() == [f"{number:09}.txt" for number in numbers]


def test_the_default_hashes_do_not_move_the_ends_of_shards(tmp_path: Path) -> None:
    """mosaicml-streaming has none by default, and counts the settings that a shard carries: its order is its shards'."""
    counts = []
    for name, options in (("default", {}), ("none", {"hashes": ()}), ("named", {"hashes": ["sha1", "xxh3_64"]})):
        with MDSWriter({"x": "int"}, str(tmp_path / name), size_limit=400, **options) as out:
            for number in range(500):
                out.write({"x": number})
        counts.append(StreamingDataset(str(tmp_path / name)).samples_per_shard.tolist())
    assert counts[0] == counts[1] != counts[2]

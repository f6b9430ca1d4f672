"""Datasets of Parquet and of Megatron's files: written whole or not at all, gone on with, added to, and replaced."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, EncodingError, ObjectNotFoundError, StorageError
from stoker.inspection import verify
from stoker.storage import open_store
from stoker.storage.unfinished import MARK
from stoker.tokens import MegatronFile
from stoker.writing import destination
from stoker.writing.destination import Destination
from stoker.writing.megatron_writer import MegatronShardWriter
from stoker.writing.parquet_writer import ParquetWriter

ROWS = 150
COLUMNS = {
    "blob": "bytes",
    "flag": "bool",
    "id": "int",
    "meta": "json",
    "pixels": "ndarray:uint8:4,3",
    "row": "ndarray:float32:5",
    "text": "str",
    "tokens": "ndarray:uint16",
}

pytestmark = pytest.mark.usefixtures("own_cache")


def parquet_sample(number: int) -> dict[str, Any]:
    return {
        "blob": bytes([number % 256]) * (number % 5),
        "flag": number % 3 == 0,
        "id": number,
        "meta": {"n": number},
        "pixels": np.full((4, 3), number % 256, np.uint8),
        "row": np.arange(number, number + 5, dtype=np.float32),
        "text": "é" * (number % 4),
        "tokens": np.arange(number % 7, dtype=np.uint16),
    }


def megatron_sample(number: int) -> dict[str, Any]:
    return {"tokens": np.full(number % 5 + 1, number, np.uint16)}


def parquet_number(sample: Mapping[str, Any]) -> int:
    number = int(sample["id"])
    expected = parquet_sample(number)
    assert sample.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(sample[name], value), (name, number)
    return number


def megatron_number(sample: Mapping[str, Any]) -> int:
    number = int(sample["tokens"][0])
    assert np.array_equal(sample["tokens"], megatron_sample(number)["tokens"])
    return number


@dataclass(frozen=True)
class Case:
    """A format: its writer, and samples that are known by number."""

    make: Any
    columns: Mapping[str, str]
    sample: Callable[[int], dict[str, Any]]
    number: Callable[[Mapping[str, Any]], int]
    limit: int
    """Bytes of a file, of which a data set has several."""


CASES = {
    "megatron": Case(MegatronShardWriter, {"tokens": "ndarray:uint16"}, megatron_sample, megatron_number, 200),
    "parquet": Case(ParquetWriter, COLUMNS, parquet_sample, parquet_number, 3000),
}


def begin(form: str, out: Any, **options: Any) -> Any:
    case = CASES[form]
    return case.make(columns=case.columns, out=out, **{"size_limit": case.limit, **options})


def write(form: str, out: Any, numbers: range = range(ROWS), *, step: int = 20, **options: Any) -> None:
    """Samples one by one and in batches by turns."""
    case = CASES[form]
    with begin(form, out, **options) as writer:
        for first in range(numbers.start, numbers.stop, step):
            samples = [case.sample(number) for number in range(first, min(first + step, numbers.stop))]
            if first // step % 2:
                writer.write_batch({name: [sample[name] for sample in samples] for name in case.columns})
            else:
                for sample in samples:
                    writer.write(sample)
        assert writer.samples_written == numbers.stop


def read(form: str, where: Any, **options: Any) -> list[int]:
    return [CASES[form].number(sample) for sample in StreamingDataset(remote=where, format=form, **options)]


@pytest.mark.parametrize("form", CASES)
@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.s3)])
def test_what_is_written_is_streamed_shuffled_and_resumed(
    form: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where: dict[str, Any] = {"remote": str(tmp_path / "data")}
    storage: dict[str, Any] = {}
    if place == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        storage = {"storage_options": bucket.storage_options}
        where = {"remote": f"{bucket.url}/data", "local": tmp_path / "cache", **storage}
    write(form, where["remote"], **storage)
    store = open_store(where["remote"], storage.get("storage_options"))
    names = {item.key for item in store.list()}
    assert MARK not in names
    assert len(names) > 3
    assert verify(where["remote"], format=form, deep=True, **storage).ok
    order: dict[str, Any] = {**where, "format": form, "shuffle": True, "batch_size": 8}
    numbers = [CASES[form].number(sample) for sample in StreamingDataset(**order)]
    assert sorted(numbers) == list(range(ROWS))
    assert numbers != sorted(numbers)
    stopped = StreamingDataset(**order)
    iterator = iter(stopped)
    head = [CASES[form].number(next(iterator)) for _ in range(48)]
    resumed = StreamingDataset(**order)
    resumed.load_state_dict(stopped.state_dict())
    assert head + [CASES[form].number(sample) for sample in resumed] == numbers


def test_other_programs_read_the_files(tmp_path: Path) -> None:
    write("parquet", tmp_path / "p", compression="zstd:3")
    table = pq.read_table(tmp_path / "p")
    assert table["id"].to_pylist() == list(range(ROWS))
    assert table["tokens"].to_pylist() == [list(range(n % 7)) for n in range(ROWS)]
    assert pq.ParquetFile(tmp_path / "p" / "part-00000.parquet").metadata.row_group(0).column(0).compression == "ZSTD"
    sizes = [path.stat().st_size for path in (tmp_path / "p").glob("*.parquet")]
    assert len(sizes) > 3
    write("megatron", tmp_path / "m")
    parts = [MegatronFile(path) for path in sorted((tmp_path / "m").glob("*.idx"))]
    assert sum(part.num_documents for part in parts) == ROWS
    assert all(int(part.lengths.sum()) * 2 <= 200 for part in parts)


@pytest.mark.parametrize("form", CASES)
def test_nothing_counts_before_the_end(form: str, tmp_path: Path) -> None:
    case, data = CASES[form], tmp_path / "data"
    writer = begin(form, data)
    for number in range(ROWS):
        writer.write(case.sample(number))
    writer.end_shard()
    writer.abort()
    assert list(data.rglob("part-*"))
    with pytest.raises(ObjectNotFoundError, match=r"are being written, or their writer was stopped.*resume=True"):
        read(form, data)
    with pytest.raises(ConfigError, match="this writer is aborted"):
        writer.write(case.sample(0))
    for options, message in (({}, "unfinished writer: pass resume=True"), ({"append": True}, "pass resume=True")):
        with pytest.raises(ConfigError, match=message):
            begin(form, data, **options)
    with begin(form, data, resume=True) as resumed:
        for number in range(resumed.samples_written, ROWS):
            resumed.write(case.sample(number))
    assert read(form, data) == list(range(ROWS))


@pytest.mark.parametrize("form", CASES)
def test_what_is_added_counts_at_the_end_and_what_was_there_until_then(form: str, tmp_path: Path) -> None:
    case, data = CASES[form], tmp_path / "data"
    write(form, data, range(60))
    with begin(form, data, append=True) as writer:
        assert writer.samples_written == 60
        for number in range(60, 100):
            writer.write(case.sample(number))
        writer.end_shard()
        assert read(form, data) == list(range(60))
    assert read(form, data) == list(range(100))
    stopped = begin(form, data, append=True)
    for number in range(100, 140):
        stopped.write(case.sample(number))
    stopped.abort()
    assert read(form, data) == list(range(100))
    with begin(form, data, resume=True) as resumed:
        first = resumed.samples_written
        assert 100 <= first <= 140
        for number in range(first, ROWS):
            resumed.write(case.sample(number))
    assert read(form, data) == list(range(ROWS))


@pytest.mark.parametrize("form", CASES)
@given(stops=st.lists(st.integers(1, 70), max_size=4), together=st.booleans())
@settings(max_examples=12, deadline=None)
def test_however_often_it_stops_every_sample_is_there_once(
    form: str, stops: list[int], together: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case, data = CASES[form], tmp_path_factory.mktemp("stops") / "data"
    for stop in [*stops, ROWS]:
        writer = begin(form, data, resume=True)
        first = writer.samples_written
        numbers = range(first, min(first + stop, ROWS))
        if together and numbers:
            samples = [case.sample(number) for number in numbers]
            writer.write_batch({name: [sample[name] for sample in samples] for name in case.columns})
        else:
            for number in numbers:
                writer.write(case.sample(number))
        if stop != ROWS:
            writer.abort()
    writer.finish()
    assert read(form, data) == list(range(ROWS))


def _write_until_killed(form: str, out: str) -> None:
    writer = begin(form, out)
    for number in itertools.count():
        writer.write(CASES[form].sample(number))
        if number % 30 == 29:
            writer.end_shard()


@pytest.mark.processes
@pytest.mark.parametrize("form", CASES)
def test_a_killed_writer_is_resumed(form: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_write_until_killed, args=(form, str(tmp_path / "data")), daemon=True)
    process.start()
    first_file = f"part-00000{CASES[form].make.ends[-1]}"
    while process.is_alive() and not any(tmp_path.rglob(first_file)):  # uploads run behind the writer, in any order
        time.sleep(0.01)
    process.kill()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    with begin(form, tmp_path / "data", resume=True) as writer:
        first = writer.samples_written
        assert first % 30 == 0
        assert first > 0
        for number in range(first, first + 10):
            writer.write(CASES[form].sample(number))
    assert read(form, tmp_path / "data") == list(range(first + 10))


@pytest.mark.parametrize("form", CASES)
def test_what_is_replaced_never_mixes_with_what_replaces_it(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    write(form, data)
    with pytest.raises(ConfigError, match="exist_ok=True to replace them, or append=True"):
        begin(form, data)
    with monkeypatch.context() as patch:
        patch.setattr(destination, "delete_all", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            begin(form, data, exist_ok=True)
    with pytest.raises(ObjectNotFoundError):
        read(form, data)
    with begin(form, data, resume=True) as writer:  # the files that are left are not its own
        assert writer.samples_written == 0
        for number in range(7):
            writer.write(CASES[form].sample(number))
    assert read(form, data) == list(range(7))
    write(form, data, range(20), exist_ok=True)
    assert read(form, data) == list(range(20))


@pytest.mark.parametrize("form", CASES)
def test_what_follows_a_gap_or_is_half_there_is_removed(form: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    writer = begin(form, data)
    for number in range(ROWS):
        writer.write(CASES[form].sample(number))
        if number % 30 == 29:
            writer.end_shard()
    writer.abort()
    end = CASES[form].make.ends[-1]
    parts = sorted(data.rglob(f"part-*{end}"))
    parts[2].unlink()
    before = sum(
        MegatronFile(path).num_documents if form == "megatron" else pq.read_metadata(path).num_rows
        for path in parts[:2]
    )
    with begin(form, data, resume=True) as resumed:
        assert resumed.samples_written == before
        assert len(list(data.rglob("part-*"))) == 2 * len(CASES[form].make.ends)
        for number in range(before, ROWS):
            resumed.write(CASES[form].sample(number))
    assert read(form, data) == list(range(ROWS))


@pytest.mark.parametrize("form", CASES)
def test_samples_that_do_not_fit_are_named_and_writing_continues(form: str, tmp_path: Path) -> None:
    case = CASES[form]
    with begin(form, tmp_path / "data") as writer:
        for number in range(40):
            good = case.sample(number)
            if number % 10 == 7:
                for bad in (object(), np.zeros((2, 2), np.uint16), np.zeros(3, np.float64)):
                    with pytest.raises(EncodingError, match=rf"column 'tokens' of sample {number}"):
                        writer.write({**good, "tokens": bad})
                    with pytest.raises(EncodingError, match=rf"column 'tokens' of sample {number + 1}"):
                        writer.write_batch(
                            {name: [value, bad if name == "tokens" else value] for name, value in good.items()}
                        )
                with pytest.raises(EncodingError, match=f"sample {number}.*no value for column 'tokens'"):
                    writer.write({name: value for name, value in good.items() if name != "tokens"})
            writer.write(good)
    assert read(form, tmp_path / "data") == list(range(40))


@pytest.mark.parametrize("form", CASES)
def test_other_settings_other_columns_and_other_files_are_refused(form: str, tmp_path: Path) -> None:
    case = CASES[form]
    with case.make(columns={"tokens": "ndarray:int32"}, out=tmp_path / "a") as writer:
        writer.write({"tokens": np.arange(3, dtype=np.int32)})
    with pytest.raises(ConfigError, match=r"has other columns: .*int32.* but this writer has .*uint16"):
        case.make(columns={"tokens": "ndarray:uint16"}, out=tmp_path / "a", append=True)
    stopped = begin(form, tmp_path / "b")
    stopped.write(case.sample(1))
    stopped.end_shard()
    stopped.abort()
    with pytest.raises(ConfigError, match=r"was begun with other settings .size_limit was .*resume with the same"):
        begin(form, tmp_path / "b", resume=True, size_limit=777)
    end = case.make.ends[-1]
    (tmp_path / "c" / "below").mkdir(parents=True)
    (tmp_path / "c" / "below" / f"other{end}").write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"other{end} would be read with what is written here"):
        begin(form, tmp_path / "c")
    (tmp_path / "d").mkdir()
    for one in case.make.ends:
        (tmp_path / "d" / f"part-00000{one}").write_bytes(b"what is this")
    with pytest.raises(CorruptDataError, match=rf"part-00000{end}"):
        begin(form, tmp_path / "d", append=True)
    for options, message in (
        ({"hashes": "sha1"}, "hashes"),
        ({"compression": "lzma"}, "compression"),
        ({"max_workers": -1}, "max_workers"),
        ({"exist_ok": True, "append": True}, "choose"),
        ({"size_limit": "5 GB"}, "size_limit"),
    ):
        with pytest.raises(ConfigError, match=message):
            begin(form, tmp_path / "e", **options)
    with pytest.raises(ConfigError, match="'sizelimit' is unknown; did you mean 'size_limit'"):
        case.make(columns=case.columns, out=tmp_path / "e", sizelimit=3)
    assert not (tmp_path / "e").exists()


def test_columns_that_a_format_can_not_hold_are_refused(tmp_path: Path) -> None:
    for columns in ({}, {"a": "nonsense"}):
        with pytest.raises(ConfigError):
            ParquetWriter(columns, tmp_path)
    for columns in ({}, {"a": "ndarray:uint16", "b": "ndarray:uint16"}, {"a": "str"}, {"a": "ndarray:float32"}):
        with pytest.raises(ConfigError, match="Megatron"):
            MegatronShardWriter(columns, tmp_path)
    with MegatronShardWriter({"a": "ndarray:uint16:4"}, tmp_path) as writer:
        with pytest.raises(EncodingError, match="an array of 4 uint16 tokens"):
            writer.write({"a": np.zeros(3, np.uint16)})
        writer.write_batch({"a": np.arange(8, dtype=np.uint16).reshape(2, 4)})
    options = {"column": "a"}
    samples = list(StreamingDataset(remote=tmp_path, format="megatron", format_options=options))
    assert [sample["a"].tolist() for sample in samples] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("form", CASES)
def test_a_file_that_can_not_be_stored_fails_the_writer(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Destination.put

    def failing(self: Destination, key: str, data: Any) -> None:
        if key.startswith("part-00002"):
            raise StorageError("the store is full", url=key)
        put(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(Destination, "put", failing)
        with pytest.raises(StorageError, match="the store is full"):
            write(form, tmp_path / "data")
    with pytest.raises(ObjectNotFoundError, match="resume=True"):
        read(form, tmp_path / "data")
    with begin(form, tmp_path / "data", resume=True) as writer:
        for number in range(writer.samples_written, ROWS):
            writer.write(CASES[form].sample(number))
    assert read(form, tmp_path / "data") == list(range(ROWS))


@pytest.mark.parametrize("form", CASES)
def test_two_stores_hold_the_same_and_an_empty_dataset_has_its_columns(form: str, tmp_path: Path) -> None:
    out, remote = tmp_path / "local", tmp_path / "remote"
    writer = begin(form, (out, remote), keep_local=True, progress_bar=True)
    for number in range(ROWS):
        writer.write(CASES[form].sample(number))
    writer.abort()
    for path in out.glob("part-00000*"):
        path.unlink()
    with begin(form, (out, remote), keep_local=True, resume=True) as resumed:
        for number in range(resumed.samples_written, ROWS):
            resumed.write(CASES[form].sample(number))
    assert read(form, out) == read(form, remote) == list(range(ROWS))
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == {
        path.name: path.read_bytes() for path in remote.iterdir() if path.is_file()
    }
    write(form, tmp_path / "empty", range(0))
    assert len(StreamingDataset(remote=tmp_path / "empty", format=form)) == 0


def test_a_damaged_note_says_what_to_do(tmp_path: Path) -> None:
    write("parquet", tmp_path, range(5))
    (tmp_path / MARK).write_bytes(b'{"files": 7}')
    with pytest.raises(CorruptDataError, match=rf"{MARK} is damaged"):
        read("parquet", tmp_path)
    (tmp_path / MARK).unlink()
    assert read("parquet", tmp_path) == list(range(5))

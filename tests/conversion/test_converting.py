"""Any source to any format: the same samples, of the types that they had, or an error that names the sample."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import shutil
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from stopped_runs import StoppedError, run, stopping_at

from s3server import Bucket
from stoker import HashSplit, MDSWriter, StreamingDataset
from stoker.catalog.unindexed import sample_files
from stoker.cli import main
from stoker.errors import (
    ConfigError,
    CorruptDataError,
    DecodeError,
    EncodingError,
    ObjectNotFoundError,
    SourceChangedError,
    StokerError,
    TransformError,
    UnsafeDataError,
)
from stoker.storage import open_store
from stoker.storage.files.mounts import file_system_of
from support import COLUMNS, check_sample, ids_of, make_dataset, sample_of, write_columns, write_samples

GOLDEN = Path(__file__).parent / "golden" / "saved_by_datasets"
SAMPLES = 300


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MDS dataset of about nine shards."""
    return make_dataset(tmp_path_factory.mktemp("source") / "mds", SAMPLES)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(StreamingDataset(local=str(folder)))


def ids_in(folder: Path) -> list[int]:
    return ids_of(rows_of(folder))


def files_below(folder: Path) -> list[str]:
    """All but a conversion's record."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if name != ".stoker_convert.json")


# -- formats -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["arrow", "mds", "parquet", "tar", "tfrecord"])
def test_every_sample_comes_back_from_every_format(source: Path, tmp_path: Path, to: str) -> None:
    done = run(source, tmp_path / "out", to=to, size_limit="12kb" if to != "tar" else "60kb")
    assert (done.samples_read, done.samples, done.format) == (SAMPLES, SAMPLES, to)
    assert done.tasks > 1 or to == "tar"
    assert "_convert" not in "".join(files_below(tmp_path / "out"))
    assert not (tmp_path / "out" / "_convert").exists()
    back = run(tmp_path / "out", tmp_path / "back", select=sorted(COLUMNS))
    assert back.columns == COLUMNS
    assert ids_in(tmp_path / "back") == list(range(SAMPLES))


def test_keys_of_a_tar_are_the_samples_numbers_in_all_formats(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "out", to="tar", select=["id"], shard_samples=40)
    assert done.tasks > 1
    keys: list[str] = []
    for path in sorted((tmp_path / "out").rglob("*.tar")):
        with tarfile.open(path) as archive:
            keys += [name.partition(".")[0] for name in archive.getnames()]
    assert keys == [f"{number:09}" for number in range(SAMPLES)]


@pytest.mark.parametrize(
    ("to", "names"),
    [
        ("json", "id text"),
        ("csv", "id text"),
        ("tsv", "id text"),
        ("npz", "id row"),
        ("hdf5", "id row"),
        ("npy", "row"),
    ],
)
def test_formats_of_some_types_hold_these(source: Path, tmp_path: Path, to: str, names: str) -> None:
    run(source, tmp_path / "out", to=to, size_limit="12kb", select=names.split())
    run(tmp_path / "out", tmp_path / "back")
    found = rows_of(tmp_path / "back")
    assert len(found) == SAMPLES
    for number, sample in enumerate(found):
        expected = sample_of(number)
        assert all(np.array_equal(sample[name], expected[name]) for name in names.split())


def test_a_format_that_can_not_hold_a_column_says_so_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"column 'data' is bytes, and csv holds text"):
        run(source, tmp_path / "out", to="csv")
    assert not (tmp_path / "out").exists()


def test_parquet_columns_have_types_of_their_own(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", to="parquet", compression="zstd:3")
    (file,) = (tmp_path / "out").glob("*.parquet")
    table = pq.read_table(file)
    assert {field.name: str(field.type) for field in table.schema} == {
        "data": "binary",
        "id": "int64",
        "row": "fixed_size_list<element: int32>[6]",
        "text": "string",
    }
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    assert table.column("id").to_pylist() == list(range(SAMPLES))


def test_arrays_of_any_shape_survive_parquet(tmp_path: Path) -> None:
    columns = {
        "any": "ndarray",
        "flat": "ndarray:uint16",
        "grid": "ndarray:float32:2,3",
        "big": "str_int",
        "tree": "json",
    }
    made: list[dict[str, Any]] = [
        {
            "any": np.arange(n + 1, dtype=np.int8).reshape(1, -1),
            "flat": np.arange(n + 1, dtype=np.uint16),
            "grid": np.full((2, 3), n, np.float32),
            "big": 10**30 + n,
            "tree": {"n": [n, None]},
        }
        for n in range(20)
    ]
    write_samples(str(tmp_path / "in"), made, columns)
    run(tmp_path / "in", tmp_path / "table", to="parquet")
    done = run(tmp_path / "table", tmp_path / "back")
    assert done.columns == columns
    for sample, expected in zip(rows_of(tmp_path / "back"), made, strict=True):
        assert sample["big"] == expected["big"]
        assert sample["tree"] == expected["tree"]
        for name in ("any", "flat", "grid"):
            assert sample[name].dtype == expected[name].dtype
            assert np.array_equal(sample[name], expected[name])


def test_parquet_to_parquet_keeps_types_and_nulls(tmp_path: Path) -> None:
    table = pa.table(
        {
            "when": pa.array([dt.datetime(2026, 1, day + 1) for day in range(5)], pa.timestamp("us", "UTC")),
            "who": pa.array(["a", None, "b", "a", "c"]).dictionary_encode(),
            "some": pa.array([1, None, 3, 4, 5], pa.int16()),
            "lists": pa.array([[1, 2], None, [], [3], [4, 5]], pa.list_(pa.int32())),
            "deep": pa.array(
                [{"x": [1]}, None, {"x": None}, {"x": []}, {"x": [2]}], pa.struct({"x": pa.list_(pa.int64())})
            ),
        }
    )
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=2)
    run(tmp_path / "in", tmp_path / "out", to="parquet")
    (file,) = (tmp_path / "out").glob("*.parquet")
    found = pq.read_table(file)
    assert found.column_names == table.column_names
    assert [str(kind).replace("element", "item") for kind in found.schema.types] == [
        str(kind).replace("element", "item") for kind in table.schema.types
    ]
    assert found.to_pylist() == table.to_pylist()


def test_types_of_parquet_columns_are_found_out(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2], pa.uint8()),
            "b": pa.array([1.5, 2.5], pa.float32()),
            "c": pa.array(["x", "y"]),
            "d": pa.array([b"x", b"y"]),
            "e": pa.array([[1, 2], [3]], pa.list_(pa.int16())),
            "f": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
            "g": pa.array([{"k": 1}, {"k": 2}]),
            "h": pa.array([True, False]),
            "i": pa.array([dt.date(2026, 1, 2), dt.date(2026, 3, 4)]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    done = run(tmp_path / "a.parquet", tmp_path / "out")
    assert done.columns == {
        "a": "uint8",
        "b": "float32",
        "c": "str",
        "d": "bytes",
        "e": "ndarray:int16",
        "f": "ndarray:float64:2",
        "g": "json",
        "h": "bool",
        "i": "str",
    }
    first, second = rows_of(tmp_path / "out")
    assert (first["i"], second["g"], second["e"].tolist(), second["h"]) == ("2026-01-02", {"k": 2}, [3], False)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_lines_that_others_wrote_are_a_source(tmp_path: Path, form: str) -> None:
    lines = [json.dumps({"n": n, "t": f"t{n}"}) for n in range(50)]
    if form == "csv":
        lines = ["n,t", *(f"{n},t{n}" for n in range(50))]
    (tmp_path / f"a.{form}").write_text("\n".join(lines) + "\n")
    run(tmp_path / f"a.{form}", tmp_path / "out")
    assert [(int(one["n"]), one["t"]) for one in rows_of(tmp_path / "out")] == [(n, f"t{n}") for n in range(50)]


# -- images, sounds, Hugging Face ----------------------------------------------------------------------------------------


def picture(number: int, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 16), (number % 256, 7, 255 - number % 256)).save(out, kind)
    return out.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve JPEG files of three classes."""
    for number in range(12):
        folder = tmp_path / "photos" / ("ant", "bee", "cat")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(picture(number))
    return tmp_path / "photos"


def test_files_of_images_are_copied_byte_for_byte(photos: Path, tmp_path: Path) -> None:
    done = run(photos, tmp_path / "mds")
    assert done.columns == {"image": "jpeg", "path": "str", "class": "str", "label": "int"}
    for sample in rows_of(tmp_path / "mds"):
        assert sample["class"] == sample["path"].partition("/")[0]
        assert sample["label"] == ("ant", "bee", "cat").index(sample["class"])
        assert sample["image"].fp.getvalue() == (photos / sample["path"]).read_bytes()
    # And from one dataset of them to another, and back to files.
    run(tmp_path / "mds", tmp_path / "table", to="parquet")
    run(tmp_path / "table", tmp_path / "again", to="jpeg", select=["image", "class"])
    assert sorted(path.read_bytes() for path in (tmp_path / "again").rglob("*.jpeg")) == sorted(
        path.read_bytes() for path in photos.rglob("*.jpg")
    )
    assert {path.parent.name for path in (tmp_path / "again").rglob("*.jpeg")} == {"ant", "bee", "cat"}


def test_images_of_two_kinds_become_bytes_or_the_kind_that_is_requested(photos: Path, tmp_path: Path) -> None:
    (photos / "ant" / "x.png").write_bytes(picture(3, "PNG"))
    assert run(photos, tmp_path / "mds").columns["image"] == "bytes"
    run(photos, tmp_path / "pngs", to="png")
    assert len(list((tmp_path / "pngs").rglob("*.png"))) == 13
    assert all(Image.open(path).format == "PNG" for path in (tmp_path / "pngs").rglob("*.png"))


def test_a_file_that_is_no_image_is_named(photos: Path, tmp_path: Path) -> None:
    (photos / "bee" / "04.jpg").write_bytes(b"<html>not found</html>")
    with pytest.raises(EncodingError, match=r"photos: sample 5 \(bee/04\.jpg\): .*'image'.*JPEG"):
        run(photos, tmp_path / "out")


def test_a_file_that_is_no_image_is_named_among_images_of_two_kinds(photos: Path, tmp_path: Path) -> None:
    (photos / "ant" / "x.png").write_bytes(picture(3, "PNG"))
    (photos / "bee" / "04.jpg").write_bytes(b"<html>not found</html>")
    (photos / "cat" / "05.jpg").write_bytes(b"")
    with pytest.raises(EncodingError, match=r"\(bee/04\.jpg\): column 'image'.*bytes of a JPEG or PNG file"):
        run(photos, tmp_path / "out")
    done = run(photos, tmp_path / "out", on_bad_sample="skip")
    assert (done.samples, done.bad_samples, done.columns["image"]) == (11, 2, "bytes")
    assert run(photos, tmp_path / "all", columns={"image": "bytes"}).samples == 13
    done = run(photos, tmp_path / "pngs", to="png", on_bad_sample="skip")
    assert (done.samples, done.bad_samples) == (11, 2)


def test_a_file_that_was_written_over_is_read_as_it_is_now(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_files, "_SETTLED", 0.0)
    monkeypatch.setattr(sample_files, "_KNOWN", sample_files._KNOWN | {file_system_of(tmp_path)})
    run(photos, tmp_path / "first")
    with (photos / "bee" / "04.jpg").open("wb") as file:  # no folder changes
        file.write(picture(99))
    run(photos, tmp_path / "second")
    found = {sample["path"]: sample["image"].fp.getvalue() for sample in rows_of(tmp_path / "second")}
    assert found["bee/04.jpg"] == picture(99)


def test_a_folder_of_sounds_goes_through_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    for number in range(3):
        with wave.open(str(tmp_path / "sounds" / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(np.arange(100 * number, dtype="<i2").tobytes())
    run(tmp_path / "sounds", tmp_path / "out")
    for sample in rows_of(tmp_path / "out"):
        with wave.open(io.BytesIO(sample["data"])) as read:
            assert read.getnframes() == 100 * int(sample["path"].partition(".")[0])


def test_images_that_a_package_ships_go_through(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    data = Path(matplotlib.get_data_path())
    files = [*sorted((data / "images").glob("*.png"))[:5], data / "sample_data" / "grace_hopper.jpg"]
    run(files, tmp_path / "out", format="images")
    assert [sample["image"] for sample in rows_of(tmp_path / "out")] == [file.read_bytes() for file in sorted(files)]


def test_what_datasets_saved_to_disk_is_a_source(tmp_path: Path) -> None:
    done = run(GOLDEN, tmp_path / "out")
    assert done.columns == {
        "image": "png",
        "label": "int",
        "text": "str",
        "tokens": "ndarray:int32",
        "grid": "ndarray:float32",
        "flag": "bool",
        "meta": "json",
        "score": "float32",
    }
    for number, sample in enumerate(rows_of(tmp_path / "out")):
        assert sample["image"].getpixel((0, 0)) == (number, 10 * number, 255 - number)
        assert (sample["label"], sample["text"], sample["flag"]) == (number % 3, f"number {number}", number % 2 == 0)
        assert sample["tokens"].tolist() == list(range(number + 1))
        assert sample["grid"].tolist() == [[number + 0.5, 1, 2], [3, 4, 5]]
        assert sample["meta"] == {"a": number, "b": [str(number)]}
        assert sample["score"] == number / 4
    assert number == 6


def test_files_that_are_no_part_of_a_saved_dataset_are_left_out(tmp_path: Path) -> None:
    for file in GOLDEN.iterdir():
        (tmp_path / "saved").mkdir(exist_ok=True)
        (tmp_path / "saved" / file.name).write_bytes(file.read_bytes())
    # What datasets keeps beside the data after map().
    (tmp_path / "saved" / "cache-0123456789abcdef.arrow").write_bytes(
        (GOLDEN / "data-00000-of-00002.arrow").read_bytes()
    )
    assert run(tmp_path / "saved", tmp_path / "out").samples == 7


def test_a_dataset_dict_names_its_splits(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"DatasetDict of the splits train, test: choose one"):
        run(tmp_path, tmp_path.parent / f"{tmp_path.name}-out")


def test_state_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../secret.arrow"}]}')
    with pytest.raises(StokerError, match="_data_files are not names"):
        run(tmp_path, tmp_path.parent / f"{tmp_path.name}-out")


# -- settings ------------------------------------------------------------------------------------------------------------


def test_shuffled_output_has_every_sample_once_in_an_order_of_the_seed(source: Path, tmp_path: Path) -> None:
    orders = []
    for number, options in enumerate([{"seed": 1}, {"seed": 1, "size_limit": 9000}, {"seed": 2}]):
        run(source, tmp_path / str(number), shuffle=True, **options)
        orders.append(ids_in(tmp_path / str(number)))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(SAMPLES)) != orders[2]


def test_splits_are_those_that_training_would_choose(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "out", split={"train": 0.9, "valid": 0.1}, seed=3, size_limit="12kb")
    for name, low, high in (("train", 0, 0.9), ("valid", 0.9, 1)):
        chosen = StreamingDataset(local=str(source), subset=HashSplit(low, high, seed=3))
        assert sorted(ids_in(tmp_path / "out" / name)) == sorted(check_sample(sample) for sample in chosen)
    assert done.splits == {"train": 270, "valid": 30}


def test_shards_are_as_large_as_requested(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out", shard_samples=64, compression="zstd", hashes=["xxh3_64", "sha1"])
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [shard["samples"] for shard in index["shards"]] == [64, 64, 64, 64, 44]
    assert all(set(shard["zip_data"]["hashes"]) == {"sha1", "xxh3_64"} for shard in index["shards"])
    assert ids_in(tmp_path / "out") == list(range(SAMPLES))


def test_types_are_changed_where_nothing_is_lost(source: Path, tmp_path: Path) -> None:
    changed = {"id": "uint16", "row": "ndarray:int64:2,3", "text": "bytes"}
    assert run(source, tmp_path / "out", columns=changed).columns == {**COLUMNS, **changed}
    for number, sample in enumerate(rows_of(tmp_path / "out")):
        expected = sample_of(number)
        assert (sample["id"], sample["text"]) == (number, expected["text"].encode())
        assert np.array_equal(sample["row"], expected["row"].reshape(2, 3))
    with pytest.raises(EncodingError, match=r"mds: sample 256 \(.*column 'id' of it.*\[0, 255\]"):
        run(source, tmp_path / "small", columns={"id": "uint8"})
    with pytest.raises(EncodingError, match=r"sample 0 .*do not fit int16"):
        run(source, tmp_path / "small2", columns={"row": "ndarray:int16:6"})


def double(sample: dict[str, Any]) -> list[dict[str, Any]] | None:
    """No sample of an odd id, two of each that can be divided by 4."""
    if sample["id"] % 2:
        return None
    made = {"id": sample["id"], "row": sample["row"], "size": len(sample["data"])}
    return [made] * (2 if sample["id"] % 4 == 0 else 1)


@pytest.mark.parametrize("form", ["function", "name"])
def test_a_function_maps_samples_to_none_or_several(
    source: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mapping_here.py").write_text("from test_converting import double\n")
    chosen: Any = double if form == "function" else "mapping_here:double"
    done = run(source, tmp_path / "out", transform=chosen, size_limit="3kb")
    assert done.columns == {"id": "int", "row": "ndarray:int32:6", "size": "int"}
    assert [one["id"] for one in rows_of(tmp_path / "out")] == [
        number for number in range(0, SAMPLES, 2) for _ in range(2 if number % 4 == 0 else 1)
    ]
    assert (done.samples_read, done.samples) == (SAMPLES, 225)


def test_columns_are_found_out_where_the_first_samples_are_left_out(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "out", transform=lambda one: {"id": one["id"]} if 100 < one["id"] < 120 else None)
    assert (done.columns, done.samples) == ({"id": "int"}, 19)
    with pytest.raises(ConfigError, match="left out all samples that were tried first: say what it returns"):
        run(source, tmp_path / "none", transform=lambda _: None)
    assert run(source, tmp_path / "none", transform=lambda _: None, columns={"id": "int"}).samples == 0
    assert len(StreamingDataset(local=str(tmp_path / "none"))) == 0


def test_a_function_gets_images_where_it_asks_for_them(photos: Path, tmp_path: Path) -> None:
    def halve(sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.asarray(sample["image"].resize((8, 8))), "label": sample["label"]}

    assert run(photos, tmp_path / "out", transform=halve, decode=True).columns == {
        "image": "ndarray:uint8:8,8,3",
        "label": "int",
    }
    sizes = run(photos, tmp_path / "sizes", transform=lambda sample: {"n": len(sample["image"])})
    assert sizes.columns == {"n": "int"}
    (photos / "ant" / "x.png").write_bytes(picture(3, "PNG"))  # of two kinds the column is bytes
    both = run(photos, tmp_path / "both", transform=halve, decode=True)
    assert (both.samples, both.columns["image"]) == (13, "ndarray:uint8:8,8,3")
    with pytest.raises(ConfigError, match=r"none of the columns data, path .*stoker\.image\.decode"):
        run(photos, tmp_path / "none", transform=halve, decode=True, format="files")


def test_a_function_that_fails_names_the_sample(source: Path, tmp_path: Path) -> None:
    def fail(sample: dict[str, Any]) -> Any:
        if sample["id"] == 217:
            raise KeyError("speaker")
        return sample

    with pytest.raises(
        TransformError, match=r"mds: sample 217 \(row \d+ of shard.*\): the transform raised KeyError: 'speaker'"
    ):
        run(source, tmp_path / "out", transform=fail)
    with pytest.raises(EncodingError, match=r"sample 40 .*returned no 'b'; it returned 'a'"):
        run(source, tmp_path / "two", transform=lambda s: {"a": 1} if s["id"] == 40 else {"a": 1, "b": 2})
    with pytest.raises(EncodingError, match="returned an int, not a sample"):
        run(source, tmp_path / "three", transform=lambda _: 7)


@pytest.fixture
def holes(tmp_path: Path) -> Path:
    """A table with nulls."""
    table = pa.table({"n": pa.array([1, None, 3, 4]), "t": pa.array(["a", "b", None, "d"])})
    pq.write_table(table, tmp_path / "holes.parquet")
    return tmp_path / "holes.parquet"


def test_nulls_are_an_error_or_filled_or_dropped(holes: Path, tmp_path: Path) -> None:
    with pytest.raises(EncodingError, match=r"sample 1 \(row 1 of holes.parquet\): column 'n': it is null: fill="):
        run(holes, tmp_path / "a")
    run(holes, tmp_path / "b", fill={"n": -1, "t": ""})
    assert [(one["n"], one["t"]) for one in rows_of(tmp_path / "b")] == [(1, "a"), (-1, "b"), (3, ""), (4, "d")]
    run(holes, tmp_path / "c", drop_nulls=True)
    assert [one["n"] for one in rows_of(tmp_path / "c")] == [1, 4]
    run(holes, tmp_path / "d", fill={"t": "?"}, drop_nulls=True)
    assert [(one["n"], one["t"]) for one in rows_of(tmp_path / "d")] == [(1, "a"), (3, "?"), (4, "d")]
    run(holes, tmp_path / "e", transform=lambda one: {"known": one["n"] is not None})
    assert [bool(one["known"]) for one in rows_of(tmp_path / "e")] == [True, False, True, True]


MOMENT = dt.datetime(2020, 1, 2, 3)
NULLS: dict[str, tuple[Any, Any, Any]] = {  # a type, a value, and one for nulls
    "float16": (pa.float16(), 1.5, 2.0),
    "float32": (pa.float32(), 1.5, 0),
    "float64": (pa.float64(), 1.5, -1.25),
    "date": (pa.date32(), MOMENT.date(), dt.date(1999, 12, 31)),
    "datetime": (pa.timestamp("us"), MOMENT, dt.datetime(1999, 12, 31)),
    "duration": (pa.duration("us"), dt.timedelta(1), dt.timedelta(0)),
    "time": (pa.time64("us"), dt.time(1), dt.time(2)),
    "int": (pa.int64(), 5, 0),
    "bool": (pa.bool_(), True, False),
    "str": (pa.string(), "a", ""),
}


@pytest.mark.parametrize("kind", NULLS)
@pytest.mark.parametrize("to", ["parquet", "mds"])
def test_nulls_of_any_type_are_filled_or_dropped(kind: str, to: str, tmp_path: Path) -> None:
    arrow, value, filling = NULLS[kind]
    table = pa.table({"n": range(4), "x": pa.array([value, None, value, None], arrow)})
    pq.write_table(table, tmp_path / "x.parquet")
    run(tmp_path / "x.parquet", tmp_path / "dropped", to=to, drop_nulls=True)
    assert [int(one["n"]) for one in rows_of(tmp_path / "dropped")] == [0, 2]
    if to != "parquet" and arrow in (pa.date32(), pa.timestamp("us"), pa.duration("us"), pa.time64("us")):
        filling = "none"  # such columns become text
    run(tmp_path / "x.parquet", tmp_path / "filled", to=to, fill={"x": filling})
    if to == "parquet":
        assert pq.read_table(tmp_path / "filled")["x"].to_pylist() == [value, filling] * 2
        assert pq.read_schema(next((tmp_path / "filled").glob("*.parquet"))).field("x").type == arrow
    else:
        found = [one["x"] for one in rows_of(tmp_path / "filled")]
        assert found[1::2] == [filling] * 2
        assert filling not in found[::2]


def test_floats_that_are_null_stay_if_nothing_is_said(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1.5, None, float("nan")])}), tmp_path / "x.parquet")
    for to in ("parquet", "mds"):
        run(tmp_path / "x.parquet", tmp_path / to, to=to)
        np.testing.assert_equal([one["x"] for one in rows_of(tmp_path / to)], [1.5, np.nan, np.nan])
    told = r"row 1 of x.parquet\).*'x'.*fill=\{'x': 'none'\}: the column holds float64"
    with pytest.raises(EncodingError, match=told):
        run(tmp_path / "x.parquet", tmp_path / "none", to="parquet", fill={"x": "none"})


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.float32()),
        pa.list_(pa.list_(pa.int16())),
        pa.list_(pa.string()),
        pa.list_(pa.struct({"a": pa.int64()})),
    ],
    ids=str,
)
def test_lists_that_are_all_empty_are_converted(kind: pa.DataType, tmp_path: Path) -> None:
    inner: list[Any] = [[], []] if pa.types.is_list(kind.value_type) else []
    for number, values in enumerate(([[], [], []], [inner] * 3)):
        source = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"x": pa.array(values, kind), "y": range(3)}), source)
        run(source, tmp_path / f"out{number}", to="parquet")
        table = pq.read_table(tmp_path / f"out{number}")
        assert table["x"].to_pylist() == values
        assert table.schema.field("x").type == kind


# -- the command ---------------------------------------------------------------------------------------------------------


def test_the_command_converts_and_tells_scripts_what_it_did(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "convert",
        str(source),
        str(tmp_path / "out"),
        "--processes",
        "1",
        "--columns",
        "row=ndarray:int64:2,3,id=uint16",
    ]
    assert (
        main([*given, "--split", "a=0.75,b=0.25", "--shuffle", "--select", "id,row", "--shard-samples", "50", "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["columns"] == {"id": "uint16", "row": "ndarray:int64:2,3"}
    assert told["splits"] == {"a": 225, "b": 75}
    assert main(given) == 1
    assert "holds a finished conversion of another source or with other settings" in capsys.readouterr().err
    assert main(["convert", str(source), str(tmp_path / "text"), "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("300 samples, in 1 file of mds at ")
    for wrong in (
        ["--columns", "x"],
        ["--split", "a=much"],
        ["--fill", "x"],
        ["--processes", "0"],
        ["--select", "a,,b"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["convert", "a", "b", *wrong])
        assert ended.value.code == 2


# -- bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "word"}, "to='word': this format cannot be written; those that can are arrow"),
        ({"select": ["nothing"]}, "column 'nothing' is unknown; known: data, id"),
        ({"columns": {"nothing": "int"}}, "there is no column 'nothing'"),
        ({"columns": {"id": "integer"}}, "encoding 'integer' is unknown"),
        ({"split": {"a": 0.5, "b": 0.4}}, r"shares make 0\.9, not 1"),
        ({"split": {"a/b": 1}}, "can not be the name of a directory"),
        ({"shuffle": "well"}, "shuffle 'well' is unknown; known: none, block, shard, global"),
        ({"transform": "nomodule"}, "is not MODULE:NAME: write transform=module:function"),
        ({"transform": "nomodule_at_all:f"}, "can not be imported"),
        ({"compression": "lzma9"}, "lzma9"),
        ({"to": "parquet", "hashes": "sha1"}, "no index"),
        ({"engine": "spark"}, "engine must be 'local' or 'ray', got 'spark'"),
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"format_options": {"separator": ";"}}, "says all of that itself"),
        ({"decode": True}, "decode=True hands images to a transform"),
        ({"size_limit": "0"}, "size_limit"),
        ({"to": "jpeg"}, "needs a column 'image'"),
    ],
)
def test_settings_that_make_no_sense_leave_nothing(
    source: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_destination_that_is_not_empty_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty: note\.txt is there"):
        run(source, tmp_path)
    with pytest.raises(ConfigError, match=r"is not empty: note\.txt is there"):
        run(source, tmp_path, resume=False)
    assert files_below(tmp_path) == ["note.txt"]
    with pytest.raises(ConfigError, match="is inside the source"):
        run(source, source / "inside")


@pytest.mark.parametrize("kind", ["missing", "empty", "no samples", "unknown", "mixed"])
def test_a_source_of_nothing_or_of_anything_says_so(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    expected: dict[str, tuple[type[StokerError], str]] = {
        "missing": (ObjectNotFoundError, "in does not exist: check what is in"),
        "empty": (ObjectNotFoundError, "there are no files"),
        "no samples": (ConfigError, "has no samples"),
        "unknown": (ConfigError, "do not show a format .1 of .xyz.: pass format="),
        "mixed": (ConfigError, "1 of npy, 1 of parquet and 1 of .xyz, which no format reads"),
    }
    if kind != "missing":
        folder.mkdir()
    if kind == "no samples":
        pq.write_table(pa.table({"a": pa.array([], pa.int64())}), folder / "a.parquet")
    if kind in ("unknown", "mixed"):
        (folder / "a.xyz").write_bytes(b"?")
    if kind == "mixed":
        (folder / "a.parquet").write_bytes(b"?")
        (folder / "a.npy").write_bytes(b"?")
    error, message = expected[kind]
    with pytest.raises(error, match=message):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_shard_is_named_and_the_run_continues_once_it_is_mended(source: Path, tmp_path: Path) -> None:
    for file in source.iterdir():
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / file.name).write_bytes(file.read_bytes())
    bad = sorted((tmp_path / "in").glob("shard.*"))[5]
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-3])
    with pytest.raises(StokerError, match=bad.name):
        run(tmp_path / "in", tmp_path / "out", size_limit="6kb")
    assert not (tmp_path / "out" / "index.json").exists()
    bad.write_bytes(whole)
    done = run(tmp_path / "in", tmp_path / "out", size_limit="6kb")
    assert 0 < done.resumed < done.tasks
    assert ids_in(tmp_path / "out") == list(range(SAMPLES))


def test_pickled_columns_need_consent(tmp_path: Path) -> None:
    with MDSWriter({"x": "pkl"}, str(tmp_path / "in")) as writer:
        writer.write({"x": {1, 2}})
    with pytest.raises(UnsafeDataError):
        run(tmp_path / "in", tmp_path / "out")
    run(tmp_path / "in", tmp_path / "out", allow_unsafe_types=True)
    (sample,) = StreamingDataset(local=str(tmp_path / "out"), allow_unsafe_types=True)
    assert sample == {"x": {1, 2}}


# -- going on ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["mds", "parquet"])
def test_a_stopped_run_is_completed_and_gives_the_same_files(source: Path, tmp_path: Path, to: str) -> None:
    options: dict[str, Any] = {"to": to, "size_limit": "4kb", "shuffle": True, "split": {"a": 0.5, "b": 0.5}}
    run(source, tmp_path / "whole", **options)
    with pytest.raises(StoppedError):
        run(source, tmp_path / "out", **options, progress=stopping_at(150))
    assert not list((tmp_path / "out").rglob("index.json"))
    assert not list((tmp_path / "out").glob("[ab]/*.parquet"))
    done = run(source, tmp_path / "out", **options)
    assert 0 < done.resumed < done.tasks
    assert done.samples == SAMPLES
    names = files_below(tmp_path / "whole")
    assert names == files_below(tmp_path / "out")
    assert all((tmp_path / "whole" / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in names)


def test_what_was_noted_but_is_gone_is_made_again(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(source, tmp_path / "out", size_limit="4kb", progress=stopping_at(150))
    (tmp_path / "out" / "00001" / "shard.00000.mds").unlink()
    run(source, tmp_path / "out", size_limit="4kb")
    assert ids_in(tmp_path / "out") == list(range(SAMPLES))


def test_other_settings_do_not_resume_but_start_again_if_requested(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(source, tmp_path / "out", size_limit="4kb", progress=stopping_at(150))
    with pytest.raises(ConfigError, match=r'unfinished conversion.*\(compression was null, is "zstd"\).*resume=False'):
        run(source, tmp_path / "out", size_limit="4kb", compression="zstd")
    done = run(source, tmp_path / "out", size_limit="4kb", compression="zstd", resume=False)
    assert done.resumed == 0
    assert all(name.endswith((".zstd", "index.json")) for name in files_below(tmp_path / "out"))
    assert ids_in(tmp_path / "out") == list(range(SAMPLES))


def test_starting_again_removes_nothing_that_is_not_its_own(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(source, tmp_path / "out", size_limit="4kb", progress=stopping_at(150))
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"thesis\.txt is there"):
        run(source, tmp_path / "out", size_limit="4kb", resume=False)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def _samples_to(kind: str, folder: Path, *, offset: int) -> None:
    """200 samples in 20 files of equal size, the same for each offset."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    numbers = np.arange(200, dtype=np.int64) + offset
    if kind == "mds":
        write_columns(str(folder), {"x": numbers}, {"x": "int64"}, size_limit=200)
        return
    for number, part in enumerate(np.split(numbers, 20)):
        if kind == "parquet":
            pq.write_table(pa.table({"x": part}), folder / f"{number:02}.parquet", compression="none")
        elif kind == "npy":
            np.save(folder / f"{number:02}.npy", part)
        elif kind == "jsonl":
            (folder / f"{number:02}.jsonl").write_text("".join(f'{{"x": {one}}}\n' for one in part.tolist()))
        else:
            (folder / f"{number:02}.data").write_bytes(part.tobytes())


SOURCES = ["mds", "parquet", "npy", "jsonl", "files"]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_of_the_same_sizes_that_was_rewritten_does_not_continue(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"shard_samples": 10 if kind != "files" else 1}
    options["format"] = "files" if kind == "files" else None
    _samples_to(kind, tmp_path / "in", offset=1000)
    with pytest.raises(StoppedError):
        run(tmp_path / "in", tmp_path / "out", **options, progress=stopping_at(100 if kind != "files" else 10))
    left = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    _samples_to(kind, tmp_path / "in", offset=2000)
    with pytest.raises(
        SourceChangedError, match=r"00[^ ]* was changed, .* and \d+ more.*Nothing was overwr.*--restart"
    ):
        run(tmp_path / "in", tmp_path / "out", **options)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == left
    done = run(tmp_path / "in", tmp_path / "out", **options, resume=False)
    assert done.resumed == 0
    if kind != "files":
        assert [int(next(iter(row.values()))) for row in rows_of(tmp_path / "out")] == list(range(2000, 2200))


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_is_rewritten_meanwhile_makes_no_dataset(tmp_path: Path, kind: str) -> None:
    _samples_to(kind, tmp_path / "in", offset=1000)
    file = min(path for path in (tmp_path / "in").iterdir() if "index" not in path.name)
    data = file.read_bytes()
    options: dict[str, Any] = {"shard_samples": 10 if kind != "files" else 1}
    options["format"] = "files" if kind == "files" else None

    def progress(done: int, total: int) -> None:
        if done == total:  # the file was read long ago
            (file.parent / ".new").write_bytes(data)
            os.replace(file.parent / ".new", file)

    with pytest.raises(
        SourceChangedError, match=rf"changed while they were read \({file.name} was changed\): .*--restart"
    ):
        run(tmp_path / "in", tmp_path / "out", **options, progress=progress)
    assert not (tmp_path / "out" / "index.json").exists()
    with pytest.raises(SourceChangedError, match=rf"{file.name} was changed\)"):
        run(tmp_path / "in", tmp_path / "out", **options)
    run(tmp_path / "in", tmp_path / "out", **options, resume=False)
    assert (tmp_path / "out" / "index.json").exists()


@pytest.mark.s3
def test_an_object_that_was_replaced_is_not_resumed(tmp_path: Path, bucket: Bucket) -> None:
    _samples_to("mds", tmp_path / "old", offset=1000)
    _samples_to("mds", tmp_path / "new", offset=2000)
    store = open_store(f"{bucket.url}/in", bucket.storage_options)

    def upload(folder: Path) -> None:
        for path in folder.iterdir():
            store.put(path.name, path.read_bytes())

    options: dict[str, Any] = {"shard_samples": 10, "source_options": bucket.storage_options}
    upload(tmp_path / "old")
    with pytest.raises(StoppedError):
        run(store.url, tmp_path / "out", **options, progress=stopping_at(100))
    upload(tmp_path / "new")
    with pytest.raises(SourceChangedError, match=r"shard\.00000\.mds was changed"):
        run(store.url, tmp_path / "out", **options)
    run(store.url, tmp_path / "out", **options, resume=False)  # and nothing comes from what was fetched before
    assert [int(next(iter(row.values()))) for row in rows_of(tmp_path / "out")] == list(range(2000, 2200))


def test_what_is_done_is_done_and_says_so(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["convert", str(source), str(tmp_path / "out"), "--size-limit", "4kb", "--processes", "1"]
    assert main(command) == 0
    before = files_below(tmp_path / "out")
    capsys.readouterr()
    assert main(command) == 0
    assert "tasks done before" in capsys.readouterr().out
    assert files_below(tmp_path / "out") == before
    assert main([*command, "--restart"]) == 1
    assert "holds a finished conversion: convert to another place" in capsys.readouterr().err
    (tmp_path / "out" / before[0]).unlink()
    with pytest.raises(CorruptDataError, match="was finished there with"):
        run(source, tmp_path / "out", size_limit="4kb")


def test_a_run_that_has_written_nothing_leaves_nothing_to_resume(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(source, tmp_path / "out", size_limit="4kb", progress=stopping_at(0))
    assert (tmp_path / "out" / ".stoker_convert.json").exists()
    assert run(source, tmp_path / "out", size_limit="5kb").samples == SAMPLES


def test_a_path_that_is_misspelt_is_reported_with_names_like_it(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for wrong in (tmp_path / "fotos", [tmp_path / "fotos"]):
        with pytest.raises(ObjectNotFoundError, match="fotos does not exist: did you mean 'photos'"):
            run(wrong, tmp_path / "out")
    with pytest.raises(ObjectNotFoundError, match="nor does its directory"):
        run(tmp_path / "gone" / "photos", tmp_path / "out")


def test_a_source_that_changed_does_not_continue(source: Path, tmp_path: Path) -> None:
    make_dataset(tmp_path / "in", 100)
    with pytest.raises(StoppedError):
        run(tmp_path / "in", tmp_path / "out", size_limit="3kb", progress=stopping_at(50))
    make_dataset(tmp_path / "in", 110, exist_ok=True)
    with pytest.raises(
        SourceChangedError, match=r"samples was 100.*index.json was changed, shard.*Nothing was overw.*--restart"
    ):
        run(tmp_path / "in", tmp_path / "out", size_limit="3kb")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stops=st.lists(st.integers(1, 99), max_size=3),
    shard_samples=st.integers(3, 40),
    shuffle=st.sampled_from(["none", "global", "block"]),
    share=st.sampled_from([None, 0.25]),
)
def test_however_often_it_stops_no_sample_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], shard_samples: int, shuffle: Any, share: float | None
) -> None:
    folder = tmp_path_factory.mktemp("law")
    make_dataset(folder / "in", 100)
    options: dict[str, Any] = {"shard_samples": shard_samples, "shuffle": shuffle}
    if share is not None:
        options["split"] = {"a": share, "b": 1 - share}
    for stop in stops:
        try:
            run(folder / "in", folder / "out", **options, progress=stopping_at(stop))
        except StoppedError:
            continue
        break
    else:
        run(folder / "in", folder / "out", **options)
    roots = [folder / "out"] if share is None else [folder / "out" / "a", folder / "out" / "b"]
    assert sorted(number for root in roots for number in ids_in(root)) == list(range(100))


def test_blobs_are_fixed_size_binary_and_stay_so_from_parquet_to_parquet(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = {"blob": rng.integers(0, 256, (30, 500), np.uint8), "grid": rng.random((30, 2, 3), np.float32)}
    write_columns(str(tmp_path / "in"), made, {"blob": "ndarray:uint8:500", "grid": "ndarray:float32:2,3"})
    run(tmp_path / "in", tmp_path / "one", to="parquet")
    run(tmp_path / "one", tmp_path / "two", to="parquet")
    for folder in ("one", "two"):
        (file,) = (tmp_path / folder).glob("*.parquet")
        schema = pq.read_schema(file)
        assert [str(field.type) for field in schema] == ["fixed_size_binary[500]", "fixed_size_binary[24]"]
        assert schema.field("grid").metadata == {b"dtype": b"float32", b"shape": b"2,3"}
        raw = pq.read_table(file).column("blob").to_pylist()
        assert raw == [row.tobytes() for row in made["blob"]]
    run(tmp_path / "two", tmp_path / "back")
    back = StreamingDataset(local=tmp_path / "back").read(range(30))
    for name, values in made.items():
        assert np.array_equal(np.stack(list(back[name])), values)


def test_an_image_that_does_not_decode_for_a_transform_is_named(tmp_path: Path) -> None:
    with MDSWriter({"image": "jpeg", "id": "int"}, str(tmp_path / "photos")) as out:
        for number in range(300):
            out.write({"image": b"\xff\xd8 this is no image" if number == 217 else _jpeg(number), "id": number})
    with pytest.raises(DecodeError, match=r"sample 217 \(row 217 of shard.*\): column 'image': not a whole image file"):
        run(tmp_path / "photos", tmp_path / "out", transform=lambda sample: sample, decode=True)


def _jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), number % 256).save(file, "jpeg")
    return file.getvalue()

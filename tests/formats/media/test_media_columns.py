"""Columns of encoded videos and sounds become handles, in every format that holds bytes, one by one and in batches."""

from __future__ import annotations

import io
import pickle
import tarfile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from media_files import all_frames, decode_nested, jpeg, sound_file, sweep, video_file

from stoker import Audio, StreamingDataLoader, StreamingDataset, Video
from stoker.errors import ConfigError
from stoker.media import as_audio, as_video
from stoker.writers import open_writer

COUNT = 6


@pytest.fixture(scope="module")
def video() -> bytes:
    return video_file(frames=40)


@pytest.fixture(scope="module")
def sound() -> bytes:
    return sound_file(sweep(seconds=0.5))


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        "frames": sample["mp4"].clip(sample["number"] / 30, 4),
        "samples": sample["flac"].clip(sample["number"] / 100, 0.1),
        "number": sample["number"],
    }


@pytest.mark.parametrize("form", ["mds", "parquet", "tar", "arrow", "tfrecord"])
def test_every_format_that_holds_bytes_gives_handles(form: str, tmp_path: Path, video: bytes, sound: bytes) -> None:
    with open_writer(form, {"mp4": "bytes", "flac": "bytes", "number": "int64"}, tmp_path / "data") as out:
        for number in range(COUNT):
            out.write({"mp4": video, "flac": sound, "number": number})
    every, samples = all_frames(video), Audio(sound).clip(0, 0.5)
    handles = StreamingDataset(tmp_path / "data", batch_size=3).map(as_video("mp4")).map(as_audio("flac"))
    assert handles.chain.names == ("as_video('mp4')", "as_audio('flac')")
    clips = handles.map(decode)
    one = pickle.loads(pickle.dumps(handles[2]))
    assert isinstance(one["mp4"], Video)
    assert isinstance(one["flac"], Audio)
    batch = next(handles.batches())
    assert [type(value) for value in batch["mp4"]] == [Video] * 3
    seen = []
    for batch in clips.batches():
        for number, frames, part in zip(map(int, batch["number"]), batch["frames"], batch["samples"], strict=True):
            assert np.array_equal(frames, every[number : number + 4])
            assert np.array_equal(part, samples[160 * number : 160 * number + 1600])
            seen.append(number)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_send_handles_and_clips(method: str, tmp_path: Path, video: bytes, sound: bytes) -> None:
    with open_writer("mds", {"mp4": "bytes", "flac": "bytes", "number": "int64"}, tmp_path / "data") as out:
        for number in range(COUNT):
            out.write({"mp4": video, "flac": sound, "number": number})
    every = all_frames(video)
    handles = StreamingDataset(tmp_path / "data", batch_size=3).map(as_video("mp4"))
    for columnar in (False, True):
        loader = StreamingDataLoader(
            handles,
            num_workers=1,
            columnar=columnar,
            collate_fn=None if columnar else list,
            multiprocessing_context=method,
        )
        batches: list[Any] = list(loader)
        found: list[tuple[Any, Video]] = []
        for batch in batches:
            rows = (
                zip(batch["number"], batch["mp4"], strict=True) if columnar else map(itemgetter("number", "mp4"), batch)
            )
            found += rows
        assert len(found) == COUNT
        for number, one in found:
            assert np.array_equal(one.clip(int(number) / 30, 2), every[int(number) : int(number) + 2])


def test_dicts_as_hugging_face_stores_files_become_handles(video: bytes) -> None:
    rows = [{"mp4": {"bytes": video, "path": "a.mp4"}}, {"mp4": {"bytes": None, "path": None}}]
    whole, missing = map(as_video("mp4"), rows)
    assert np.array_equal(whole["mp4"].clip(0, 2), Video(video).clip(0, 2))
    assert missing == {"mp4": None}


def test_damaged_files_are_bad_samples(tmp_path: Path, video: bytes, sound: bytes) -> None:
    with open_writer("mds", {"mp4": "bytes", "flac": "bytes", "number": "int64"}, tmp_path / "data") as out:
        for number in range(COUNT):
            out.write({"mp4": b"nonsense" if number == 3 else video, "flac": sound, "number": number})
    chain = StreamingDataset(tmp_path / "data", on_bad_sample="skip").map(as_video("mp4")).map(as_audio("flac"))
    dataset = chain.map(decode)
    assert [sample["number"] for sample in dataset] == [0, 1, 2, 4, 5]
    assert dataset.stats().bad_samples == 1


def test_samples_of_lists_of_images_text_and_sounds(tmp_path: Path, sound: bytes) -> None:
    rows = [
        {"images": [jpeg(one) for one in range(number)], "text": f"text {number}", "sounds": [sound] * (number % 2)}
        for number in range(COUNT)
    ]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "rows.parquet")
    dataset = StreamingDataset(tmp_path / "data", batch_size=2).map(as_audio("sounds")).map(decode_nested)
    found: list[Any] = [sample for batch in StreamingDataLoader(dataset, collate_fn=list) for sample in batch]
    assert [sample["text"] for sample in found] == [row["text"] for row in rows]
    for number, sample in enumerate(found):
        assert [int(one[0, 0, 0]) // 20 for one in sample["images"]] == pytest.approx(list(range(number)), abs=1)
        assert [one.shape for one in sample["sounds"]] == [(1600, 2)] * (number % 2)
    assert [len(value) for value in next(dataset.batches())["images"]] == [0, 1]


def test_nested_samples_of_mds_and_tar(tmp_path: Path, sound: bytes) -> None:
    with open_writer("mds", {"images": "list[jpeg]", "tags": "json", "flac": "bytes"}, tmp_path / "mds") as out:
        for number in range(3):
            images = [jpeg(one) for one in range(number)]
            out.write({"images": images, "tags": ["a", {"b": number}], "flac": sound})
    dataset = StreamingDataset(tmp_path / "mds", batch_size=3).map(as_audio("flac"))
    (batch,) = list(StreamingDataLoader(dataset, collate_fn=list))
    for number, sample in enumerate(batch):
        assert [int(np.asarray(one)[0, 0, 0]) // 20 for one in sample["images"]] == pytest.approx(range(number), abs=1)
        assert sample["tags"] == ["a", {"b": number}]
        assert sample["flac"].clip(0.1, 0.1).shape == (1600, 2)
    (tmp_path / "tar").mkdir()
    with tarfile.open(tmp_path / "tar" / "0.tar", "w") as archive:
        for number in range(3):
            for one in range(number + 1):
                member = tarfile.TarInfo(f"{number}.{one}.flac")
                member.size = len(sound)
                archive.addfile(member, io.BytesIO(sound))
    columns = ["0.flac", "1.flac", "2.flac"]
    rows = list(StreamingDataset(tmp_path / "tar").map(as_audio(columns)))
    assert [[type(row[name]) for name in columns] for row in rows] == [
        [Audio] * (number + 1) + [type(None)] * (2 - number) for number in range(3)
    ]


def test_what_holds_no_bytes_is_an_error() -> None:
    for sample, said in [({"x": 1}, "column 'mp4'"), ({"mp4": 3}, "column 'mp4' is int"), ([1], "are dicts")]:
        with pytest.raises(ConfigError, match=said):
            as_video("mp4")(sample)
    for columns in ("", [], ["a", ""]):
        with pytest.raises(ConfigError, match="names no column"):
            as_audio(columns)
    assert as_video(["a", "b"])({"a": None, "b": [], "c": 1}) == {"a": None, "b": [], "c": 1}

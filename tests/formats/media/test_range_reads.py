"""A clip of a file in a store fetches the clip's bytes, by few requests, and nothing is fetched before it is asked for."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from media_files import all_frames, sound_file, sweep, video_file

from s3server import Bucket, CountingProxy
from stoker import Audio, ReadOptions, StreamingDataLoader, StreamingDataset, Video, inspect
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ShardInfo
from stoker.formats.media.source import BytesOfFile, StoredFile
from stoker.formats.registry import get_format
from stoker.storage import open_store
from stoker.storage.local import LocalStore
from stoker.storage.types import BufferLike

pytestmark = pytest.mark.usefixtures("own_cache")


class CountedStore(LocalStore):
    """A directory, and the ranges that were read of it."""

    def __init__(self, url: Path) -> None:
        super().__init__(url)
        self.ranges: list[tuple[int, int]] = []

    def get_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int], *, version: str = ""
    ) -> list[BufferLike]:
        self.ranges += zip(starts, ends, strict=True)
        return super().get_ranges(key, starts, ends, version=version)

    @property
    def fetched(self) -> int:
        return sum(end - start for start, end in self.ranges)


def counted(folder: Path, data: bytes) -> tuple[CountedStore, BytesOfFile]:
    (folder / "file").write_bytes(data)
    store = CountedStore(folder)
    return store, BytesOfFile(store, "file", store.head("file").version, 0, len(data))


@pytest.fixture(scope="module")
def large() -> bytes:
    """200 frames of noise, about 20 MB, a key frame every 12."""
    file = io.BytesIO()
    rng = np.random.default_rng(0)
    with av.open(file, "w", format="mp4") as out:
        stream: Any = out.add_stream("libx264", rate=25, options={"preset": "ultrafast", "qp": "14", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = 320, 256, "yuv420p"
        for _ in range(200):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(rng.integers(0, 256, (256, 320, 3), dtype=np.uint8))))
        out.mux(stream.encode())
    return file.getvalue()


def test_a_clip_of_a_large_video_fetches_a_small_part(tmp_path: Path, large: bytes) -> None:
    assert len(large) > 18e6
    store, source = counted(tmp_path, large)
    video = Video.of(source)
    assert store.ranges == []
    assert video.facts.frames == 200
    header = store.fetched
    assert header < 1e6
    found = video.clip(4.0, 8)
    assert store.fetched - header < 0.13 * len(large)  # 4 frames from the key frame on, 8, and what the decoder holds
    assert len(store.ranges) <= 6
    bare: Any = av.open(io.BytesIO(large))
    every = [frame.to_ndarray(format="rgb24", threads=1) for frame in islice(bare.decode(video=0), 108)]
    assert np.array_equal(found, every[100:108])
    before = len(store.ranges)
    assert np.array_equal(video.clip(4.0, 8), found)  # what is open has its bytes at hand
    assert len(store.ranges) == before


def test_a_format_whose_index_has_no_sizes_fetches_a_part(tmp_path: Path, large: bytes) -> None:
    file = io.BytesIO()
    source: Any = av.open(io.BytesIO(large))
    with av.open(file, "w", format="matroska") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    store, here = counted(tmp_path, file.getvalue())
    found = Video.of(here).clip(4.0, 8)
    assert np.array_equal(found, Video(large).clip(4.0, 8))
    assert store.fetched < 0.4 * len(large)


def test_a_clip_of_a_sound_fetches_a_part(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, (16000 * 60, 2)).astype(np.float32)
    for kind in ("FLAC", "WAV"):
        data = sound_file(samples, kind=kind)
        store, source = counted(tmp_path, data)
        assert np.array_equal(Audio.of(source).clip(30.0, 1.0), Audio(data).clip(30.0, 1.0))
        assert store.fetched < 0.3 * len(data)


def test_a_part_of_a_file_is_a_video_of_its_own(tmp_path: Path) -> None:
    data = video_file()
    (tmp_path / "two").write_bytes(b"x" * 1000 + data + b"y" * 1000)
    store = open_store(tmp_path)
    source = BytesOfFile(store, "two", store.head("two").version, 1000, len(data))
    assert np.array_equal(pickle.loads(pickle.dumps(Video.of(source))).clip(2.0, 4), all_frames(data)[60:64])


def test_a_folder_of_videos_is_listed_and_not_read(tmp_path: Path) -> None:
    data = video_file()
    every = all_frames(data)
    for number in range(5):
        (tmp_path / "clips" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "clips" / f"{number % 2}" / f"{number}.mp4").write_bytes(data)
    options: dict[str, Any] = {"format_options": {"media": "video"}, "batch_size": 2}
    dataset = StreamingDataset(tmp_path / "clips", shuffle=True, **options)
    seen = []
    for batch in dataset.batches():
        assert [type(value) for value in batch["data"]] == [Video] * len(batch["path"])
        seen += [*batch["path"]]
    assert sorted(seen) == ["0/0.mp4", "0/2.mp4", "0/4.mp4", "1/1.mp4", "1/3.mp4"]
    assert np.array_equal(dataset[0]["data"].clip(1, 3), every[30:33])
    assert dataset.stats().bytes_read == 0
    facts = inspect(tmp_path / "clips", format_options=options["format_options"])
    assert "Video" in str(facts.preview[0]["data"])
    (tmp_path / "clips" / "0" / "0.mp4").write_bytes(data + b"more")
    with pytest.raises(OSError, match="written to"):
        dataset[0]["data"].clip(1, 3)
    with pytest.raises(ConfigError, match="'video', 'audio'"):
        StreamingDataset(tmp_path / "clips", format_options={"media": "picture"})


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "frames": sample["data"].clip(0.5, 2)}


def tar_of(samples: int, video: bytes, missing: int = -1) -> bytes:
    """An archive of samples of a number, text and a video."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for number in range(samples):
            parts = {"cls": str(number).encode(), "txt": f"text {number}".encode(), "mp4": video}
            for extension, data in parts.items():
                if number != missing or extension != "mp4":
                    member = tarfile.TarInfo(f"{number:03}.{extension}")
                    member.size = len(data)
                    out.addfile(member, io.BytesIO(data))
    return file.getvalue()


def test_videos_in_archives_are_read_by_ranges_in_a_directory_and_compressed(tmp_path: Path) -> None:
    data = video_file()
    every = all_frames(data)
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    (tmp_path / "plain" / "0.tar").write_bytes(tar_of(3, data, missing=1))
    (tmp_path / "packed" / "0.tar.gz").write_bytes(gzip.compress(tar_of(3, data, missing=1), 1))
    options: dict[str, Any] = {"format_options": {"media": {"mp4": "video"}}, "batch_size": 3}
    for folder in ("plain", "packed"):
        dataset = StreamingDataset(tmp_path / folder, **options)
        batch = next(dataset.batches())
        assert [list(map(int, batch["cls"])), batch["txt"]] == [[0, 1, 2], ["text 0", "text 1", "text 2"]]
        assert batch["mp4"][1] is None
        for number in (0, 2):
            copy = pickle.loads(pickle.dumps(batch["mp4"][number]))
            assert np.array_equal(copy.clip(1.0, 4), every[30:34])
    assert "000.mp4" in repr(StreamingDataset(tmp_path / "plain", **options)[0]["mp4"])
    for wrong, said in [
        ({"mp4": "picture"}, "'video' or 'audio'"),
        ("video", "'video' or 'audio'"),
        ({"mp5": "video"}, "mp5"),
    ]:
        with pytest.raises(ConfigError, match=said):
            StreamingDataset(tmp_path / "plain", format_options={"media": wrong})


def test_an_archive_of_large_videos_is_read_in_part(tmp_path: Path, large: bytes) -> None:
    data = tar_of(3, large)
    store, _ = counted(tmp_path, data)
    tar = get_format("tar")
    columns = {"__key__": "str", "cls": "str_int", "txt": "str", "mp4": "bytes"}
    spec = {"columns": columns, "encodings": columns, "media": {"mp4": "video"}}
    left = StoredFile.of(store, "file", len(data), store.head("file").version)
    shard: Any = tar.open(ShardInfo("tar", 3, (), (), None, spec, left), [], where="file")
    sample = tar.read_one(shard, 2)
    assert (sample["cls"], sample["txt"]) == (2, "text 2")
    assert store.fetched < 0.02 * len(data)
    assert np.array_equal(sample["mp4"].clip(4.0, 8), Video(large).clip(4.0, 8))
    assert store.fetched < 0.07 * len(data)


def test_a_folder_of_sounds_gives_handles(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    for number in range(3):
        (tmp_path / "sounds" / f"{number}.flac").write_bytes(sound_file(sweep(seconds=1 + number)))
    (tmp_path / "sounds" / "3.flac").write_bytes(b"nonsense")
    dataset = StreamingDataset(tmp_path / "sounds", format_options={"media": "audio"}, on_bad_sample="skip")
    lengths = dataset.map(lambda sample: sample["data"].facts.duration)
    assert list(lengths) == [1, 2, 3]
    with pytest.raises(CorruptDataError, match=r"3\.flac"):
        StreamingDataset(tmp_path / "sounds", format_options={"media": "audio"})[3]["data"].clip(0, 1)


@pytest.mark.s3
@pytest.mark.processes
def test_videos_in_a_bucket_are_read_by_ranges(bucket: Bucket, proxies: list[CountingProxy], tmp_path: Path) -> None:
    data = video_file()
    every = all_frames(data)
    store = open_store(f"{bucket.url}/clips", bucket.storage_options)
    for number in range(4):
        store.put(f"{number}.mp4", data)
    options = {**bucket.storage_options, "endpoint": proxies[0].endpoint}
    dataset = StreamingDataset(
        f"{bucket.url}/clips",
        local=tmp_path / "cache",
        format_options={"media": "video"},
        storage_options=options,
        batch_size=2,
    )
    listed = len(proxies[0].requests)
    handles = dataset[1:3]
    assert len(proxies[0].requests) == listed
    assert np.array_equal(handles[1]["data"].clip(2.0, 4), every[60:64])
    assert 0 < len(proxies[0].requests) - listed <= 6
    loader = StreamingDataLoader(dataset, num_workers=1, collate_fn=list)
    for batch in loader:
        for sample in batch:
            assert np.array_equal(sample["data"].clip(0.5, 2), every[15:17])
    processes = StreamingDataset(
        f"{bucket.url}/clips",
        local=tmp_path / "cache",
        format_options={"media": "video"},
        storage_options=options,
        batch_size=2,
        read=ReadOptions(run_in="processes", read_processes=1),
    ).map(decoded)
    for batch in processes.batches():  # clips of a process, and handles that it sent
        assert all(np.array_equal(frames, every[15:17]) for frames in batch["frames"])
        assert all(np.array_equal(one.clip(2.0, 4), every[60:64]) for one in batch["data"])
    store.put("archives/0.tar", tar_of(3, data))
    archive = StreamingDataset(
        f"{bucket.url}/clips/archives",
        local=tmp_path / "cache",
        format_options={"media": {"mp4": "video"}},
        storage_options=options,
    )
    assert np.array_equal(archive[2]["mp4"].clip(2.0, 4), every[60:64])
    assert not any(path.suffix == ".mp4" for path in (tmp_path / "cache").rglob("*"))
    assert np.array_equal(Video(f"{bucket.url}/clips/3.mp4", options).clip(1, 2), every[30:32])

"""Handles, clips and samples of several images, texts and sounds come the same from threads, workers and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from media_files import all_frames, decode_nested, jpeg, sound_file, sweep, video_file

from stoker import Audio, MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset, Video
from stoker.image import Decode
from stoker.media import as_audio, as_video

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("own_cache")]

COUNT = 6
FORK = ReadOptions(run_in="processes", start_method="fork", read_processes=2)
SPAWN = ReadOptions(run_in="processes", read_processes=1)
THREADS = ReadOptions(read_threads=2)


@pytest.fixture(scope="module")
def video() -> bytes:
    return video_file(frames=40)


@pytest.fixture(scope="module")
def sound() -> bytes:
    return sound_file(sweep(seconds=0.5))


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory, sound: bytes) -> Path:
    """Samples of several images, a text, a dict, and some sounds."""
    out = tmp_path_factory.mktemp("nested") / "data"
    out.mkdir()
    rows = [
        {
            "number": number,
            "images": [jpeg(one) for one in range(number % 4)],
            "text": f"text {number}",
            "about": {"tags": ["a"] * number},
            "sounds": [sound] * (number % 2),
        }
        for number in range(COUNT)
    ]
    pq.write_table(pa.Table.from_pylist(rows), out / "rows.parquet", row_group_size=2)
    return out


def told(value: Any) -> Any:
    """All that there is to compare; of a handle, a clip."""
    if isinstance(value, Video):
        return "video", value.clip(0.5, 2).tobytes()
    if isinstance(value, Audio):
        return "audio", value.clip(0.1, 0.1).tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [told(one) for one in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("decodes", [False, True], ids=["handles", "clips"])
def test_nested_samples_come_the_same_in_batches_workers_and_processes(nested: Path, decodes: bool) -> None:
    def opened(read: ReadOptions) -> StreamingDataset:
        dataset = StreamingDataset(nested, shuffle=True, batch_size=3, read=read).map(as_audio("sounds"))
        return dataset.map(decode_nested) if decodes else dataset

    expected = [told(batch) for batch in opened(THREADS).batches()]
    assert [len(batch["text"]) for batch in expected] == [3, 3]
    assert [told(batch) for batch in opened(FORK).batches()] == expected
    if not decodes:
        assert [told(batch) for batch in opened(SPAWN).batches()] == expected
    samples = [told(sample) for sample in opened(THREADS)]
    assert [told(sample) for sample in opened(FORK)] == samples
    loader = StreamingDataLoader(opened(THREADS), num_workers=2, collate_fn=list, multiprocessing_context="fork")
    assert [told(sample) for batch in loader for sample in batch] == samples
    columnar = StreamingDataLoader(opened(THREADS), num_workers=2, columnar=True, multiprocessing_context="fork")
    found: list[Any] = list(columnar)
    assert [batch["text"] for batch in found] == [batch["text"] for batch in expected]
    assert [told(batch["images"]) for batch in found] == [batch["images"] for batch in expected]
    assert [told(batch["sounds"]) for batch in found] == [batch["sounds"] for batch in expected]


def clip(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    start = rng.uniform(0, 1)
    return {"path": sample["path"], "start": start, "frames": sample["data"].clip(start, 4)}


def test_files_that_are_read_by_ranges_come_the_same_from_processes(tmp_path: Path, video: bytes) -> None:
    (tmp_path / "clips").mkdir()
    for number in range(COUNT):
        (tmp_path / "clips" / f"{number}.mp4").write_bytes(video if number != 3 else video[:2000])
    every = all_frames(video)

    def opened(read: ReadOptions) -> StreamingDataset:
        return StreamingDataset(
            tmp_path / "clips", format_options={"media": "video"}, batch_size=2, read=read, on_bad_sample="skip"
        )

    expected = [told(batch) for batch in opened(THREADS).random_map(clip).batches()]
    processes = opened(FORK).random_map(clip)
    batches = [told(batch) for batch in processes.batches()]
    assert batches == expected
    assert processes.stats().bad_samples == 1
    assert processes.stats().bytes_read == 0
    loader = StreamingDataLoader(opened(THREADS).random_map(clip), num_workers=2, columnar=True)
    assert [told({**batch, "start": batch["start"]})["path"] for batch in loader] == [one["path"] for one in expected]
    # Handles that processes made are read here.
    for sample in opened(SPAWN).map(as_video("data")):
        if sample["path"] != "3.mp4":
            assert np.array_equal(sample["data"].clip(1.0, 3), every[30:33])


def test_members_of_archives_and_columns_of_bytes_come_from_processes(tmp_path: Path, video: bytes) -> None:
    with MDSWriter({"mp4": "bytes", "image": "bytes", "number": "int"}, tmp_path / "mds", size_limit="40kb") as out:
        for number in range(COUNT):
            out.write({"mp4": video, "image": jpeg(number), "number": number})
    made = []
    for read in (THREADS, FORK):
        dataset = StreamingDataset(tmp_path / "mds", batch_size=3, read=read)
        made.append([told(batch) for batch in dataset.map(as_video("mp4")).map(Decode(column="image")).batches()])
    assert made[0] == made[1]
    assert len(made[0]) == 2

"""Clips of videos are the frames that a decoder gives that reads the whole file, at the times that are asked for."""

from __future__ import annotations

import io
import os
import pickle
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from media_files import FRAMES, H264, RATE, SIZE, all_frames, video_file

from stoker import Video
from stoker.errors import ClipError, ConfigError, CorruptDataError, MissingPackageError, ObjectNotFoundError
from stoker.formats.media.open_decoders import OPEN
from stoker.policy import MOST_DECODERS

KINDS = {
    "mp4 with B-frames": ("mp4", "libx264", H264),
    "mp4 with open groups": ("mp4", "libx264", {"preset": "fast", "x264-params": "keyint=30:bframes=3:open-gop=1"}),
    "mp4 of one group": ("mp4", "libx264", {"g": "600", "preset": "ultrafast"}),
    "mkv": ("matroska", "libx264", H264),
    "webm": ("webm", "libvpx-vp9", {"g": "30", "deadline": "realtime", "cpu-used": "8"}),
    "mov": ("mov", "mpeg4", {"g": "30"}),
    "avi": ("avi", "mpeg4", {"g": "30"}),
    "mpegts": ("mpegts", "libx264", H264),
    "fragmented mp4": ("mp4", "libx264", H264),
}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    fragments = {"movflags": "frag_keyframe+empty_moov"}
    return {
        name: video_file(*what, container_options=fragments if name.startswith("frag") else None)
        for name, what in KINDS.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_is_those_frames_of_the_whole_file(files: dict[str, bytes], kind: str) -> None:
    data = files[kind]
    every = all_frames(data)
    assert len({frame.tobytes() for frame in every}) == len(every) == FRAMES
    video = Video(data)
    for first in [*range(0, 89, 7), 29, 30, 31, 59, 60, 89, 0]:
        count = min(8, FRAMES - first)
        assert np.array_equal(video.clip(first / RATE, count), every[first : first + count]), first
    facts = video.facts
    assert (facts.height, facts.width, facts.rate) == (*SIZE, RATE)
    assert facts.duration == pytest.approx(3, abs=0.04)
    assert facts.frames in (FRAMES, None)


REORDERED = {
    "avi of XviD's kind": ("avi", "mpeg4", {"g": "12", "bf": "2"}),
    "avi of H.264": ("avi", "libx264", {"g": "12", "bf": "0", "preset": "ultrafast"}),
    "avi of H.264 with B-frames": ("avi", "libx264", {"g": "12", "bf": "2"}),
    "avi of H.264 with open groups": ("avi", "libx264", {"x264-params": "keyint=10:bframes=3:open-gop=1"}),
    "avi of MPEG-1": ("avi", "mpeg1video", {"g": "12", "bf": "2"}),
    "asf of H.264": ("asf", "libx264", {"g": "12", "bf": "2"}),
    "nut": ("nut", "mpeg4", {"g": "12", "bf": "2"}),
    "program stream of MPEG-1": ("mpeg", "mpeg1video", {"g": "12", "bf": "2"}),
    "program stream of MPEG-2": ("mpeg", "mpeg2video", {"g": "12", "bf": "2"}),
    "program stream of H.264": ("vob", "libx264", {"g": "12", "bf": "2"}),
    "elementary stream": ("mpeg2video", "mpeg2video", {"g": "12", "bf": "2"}),
}


@pytest.mark.parametrize("kind", REORDERED)
def test_frames_whose_times_are_not_told_or_wrong_are_in_their_order(kind: str) -> None:
    """The first frame of AVI is at 1/30 s, after the beginning by its header; FFmpeg's times of others are guesses."""
    data = video_file(*REORDERED[kind], frames=50)
    every, video = all_frames(data), Video(data)
    assert len({frame.tobytes() for frame in every}) == len(every) == 50
    for first in [*range(0, 48, 5), 1, 12, 13, 14, 15, 47]:
        assert np.array_equal(video.clip(first / RATE, 3), every[first : first + 3]), first
    assert np.array_equal(video.clip(0, 25, fps=RATE / 2), every[::2])


def test_the_frame_is_the_one_that_is_shown(files: dict[str, bytes]) -> None:
    data = files["mp4 with B-frames"]
    every, video = all_frames(data), Video(data)
    assert np.array_equal(video.clip(0.98 / RATE, 1)[0], every[0])
    assert np.array_equal(video.clip(1.5 / RATE, 1)[0], every[1])
    assert np.array_equal(video.clip(2.99, 1)[0], every[89])
    bars = [int((frame[20, :, 0] > 180).sum()) for frame in every]
    assert bars == [number * SIZE[1] // 200 + 1 for number in range(FRAMES)]  # it really is the frame of that number


@pytest.mark.parametrize("kind", ["mp4 with B-frames", "mkv"])
def test_other_rates_repeat_or_leave_out_frames(files: dict[str, bytes], kind: str) -> None:
    every, video = all_frames(files[kind]), Video(files[kind])
    for start, count, fps in [(0, 15, 10), (0.5, 20, 60), (1.2, 10, 12.5), (0, 8, 8 / 3), (0.1, 5, 24000 / 1001)]:
        shown = [int((start + number / fps) * RATE + 0.02) for number in range(count)]
        assert np.array_equal(video.clip(start, count, fps=fps), every[shown]), (start, count, fps)


def test_frames_of_a_variable_rate_are_found_by_their_times() -> None:
    steps = np.random.default_rng(3).integers(1, 5, FRAMES - 1)
    times = [0, *np.cumsum(steps).tolist()]
    for container in ("mp4", "matroska"):
        data = video_file(container, times=times)
        every, video = all_frames(data), Video(data)
        for number in (0, 1, 13, 44, 80):
            assert np.array_equal(video.clip(times[number] / RATE, 5), every[number : number + 5])
            between = (times[number] + 0.9 * steps[number]) / RATE
            assert np.array_equal(video.clip(between, 2), every[number : number + 2])
        grid = np.searchsorted(times, np.arange(10, 40, 3), side="right") - 1
        assert np.array_equal(video.clip(10 / RATE, len(grid), fps=RATE / 3), every[grid])


def test_a_video_that_begins_late_counts_from_its_first_frame() -> None:
    data = video_file("matroska", times=range(100, 100 + FRAMES))
    assert np.array_equal(Video(data).clip(0.5, 3), all_frames(data)[15:18])


def test_a_clip_beyond_the_end_is_an_error_that_says_where_the_end_is(files: dict[str, bytes]) -> None:
    video = Video(files["mp4 with B-frames"])
    assert len(video.clip(2.9, 3)) == 3
    for start, frames, fps in [(2.9, 4, None), (3.0, 1, None), (50, 1, None), (2.5, 6, 10), (0, 2, 1 / 3)]:
        with pytest.raises(ClipError, match=r"beyond the end of the video, which lasts 3\.000 s.*fewer frames$"):
            video.clip(start, frames, fps=fps)


def test_the_last_frame_is_shown_for_its_duration_where_the_header_estimates_less() -> None:
    """Of MPEG-TS FFmpeg estimates the duration: here 0.05 s, of two frames of a 30th of a second each."""
    data = video_file("mpegts", frames=2)
    video = Video(data)
    assert video.facts.duration is not None
    assert video.facts.duration < 0.06 < 2 / RATE
    assert np.array_equal(video.clip(0.06, 1, fps=RATE)[0], all_frames(data)[1])
    with pytest.raises(ClipError, match=r"lasts 0\.067 s"):
        video.clip(2 / RATE + 0.001, 1, fps=RATE)


def test_a_clip_of_a_file_that_is_cut_off_is_an_error_that_says_so() -> None:
    data = video_file("matroska")
    with pytest.raises(
        ClipError, match=r"lasts [012]\.\d+ s: begin .*by its header it lasts 3\.000 s: it may be cut off"
    ):
        Video(data[: len(data) * 2 // 3]).clip(2.6, 3)


@pytest.mark.parametrize(
    "wrong", [{"start": -0.1}, {"start": float("nan")}, {"frames": 0}, {"fps": 0.0}, {"fps": -1.0}]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Video(b"").clip(**{"start": 0.0, "frames": 1, **wrong})  # type: ignore[arg-type]


def test_what_is_no_video_is_damaged(files: dict[str, bytes]) -> None:
    for data, said in ((b"", "0 bytes"), (b"nonsense" * 99, "792 bytes.*decode it: Invalid data found when .* input$")):
        with pytest.raises(CorruptDataError, match=said):
            Video(data).clip(0, 1)
    sound = io.BytesIO()
    with av.open(sound, "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=48000, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 48000
        out.mux(stream.encode(silence))
        out.mux(stream.encode())
    with pytest.raises(CorruptDataError, match="holds no video"):
        Video(sound.getvalue()).clip(0, 1)


def test_damaged_frames_are_an_error_and_the_others_are_right(files: dict[str, bytes]) -> None:
    data = bytearray(files["mp4 with B-frames"])
    every = all_frames(bytes(data))
    with av.open(io.BytesIO(data)) as file:
        hurt = file.streams.video[0].index_entries[35]
        data[hurt.pos + 8 : hurt.pos + hurt.size] = b"\xff" * (hurt.size - 8)
    video = Video(bytes(data))
    with pytest.raises(CorruptDataError):
        video.clip(1.0, 20)
    assert np.array_equal(video.clip(0.2, 8), every[6:14])
    assert np.array_equal(video.clip(2.2, 8), every[66:74])


def test_a_file_that_is_cut_off_is_damaged(files: dict[str, bytes]) -> None:
    data = files["fragmented mp4"]
    video = Video(data[: len(data) * 2 // 3])
    with pytest.raises((CorruptDataError, ClipError)):
        video.clip(0, FRAMES)
    with pytest.raises(CorruptDataError):
        Video(files["mp4 with B-frames"][:2000]).clip(0, 1)


def test_handles_are_pickled_and_used_by_threads(files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(files["mp4 with B-frames"])
    every = all_frames(files["mp4 with B-frames"])
    inside = memoryview(b"xx" + files["mp4 with B-frames"])[2:]
    for video in (Video(tmp_path / "a.mp4"), Video(inside)):
        copy = pickle.loads(pickle.dumps(video))
        assert np.array_equal(copy.clip(1, 4), every[30:34])
        found: list[bool] = []

        def decode(first: int, video: Video = video, found: list[bool] = found) -> None:
            found.append(np.array_equal(video.clip(first / RATE, 3), every[first : first + 3]))

        threads = [threading.Thread(target=decode, args=(first,)) for first in range(0, 80, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * len(threads)
    assert len(pickle.dumps(Video(tmp_path / "a.mp4"))) < 3000 < len(pickle.dumps(Video(inside)))


def test_open_decoders_are_bounded_and_go_with_their_handles(files: dict[str, bytes]) -> None:
    videos = [Video(files["mov"]) for _ in range(2 * MOST_DECODERS)]
    for video in videos:
        assert video.clip(0, 1).shape == (1, *SIZE, 3)
    assert len(OPEN) == MOST_DECODERS
    del video
    videos.clear()
    assert len(OPEN) == 0


@pytest.mark.processes
def test_a_fork_opens_its_own_decoder(files: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(files["mp4 with B-frames"])
    video, expected = Video(tmp_path / "a.mp4"), all_frames(files["mp4 with B-frames"])[60:62]
    assert np.array_equal(video.clip(2, 2), expected)
    child = os.fork()
    if not child:
        os._exit(0 if len(OPEN) == 0 and np.array_equal(video.clip(2, 2), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(video.clip(2, 2), expected)


def test_a_path_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"a\.mp4"):
        Video(tmp_path / "a.mp4")
    with pytest.raises(ConfigError, match="names no file"):
        Video(f"{tmp_path}/")


def test_a_file_that_is_replaced_is_noticed(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(files["mp4 with B-frames"])
    video = Video(path)
    path.write_bytes(files["mp4 of one group"])
    with pytest.raises(OSError, match="written to"):
        video.clip(0, 1)


def test_without_pyav_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(MissingPackageError, match=r"stoker\[video\]"):
        Video(files["mov"]).clip(0, 1)

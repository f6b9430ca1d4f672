"""Clips of sounds are those samples of the whole sound."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import soundfile
import soxr
from media_files import decoded_sound, encoded_sound, sound_file, sweep, video_file

from stoker import Audio
from stoker.errors import ClipError, ConfigError, CorruptDataError, MissingPackageError

CLIPS = [(0.0, 0.5), (0.2345, 0.7), (1.5, 0.4), (0.01, 0.1), (0.0, 1.9)]


@pytest.mark.parametrize(("kind", "subtype"), [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("AIFF", None)])
def test_samples_of_files_without_loss_are_exact(kind: str, subtype: str | None) -> None:
    data = sound_file(sweep(), kind=kind, subtype=subtype)
    every, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    if subtype == "FLOAT":
        assert np.array_equal(every, sweep())
    sound = Audio(data)
    assert (sound.facts.duration, sound.facts.rate, sound.facts.channels, sound.facts.samples) == (2.0, 16000, 2, 32000)
    for start, seconds in [*CLIPS, (0.0, 2.0)]:
        first = round(start * 16000)
        found = sound.clip(start, seconds)
        assert found.dtype == np.float32
        assert np.array_equal(found, every[first : first + round(seconds * 16000)])


@pytest.mark.parametrize(("kind", "subtype"), [("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS")])
def test_positions_in_files_with_loss_are_exact(kind: str, subtype: str) -> None:
    rate = 48000 if subtype == "OPUS" else 44100
    data = sound_file(sweep(rate, 8.0), rate, kind, subtype)
    every, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    sound = Audio(data)
    for start, seconds in [*CLIPS, *((turn / 7, 0.25) for turn in range(1, 54))]:
        first = round(start * rate)
        found = sound.clip(start, seconds)
        assert np.allclose(found, every[first : first + len(found)], atol=2e-3), start


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("samples", [1, 5, 87, 960, 3000])
def test_sounds_of_a_single_page_are_exact_and_end_where_they_end(subtype: str, samples: int) -> None:
    ramp = (np.arange(samples)[:, None] % 97 / 97 - 0.5).astype(np.float32)
    data = sound_file(ramp, 48000, "OGG", subtype)
    every, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    sound = Audio(data)
    for first in [0, samples // 3, samples - 1]:
        found = sound.clip(first / 48000, (samples - first) / 48000)
        assert np.allclose(found, every[first:], atol=2e-3), first
    with pytest.raises(ClipError, match="beyond the end of the sound"):
        sound.clip(0, (samples + 1) / 48000)


@pytest.mark.parametrize(
    ("rate", "samples", "level"), [(16000, 16001, 0.3), (44100, 100_000, 1e-4), (8000, 30_000, 0.3)]
)
def test_vorbis_in_one_page_is_read_to_its_end(rate: int, samples: int, level: float) -> None:
    """FFmpeg takes its first packet for one that gives samples, and cuts as many off at the end."""
    data = sound_file((np.sin(np.arange(samples) / 9) * level).astype(np.float32)[:, None], rate, "OGG", "VORBIS")
    assert data.count(b"OggS") == 3  # two of headers
    every, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    sound = Audio(data)
    assert sound.facts.duration == samples / rate
    assert np.allclose(sound.clip(0, samples / rate), every, atol=2e-3)
    assert np.allclose(sound.clip((samples - 100) / rate, 100 / rate), every[-100:], atol=2e-3)


@pytest.mark.parametrize("seed", range(4))
def test_vorbis_has_no_gaps_where_a_page_ends_with_short_blocks(seed: int) -> None:
    """FFmpeg's times have some there: of these sounds each."""
    rate, samples = ((48000, 43525), (48000, 44790), (22050, 16740), (44100, 19653))[seed]
    rng = np.random.default_rng(seed)
    tone = np.sin(np.arange(samples) / 9) * 0.3
    for _ in range(12):
        noisy = (tone + rng.random(samples) * 0.04).astype(np.float32)
        data = sound_file(noisy[:, None], rate, "OGG", "VORBIS")
        every, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        assert np.allclose(Audio(data).clip(0, samples / rate), every, atol=2e-3)


def _with_size(data: bytes, at: int, size: int, order: Literal["little", "big"], width: int = 4) -> bytes:
    return data[:at] + (size % (1 << 8 * width)).to_bytes(width, order) + data[at + width :]


def _unknown_flac(seconds: float = 2.0) -> bytes:
    data = bytearray(sound_file(sweep(seconds=seconds)))
    data[21] &= 0xF0  # the number of samples, of 36 bits
    data[22:26] = bytes(4)
    return bytes(data)


def _unknown(kind: str, mark: bytes, size: int, order: Literal["little", "big"] = "little", width: int = 4) -> bytes:
    data = sound_file(sweep(), kind=kind, subtype="PCM_16")
    return _with_size(data, data.index(mark) + len(mark), size, order, width)


def _unknown_au(size: int) -> bytes:
    soundfile.write(file := io.BytesIO(), sweep(), 16000, format="AU", subtype="PCM_16", endian="BIG")
    return _with_size(file.getvalue(), 8, size, "big")


W64_DATA = bytes.fromhex("64617461F3ACD3118CD100C04F8EDB8A")
PIPED: dict[str, Callable[[], bytes]] = {
    "flac": _unknown_flac,
    **{f"wav {size:x}": partial(_unknown, "WAV", b"data", size) for size in (0, 0x7FFFFFFF, 0xFFFFFFFF)},
    **{f"au {size:x}": partial(_unknown_au, size) for size in (0x7FFFFFFF, 0xFFFFFFFF)},
    **{f"aiff {size:x}": partial(_unknown, "AIFF", b"SSND", size, "big") for size in (0, 0xFFFFFFFF)},
    **{f"caf {size}": partial(_unknown, "CAF", b"data", size, "big", 8) for size in (0, -1)},
    **{f"w64 {size}": partial(_unknown, "W64", W64_DATA, size, "little", 8) for size in (0, -1)},
}


@pytest.mark.parametrize("kind", PIPED)
def test_a_sound_whose_header_was_written_before_its_length_was_known(kind: str) -> None:
    data = PIPED[kind]()
    sound = Audio(data)
    assert sound.facts.duration in (None, 2.0)
    assert sound.facts.samples in (None, 32000)
    every, _ = soundfile.read(io.BytesIO(sound_file(sweep(), kind="WAV", subtype="PCM_16")), dtype="float32")
    for first, count in ((0, 32000), (12345, 8000), (31000, 1000)):
        assert np.allclose(sound.clip(first / 16000, count / 16000), every[first : first + count], atol=1e-4)
    with pytest.raises(ClipError, match=r"which lasts 2\.0000 s"):
        sound.clip(1.5, 1)
    with pytest.raises(ClipError, match=r"end of the sound(, which lasts 2\.0000 s)?: begin earlier"):
        sound.clip(50, 1)


def test_an_empty_sound_has_no_samples() -> None:
    assert Audio(sound_file(sweep(seconds=0), kind="WAV")).facts.samples == 0
    with pytest.raises(CorruptDataError):
        _ = Audio(_unknown_au(0)).facts  # a length of 0, and samples


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("adts", "aac"), ("mp4", "alac")])
def test_sounds_that_ffmpeg_decodes_have_exact_positions(container: str, codec: str) -> None:
    data = encoded_sound(sweep(48000), container, codec)
    every, sound = decoded_sound(data), Audio(data)
    for start, seconds in CLIPS[:-1]:
        first = round(start * 48000)
        found = sound.clip(start, seconds)
        assert np.allclose(found, every[first : first + len(found)], atol=2e-3), start
    for start, rate in [(1.9, None), (1.9, 16000), (50, 16000)]:
        with pytest.raises(ClipError, match="beyond the end of the sound"):
            sound.clip(start, 0.5, rate)


def test_the_sound_of_a_video_is_read_to_a_millisecond_where_its_times_are_rounded() -> None:
    data = video_file("matroska", sound=True)
    every, sound = decoded_sound(data), Audio(data)
    assert (sound.facts.rate, sound.facts.channels) == (48000, 1)
    found = sound.clip(1.5, 0.5)[:, 0]
    shifts = [np.abs(every[72000 + shift : 96000 + shift, 0] - found).max() for shift in range(-48, 49)]
    assert min(shifts) < 0.01


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_a_resampled_clip_has_no_edges_of_its_own(rate: int) -> None:
    samples = sweep(seconds=3.0)
    sound = Audio(sound_file(samples, kind="WAV", subtype="FLOAT"))
    whole = soxr.resample(samples, 16000, rate, quality="HQ")
    for start, seconds in [(0.5, 1.0), (1.0, 0.3), (1.25, 1.0)]:
        found = sound.clip(start, seconds, rate=rate)
        first = start * rate
        assert found.shape == (round(seconds * rate), 2)
        assert found.dtype == np.float32
        if first.is_integer():
            assert np.allclose(found, whole[int(first) : int(first) + len(found)], atol=1e-4)
    assert sound.clip(0, 3.0, rate=rate).shape == (3 * rate, 2)
    assert np.allclose(sound.clip(0, 3.0, rate=rate)[rate // 8 : -rate // 8], whole[rate // 8 : -rate // 8], atol=1e-4)


WHOLE: dict[str, Callable[[], bytes]] = {
    "flac": lambda: sound_file(sweep()),
    "wav": lambda: sound_file(sweep(), kind="WAV", subtype="FLOAT"),
    "mp3": lambda: sound_file(sweep(44100), 44100, "MP3", "MPEG_LAYER_III"),
    "vorbis": lambda: sound_file(sweep(44100, 8.0), 44100, "OGG", "VORBIS"),
    "opus": lambda: sound_file(sweep(48000), 48000, "OGG", "OPUS"),
    "aac": lambda: encoded_sound(sweep(48000), "mp4", "aac"),
    "aac whose length is not told": lambda: encoded_sound(sweep(48000, 7.0), "adts", "aac"),
    "flac from a pipe": partial(_unknown_flac, 20.0),
    "sound of a video": lambda: video_file("mp4", sound=True),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_sound_is_what_its_library_decodes(kind: str) -> None:
    data = WHOLE[kind]()
    by_ffmpeg = kind not in ("flac", "wav", "vorbis", "opus")
    expected = decoded_sound(data) if by_ffmpeg else soundfile.read(io.BytesIO(data), dtype="float32")[0]
    sound = Audio(data)
    samples, rate = sound.read()
    assert samples.dtype == np.float32
    assert (samples.shape[1], rate) == (sound.facts.channels, sound.facts.rate)
    assert samples.shape == expected.shape
    assert np.allclose(samples, expected, atol=2e-3)
    assert np.array_equal(sound.clip(0.1, (len(samples) - rate // 10) / rate), samples[rate // 10 :])
    other, told = sound.read(rate=8000)
    assert (told, len(other)) == (8000, round(len(samples) * 8000 / rate))
    assert np.array_equal(sound.clip(0, len(samples) / rate, rate=8000), other)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_sound_that_is_longer_than_the_limit_is_not_decoded(kind: str) -> None:
    sound = Audio(WHOLE[kind]())
    samples, _ = sound.read()
    assert np.array_equal(sound.read(decoded_limit=samples.nbytes)[0], samples)
    with pytest.raises(CorruptDataError, match=r"more than .* s, and its samples .*clip\(start, seconds\), or raise"):
        sound.read(decoded_limit=samples.nbytes - 1)
    with pytest.raises(CorruptDataError, match="more than"):
        sound.read(2 * sound.facts.rate, decoded_limit=samples.nbytes)


def test_a_header_that_claims_more_samples_than_there_are_is_an_error() -> None:
    flac = bytearray(sound_file(sweep()))
    for seconds, told in ((36_000, r"more than 8388\.6 s"), (60, "libsndfile can not decode it")):
        flac[22:26] = (16000 * seconds).to_bytes(4, "big")
        with pytest.raises(CorruptDataError, match=told):
            Audio(bytes(flac)).read()


def test_an_empty_sound_is_read_as_no_samples() -> None:
    for rate in (None, 8000):
        assert Audio(sound_file(sweep(seconds=0), kind="WAV")).read(rate)[0].shape == (0, 2)


def test_a_clip_beyond_the_end_is_an_error_that_says_where_the_end_is() -> None:
    sound = Audio(sound_file(sweep()))
    for start, seconds, rate in [(1.9, 0.2, None), (1.9, 0.2, 8000), (5.0, 1.0, None)]:
        with pytest.raises(ClipError, match=r"which lasts 2\.0000 s"):
            sound.clip(start, seconds, rate=rate)


def test_a_sound_in_aac_ends_with_its_last_frame_as_decoded() -> None:
    """That has up to 1,024 samples of padding after the end that the header tells, unless a muxer counts them (PyAV 19)."""
    data = encoded_sound(sweep(48000, 10250 / 48000), "mp4", "aac")
    sound, expected = Audio(data), decoded_sound(data)
    told = round((sound.facts.duration or 0) * 48000)
    assert 0 <= len(expected) - told < 1024
    assert np.array_equal(sound.clip(0.1, (len(expected) - 4800) / 48000), expected[4800:])
    with pytest.raises(ClipError, match=rf"which lasts {len(expected) / 48000:.4f} s"):
        sound.clip(0.1, (len(expected) - 4799) / 48000)


@pytest.mark.parametrize("wrong", [{"start": -0.1}, {"seconds": 0.0}, {"seconds": float("inf")}, {"rate": 0}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Audio(b"").clip(**{"start": 0.0, "seconds": 1.0, **wrong})  # type: ignore[arg-type]


def test_what_is_no_sound_is_damaged() -> None:
    good = sound_file(sweep(), kind="WAV")
    for data in (b"", b"nonsense" * 99, good[:20], b"fLaC" + bytes(60), good[:30000]):
        with pytest.raises((CorruptDataError, ClipError)):
            Audio(data).clip(1.5, 0.5)
    for data in (b"", b"nonsense" * 99, good[:20], b"fLaC" + bytes(60)):
        with pytest.raises(CorruptDataError):
            Audio(data).read()
    flac = bytearray(sound_file(sweep()))
    flac[len(flac) // 2 : len(flac) // 2 + 4000] = bytes(4000)
    with pytest.raises(CorruptDataError):
        Audio(bytes(flac)).clip(0, 2.0)
    with pytest.raises(CorruptDataError):
        Audio(bytes(flac)).read()


def test_handles_are_pickled(tmp_path: Path) -> None:
    data = sound_file(sweep())
    (tmp_path / "a.flac").write_bytes(data)
    expected = Audio(data).clip(0.5, 0.5)
    for sound in (Audio(data), Audio(tmp_path / "a.flac")):
        assert np.array_equal(pickle.loads(pickle.dumps(sound)).clip(0.5, 0.5), expected)


def test_without_the_packages_the_errors_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Audio(sound_file(sweep()))
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "soxr", None)
        with pytest.raises(MissingPackageError, match=r"stoker\[audio\]"):
            sound.clip(0, 1, rate=8000)
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(MissingPackageError, match=r"stoker\[audio\]"):
        sound.clip(0, 1)

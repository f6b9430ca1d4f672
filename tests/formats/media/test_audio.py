"""Clips of sounds are those samples of the whole sound."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

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


def test_a_clip_beyond_the_end_is_an_error_that_says_where_the_end_is() -> None:
    sound = Audio(sound_file(sweep()))
    for start, seconds, rate in [(1.9, 0.2, None), (1.9, 0.2, 8000), (5.0, 1.0, None)]:
        with pytest.raises(ClipError, match=r"which lasts 2\.0000 s"):
            sound.clip(start, seconds, rate=rate)


def test_a_sound_in_aac_ends_with_its_last_frame_as_decoded() -> None:
    """That has up to 1,024 samples of padding after the end that the header tells."""
    data = encoded_sound(sweep(48000, 10250 / 48000), "mp4", "aac")
    sound, expected = Audio(data), decoded_sound(data)
    told = round((sound.facts.duration or 0) * 48000)
    assert 0 < len(expected) - told < 1024
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
    flac = bytearray(sound_file(sweep()))
    flac[len(flac) // 2 : len(flac) // 2 + 4000] = bytes(4000)
    with pytest.raises(CorruptDataError):
        Audio(bytes(flac)).clip(0, 2.0)


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

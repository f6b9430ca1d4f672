"""Small videos and sounds for tests, whose frames and samples are known."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image

RATE = 30
FRAMES = 90
SIZE = (48, 64)

H264 = {"g": "30", "bf": "2", "preset": "ultrafast", "x264-params": "scenecut=0:b-adapt=0"}


def picture(number: int) -> NDArray[np.uint8]:
    """Frame ``number``: noise that moves, and a bar that is as long as the number is large."""
    rows, columns = SIZE
    noise = np.random.default_rng(7).integers(0, 90, (rows, columns * 4, 3), dtype=np.uint8)
    found = noise[:, number : number + columns].copy()
    found[8:40, : number * columns // 200 + 1] = 250
    return found


def video_file(
    container: str = "mp4",
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    *,
    times: Sequence[int] | None = None,
    frames: int = FRAMES,
    sound: bool = False,
    container_options: dict[str, str] | None = None,
) -> bytes:
    """A video of 30 frames a second, or with frames at these multiples of a 30th of a second."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=container_options or {}) as out:
        stream: Any = out.add_stream(codec, rate=RATE, options=H264 if options is None else options)
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_000_000
        stream.codec_context.time_base = Fraction(1, RATE)
        noise: Any = out.add_stream("aac", rate=48000, layout="mono") if sound else None
        tone = sweep(48000, frames / RATE, 1).T
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number))
            frame.pts = number if times is None else times[number]
            out.mux(stream.encode(frame))
            if sound:
                values = tone[:, number * 1600 : (number + 1) * 1600]
                part = av.AudioFrame.from_ndarray(np.ascontiguousarray(values), format="fltp", layout="mono")
                part.sample_rate, part.pts = 48000, number * 1600
                out.mux(noise.encode(part))
        out.mux(stream.encode())
        if sound:
            out.mux(noise.encode())
    return file.getvalue()


def all_frames(data: bytes) -> NDArray[np.uint8]:
    """All frames of a video, as PyAV alone decodes them from the beginning."""
    file: Any
    with av.open(io.BytesIO(data)) as file:
        # PyAV 19 keeps FFmpeg's threads with this thread, and a child that is forked by another waits for them.
        return np.stack([frame.to_ndarray(format="rgb24", threads=1) for frame in file.decode(video=0)])


def sweep(rate: int = 16000, seconds: float = 2.0, channels: int = 2) -> NDArray[np.float32]:
    """A sine sweep; shape ``(samples, channels)``."""
    time = np.arange(round(rate * seconds)) / rate
    each = [0.5 * np.sin(2 * np.pi * (200 + 100 * turn + 800 * time) * time) for turn in range(channels)]
    return np.stack(each, axis=1).astype(np.float32)


def sound_file(
    samples: NDArray[np.float32], rate: int = 16000, kind: str = "FLAC", subtype: str | None = None
) -> bytes:
    """A file of samples that libsndfile writes."""
    soundfile.write(file := io.BytesIO(), samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def encoded_sound(samples: NDArray[np.float32], container: str, codec: str, rate: int = 48000) -> bytes:
    """A file of samples that FFmpeg writes."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=rate, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="stereo")
        frame.sample_rate = rate
        split = av.AudioResampler(stream.codec_context.format, frame_size=stream.codec_context.frame_size or 1024)
        for part in split.resample(frame) + split.resample(None):
            out.mux(stream.encode(part))
        out.mux(stream.encode())
    return file.getvalue()


def decoded_sound(data: bytes) -> NDArray[np.float32]:
    """All samples of a sound, as PyAV alone decodes them from the beginning."""
    planes: Any = av.AudioResampler(format="fltp")
    file: Any
    with av.open(io.BytesIO(data)) as file:
        parts = [part.to_ndarray() for frame in file.decode(audio=0) for part in planes.resample(frame)]
    every: NDArray[np.float32] = np.concatenate(parts, axis=1).T
    return every


def jpeg(number: int) -> bytes:
    """A small picture in one grey."""
    Image.fromarray(np.full((8, 8, 3), number * 20, np.uint8)).save(file := io.BytesIO(), "jpeg")
    return file.getvalue()


def decode_nested(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of several images and sounds with their values."""
    images = [np.asarray(Image.open(io.BytesIO(one))) for one in sample["images"]]
    return {**sample, "images": images, "sounds": [one.clip(0, 0.1) for one in sample["sounds"]]}

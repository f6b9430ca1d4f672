"""Videos as lazy handles: nothing is read of one before a clip of it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import at_least, checked, must_be
from stoker.errors import ClipError, CorruptDataError, FormatError
from stoker.formats.media.open_decoders import MediaHandle, OpenStream, check_start
from stoker.formats.media.source import MediaSource

VideoFrame: TypeAlias = Any
"""A frame of PyAV, with its time."""

# Matroska and WebM round the times of frames to milliseconds.
_ROUNDED: Final = Fraction(1, 2000)
# Packets after the last frame of a clip that a decoder may want: frames are not stored in the order in which they are shown.
_REORDERED: Final = 8
# Seconds by which a file may end before its header says so without being cut off.
_CUT_OFF: Final = 0.5
# Seconds before the wanted frame to which a seek goes that has found no frame to begin with; then the beginning.
_FURTHER_BACK: Final = (0, 1, 4, 16)


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """Facts that the header of a video tells.

    Attributes:
        duration: seconds; ``None`` where the file does not say. Of MPEG-TS, which has no header, FFmpeg's estimate. The last
            frame as decoded may end some frames away from it.
        rate: frames a second, on average; ``None`` where the file does not say.
        width: pixels of a stored row.
        height: stored rows.
        frames: number of frames; ``None`` where the file does not say (Matroska, WebM).
        codec: its name in FFmpeg, such as ``"h264"``.
    """

    duration: float | None
    rate: float | None
    width: int
    height: int
    frames: int | None
    codec: str


class Video(MediaHandle["_Decoder", VideoFacts]):
    """A video whose clips are decoded on request.

    A handle is cheap: it holds the place of the video, or its bytes, and nothing is read before :meth:`clip` or
    :attr:`facts` need it. Of a file at a URL these read the header and the bytes of the clip, not the rest. Handles can be
    used by several threads, and pickled.

    >>> import io, av, numpy as np
    >>> with av.open(file := io.BytesIO(), "w", format="mp4") as out:
    ...     stream = out.add_stream("libx264", rate=25)
    ...     stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    ...     for number in range(50):
    ...         frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number, np.uint8))
    ...         out.mux(stream.encode(frame))
    ...     out.mux(stream.encode())
    >>> video = Video(file.getvalue())
    >>> video.facts.duration, video.facts.rate, video.clip(1.0, frames=8).shape
    (2.0, 25.0, (8, 48, 64, 3))

    Args:
        data: the encoded bytes (MP4, MOV, Matroska, WebM, AVI, MPEG-TS, ...), or the path or URL of a file.
        storage_options: of a URL; see :func:`stoker.storage.open_store`.

    Raises:
        ConfigError: the path or URL makes no sense.
        ObjectNotFoundError, StorageError: there is no such file, or it can not be asked for.
    """

    __slots__ = ()

    _what = "a video"

    @staticmethod
    def _open(source: MediaSource) -> _Decoder:
        return _Decoder(source)

    @property
    def facts(self) -> VideoFacts:
        """Facts that its header tells: duration, rate, width, height, number of frames.

        Raises:
            CorruptDataError: the bytes are no video.
            StorageError: it can not be read.
            MissingPackageError: PyAV is not installed.
        """
        return self._read_facts()

    @checked
    def clip(self, start: float, frames: int, fps: float | None = None) -> NDArray[np.uint8]:
        """Frames from a time on.

        A frame is shown from its own time until that of the next; the last one for its duration. Times count from the
        video's first frame. A frame that begins up to half a millisecond after a time is the one shown then, as some files
        round times to milliseconds.

        Args:
            start: seconds, from 0 on. The first frame is the one that is shown then.
            frames: how many, from 1 on.
            fps: ``None``: frames that follow each other in the video. Otherwise frame ``k`` is the one that is shown
                ``k / fps`` seconds after ``start``: frames are left out or come again, none is blended.

        Returns:
            RGB, uint8, shape ``(frames, height, width, 3)``, as stored: a rotation that the file asks players for is not
            applied.

        Raises:
            ConfigError: an argument makes no sense.
            ClipError: the video, by its last frame as decoded and its duration, ends before the clip does.
            CorruptDataError: the bytes are no video, or are damaged.
            StorageError: it can not be read.
            MissingPackageError: PyAV is not installed.
        """
        check_start(start)
        at_least(1, frames=frames)
        must_be("above 0, or None for the video's own frames", fps is None or 0 < fps < math.inf, fps=fps)
        with self._used() as decoder:
            return decoder.clip(Fraction(start), frames, None if fps is None else Fraction(fps))


class _Decoder:
    """An open video. CorruptDataError or StorageError: see :meth:`Video.clip`."""

    def __init__(self, source: MediaSource) -> None:
        self._file = OpenStream(source, "video")
        self._tick, stream = self._file.tick, self._file.stream
        self._first: int | None = self._file.origin if self._file.tells_begin else None
        rate = stream.average_rate or stream.guessed_rate
        self._frame_ticks = 1 / (rate * self._tick) if rate else Fraction(1)
        self._slack = min(_ROUNDED / self._tick, self._frame_ticks / 4)
        self._rgb = self._file.av.video.reformatter.VideoReformatter()
        codec = stream.codec_context
        self.facts = VideoFacts(
            self._file.seconds,
            float(rate) if rate else None,
            codec.width,
            codec.height,
            stream.frames or None,
            codec.name,
        )

    def close(self) -> None:
        self._file.close()

    @property
    def _origin(self) -> int:
        """Time of the first frame, in ticks."""
        if self._first is None:
            self._file.restart()
            self._first = next((frame.pts for frame in self._file.frames()), self._file.origin)
        return self._first

    def clip(self, start: Fraction, frames: int, fps: Fraction | None) -> NDArray[np.uint8]:
        """See :meth:`Video.clip`."""
        steps = 1 if fps is None else frames
        times = [self._origin + (start + (0 if fps is None else k / fps)) / self._tick for k in range(steps)]
        first = math.floor(times[0] + self._slack)
        self._announce(first, times[-1] + (frames * self._frame_ticks if fps is None else 0))
        out: NDArray[np.uint8] | None = None
        done = 0
        shown: VideoFrame | None = None
        picture: NDArray[np.uint8] | None = None
        ends: int | Fraction = self._origin
        for frame in chain(self._frames(first), (None,)):
            if frame is not None and frame.is_corrupt:
                at = float((frame.pts - self._origin) * self._tick)
                raise CorruptDataError(f"{self._file.where}: the frame at {at:.3f} s is damaged")
            while shown is not None and done < frames and self._is_shown(shown, frame, times[done]):
                if picture is None:
                    picture = self._picture(shown)
                out = np.empty((frames, *picture.shape), np.uint8) if out is None else out
                if picture.shape != out.shape[1:]:
                    raise FormatError(
                        f"{self._file.where}: frames of different sizes in one clip: {out.shape[2]} x {out.shape[1]}, then "
                        f"{picture.shape[1]} x {picture.shape[0]} pixels"
                    )
                out[done] = picture
                done += 1
                if fps is None and done < frames:
                    if frame is None:
                        break
                    times.append(frame.pts - self._slack)
            if done == frames:
                break
            shown, picture = frame, None
            if frame is not None:
                ends = frame.pts + (frame.duration or self._frame_ticks)
        if out is None or done < frames:
            raise self._too_short(start, frames, fps, float((ends - self._origin) * self._tick))
        return out

    def _is_shown(self, frame: VideoFrame, after: VideoFrame | None, time: Fraction) -> bool:
        """Whether a frame is what is shown at a time, unless the one before it is; ``after`` follows it."""
        if after is None:
            return bool(time < frame.pts + (frame.duration or self._frame_ticks))
        return bool(time + self._slack < after.pts)

    def _frames(self, tick: int) -> Iterator[VideoFrame]:
        """Decoded frames in the order in which they are shown, the first of them shown at ``tick`` or before.

        It is a key frame; where the video begins later than that, all frames.
        """
        for back in _FURTHER_BACK:
            aim = tick - math.floor(back / self._tick)
            # A file without an index that can not be searched is decoded from its beginning.
            if aim <= self._origin or not self._file.seek(aim):
                break
            frames = self._file.frames()
            # Frames before the first key frame need others that were passed over.
            first = next((frame for frame in frames if frame.key_frame), None)
            if first is not None and first.pts <= tick:
                yield first
                yield from frames
                return
        self._file.restart()
        yield from self._file.frames()

    def _picture(self, frame: VideoFrame) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self._rgb.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return found

    def _announce(self, first: int, last: Fraction) -> None:
        """Have the bytes from the key frame before a clip to its last packet fetched by one request, where an index tells."""
        entries = self._file.stream.index_entries
        begin = entries.search_timestamp(first, backward=True)
        end = entries.search_timestamp(math.ceil(last), backward=False, any_frame=True)
        if not len(entries) or begin < 0:
            return
        end = len(entries) - 1 if end < 0 else min(end + _REORDERED, len(entries) - 1)
        if entries[end].size:
            self._file.announce(entries[begin].pos, entries[end].pos + entries[end].size)

    def _too_short(self, start: Fraction, frames: int, fps: Fraction | None, ends: float) -> ClipError:
        asked = f"{frames} frames from {float(start):.3f} s on{'' if fps is None else f', {float(fps):g} a second,'}"
        told = self.facts.duration
        # An end that is a few frames away is that of a header which rounds, or counts the sound, too.
        cut = (
            ""
            if told is None or told - ends < _CUT_OFF
            else f"; by its header it lasts {told:.3f} s: it may be cut off"
        )
        return ClipError(
            f"{self._file.where}: {asked} reach beyond the end of the video, which lasts {ends:.3f} s: begin earlier, or "
            f"take fewer frames{cut}"
        )

"""Handles of videos and sounds, whose decoders stay open between clips (the most recently used of a process), and streams.

A stream of an open file is demultiplexed and decoded by FFmpeg (PyAV).
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, ClassVar, Final, Generic, Literal, NoReturn, Protocol, Self, TypeVar

from stoker.arguments import checked, must_be
from stoker.concurrency.forks import Closable, ProcessLocal
from stoker.errors import CorruptDataError, FormatError, StokerError, import_option
from stoker.formats.media.source import MediaData, MediaSource, RangedFile, media_source
from stoker.policy import MOST_DECODERS
from stoker.types import StorageOptions

_WORDS: Final = {
    "video": ("videos", "video", "stoker[video]"),
    "audio": ("sounds of this format", "sound", "stoker[audio]"),
}

# Containers that hold all that they need, by FFmpeg's names. Others are playlists, descriptions of sessions and lists of
# files (concat, hls, dash, sdp, vobsub), of which FFmpeg opens what they name, on this machine or another.
_CONTAINERS: Final = (
    "aac,ac3,aiff,amr,ape,apng,asf,au,av1,avi,caf,dts,dv,eac3,flac,flv,gif,h264,hevc,ivf,loas,m4v,matroska,"
    "mjpeg,mov,mp3,mpc,mpc8,mpeg,mpegts,mpegvideo,mxf,nut,obu,ogg,rm,tak,tta,vc1,voc,vvc,w64,wav,wtv,wv,"
    "yuv4mpegpipe"
)
# Those whose headers tell the time of the first frame. Of others it is not told, or that of the first packet, whose frame may
# come later (AVI), or never (MPEG-TS that was cut out of a longer one).
_TELL_BEGIN: Final = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
# MPEG program and elementary streams, and codecs in containers that know times of decoding alone: FFmpeg guesses the times of
# pictures, also wrongly. So these follow each other, from the first one on; only where many are left out a told time counts.
_GUESSED: Final = ("mpeg", "mpegvideo")
_GUESSED_OF: Final = {"avi": ("h264", "hevc", "mpeg1video"), "asf": ("h264", "hevc")}
_LEFT_OUT: Final = 16
# Of protocols none, for those that open them past the callback, as RTP does.
_BOUND: Final = {"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}


class OpenStream:
    """The best video or sound of a file.

    ``kind``: ``"video"`` or ``"audio"``.

    Attributes:
        stream: PyAV's stream. Another after :meth:`restart`.
        tick: seconds of a unit in which its times are told.
        origin: time of its first frame, in ticks, by the header.
        seconds: how long it is; ``None`` where the file does not say.

    CorruptDataError or FormatError if the bytes are no such file, StorageError if they can not be read. MissingPackageError
    if PyAV is not installed.
    """

    def __init__(self, source: MediaSource, kind: Literal["video", "audio"]) -> None:
        many, self._one, extra = _WORDS[kind]
        self.av: Any = import_option("av", f"{many} need PyAV", extra)
        # From PyAV 19 on metadata is never an error, and there is no such option.
        self._options = {"metadata_errors": "replace"} if int(self.av.__version__.partition(".")[0]) < 19 else {}
        self.where = source.where
        self._kind = kind
        self._file = RangedFile(source)
        self._open()
        if self.stream.time_base is None:
            raise self._no_times()
        self.tick = Fraction(self.stream.time_base)
        self.origin: int = self.stream.start_time or 0
        # What was written into a pipe may tell 0.
        ticks, whole = self.stream.duration, self._container.duration
        if ticks:
            self.seconds: float | None = float(ticks * self.tick)
        else:
            self.seconds = whole / self.av.time_base if whole else None

    def _open(self) -> None:
        self._file.at, self._fresh = 0, True
        try:
            self._container = self.av.open(
                self._file, mode="r", io_open=self._refuse, container_options=_BOUND, **self._options
            )
        except self.av.ArgumentError as error:  # also for a container that is not on the list
            raise CorruptDataError(
                f"{self.where}: FFmpeg can not open it: it is damaged, or of a container that is not read. Store it as MP4, "
                "Matroska, MPEG-TS, Ogg, FLAC or MP3"
            ) from error
        except self.av.FFmpegError as error:
            raise self.failed(error) from error
        self.stream: Any = self._container.streams.best(self._kind)
        if self.stream is None:
            self._container.close()
            raise CorruptDataError(f"{self.where}: the file holds no {self._one}")
        codec = self.stream.codec_context.name
        self._guessed = self._kind == "video" and (self.format in _GUESSED or codec in _GUESSED_OF.get(self.format, ()))
        # One of many that are decoded side by side, each by its own thread.
        self.stream.codec_context.thread_count = 1
        # Otherwise many decoders put something else in the place of damaged pictures without a word.
        self.stream.codec_context.options = {"err_detect": "explode"}

    def _refuse(self, url: str, *_: object) -> NoReturn:
        """Open no file that the file names."""
        raise CorruptDataError(f"{self.where}: it names another file, which is not opened: {url!r}")

    @property
    def format(self) -> str:
        """FFmpeg's name of the container."""
        name: str = self._container.format.name
        return name

    @property
    def tells_begin(self) -> bool:
        """Whether :attr:`origin` is to be believed."""
        return self.format in _TELL_BEGIN

    @property
    def alone(self) -> bool:
        """Whether the file has no other stream."""
        return len(self._container.streams) == 1

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def announce(self, start: int, end: int) -> None:
        """See :meth:`~stoker.formats.media.source.RangedFile.announce`."""
        self._file.announce(start, end)

    def seek(self, tick: int) -> bool:
        """Make :meth:`frames` begin at or before a time, as far as the file's index tells; false where it can not search,
        or no frame would have a time then.

        StorageError if the file can not be read.
        """
        if self._guessed:
            return False
        self._fresh = False
        try:
            self._container.seek(tick, stream=self.stream)
        except self.av.FFmpegError as error:
            if self._file.failure is not None:
                raise self._file.failure from error
            return False
        return True

    def restart(self) -> None:
        """Make :meth:`frames` begin at the beginning."""
        if not self._fresh:
            self._container.close()
            self._open()

    def frames(self) -> Iterator[Any]:
        """Decoded frames in the order of their times.

        CorruptDataError if bytes are damaged, StorageError if they can not be read.
        """
        after_seek, self._fresh = not self._fresh, False
        key: int | None = None
        early = after_seek
        owed: int | None = None
        follows: int | None = None
        try:
            for packet in self._container.demux(self.stream):
                if key is None and packet.is_keyframe:
                    key = packet.pts
                # What is shown before the first key frame needs others that a seek has passed over. A decoder may tell of
                # that with the next packet, whose own frame must come all the same.
                before, early = early, after_seek and (key is None or (packet.pts is not None and packet.pts < key))
                try:
                    found = packet.decode()
                except self.av.FFmpegError:
                    if not packet.size or not (early or (before and owed is None)):
                        raise
                    found, owed = [], owed if early else packet.pts
                for frame in found:
                    if self._guessed and follows is not None:
                        away = math.inf if frame.pts is None else (frame.pts - follows) / (frame.duration or 1)
                        if not (abs(away) < 0.5 or _LEFT_OUT < away < math.inf):
                            frame.pts = follows
                    if frame.pts is None:
                        raise self._no_times()
                    if owed is not None and frame.pts >= owed:
                        if frame.pts > owed:
                            raise CorruptDataError(f"{self.where}: a frame does not decode")
                        owed = None
                    follows = frame.pts + frame.duration
                    yield frame
        except self.av.FFmpegError as error:
            raise self.failed(error) from error
        if self._file.failure is not None:
            raise self._file.failure

    def failed(self, error: Exception) -> StokerError:
        """The error for one of FFmpeg."""
        told = getattr(error, "strerror", None) or error  # without FFmpeg's number, and the name of what is an object
        return self._file.failure or CorruptDataError(f"{self.where}: FFmpeg can not decode it: {told}")

    def _no_times(self) -> FormatError:
        return FormatError(f"{self.where}: a {self._one} whose frames have no times")


def check_start(start: float) -> None:
    """Check the time at which a clip begins. ConfigError if it is none."""
    must_be("a number of seconds from 0 on", 0 <= start < math.inf, start=start)


_F = TypeVar("_F")


class MediaDecoder(Closable, Protocol[_F]):
    """An open video or sound; ``facts`` are those that its header tells."""

    facts: _F


_M = TypeVar("_M", bound=MediaDecoder[Any])


class _OpenDecoders(ProcessLocal):
    """Decoders of this process that nobody uses now, by the number of their handle; the least recently used first.

    There is no lock, which a finalizer could find held by its own thread: each step is one operation of a dict. (Those of
    an ``OrderedDict`` need one where Python has none of its own.)
    """

    def __init__(self) -> None:
        self._idle: dict[int, Closable] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, number: int) -> Closable | None:
        return self._idle.pop(number, None)

    def put(self, number: int, decoder: Closable) -> None:
        before = self._idle.pop(number, None)  # of another thread, which used the same handle
        self._idle[number] = decoder
        if before is not None:
            before.close()
        if len(self._idle) > MOST_DECODERS:
            for oldest in list(self._idle)[:-MOST_DECODERS]:
                self.drop(oldest)

    def drop(self, number: int) -> None:
        decoder = self._idle.pop(number, None)
        if decoder is not None:
            decoder.close()


OPEN: Final = _OpenDecoders()
_NUMBERS: Final = itertools.count()


class MediaHandle(Generic[_M, _F]):
    """A video or a sound that is opened when it is first used. May be used by several threads, and pickled.

    Its decoder stays open from then on, as long as it is among the most recently used of the process, and is closed with it.
    """

    __slots__ = ("__weakref__", "_facts", "_number", "_source")
    _what: ClassVar[str]

    @checked
    def __init__(self, data: MediaData, storage_options: StorageOptions | None = None) -> None:
        self._begin(media_source(data, self._what, storage_options))

    @classmethod
    def of(cls, source: MediaSource) -> Self:
        """The video or sound of a source."""
        made = cls.__new__(cls)
        made._begin(source)
        return made

    @staticmethod
    def _open(source: MediaSource) -> _M:
        """Its decoder."""
        raise NotImplementedError

    def _begin(self, source: MediaSource) -> None:
        self._source = source
        self._facts: _F | None = None
        self._number = next(_NUMBERS)
        weakref.finalize(self, OPEN.drop, self._number).atexit = False

    @contextmanager
    def _used(self) -> Iterator[_M]:
        """The decoder, for this thread alone. One that fails is closed."""
        found = OPEN.take(self._number)
        decoder: _M = self._open(self._source) if found is None else found  # type: ignore[assignment]
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        OPEN.put(self._number, decoder)

    def _read_facts(self) -> _F:
        if self._facts is None:
            with self._used() as decoder:
                self._facts = decoder.facts
        return self._facts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self._source,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._source.where}>"

"""Sounds as lazy handles: nothing is read of one before a clip of it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import checked, must_be
from stoker.errors import ClipError, ConfigError, CorruptDataError, StokerError, import_option
from stoker.formats.media.open_decoders import MediaHandle, OpenStream, check_start
from stoker.formats.media.source import MediaSource, RangedFile
from stoker.units import GIB, parse_bytes

# Files that libsndfile reads, by how they begin; all others are FFmpeg's.
_SNDFILE: Final = (b"fLaC", b"RIFF", b"RF64", b"riff", b"FORM", b".snd", b"caff")
# The number of samples that libsndfile tells where a file does not; or it tells 0; or it refuses it, of CAF.
_UNTOLD: Final = 2**63 - 1
_UNTOLD_REFUSED: Final = b"caff"
_OPUS: Final = b"OpusHead"
_VORBIS: Final = b"\x01vorbis"
_EXTRA: Final = "stoker[audio]"
# Input samples beside a clip that the filter of a resampler looks at, where it raises the rate.
_FILTER: Final = 1024
# Seconds before a clip at which decoding by FFmpeg begins: a frame of AAC needs the one before it, of MP3 the last 511 bytes.
_LEAD: Final = 1.0
# Most samples of a sound in Opus that is decoded as a whole: a page holds a second.
_SHORT: Final = 48_000
# Samples by which FFmpeg's times of Vorbis in Ogg may be wrong: half a block, where blocks become short at the end of a page.
_PACKET: Final = 4096
# Most bytes of the header of a page of Ogg.
_PAGE_HEAD: Final = 27 + 255
# Seconds by which the times of frames may be rounded without there being a gap.
_ROUNDED: Final = 0.002
# Samples for which there is room when decoding begins, where a header does not say how many there are.
_BEGIN: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class AudioFacts:
    """Facts that the header of a sound tells.

    Attributes:
        duration: seconds; ``None`` where the file does not say. Of AAC the last frame may have padding after it.
        rate: samples a second of each channel.
        channels: number of channels.
        samples: of each channel; ``None`` where the file does not say exactly.
        codec: name of the format, such as ``"FLAC"``, ``"WAV"``, ``"MP3"`` or ``"aac"``.
    """

    duration: float | None
    rate: int
    channels: int
    samples: int | None
    codec: str


class Audio(MediaHandle["_Decoder", AudioFacts]):
    """An audio recording that is decoded on request, whole or by clip.

    A handle is cheap, as that of a :class:`~stoker.formats.media.video.Video`. FLAC, WAV, AIFF and Opus in Ogg are
    decoded by libsndfile; MP3, Vorbis, M4A, AAC and the sound of videos by FFmpeg.

    >>> import io, numpy as np, soundfile
    >>> soundfile.write(file := io.BytesIO(), np.zeros((32000, 2)), 16000, format="FLAC")
    >>> sound = Audio(file.getvalue())
    >>> sound.facts.duration, sound.clip(0.5, seconds=1.0).shape, sound.clip(0.5, seconds=1.0, rate=8000).shape
    (2.0, (16000, 2), (8000, 2))
    >>> samples, rate = sound.read()
    >>> samples.shape, rate
    ((32000, 2), 16000)

    Args:
        data: the encoded bytes, or the path or URL of a file.
        storage_options: of a URL; see :func:`stoker.storage.open_store`.

    Raises:
        ConfigError: the path or URL makes no sense.
        ObjectNotFoundError, StorageError: there is no such file, or it can not be asked for.
    """

    __slots__ = ()

    _what = "a sound"

    @staticmethod
    def _open(source: MediaSource) -> _Decoder:
        begins = source.read(0, min(64, source.size))
        # libsndfile's seek is not exact in Vorbis (its issue 885) nor in MP3 (where a frame needs bits of many before it).
        # Of Vorbis in a single page FFmpeg tells wrong times, and cuts the end off; it is so short that none must seek.
        plain = begins.startswith(_SNDFILE) or _OPUS in begins or (_VORBIS in begins and _in_one_page(source))
        if not plain:
            return _FFmpeg(source)
        try:
            found = _SndFile(source)
        except CorruptDataError:
            if not begins.startswith(_UNTOLD_REFUSED):
                raise
            return _FFmpeg(source)
        if 0 < found.samples < _UNTOLD:
            return found
        # It was written into a pipe, or is empty.
        other = _FFmpeg(source)
        return other if found.samples or other.has_samples() else found

    @property
    def facts(self) -> AudioFacts:
        """Facts that its header tells: duration, rate, channels, samples.

        Raises:
            CorruptDataError: the bytes are no sound.
            StorageError: it can not be read.
            MissingPackageError: soundfile, or for other formats PyAV, is not installed.
        """
        return self._read_facts()

    @checked
    def read(self, rate: int | None = None, *, decoded_limit: int | str = GIB) -> tuple[NDArray[np.float32], int]:
        """Decode the whole sound.

        Args:
            rate: as for :meth:`clip`.
            decoded_limit: bytes that the samples may take, such as ``"4gb"``. By default 1 GiB: 50 minutes of stereo at
                44,100 samples a second.

        Returns:
            The samples, float32, shape ``(number, channels)``, of full scale from -1 to 1; and their rate.

        Raises:
            ConfigError: an argument makes no sense.
            CorruptDataError: the sound is longer than ``decoded_limit``, or as for :meth:`clip`.
            StorageError, MissingPackageError: as for :meth:`clip`.
        """
        _check_rate(rate)
        limit = parse_bytes(decoded_limit, "decoded_limit")
        with self._used() as decoder:
            facts = decoder.facts
            out = facts.rate if rate is None else rate
            # So that neither the samples that are stored nor those of the other rate take more.
            most = limit // (4 * facts.channels) * facts.rate // max(facts.rate, out)
            found = decoder.read_all(most)
        if found is None:
            raise CorruptDataError(
                f"{self._source.where}: the sound lasts more than {most / facts.rate:.1f} s, and its samples would take "
                f"more than {limit} bytes: read parts of it, clip(start, seconds), or raise read(decoded_limit=)"
            )
        if out == facts.rate:
            return found, out

        def around(first: int, end: int) -> NDArray[np.float32]:
            return np.pad(found, ((-first, end - len(found)), (0, 0)))

        return _resampled(around, 0, facts.rate, out, round(len(found) * out / facts.rate)), out

    @checked
    def clip(self, start: float, seconds: float, rate: int | None = None) -> NDArray[np.float32]:
        """Samples from a time on.

        Positions are exact to the sample, but in Matroska and WebM, which round the times of frames to milliseconds. In MP3
        and Vorbis, files without an index, what is before a clip is read, too.

        Args:
            start: seconds, from 0 on. The first sample is number ``round(start * rate of the file)``.
            seconds: how long, above 0.
            rate: ``None``: samples as they are stored. Otherwise samples a second, resampled by soxr (quality "HQ") with the
                samples before and after the clip, so that it has no edges of its own.

        Returns:
            float32, shape ``(round(seconds * rate), channels)``, of full scale from -1 to 1.

        Raises:
            ConfigError: an argument makes no sense.
            ClipError: the sound ends before the clip does: with its last frame, of AAC with the padding in that.
            CorruptDataError: the bytes are no sound, or are damaged.
            StorageError: it can not be read.
            MissingPackageError: soundfile, soxr, or for other formats PyAV, is not installed.
        """
        check_start(start)
        must_be("above 0", 0 < seconds < math.inf, seconds=seconds)
        _check_rate(rate)
        with self._used() as decoder:
            stored = decoder.facts.rate
            first = round(start * stored)
            end = first + round(seconds * stored)
            if rate is None or rate == stored:
                return decoder.read(first, end)
            around = partial(decoder.read_around, needed=end)
            return _resampled(around, first, stored, rate, round(seconds * rate))


def _check_rate(rate: int | None) -> None:
    if rate is not None and rate < 1:
        raise ConfigError(f"rate={rate!r}: a number of samples a second, or None for the sound's own")


def _in_one_page(source: MediaSource) -> bool:
    """Whether the first page of an Ogg that has samples is the last one."""
    at = 0
    while at < source.size:
        head = source.read(at, min(at + _PAGE_HEAD, source.size)).ljust(_PAGE_HEAD, b"\0")
        at += 27 + head[26] + sum(head[27 : 27 + head[26]])
        if head[6:14] != bytes(8):  # what the header pages have as the number of their last sample
            break
    return at >= source.size


def _resampled(
    read: Callable[[int, int], NDArray[np.float32]], first: int, stored: int, rate: int, count: int
) -> NDArray[np.float32]:
    """``count`` samples of another rate, of which the first is at the time of sample ``first``."""
    soxr = import_option("soxr", "resampling needs soxr", _EXTRA)
    divisor = math.gcd(stored, rate)
    into, out = stored // divisor, rate // divisor  # so many samples last as long as so many of the other rate
    turns = math.ceil(_FILTER * max(1, stored / rate) / into)
    around = turns * into
    end = first + math.ceil(count * stored / rate) + around
    found = soxr.resample(read(first - around, end), stored, rate, quality="HQ")
    return np.ascontiguousarray(found[turns * out : turns * out + count], np.float32)


def _too_short(where: str, end: int, samples: int, rate: int) -> ClipError:
    lasts = f", which lasts {samples / rate:.4f} s" if samples else ""
    return ClipError(
        f"{where}: a clip that ends at {end / rate:.4f} s reaches beyond the end of the sound{lasts}: begin earlier, or take "
        "less"
    )


class _SndFile:
    """A sound that libsndfile decodes."""

    def __init__(self, source: MediaSource) -> None:
        self._library = import_option("soundfile", "sounds need soundfile", _EXTRA)
        self._where = source.where
        self._file = RangedFile(source, quiet=True)
        try:
            self._open = self._library.SoundFile(self._file)
        except self._library.LibsndfileError as error:
            raise self._failed(error) from error
        found = self._open
        self.samples: int = found.frames
        # libsndfile's seek ends at other samples in sounds of a single page. So of short ones all is decoded at once.
        short = found.subtype == "VORBIS" or (found.subtype == "OPUS" and found.frames <= _SHORT)
        self._whole = self._read(0, self.samples) if short else None
        self.facts = AudioFacts(
            found.frames / found.samplerate, found.samplerate, found.channels, found.frames, found.format
        )

    def close(self) -> None:
        self._open.close()

    def read_all(self, most: int) -> NDArray[np.float32] | None:
        """All samples; ``None`` where there are more than ``most``."""
        return self.read(0, self.samples) if self.samples <= most else None

    def read(self, first: int, end: int) -> NDArray[np.float32]:
        """Samples ``[first, end)``; shape ``(end - first, channels)``. ClipError if they reach beyond the end."""
        if end > self.samples:
            raise _too_short(self._where, end, self.samples, self.facts.rate)
        return self._read(first, end) if self._whole is None else self._whole[first:end].copy()

    def _read(self, first: int, end: int) -> NDArray[np.float32]:
        try:
            self._open.seek(first)
            found: NDArray[np.float32] = self._open.read(end - first, dtype="float32", always_2d=True)
        except self._library.LibsndfileError as error:
            raise self._failed(error) from error
        if len(found) < end - first:
            raise self._failed(f"it has {self.samples} samples by its header, and ends after {first + len(found)}")
        return found

    def read_around(self, first: int, end: int, needed: int) -> NDArray[np.float32]:
        """As :meth:`read`, with zeros before the beginning and beyond the end. ClipError for less than ``needed`` samples."""
        if needed > self.samples:
            raise _too_short(self._where, needed, self.samples, self.facts.rate)
        begin, stop = max(0, first), min(end, self.samples)
        return np.pad(self.read(begin, stop), ((begin - first, end - stop), (0, 0)))

    def _failed(self, problem: object) -> StokerError:
        told = getattr(problem, "error_string", problem)  # without the name of the file, which is an object
        return self._file.failure or CorruptDataError(f"{self._where}: libsndfile can not decode it: {told}")


class _FFmpeg:
    """A sound that FFmpeg decodes."""

    def __init__(self, source: MediaSource) -> None:
        self._file = OpenStream(source, "audio")
        codec = self._file.stream.codec_context
        if codec.sample_rate < 1 or codec.channels < 1:
            raise CorruptDataError(f"{source.where}: it does not say how many samples a second or channels it has")
        seconds = self._file.seconds
        if seconds and codec.name.startswith("pcm_") and seconds * codec.bit_rate > 8 * source.size:
            seconds = None  # a header that was written before the samples
        self.facts = AudioFacts(seconds, codec.sample_rate, codec.channels, None, codec.name)
        # Ogg's last page tells how many of the decoded samples count.
        ogg = self._file.format == "ogg" and self._file.seconds is not None and self._file.alone
        self._last = round((self._file.seconds or 0) * codec.sample_rate) if ogg else None

    def close(self) -> None:
        self._file.close()

    def read_all(self, most: int) -> NDArray[np.float32] | None:
        found, samples = self._decode(0, most + 1)
        return found if samples <= most else None

    def read(self, first: int, end: int) -> NDArray[np.float32]:
        return self.read_around(first, end, end)

    def has_samples(self) -> bool:
        """Whether there is any."""
        return self._decode(0, 1)[1] > 0

    def read_around(self, first: int, end: int, needed: int) -> NDArray[np.float32]:
        begin = max(0, first)
        found, samples = self._decode(begin, end)
        if samples < needed:  # which only decoding tells
            # Nothing, where it was sought for beyond the end.
            told = samples or round((self.facts.duration or 0) * self.facts.rate)
            raise _too_short(self._file.where, needed, told, self.facts.rate)
        return np.pad(found, ((begin - first, end - begin - len(found)), (0, 0)))

    def _decode(self, first: int, end: int) -> tuple[NDArray[np.float32], int]:
        """Samples ``[first, end)`` as far as there are any, zeros between, and the number up to the last one decoded."""
        file, rate = self._file, self.facts.rate
        expected = self.facts.duration
        room = _BEGIN if expected is None else math.ceil(expected * rate) + _BEGIN
        out = np.zeros((max(0, min(end, room) - first), self.facts.channels), np.float32)
        planes = file.av.AudioResampler(format="fltp")
        lead = first - round(_LEAD * rate)
        # FFmpeg's seek in Ogg may end at another sample, as libsndfile's does.
        if lead <= 0 or file.format == "ogg" or not file.seek(file.origin + math.floor(lead / rate / file.tick)):
            file.restart()
        at: int | None = None
        near = _PACKET if file.format == "ogg" else _ROUNDED * rate
        for frame in file.frames():
            told = self._number(frame)
            # A container may round times: what follows closely follows at once.
            begin = told if at is None or abs(told - at) > near else at
            at = begin + frame.samples
            if self._last is not None:
                at = max(begin, min(at, self._last))
            low, high = max(begin, first), min(at, end)
            if low < high:
                data = np.concatenate([part.to_ndarray() for part in planes.resample(frame)], axis=1).T
                if high - first > len(out):
                    more = max(high, min(end, first + 2 * len(out))) - first - len(out)
                    out = np.concatenate([out, np.zeros((more, out.shape[1]), np.float32)])
                out[low - first : high - first] = data[low - begin : high - begin]
            if at >= end:
                break
        return out[: max(0, (at or 0) - first)], at or 0

    def _number(self, frame: Any) -> int:
        """Number of a frame's first sample in the sound."""
        file, facts = self._file, self.facts
        if frame.sample_rate != facts.rate or frame.layout.nb_channels != facts.channels:
            raise CorruptDataError(f"{file.where}: the sample rate or the number of channels changes within the sound")
        number: int = round((frame.pts * Fraction(frame.time_base or file.tick) - file.origin * file.tick) * facts.rate)
        return number


_Decoder: TypeAlias = _SndFile | _FFmpeg
"""An open sound."""

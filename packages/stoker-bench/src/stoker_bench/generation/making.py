"""One file: its bytes in chunks, and what is told of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import cramjam

from stoker.digests import _HASHES
from stoker.formats.common.compression import parse_compression
from stoker_bench.generation.formats.base import layout_of
from stoker_bench.generation.names import Output, output
from stoker_bench.generation.segments import CHUNK, assemble
from stoker_bench.generation.spec import DatasetSpec
from stoker_bench.generation.words import VERSION as WORDS_VERSION

_WHOLE: Final = CHUNK // 4


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """A file.

    Attributes:
        size: its bytes.
        hashes: name to digest, of these bytes.
        raw_size: bytes before compression; ``size`` where the file is not compressed as a whole.
        raw_hashes: their digests.
        seconds: that storing it took, without making its bytes.
    """

    size: int
    hashes: dict[str, str]
    raw_size: int
    raw_hashes: dict[str, str]
    seconds: float = 0.0


class _Tally:
    """Counts and hashes chunks that pass."""

    def __init__(self, hashes: Iterable[str]) -> None:
        self.size = 0
        self._hashes = {name: _HASHES[name]() for name in hashes}

    def watch(self, chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        for chunk in chunks:
            self.size += len(chunk)
            for one in self._hashes.values():
                one.update(chunk)
            yield chunk

    @property
    def digests(self) -> dict[str, str]:
        return {name: str(one.hexdigest()) for name, one in self._hashes.items()}


class FileBuilder:
    """A file in the making.

    Args:
        spec: the dataset.
        out: which file.
    """

    def __init__(self, spec: DatasetSpec, out: Output) -> None:
        self._spec = spec
        self._out = out
        self._raw = self._stored = _Tally(())

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes, from its begin; each chunk is valid until the next is asked for."""
        spec = self._spec
        self._raw = self._stored = _Tally(spec.hashes)
        segments = layout_of(spec).segments(self._out.index)
        if spec.compression is None or not spec.form.compressed_whole:
            return self._stored.watch(assemble(segments, whole=_WHOLE))
        self._stored = _Tally(spec.hashes)
        # Where the chunks end is part of what a compressor makes of them: these stay as they are.
        return self._stored.watch(_compressed(self._raw.watch(assemble(segments)), spec.compression))

    @property
    def facts(self) -> GeneratedFile:
        """Size and hashes of the file, once all chunks have been taken."""
        return GeneratedFile(self._stored.size, self._stored.digests, self._raw.size, self._raw.digests)


def iterate_file(spec: DatasetSpec, number: int) -> Iterator[memoryview]:
    """The bytes of a file, in chunks: a function of the arguments, and of the versions of libraries that encode.

    Args:
        spec: the dataset.
        number: index of the file in :func:`~stoker_bench.generation.file_names`.

    Yields:
        Chunks of about 1 MiB. Each is valid until the next is asked for.
    """
    return FileBuilder(spec, output(spec, number)).chunks()


def file_size(spec: DatasetSpec, out: Output) -> int | None:
    """Bytes of a file; ``None`` where only making it tells, because it is compressed."""
    return None if spec.compression is not None and spec.form.compressed_whole else layout_of(spec).size(out.index)


def library_versions(spec: DatasetSpec) -> dict[str, str]:
    """Libraries whose version the bytes of the files depend on, and that version; likewise of what makes tokens and text."""
    found = layout_of(spec).versions()
    if any(column.tokens or column.dtype == "str" for column in spec.fields):
        found |= {"stoker.generation.words": WORDS_VERSION}  # as datasets say it that were made when it was there
    if spec.compression is not None and spec.form.compressed_whole:
        zstd = spec.compression.startswith("zstd")
        found |= {"cramjam": cramjam.__version__} if zstd else {"zlib": zlib.ZLIB_RUNTIME_VERSION}
    return found


def _compressed(chunks: Iterable[memoryview], compression: str) -> Iterator[memoryview]:
    press, finish = _press(compression)
    for chunk in chunks:
        if packed := press(chunk):
            yield memoryview(packed)
    yield memoryview(finish())


def _press(compression: str) -> tuple[Callable[[memoryview], bytes], Callable[[], bytes]]:
    codec = parse_compression(compression)
    if codec.extension == "gz":
        packer = zlib.compressobj(6 if ":" not in compression else codec.level or 0, wbits=31)
        return packer.compress, packer.flush
    stream: Any = cramjam.zstd.Compressor(codec.level)

    def press(chunk: memoryview) -> bytes:
        stream.compress(bytes(chunk))
        return bytes(stream.flush())

    return press, lambda: bytes(stream.finish())

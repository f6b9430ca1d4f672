"""Codecs: what comes back, how they are named, and that they never make more than they are asked for."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import mmap
import resource
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.common.compression import compression_names, parse_compression

TEXT = b"the quick brown fox " * 500 + bytes(range(256))
LEVELS = ["br:0", "br:11", "bz2:1", "bz2:9", "gz:0", "gz:9", "zstd:1", "zstd:22"]


@pytest.mark.parametrize("name", [*compression_names(), *LEVELS])
@pytest.mark.parametrize("data", [b"", b"x", TEXT])
def test_what_is_compressed_comes_back(name: str, data: bytes) -> None:
    codec = parse_compression(name)
    assert codec.text == name
    for given_as in (data, bytearray(data), memoryview(data)):
        packed = codec.compress(given_as)
        assert codec.decompress(packed, len(data)) == data
        assert codec.decompress_unsized(packed, 1 << 20) == data


@pytest.mark.parametrize("name", compression_names())
def test_a_mapped_file_is_filled(name: str) -> None:
    codec = parse_compression(name)
    with mmap.mmap(-1, len(TEXT)) as out:
        codec.decompress_into(codec.compress(TEXT), out)
        assert out[:] == TEXT


def test_files_of_other_tools_are_read() -> None:
    assert parse_compression("gz").decompress(gzip.compress(TEXT), len(TEXT)) == TEXT
    assert parse_compression("gz").decompress(gzip.compress(TEXT) * 2, 2 * len(TEXT)) == TEXT * 2
    assert parse_compression("bz2").decompress(bz2.compress(TEXT) * 2, 2 * len(TEXT)) == TEXT * 2
    frame = bytes(cramjam.zstd.compress(TEXT, 3))
    assert parse_compression("zstd").decompress(frame * 3, 3 * len(TEXT)) == TEXT * 3
    streaming = zlib.compressobj(wbits=31)
    data = streaming.compress(TEXT) + streaming.flush()
    assert parse_compression("gz").decompress(data, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    "name", ["zip", "", "zstd:0", "zstd:23", "zstd:", "zstd:x", "zstd:3:3", "snappy:1", "gz:10", "br:٣"]
)
def test_an_unknown_codec_or_level_is_named(name: str) -> None:
    with pytest.raises(FormatError, match="compression"):
        parse_compression(name)


@pytest.mark.parametrize("name", compression_names())
@pytest.mark.parametrize("change", [-1, 1, -len(TEXT), 1000])
def test_another_size_than_expected_is_corrupt(name: str, change: int) -> None:
    codec = parse_compression(name)
    with pytest.raises(CorruptDataError):
        codec.decompress(codec.compress(TEXT), len(TEXT) + change)


@pytest.mark.parametrize("name", compression_names())
def test_a_cut_file_is_corrupt(name: str) -> None:
    codec = parse_compression(name)
    packed = codec.compress(TEXT)
    for end in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CorruptDataError):
            codec.decompress(packed[:end], len(TEXT))
        with pytest.raises(CorruptDataError):
            codec.decompress_unsized(packed[:end], 1 << 20)


@pytest.mark.parametrize("name", compression_names())
def test_a_small_file_that_claims_ten_gigabytes_costs_no_memory(name: str) -> None:
    codec = parse_compression(name)
    packed = codec.compress(TEXT[:3000])
    with pytest.raises(CorruptDataError):
        codec.decompress(packed, 10 << 30)


@pytest.mark.parametrize("name", compression_names())
def test_a_bomb_stops_at_the_expected_size(name: str) -> None:
    codec = parse_compression("br:1" if name == "br" else name)
    bomb = codec.compress(bytes(64 << 20))
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (48 << 20), hard))
    try:
        with pytest.raises(CorruptDataError):
            codec.decompress(bomb, 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(compression_names()), st.binary(max_size=200), st.integers(0, 4096))
def test_no_bytes_make_a_codec_fail_otherwise(name: str, data: bytes, size: int) -> None:
    with contextlib.suppress(CorruptDataError):
        assert len(parse_compression(name).decompress(data, size)) == size

"""Hashes: those of hashlib and xxhash, over buffers of any kind."""

from __future__ import annotations

import hashlib
import mmap

import pytest
import xxhash

from stoker.digests import check_hash_name, fastest_hash, hash_hex, hash_names
from stoker.errors import FormatError

DATA = b"some bytes" * 1000


@pytest.mark.parametrize("name", hash_names())
def test_a_digest_is_the_librarys(name: str) -> None:
    library = xxhash if name.startswith("xxh") else hashlib
    expected = getattr(library, name)(DATA).hexdigest()
    assert hash_hex(name, DATA) == expected
    assert hash_hex(name, [DATA[:7], memoryview(DATA)[7:500], bytearray(DATA[500:])]) == expected
    with mmap.mmap(-1, len(DATA)) as mapped:
        mapped[:] = DATA
        assert hash_hex(name, mapped) == expected


def test_every_hash_of_the_format_is_known() -> None:
    plain = {name for name in hashlib.algorithms_guaranteed if not name.startswith("shake")}
    assert plain | {"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"} == set(hash_names())


def test_an_unknown_hash_is_named() -> None:
    with pytest.raises(FormatError, match="sha0"):
        check_hash_name("sha0")
    with pytest.raises(FormatError, match="sha0"):
        hash_hex("sha0", b"")


def test_the_cheapest_known_hash_is_chosen() -> None:
    assert fastest_hash(["sha3_512", "md5", "xxh64", "sha0"]) == "xxh64"
    assert fastest_hash(["sha0"]) is None
    assert fastest_hash([]) is None

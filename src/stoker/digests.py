"""Digests of bytes: hashlib's, and all that an index may hold of its files, which are in lower-case hex.

hashlib is imported when the first of its digests is asked for: it loads OpenSSL, which takes half a MiB of each process, and
worker processes that read files of this machine need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import xxhash

from stoker.display import unknown_name
from stoker.errors import FormatError

if TYPE_CHECKING:
    import hashlib


def blake2b(data: bytes, size: int) -> hashlib.blake2b:
    """BLAKE2b of so many bytes, which more can be added to."""
    import hashlib

    return hashlib.blake2b(data, digest_size=size)


def digest_of(name: str) -> hashlib._Hash:
    """A digest of another kind of hashlib, empty: to find damage, and so also where a policy forbids it for signatures."""
    import hashlib

    return hashlib.new(name, usedforsecurity=False)


def sha256(data: bytes = b"") -> hashlib._Hash:
    """SHA-256, which more can be added to."""
    import hashlib

    return hashlib.sha256(data)


_HASHLIB = (
    *("sha1", "sha256", "sha224", "blake2b", "sha512", "sha384"),
    *("md5", "blake2s", "sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)
_XXHASH = ("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32")
# Cheapest first, as measured with the SHA instructions of current processors.
_HASHES: Final[dict[str, Callable[[], Any]]] = {
    **{name: getattr(xxhash, name) for name in _XXHASH},
    **{name: partial(digest_of, name) for name in _HASHLIB},
}


def hash_names() -> list[str]:
    """Names of all known hashes, cheapest first."""
    return list(_HASHES)


def check_hash_name(name: str) -> str:
    """Return the name if it is known. FormatError if there is no such hash."""
    if name not in _HASHES:
        raise FormatError(unknown_name("hash", name, _HASHES))
    return name


def fastest_hash(names: Iterable[str]) -> str | None:
    """The known hash among ``names`` that costs least, or ``None`` if none is known."""
    wanted = set(names)
    return next((name for name in _HASHES if name in wanted), None)


def new_hash(name: str) -> Callable[[], Any]:
    """A function that makes an empty hash of this name; picklable. FormatError if there is no such hash."""
    return _HASHES[check_hash_name(name)]


def hash_hex(name: str, data: Any | Sequence[Any]) -> str:
    """The digest of a buffer, or of a list or tuple of buffers one after the other, as lower-case hex.

    FormatError if there is no such hash.
    """
    digest = _HASHES[check_hash_name(name)]()
    for part in data if isinstance(data, list | tuple) else (data,):
        digest.update(part)
    return str(digest.hexdigest())

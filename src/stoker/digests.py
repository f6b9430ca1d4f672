"""Digests of bytes by hashlib, which is imported when the first is asked for.

It loads OpenSSL, which takes half a MiB of each process, and worker processes that read files of this machine need no digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

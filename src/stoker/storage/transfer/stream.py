"""Objects that are made while they are written, chunk by chunk: what the kinds of store share for them."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.storage.types import BufferLike, Chunks

PART = 8 << 20
"""Bytes of one part of an upload. What is not larger goes in one request."""


class Made:
    """The chunks of an object, made once for each attempt to write it.

    Attributes:
        error: what making them raised. It is the caller's own, told apart by this from errors of the store.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[BufferLike]:
        try:
            yield from self._chunks()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


def first_part(chunks: Iterator[BufferLike]) -> tuple[list[bytes], bool]:
    """Copies of the chunks up to about :data:`PART` bytes, and whether there may be more of them."""
    taken: list[bytes] = []
    size = 0
    for chunk in chunks:
        taken.append(bytes(chunk))
        size += len(taken[-1])
        if size > PART:
            return taken, True
    return taken, False

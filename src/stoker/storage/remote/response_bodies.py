"""Answers to requests for objects: their bodies chunk by chunk, no more than was asked for and no slower than a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from stoker.storage.remote.faults import Fault
from stoker.storage.types import BufferLike, ObjectInfo

TIME_VERSION: Final = "@"
"""Begin of a version that is a time."""

SLOWEST: Final = 4096
"""Bytes a second that an answer's body must reach, on the whole, after the first ``stall_timeout`` seconds."""

BRIEF_STALLS: Final = 5
"""Stall times that a whole request may take which carries little: ``head``, ``list``, ``delete`` and small uploads."""

# Small enough to stay in the processor's cache between the socket and the file, large enough that the calls
# and the interpreter's lock cost little: measured by benchmarks/storage_download.py. Below 100,000 bytes xxhash does not let
# go of that lock, for which threads that hash what arrives would have to wait again after each chunk.
_CHUNK: Final = 96 << 10
# Up to here every piece of a brief answer is looked at; the whole of what is larger has a bound in time.
_WATCHED: Final = 1 << 15
# Ranges with less between them share a request.
_GAP: Final = 1 << 20


class ObjectAnswer(Protocol):
    """An answer to a request for an object, as obstore's ``GetResult`` is.

    ``meta``: ``size`` of the whole object, ``e_tag``, ``last_modified``.
    """

    @property
    def meta(self) -> Mapping[str, Any]: ...

    def bytes(self) -> Any:
        """The whole body."""

    def stream(self, min_chunk_size: int) -> Iterator[Any]:
        """The body, in pieces of at least so many bytes but for the last."""


class ObjectClient(Protocol):
    """Asks a server for objects."""

    def get(
        self, path: str, wanted: tuple[int, int] | None = None, version: str = "", *, brief: bool = False
    ) -> ObjectAnswer:
        """Ask for an object, or for bytes ``[start, end)`` of it, of this version where one is given.

        ``brief``: the answer carries little, and has a bound on the whole.
        """


class AnswerError(Exception):
    """A body that is not what was asked for.

    ``fault``: what is wrong. ``after``: seconds that the server asks to be left alone.
    """

    def __init__(self, fault: Fault, after: float = 0.0) -> None:
        super().__init__(fault.detail)
        self.fault = fault
        self.after = after


def body(
    result: ObjectAnswer,
    size: int,
    stall_timeout: float,
    *,
    brief: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes]:
    """The chunks of a body of ``size`` bytes, as buffers. Nothing is allocated for bytes that have not arrived.

    Each piece is looked at when it arrives, so that one byte every few seconds is noticed at once. AnswerError if more, or
    fewer, than ``size`` bytes come, or they come slower than :data:`SLOWEST`. ``brief``: the request has a bound on the
    whole, and its answer has as many bytes as it said.
    """
    begun = clock()
    done = waiting = 0
    together: list[bytes] = []
    # What is brief is waited for once, which costs less than a wait for each piece.
    for piece in (result.bytes(),) if brief and size > _WATCHED else result.stream(1):
        done += len(piece)
        waiting += len(piece)
        if done > size:  # a server that takes no ranges, or counts otherwise
            raise AnswerError(Fault("other", f"more came than the {size} bytes that were asked for"))
        together.append(piece)
        if waiting >= _CHUNK or done == size:
            yield together[0] if len(together) == 1 else b"".join(together)
            together, waiting = [], 0
        check_speed(done, size, clock() - begun - stall_timeout)
    if done != size:
        raise AnswerError(Fault("transient", f"{done} of {size} bytes arrived", answered=True))


def check_speed(done: int, size: int, seconds: float) -> None:
    """Check that ``done`` of ``size`` bytes are enough, so many seconds after the stall time."""
    if done < min(size, seconds * SLOWEST):
        detail = f"{done} of {size} bytes arrived, slower than {SLOWEST} bytes/s after the stall time"
        raise AnswerError(Fault("timeout", detail, answered=True))


def read_ranges(starts: Sequence[int], ends: Sequence[int], read: Callable[[int, int], BufferLike]) -> list[BufferLike]:
    """Bytes ``[starts[i], ends[i])`` for each i; ranges that lie close share a request.

    ``ends``: end of each; an empty range needs no request. ``read``: makes a request for the bytes ``[start, end)``.
    """
    answer: list[BufferLike] = [b""] * len(starts)
    wanted = [number for number in range(len(starts)) if starts[number] < ends[number]]
    for start, end, inside in _close_ranges([starts[one] for one in wanted], [ends[one] for one in wanted]):
        data = read(start, end)
        for number in (wanted[one] for one in inside):
            alone = (starts[number], ends[number]) == (start, end)
            answer[number] = data if alone else memoryview(data)[starts[number] - start : ends[number] - start]
    return answer


def _close_ranges(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """The requests for some ranges, none of them empty: start, end and which of the ranges lie inside."""
    order = sorted(range(len(starts)), key=lambda number: starts[number])
    at = 0
    while at < len(order):
        start, end, inside = starts[order[at]], ends[order[at]], [order[at]]
        at += 1
        while at < len(order) and starts[order[at]] <= end + _GAP:
            end = max(end, ends[order[at]])
            inside.append(order[at])
            at += 1
        yield start, end, inside


def answer_info(key: str, meta: Mapping[str, Any]) -> ObjectInfo:
    """The object that an answer is of."""
    return ObjectInfo(key, meta["size"], answer_version(meta), _modified(meta))


def copy_body(chunks: Iterator[bytes], into: memoryview, digest: Any = None) -> None:
    """Write a body into memory, and hash it on the way."""
    done = 0
    for chunk in chunks:
        into[done : done + len(chunk)] = chunk
        if digest is not None:
            digest.update(chunk)
        done += len(chunk)


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds after which a server that refuses for now wants to be asked again; ``None`` where it does not say."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time()) if text else None
    except (ValueError, OverflowError):
        return None


def _modified(meta: Mapping[str, Any]) -> int:
    """When the object was written, in nanoseconds since 1970; 0 where the server does not say.

    Whole seconds, as answers for one object tell: listings of Ceph, MinIO and GCS tell milliseconds of the same time.
    """
    modified = meta.get("last_modified")
    return 0 if modified is None else max(0, math.floor(modified.timestamp()) * 1_000_000_000)


def answer_version(meta: Mapping[str, Any]) -> str:
    """The object's ETag, else its time of change. A weak ETag says less than that the bytes are the same, and no server
    compares it with If-Match.
    """
    tag = meta.get("e_tag") or ""
    if tag and not tag.startswith("W/"):
        return str(tag)
    modified = _modified(meta)
    return f"{TIME_VERSION}{modified}" if modified else ""

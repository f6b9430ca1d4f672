"""Fetches parts of files from a store into the cache with few requests and few unneeded bytes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from stoker.errors import (
    AccessDeniedError,
    CorruptDataError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
)
from stoker.formats.base import FilePart
from stoker.storage import ObjectInfo, Store, is_local
from stoker.storage.files.own import open_own
from stoker.storage.transfer import side_by_side
from stoker.storage.types import Arrival, BufferLike
from stoker.storage.versions import local_version, same_version

# Bytes between ranges are fetched and thrown away where that saves a request: at most so many in a row, and at most this
# part of what is needed.
_WIDEST_GAP: Final = 1 << 20
_WASTE: Final = 25
# Most bytes of a request, so that large ranges come over several connections.
_CHUNK: Final = 8 << 20


def fetch_part(store: Store, part: FilePart, into: Path | memoryview) -> int:
    """Write a part's head and ranges, one after the other, into a local file or into memory; returns their bytes.

    CorruptDataError if the file is not the one that was indexed. StorageError or OSError if reading or writing failed.
    ``into``: a file to be written, or flat writable bytes, as many as head and ranges have.
    """
    requests = list(plan_requests(part, store.transfer.part_size or _CHUNK))
    at = len(part.head)
    work: list[Callable[[], None]] = []
    for start, end, wanted in requests:
        work.append(partial(_fetch, store, part, into, start, end, wanted, at))
        at += sum(last - first for first, last in wanted)
    if isinstance(into, memoryview):
        into[: len(part.head)] = part.head
    else:
        with open(open_own(into, os.O_TRUNC), "wb") as handle:
            handle.write(part.head)
            handle.truncate(at)
    side_by_side(work, store.transfer.part_requests, "ranges")
    _check_local(store, part)
    return at


def request_whole(store: Store, part: FilePart) -> Arrival:
    """Ask for a part that is all of a small file, by one request; :func:`check_whole` looks at the answer.

    CorruptDataError if the file is not the one that was indexed. StorageError if reading failed.
    """
    with _explained(store, part):
        return store.request(part.key, max_bytes=part.size)


def check_whole(store: Store, part: FilePart, data: BufferLike, info: ObjectInfo) -> BufferLike:
    """The bytes of such a file, which came with what the store said of it.

    Some stores write a version otherwise in a listing. Where it differs, the store is asked for the file of that version.
    CorruptDataError if the file is not the one that was indexed. StorageError if reading failed.
    """
    same = same_version(part.version.strip('"'), info.version.strip('"'))
    if info.size != part.size or (part.version and not same):
        with _explained(store, part):
            data = store.get_ranges(part.key, [0], [part.size], version=part.version)[0]
    _check_local(store, part)
    return data


def plan_requests(part: FilePart, most: int = _CHUNK) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Requests for a part, of at most ``most`` bytes: first byte and end of each, and its ranges that are needed."""
    ranges = list(zip(part.starts, part.ends, strict=True))
    budget = sum(part.ends) - sum(part.starts)
    budget //= _WASTE
    gaps = sorted((after[0] - before[1], number) for number, (before, after) in enumerate(itertools.pairwise(ranges)))
    bridged: set[int] = set()
    for gap, number in gaps:
        if gap > min(budget, _WIDEST_GAP):
            break
        budget -= gap
        bridged.add(number)
    together: list[tuple[int, int]] = []
    for number, (start, end) in enumerate(ranges):
        # A range that is too large for one request is cut.
        for first in range(start, end, most):
            last = min(first + most, end)
            if together and (first > start or number - 1 not in bridged or last - together[0][0] > most):
                yield together[0][0], together[-1][1], together
                together = []
            together.append((first, last))
    if together:
        yield together[0][0], together[-1][1], together


def _replaced(where: str | Path, problem: str) -> CorruptDataError:
    """The error for a file that is not the one that was indexed."""
    return CorruptDataError(
        f"{where} was replaced after it was indexed: {problem}. Open the dataset again; a run that began with the old file "
        "can not continue with the new one"
    )


def check_file(path: str | Path, status: os.stat_result, part: FilePart) -> None:
    """Check that a local file is the one that was indexed. CorruptDataError if it is not."""
    if status.st_size != part.size:
        raise _replaced(path, f"it has {status.st_size} bytes, and had {part.size}")
    if part.version and not same_version(part.version, local_version(status)):
        raise _replaced(path, "it was written to since")


def _fetch(
    store: Store,
    part: FilePart,
    into: Path | memoryview,
    start: int,
    end: int,
    wanted: Sequence[tuple[int, int]],
    at: int,
) -> None:
    """Carry out one request, and write its wanted ranges from byte ``at`` on."""
    with _explained(store, part):
        if wanted[-1][1] - wanted[0][0] == sum(last - first for first, last in wanted):  # nothing between them
            if isinstance(into, memoryview):
                store.read_into(part.key, into[at : at + end - start], start=start, version=part.version)
            else:
                store.download_range(part.key, into, start, end, at=at, version=part.version)
            return
        data = memoryview(store.get_ranges(part.key, [start], [end], version=part.version)[0])
    chunks = [data[first - start : last - start] for first, last in wanted]
    if isinstance(into, memoryview):
        for chunk in chunks:
            into[at : at + len(chunk)] = chunk
            at += len(chunk)
        return
    with open(open_own(into), "r+b") as handle:
        handle.seek(at)
        handle.writelines(chunks)


@contextlib.contextmanager
def _explained(store: Store, part: FilePart) -> Iterator[None]:
    """Say so where a request fails as the file is not the one that was indexed."""
    try:
        yield
    except (ObjectNotFoundError, AccessDeniedError, StorageTimeoutError, StorageFullError):
        raise
    except StorageError as error:
        info, where = store.head(part.key), store.url_of(part.key)
        if info.size != part.size:
            raise _replaced(where, f"it has {info.size} bytes, and had {part.size}") from error
        if part.version and not same_version(part.version, info.version):
            raise _replaced(where, "its ETag or time of change is another") from error
        raise


def _check_local(store: Store, part: FilePart) -> None:
    directory = is_local(store.url)
    if directory is not None:
        path = directory / part.key
        with contextlib.suppress(FileNotFoundError):  # it was read before it was removed
            check_file(path, os.stat(path), part)

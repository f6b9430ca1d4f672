"""Requests for objects of a remote store: endpoints in turn, retries, errors as stoker's.

Objects are read into memory, or straight into files, by one request or by several at once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.concurrency.request_observer import ServedBy, observer
from stoker.errors import ConfigError, StokerError, StorageError
from stoker.policy import SMALL_OBJECT
from stoker.storage.files.copying import write_all
from stoker.storage.files.file_errors import file_errors, open_target
from stoker.storage.remote.faults import classify, error_for, is_panic, transient
from stoker.storage.remote.response_bodies import (
    TIME_VERSION,
    AnswerError,
    ObjectAnswer,
    ObjectClient,
    answer_info,
    answer_version,
    body,
    copy_body,
    read_ranges,
)
from stoker.storage.retry import Retries, TransientError
from stoker.storage.transfer import Transfer, over_parts
from stoker.storage.types import PART, Arrival, BufferLike, NewHash, ObjectInfo, at_hand, check_range, check_size
from stoker.storage.url import UNSENDABLE, Location

T = TypeVar("T")
C = TypeVar("C", bound=ObjectClient)


class _Turn(threading.local):
    """The number of the request that a thread makes, plus that of its attempt: it chooses the endpoint."""

    number = 0


class RemoteReads(Generic[C]):
    """Requests for the objects under one root of a store, under the retries of the store, and the methods that read objects.

    ``identity``: in words, where the credentials come from; for messages, without secrets.
    """

    def __init__(
        self,
        location: Location,
        clients: Sequence[C],
        retries: Retries,
        stall_timeout: float,
        transfer: Transfer = Transfer(),  # noqa: B008 - frozen
        identity: str = "",
    ) -> None:
        self._location = location
        self._clients = clients
        self._retries = retries
        self._stall_timeout = stall_timeout
        self._transfer = transfer
        self._identity = identity
        # Processes that begin together do not all begin at the same endpoint.
        self._request_numbers = itertools.count(os.getpid())
        self._turn = _Turn()

    @property
    def _next(self) -> C:
        """The clients of the endpoint whose turn it is: of a repeated request the one after that which it had before."""
        return self._clients[self._turn.number % len(self._clients)]

    def _run(
        self,
        key: str,
        attempt: Callable[[int], T],
        size_of: Callable[[T], int] | None = None,
        failed: BaseException | None = None,
    ) -> T:
        """``attempt``, repeated as the store's retries say, its exceptions turned into stoker's.

        ``attempt``: makes one request; its argument counts the attempts from 0. ``size_of``: of a request for data, the bytes
        that it gave, by what ``attempt`` returned; such requests are counted. ``failed``: the error of a first attempt that
        was made already.
        """
        turn = next(self._request_numbers)

        def translated(number: int) -> T:
            begun, self._turn.number = time.perf_counter_ns(), turn + number
            try:
                if failed is not None and not number:
                    raise failed
                found = attempt(number)
                if size_of is not None and (counts := observer()) is not None:
                    counts.add(ServedBy.NETWORK, time.perf_counter_ns() - begun, size_of(found))
                return found
            except (StokerError, TransientError):
                raise
            except AnswerError as error:
                fault, after = error.fault, error.after
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
                fault, after = classify(error), getattr(error, "after", 0.0)
            # Outside of the except block, so that obstore's text, which may hold a signed URL, is not chained.
            url = self._url(key)
            if fault.retryable:
                asked = self._transfer.used_endpoints[(turn + number) % len(self._clients) :][:1]
                if (counts := observer()) is not None:
                    counts.repeat(*asked or ("",))
                raise transient(fault, url, after, *asked)
            raise error_for(fault, url, host=self._location.host, identity=self._identity)

        return self._retries.run(translated)

    def _path(self, key: str) -> str:
        """The object's name for the client."""
        if not key.isprintable() and (bad := UNSENDABLE.search(key)):
            raise ConfigError(
                f"key {key!r} of {self._location.url!r} contains {bad[0]!r}: control characters and lone surrogates "
                "can not be sent to an object store. Rename the object."
            )
        return f"{self._location.prefix}/{key}" if self._location.prefix else key

    def _url(self, key: str) -> str:
        return f"{self._location.url}/{key}" if key else self._location.url

    def read(self, key: str, max_bytes: int) -> tuple[bytes, ObjectInfo]:
        parts: list[bytes] = []

        def take(info: ObjectInfo, chunks: Iterator[bytes]) -> None:
            check_size(info.size, max_bytes, self._url(key))
            parts[:] = [b"".join(chunks)]

        info = self._first(key, take, brief=max_bytes <= SMALL_OBJECT)
        rest = over_parts(len(parts[0]), info.size, self._transfer, partial(self._range, key, info.version))
        return (b"".join([*parts, *rest]) if rest else parts[0]), info

    def request(self, key: str, max_bytes: int) -> Arrival:
        if self._transfer.part_size is not None or max_bytes > SMALL_OBJECT:
            return at_hand(self.read(key, max_bytes))
        path = self._path(key)
        failed: BaseException | None = None
        if len(self._clients) == 1 and observer() is None:
            try:
                return self._request(key, path, max_bytes)
            except BaseException as error:  # noqa: BLE001 - the retry policy judges it
                failed = error
        return self._run(
            key,
            lambda _: self._request(key, path, max_bytes),
            lambda answer: sum(map(len, answer.args[2])),
            failed,
        )

    def _request(self, key: str, path: str, max_bytes: int) -> partial[tuple[BufferLike, ObjectInfo]]:
        result = self._next.get(path, brief=True)
        meta = result.meta
        size = meta["size"]
        if size > max_bytes:
            check_size(size, max_bytes, self._url(key))
        return partial(_answer, key, meta, tuple(body(result, size, self._stall_timeout, brief=True)))

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int], version: str) -> list[BufferLike]:
        def read(start: int, end: int) -> bytes:
            found = over_parts(start, end, self._transfer, partial(self._range, key, version))
            return found[0] if len(found) == 1 else b"".join(found)

        return read_ranges(starts, ends, read)

    def _range(self, key: str, version: str, start: int, end: int) -> bytes:
        """A range of this version of the object; of another, obstore's error."""
        wanted = (start, end)
        return self._run(
            key, lambda _: b"".join(body(self._ask(key, wanted, version), end - start, self._stall_timeout)), len
        )

    def _first(
        self, key: str, take: Callable[[ObjectInfo, Iterator[bytes]], None], *, brief: bool = False
    ) -> ObjectInfo:
        """Ask for an object, or for the first part of it; ``take`` gets what the answer says, and its bytes.

        ``take``: called in each attempt; refuses an object that is larger than it is to be.
        """
        path, size = self._path(key), self._transfer.part_size

        def attempt(_: int) -> ObjectInfo:
            result: ObjectAnswer | None = None
            if size is not None:
                try:
                    result = self._next.get(path, (0, size))
                except Exception as error:
                    if classify(error).kind != "range":  # as an empty object has no range
                        raise
            if result is None:
                result = self._next.get(path, brief=brief)
            info = answer_info(key, result.meta)
            expected = info.size if size is None else min(size, info.size)
            take(info, body(result, expected, self._stall_timeout, brief=brief and size is None))
            return info

        return self._run(key, attempt, lambda info: info.size if size is None else min(size, info.size))

    def _ask(self, key: str, wanted: tuple[int, int] | None, version: str, *, brief: bool = False) -> ObjectAnswer:
        """The answer to a request for a part of the object, or for all of it, which is ``brief`` where it is small."""
        asked = "" if version.startswith(TIME_VERSION) else version
        result = self._next.get(self._path(key), wanted, asked, brief=brief)
        # Servers need not compare times.
        if version.startswith(TIME_VERSION) and answer_version(result.meta) != version:
            url = self._url(key)
            raise StorageError(f"{url}: it was written to since its version {version}.", url=url)
        if wanted is not None:
            check_range(*wanted, result.meta["size"], self._url(key))
        return result

    def read_into(
        self, key: str, into: memoryview, start: int | None, version: str, new_hash: NewHash | None
    ) -> ObjectInfo:
        size = len(into)
        if start is not None and not size:  # no request can ask for an empty range
            return self.head(key)
        part = self._transfer.part_size
        if part is not None and size > part:
            return self._read_parts_into(key, into, start, version, new_hash)
        wanted = None if start is None else (start, start + size)
        brief = start is None and size <= SMALL_OBJECT

        def attempt(_: int) -> ObjectInfo:
            result = self._ask(key, wanted, version, brief=brief)
            info = answer_info(key, result.meta)
            digest = None if new_hash is None else new_hash()
            if start is not None or info.size == size:
                copy_body(body(result, size, self._stall_timeout, brief=brief), into, digest)
            return info.with_digest(digest)

        return self._run(key, attempt, lambda info: size if start is not None or info.size == size else 0)

    def _read_parts_into(
        self, key: str, into: memoryview, start: int | None, version: str, new_hash: NewHash | None
    ) -> ObjectInfo:
        """:meth:`read_into` by several requests: one that tells the object's version, and then those for that version."""
        size, part = len(into), self._transfer.part_size
        assert part is not None
        first = start or 0

        def fill(begin: int, end: int) -> ObjectInfo:
            return self.read_into(key, into[begin - first : end - first], begin, version, None)

        def take(info: ObjectInfo, chunks: Iterator[bytes]) -> None:
            if info.size == size:
                copy_body(chunks, into)

        info = self._first(key, take) if start is None else fill(first, first + part)
        if start is None and info.size != size:
            return info
        if start is None and version not in ("", info.version):
            raise StorageError(f"{self._url(key)}: it was written to since its version {version}.", url=self._url(key))
        version = version or info.version
        over_parts(first + part, first + size, self._transfer, fill)
        digest = None if new_hash is None else new_hash()
        if digest is not None:
            digest.update(into)
        return info.with_digest(digest)

    def download(self, key: str, path: Path, max_bytes: int | None, new_hash: NewHash | None) -> ObjectInfo:
        with open_target(path) as target:
            digests: list[Any] = []

            def take(info: ObjectInfo, chunks: Iterator[bytes]) -> None:
                check_size(info.size, max_bytes, self._url(key))
                digests[:] = [] if new_hash is None else [new_hash()]
                with file_errors(path):
                    os.lseek(target, 0, os.SEEK_SET)
                _write(chunks, target, path, *digests)

            info = self._first(key, take)
            with file_errors(path):
                done = os.lseek(target, 0, os.SEEK_CUR)
            over_parts(done, info.size, self._transfer, partial(self._download_part, key, path, 0, info.version))
            os.ftruncate(target, info.size)  # at the end: what the file had before is written over, not freed first
            if digests and done < info.size:
                with file_errors(path), open(path, "rb") as file:
                    file.seek(done)
                    while chunk := file.read(PART):
                        digests[0].update(chunk)
            return info.with_digest(digests[0] if digests else None)

    def download_range(self, key: str, path: Path, start: int, end: int, at: int, version: str) -> None:
        over_parts(start, end, self._transfer, partial(self._download_part, key, path, at - start, version))

    def _download_part(self, key: str, path: Path, shift: int, version: str, start: int, end: int) -> None:
        """Write bytes ``[start, end)`` of an object into a file, so many bytes further on."""
        with open_target(path) as target:

            def attempt(_: int) -> None:
                result = self._ask(key, (start, end), version)
                with file_errors(path):
                    os.lseek(target, start + shift, os.SEEK_SET)
                _write(body(result, end - start, self._stall_timeout), target, path)

            self._run(key, attempt, lambda _: end - start)

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """See :class:`~stoker.storage.store.Store`."""


def _write(chunks: Iterator[bytes], target: int, path: Path, digest: Any = None) -> None:
    """Write an answer's body to a file, from where it stands, and to a hash."""
    for chunk in chunks:
        if digest is not None:
            digest.update(chunk)
        with file_errors(path):  # here, as an error of the answer's may be an OSError, too
            write_all(target, chunk)


def _answer(key: str, meta: Mapping[str, Any], pieces: Sequence[bytes]) -> tuple[BufferLike, ObjectInfo]:
    return (memoryview(pieces[0]) if len(pieces) == 1 else b"".join(pieces)), answer_info(key, meta)

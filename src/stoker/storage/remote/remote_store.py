"""Object stores through obstore: our retries, our errors, data straight into files."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.concurrency.request_observer import ServedBy, observer
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError, StorageError
from stoker.policy import SMALL_OBJECT
from stoker.storage.copying import write_all
from stoker.storage.file_errors import file_errors, open_target
from stoker.storage.files import open_regular
from stoker.storage.remote.clients import EndpointClients, endpoint_clients
from stoker.storage.remote.faults import classify, error_for, exhausted, is_panic
from stoker.storage.remote.options import client_spec, detect_cloud
from stoker.storage.remote.response_bodies import (
    TIME_VERSION,
    AnswerError,
    ObjectAnswer,
    answer_info,
    answer_version,
    body,
    copy_body,
    read_ranges,
)
from stoker.storage.retry import RetryPolicy, TransientError, run
from stoker.storage.transfer.settings import Transfer, over_parts
from stoker.storage.transfer.stream import PART, Made, first_part
from stoker.storage.types import Arrival, BufferLike, Chunks, NewHash, ObjectInfo, at_hand, check_range, check_size
from stoker.storage.url import UNSENDABLE, Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

# One request up to here; above it, parts. A client's stall time counts from the start of a request until
# the answer begins, so requests that carry data use a client that allows them longer, and they carry
# bounded amounts.
_SMALL_PUT = 1 << 20
_SINGLE_PUT = 16 << 20
_PAGE = 1000


class _Turn(threading.local):
    """Of each thread: the number of the request that it makes, plus that of its attempt."""

    turn = 0


class RemoteStore:
    """The objects under one root of an object store. Thread-safe; belongs to the process that made it."""

    def __init__(
        self,
        location: Location,
        options: Mapping[str, Any],
        retry: RetryPolicy,
        stall_timeout: float,
        transfer: Transfer = Transfer(),  # noqa: B008 - frozen
    ) -> None:
        self._location = location
        self._retry = retry
        self._stall_timeout = stall_timeout
        self._transfer = transfer
        several: list[Mapping[str, Any]] = [{**options, "endpoint": one} for one in transfer.used_endpoints]
        make = partial(client_spec, location, environ=os.environ, stall_timeout=stall_timeout, cloud=detect_cloud)
        self._clients = [
            endpoint_clients(location, make(one), stall_timeout, transfer.library) for one in several or [options]
        ]
        self._spec = self._clients[0].spec
        # Processes that begin together do not all begin at the same endpoint.
        self._turns = itertools.count(os.getpid())
        self._asking = _Turn()

    @property
    def _next(self) -> EndpointClients:
        """The clients of the endpoint whose turn it is: of a repeated request the one after that which it had before."""
        return self._clients[self._asking.turn % len(self._clients)]

    @property
    def _client(self) -> ObjectStore:
        return self._next.plain

    @property
    def _upload_client(self) -> ObjectStore:
        return self._next.upload

    @property
    def _brief_client(self) -> ObjectStore:
        return self._next.brief

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
        return self._run(key, partial(self._range_of, key, start, end, version), len)

    def _first(
        self, key: str, take: Callable[[ObjectInfo, Iterator[bytes]], None], *, brief: bool = False
    ) -> ObjectInfo:
        """Ask for an object, or for the first part of it; ``take`` gets what the answer says, and its bytes.

        Args:
            key: the object.
            take: called in each attempt; refuses an object that is larger than it is to be.
            brief: the object is to be small.
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

    def _range_of(self, key: str, start: int, end: int, version: str, _: int) -> bytes:
        """A range of this version of the object; of another, obstore's error."""
        return b"".join(body(self._ask(key, (start, end), version), end - start, self._stall_timeout))

    def _ask(self, key: str, wanted: tuple[int, int] | None, version: str, *, brief: bool = False) -> ObjectAnswer:
        """The answer to a request for a part of the object, or for all of it, which is ``brief`` where it is small.

        Raises:
            StorageError: the part reaches beyond the object.
        """
        asked = "" if version.startswith(TIME_VERSION) else version
        result = self._next.get(self._path(key), wanted, asked, brief=brief)
        if (
            version.startswith(TIME_VERSION) and answer_version(result.meta) != version
        ):  # which servers need not compare
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
                self._write(chunks, target, path, *digests)

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
                self._write(body(result, end - start, self._stall_timeout), target, path)

            self._run(key, attempt, lambda _: end - start)

    def put(self, key: str, parts: Sequence[memoryview]) -> None:
        self._refuse_writes(key)
        self._run(key, lambda number: self._put_parts(key, parts, number))

    def put_file(self, key: str, path: Path) -> None:
        import obstore

        self._refuse_writes(key)
        with file_errors(path):
            descriptor, status = open_regular(path)
            os.close(descriptor)
        size = status.st_size

        def attempt(number: int) -> None:
            client = self._brief_client if size <= _SMALL_PUT else self._upload_client
            obstore.put(
                client,
                self._path(key),
                Path(path),
                use_multipart=size > _SINGLE_PUT,
                chunk_size=self._transfer.upload_part,
                max_concurrency=self._at_once(number),
            )

        self._run(key, attempt)

    def put_stream(self, key: str, chunks: Chunks) -> None:
        self._refuse_writes(key)
        made = Made(chunks)

        def attempt(number: int) -> None:
            source = iter(made)
            try:
                first, more = first_part(source)
                if more:  # copies, each kept until its part is sent
                    self._put_in_parts(key, chain(first, map(bytes, source)), number)
                else:
                    self._put_parts(key, [memoryview(part) for part in first], number)
            except Exception:
                if made.error is None:
                    raise

        self._run(key, attempt)
        if made.error is not None:  # by now what was uploaded is given up
            raise made.error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        import obstore

        if self._location.kind == "http":
            raise StorageError(f"{self._url(prefix)}: plain HTTP can not list. Name the objects, or use another store.")
        inside = self._path(prefix) if prefix else self._location.prefix
        skip = len(self._location.prefix) + 1 if self._location.prefix else 0
        stream: Any = None
        last: str | None = None

        def page(attempt: int) -> Sequence[Mapping[str, Any]] | None:
            nonlocal stream
            if stream is None or attempt:  # go on behind what was already given
                stream = obstore.list(self._brief_client, inside or None, offset=last, chunk_size=_PAGE)
            found: Sequence[Mapping[str, Any]] | None = next(stream, None)
            return found

        empty: ObjectInfo | None = None  # an empty object that stands for a folder, as consoles of stores make them
        while (found := self._run(prefix, page)) is not None:
            for meta in found:
                info = answer_info(meta["path"][skip:], meta)
                if empty is not None and not info.key.startswith(f"{empty.key}/"):
                    yield empty
                empty = None
                if info.size:
                    yield info
                elif info.key:
                    empty = info
                last = meta["path"]
        if empty is not None:
            yield empty

    def head(self, key: str) -> ObjectInfo:
        import obstore

        try:
            meta = self._run(key, lambda _: obstore.head(self._brief_client, self._path(key)))
        except ObjectNotFoundError:
            self._run(
                key, lambda _: self._probe(key)
            )  # the answer to HEAD has no body, so it can not say what is missing
            raise
        return answer_info(key, meta)

    def exists(self, key: str) -> bool:
        """As head, in one request."""
        import obstore

        try:
            self._run(key, lambda _: obstore.head(self._brief_client, self._path(key)))
        except ObjectNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        import obstore

        self._refuse_writes(key)
        try:
            self._run(key, lambda _: obstore.delete(self._brief_client, self._path(key)))
        except ObjectNotFoundError as error:
            if "bucket" in str(error):
                raise

    def _put_parts(self, key: str, parts: Sequence[memoryview], number: int) -> None:
        import obstore

        size = sum(len(part) for part in parts)
        # An iterator of views goes to the request without a copy.
        data: Any = iter(parts) if parts else b""
        if size > _SINGLE_PUT:
            self._put_in_parts(key, data if len(parts) > 1 else parts[0], number)
        else:
            client = self._brief_client if size <= _SMALL_PUT else self._upload_client
            obstore.put(client, self._path(key), data, use_multipart=False)

    def _put_in_parts(self, key: str, data: Any, number: int) -> None:
        import obstore

        obstore.put(
            self._upload_client,
            self._path(key),
            data,
            use_multipart=True,
            chunk_size=self._transfer.upload_part,
            max_concurrency=self._at_once(number),
        )

    def _run(
        self,
        key: str,
        attempt: Callable[[int], T],
        size_of: Callable[[T], int] | None = None,
        failed: BaseException | None = None,
    ) -> T:
        """``attempt`` under the retry policy, its exceptions turned into stoker's.

        Args:
            key: the object.
            attempt: makes one request; its argument counts the attempts from 0.
            size_of: of a request for data, the bytes that it gave, by what ``attempt`` returned; such requests are counted.
            failed: the error of a first attempt that was made already.
        """

        turn = next(self._turns)

        def translated(number: int) -> T:
            begun, self._asking.turn = time.perf_counter_ns(), turn + number
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
                fault = error.fault
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
                fault = classify(error)
            # Outside of the except block, so that obstore's text, which may hold a signed URL, is not
            # chained.
            url = self._url(key)
            if fault.retryable:
                asked = self._transfer.used_endpoints[(turn + number) % len(self._clients) :][:1]
                if (counts := observer()) is not None:
                    counts.repeat(*asked or ("",))
                raise TransientError(lambda attempts, elapsed: exhausted(fault, url, attempts, elapsed, *asked))
            raise error_for(fault, url, host=self._location.host, identity=self._spec.identity)

        return run(translated, self._retry)

    def _write(self, chunks: Iterator[bytes], target: int, path: Path, digest: Any = None) -> None:
        """Write an answer's body to a file, from where it stands, and to a hash."""
        for chunk in chunks:
            if digest is not None:
                digest.update(chunk)
            with file_errors(path):  # here, as an error of the answer's may be an OSError, too
                write_all(target, chunk)

    def _at_once(self, attempt: int) -> int:
        """Parts of an upload that share the line: a second attempt suspects that the line is slow."""
        return self._transfer.part_requests if attempt == 0 else 1

    def _probe(self, key: str) -> None:
        import obstore

        obstore.get(self._client, self._path(key))

    def _refuse_writes(self, key: str) -> None:
        if self._location.kind == "http":
            url = self._url(key)
            raise StorageError(f"{url}: plain HTTP is read-only here. Write to another store.", url=url)

    def _path(self, key: str) -> str:
        """The object's name for the client.

        Raises:
            ConfigError: the client would refuse it, or end in a panic.
        """
        if not key.isprintable() and (bad := UNSENDABLE.search(key)):
            raise ConfigError(
                f"key {key!r} of {self._location.url!r} contains {bad[0]!r}: control characters and lone surrogates "
                "can not be sent to an object store. Rename the object."
            )
        return f"{self._location.prefix}/{key}" if self._location.prefix else key

    def _url(self, key: str) -> str:
        return f"{self._location.url}/{key}" if key else self._location.url


def _answer(key: str, meta: Mapping[str, Any], pieces: Sequence[bytes]) -> tuple[BufferLike, ObjectInfo]:
    return (memoryview(pieces[0]) if len(pieces) == 1 else b"".join(pieces)), answer_info(key, meta)

"""Object stores through obstore: our retries, our errors, data straight into files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore

from stoker.errors import ObjectNotFoundError, StorageError
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.regular import open_regular
from stoker.storage.remote.clients import EndpointClients, endpoint_clients
from stoker.storage.remote.options import client_spec, detect_cloud
from stoker.storage.remote.reads import RemoteReads
from stoker.storage.remote.response_bodies import answer_info
from stoker.storage.retry import Retries
from stoker.storage.transfer import Transfer
from stoker.storage.types import Chunks, Made, ObjectInfo, first_part
from stoker.storage.url import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Up to here by the client for requests that carry little, which have a bound on the whole.
_SMALL_PUT = 1 << 20
# One request up to here; above it, parts, so that each request carries a bounded amount.
_SINGLE_PUT = 16 << 20

_PAGE = 1000


class RemoteStore(RemoteReads[EndpointClients]):
    """The objects under one root of an object store. Thread-safe; belongs to the process that made it."""

    def __init__(
        self,
        location: Location,
        options: Mapping[str, Any],
        retries: Retries,
        stall_timeout: float,
        transfer: Transfer,
    ) -> None:
        several: list[Mapping[str, Any]] = [{**options, "endpoint": one} for one in transfer.used_endpoints]
        make = partial(client_spec, location, environ=os.environ, stall_timeout=stall_timeout, cloud=detect_cloud)
        clients = [
            endpoint_clients(location, make(one), stall_timeout, retries.policy.patience, transfer.library)
            for one in several or [options]
        ]
        super().__init__(location, clients, retries, stall_timeout, transfer, clients[0].spec.identity)

    def head(self, key: str) -> ObjectInfo:
        try:
            meta = self._run(key, lambda _: obstore.head(self._next.brief, self._path(key)))
        except ObjectNotFoundError:
            # The answer to HEAD has no body, so it can not say what is missing.
            self._run(key, lambda _: obstore.get(self._next.plain, self._path(key)))
            raise
        return answer_info(key, meta)

    def exists(self, key: str) -> bool:
        """As head, in one request."""
        try:
            self._run(key, lambda _: obstore.head(self._next.brief, self._path(key)))
        except ObjectNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if self._location.kind == "http":
            raise StorageError(f"{self._url(prefix)}: plain HTTP can not list. Name the objects, or use another store.")
        inside = self._path(prefix) if prefix else self._location.prefix
        skip = len(self._location.prefix) + 1 if self._location.prefix else 0
        stream: Any = None
        last: str | None = None

        def page(attempt: int) -> Sequence[Mapping[str, Any]] | None:
            nonlocal stream
            if stream is None or attempt:  # go on behind what was already given
                stream = obstore.list(self._next.brief, inside or None, offset=last, chunk_size=_PAGE)
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

    def delete(self, key: str) -> None:
        self._refuse_writes(key)
        try:
            self._run(key, lambda _: obstore.delete(self._next.brief, self._path(key)))
        except ObjectNotFoundError as error:
            if "bucket" in str(error):
                raise

    def put(self, key: str, parts: Sequence[memoryview]) -> None:
        self._refuse_writes(key)
        self._run(key, lambda number: self._put_parts(key, parts, number))

    def put_file(self, key: str, path: Path) -> None:
        self._refuse_writes(key)
        with file_errors(path):
            descriptor, status = open_regular(path)
            os.close(descriptor)
        self._run(key, lambda number: self._put(key, Path(path), status.st_size, number))

    def put_stream(self, key: str, chunks: Chunks) -> None:
        self._refuse_writes(key)
        made = Made(chunks)

        def attempt(number: int) -> None:
            source = iter(made)
            try:
                first, more = first_part(source)
                if more:  # copies, each kept until its part is sent
                    self._put(key, chain(first, map(bytes, source)), _SINGLE_PUT + 1, number)
                else:
                    self._put_parts(key, [memoryview(part) for part in first], number)
            except Exception:
                if made.error is None:
                    raise

        self._run(key, attempt)
        if made.error is not None:  # by now what was uploaded is given up
            raise made.error

    def _put_parts(self, key: str, parts: Sequence[memoryview], number: int) -> None:
        size = sum(len(part) for part in parts)
        # An iterator of views goes to the request without a copy.
        data: Any = iter(parts) if parts else b""
        self._put(key, parts[0] if size > _SINGLE_PUT and len(parts) == 1 else data, size, number)

    def _put(self, key: str, data: Any, size: int, number: int) -> None:
        """Send so many bytes, or more, in one request or in parts."""
        obstore.put(
            self._client_for(size),
            self._path(key),
            data,
            use_multipart=size > _SINGLE_PUT,
            chunk_size=self._transfer.upload_part,
            max_concurrency=self._at_once(number),
        )

    def _client_for(self, size: int) -> ObjectStore:
        """The client that sends so many bytes; above a single request that for parts, once the store has answered."""
        if size <= _SMALL_PUT:
            return self._next.brief
        return self._next.parts if size > _SINGLE_PUT and self._retries.answered else self._next.upload

    def _at_once(self, attempt: int) -> int:
        """Parts of an upload that share the line: a second attempt suspects that the line is slow."""
        return self._transfer.part_requests if attempt == 0 else 1

    def _refuse_writes(self, key: str) -> None:
        if self._location.kind == "http":
            url = self._url(key)
            raise StorageError(f"{url}: plain HTTP is read-only here. Write to another store.", url=url)

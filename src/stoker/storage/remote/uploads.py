"""Objects of a remote store are written: by one request, or in parts where they are large; whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import StorageError
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.regular import open_regular
from stoker.storage.remote.clients import EndpointClients
from stoker.storage.remote.retried_requests import RemoteRequests
from stoker.storage.transfer.stream import Made, first_part
from stoker.storage.types import Chunks

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Up to here by the client for requests that carry little, which have a bound on the whole.
_SMALL_PUT = 1 << 20
# One request up to here; above it, parts, so that each request carries a bounded amount.
_SINGLE_PUT = 16 << 20


class RemoteUploads(RemoteRequests[EndpointClients]):
    """The methods of a remote store that write objects."""

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
            obstore.put(
                self._client_for(size),
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

    def _put_parts(self, key: str, parts: Sequence[memoryview], number: int) -> None:
        import obstore

        size = sum(len(part) for part in parts)
        # An iterator of views goes to the request without a copy.
        data: Any = iter(parts) if parts else b""
        if size > _SINGLE_PUT:
            self._put_in_parts(key, data if len(parts) > 1 else parts[0], number)
        else:
            obstore.put(self._client_for(size), self._path(key), data, use_multipart=False)

    def _put_in_parts(self, key: str, data: Any, number: int) -> None:
        import obstore

        obstore.put(
            self._client_for(_SINGLE_PUT + 1),
            self._path(key),
            data,
            use_multipart=True,
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

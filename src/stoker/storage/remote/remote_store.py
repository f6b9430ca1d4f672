"""Object stores through obstore: our retries, our errors, data straight into files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from stoker.errors import ObjectNotFoundError, StorageError
from stoker.storage.remote.clients import EndpointClients, endpoint_clients
from stoker.storage.remote.options import client_spec, detect_cloud
from stoker.storage.remote.reads import RemoteReads
from stoker.storage.remote.response_bodies import answer_info
from stoker.storage.remote.uploads import RemoteUploads
from stoker.storage.retry import Retries
from stoker.storage.transfer.settings import Transfer
from stoker.storage.types import ObjectInfo
from stoker.storage.url import Location

_PAGE = 1000


class RemoteStore(RemoteReads[EndpointClients], RemoteUploads):
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
        import obstore

        try:
            meta = self._run(key, lambda _: obstore.head(self._next.brief, self._path(key)))
        except ObjectNotFoundError:
            # The answer to HEAD has no body, so it can not say what is missing.
            self._run(key, lambda _: obstore.get(self._next.plain, self._path(key)))
            raise
        return answer_info(key, meta)

    def exists(self, key: str) -> bool:
        """As head, in one request."""
        import obstore

        try:
            self._run(key, lambda _: obstore.head(self._next.brief, self._path(key)))
        except ObjectNotFoundError:
            return False
        return True

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
        import obstore

        self._refuse_writes(key)
        try:
            self._run(key, lambda _: obstore.delete(self._next.brief, self._path(key)))
        except ObjectNotFoundError as error:
            if "bucket" in str(error):
                raise

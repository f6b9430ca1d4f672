"""Object stores through obstore: our retries, our errors, data straight into files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.errors import ObjectNotFoundError, StorageError
from stoker.storage.remote.reads import RemoteReads
from stoker.storage.remote.response_bodies import answer_info
from stoker.storage.remote.uploads import RemoteUploads
from stoker.storage.types import ObjectInfo

_PAGE = 1000


class RemoteStore(RemoteReads, RemoteUploads):
    """The objects under one root of an object store. Thread-safe; belongs to the process that made it."""

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

    def delete(self, key: str) -> None:
        import obstore

        self._refuse_writes(key)
        try:
            self._run(key, lambda _: obstore.delete(self._brief_client, self._path(key)))
        except ObjectNotFoundError as error:
            if "bucket" in str(error):
                raise

"""The store of objects by key: the base of all, which asks an object store."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.concurrency.forks import ProcessLocal
from stoker.display import with_article
from stoker.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError
from stoker.lazy import cached_property
from stoker.storage.retry import STALL_TIMEOUT, Retries, RetryPolicy
from stoker.storage.transfer import Transfer, side_by_side, split_transfer
from stoker.storage.types import (
    Arrival,
    Backend,
    BufferLike,
    Chunks,
    NewHash,
    ObjectInfo,
    PutData,
    as_parts,
    check_ranges,
)
from stoker.storage.url import check_key, check_prefix, parse_url

if TYPE_CHECKING:
    from stoker.types import StorageOptions


# So many objects are asked for one by one, so many at a time; of more, all are listed.
_FEW: Final = 64
_AT_ONCE: Final = 16


_lost = False
_abandoned: list[Backend] = []


def runtime_lost() -> bool:
    """Whether obstore was loaded in the parent, before this process was forked from it.

    It runs its requests on a thread pool of its own, which ``fork()`` does not copy: a request would wait for ever on threads
    that are not there. Whether someone else's code has used it can not be seen, and the helper is always right.
    """
    return _lost


def _after_fork_in_child() -> None:
    global _lost
    _lost = _lost or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Client(ProcessLocal):
    """The backend of a store in one process. Two threads that make it at once do no harm."""

    backend: Backend | None = None

    def __init__(self) -> None:
        if self.backend is not None:
            _abandoned.append(self.backend)  # its destructor would talk to threads that are not there
        self.backend = None


class Store:
    """Objects under one root, by key: ``/``-separated paths relative to the root. :func:`stoker.storage.open_store` opens it.

    This class asks an object store, by a client that belongs to the process or, in a fork, by a helper process;
    :class:`~stoker.storage.local.LocalStore` has the same methods for files.

    Thread-safe. Picklable: the copy connects anew, in its process. A store keeps working in a forked process.

    Errors of all methods: :class:`ConfigError` for a key that leaves the root and for settings that make no
    sense, :class:`ObjectNotFoundError` where the object or its bucket is missing,
    :class:`AccessDeniedError`, :class:`StorageTimeoutError` when the store stalls or fails for longer than the patience,
    :class:`StorageFullError`, and :class:`StorageError` for the rest. Each names the URL.

    Attributes:
        url: the root, normalised: no slash at its end, an absolute path for local files.
        stall_timeout: seconds without a byte after which a request fails.
        transfer: endpoints, and the size and number of requests.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        options: StorageOptions | None = None,
        *,
        retry: RetryPolicy | None = None,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        self._location = parse_url(url)
        self.url = self._location.url
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(
                f"storage_options is {with_article(type(options).__name__)}: expected a mapping of names to values."
            )
        self.transfer, self._options = split_transfer(self._location, options) if options else (Transfer(), {})
        self._policy = retry
        if not 0 < stall_timeout < float("inf"):
            raise ConfigError(f"stall_timeout is {stall_timeout!r}: expected seconds above 0.")
        self.stall_timeout = stall_timeout
        self._home = os.getpid()

    @cached_property
    def _client(self) -> _Client:
        return _Client()

    @cached_property
    def _retries(self) -> Retries:
        policy = self._policy or RetryPolicy()
        return Retries(policy if self.transfer.patience is None else replace(policy, patience=self.transfer.patience))

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def origin(self) -> str:
        """The root without what says which version of the data is read: of the Hub, the revision."""
        return self.url

    def url_of(self, key: str) -> str:
        """The URL of an object, for messages; of the root for an empty key."""
        return f"{self.url}/{key}" if key else self.url

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """The whole object, which takes at most ``max_bytes`` of memory.

        A larger one is a :class:`StorageError`, before its body is read.
        """
        return self.read(key, max_bytes=max_bytes)[0]

    def read(self, key: str, *, max_bytes: int) -> tuple[bytes, ObjectInfo]:
        """The whole object, and what the store said of it in the same answer. ``max_bytes`` is as for :meth:`get`."""
        return self.backend().read(check_key(key), max_bytes)

    def request(self, key: str, *, max_bytes: int) -> Arrival:
        """Ask for a whole small object, as :meth:`read` does, and wait for it; what it returns gives what :meth:`read` gives.

        For many objects: their requests are made by many threads, and one thread takes the answers. All work that can wait is
        done there, as it costs much less where nothing else runs in between.
        """
        return self.backend().request(check_key(key), max_bytes)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``, all of them: a range beyond the object's end is a :class:`StorageError`."""
        return bytes(self.get_ranges(key, [start], [end])[0])

    def get_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int], *, version: str = ""
    ) -> list[BufferLike]:
        """Bytes ``[starts[i], ends[i])`` for each i, as buffers; ranges that lie close share a request.

        With ``version``, as :meth:`list` and :meth:`head` tell it, another version is a :class:`StorageError`.
        """
        check_ranges(starts, ends, self.url_of(check_key(key)))
        return self.backend().get_ranges(key, [int(start) for start in starts], [int(end) for end in ends], version)

    @contextlib.contextmanager
    def opened_ranges(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        """A function of bytes ``[start, end)`` of an object of which a few are wanted; see :meth:`get_range`."""
        yield partial(self.get_range, key)

    def read_into(
        self,
        key: str,
        into: memoryview,
        *,
        start: int | None = None,
        version: str = "",
        new_hash: NewHash | None = None,
    ) -> ObjectInfo:
        """Stream the object, or ``len(into)`` bytes of it from ``start`` on, into memory. After an error that holds anything.

        Args:
            key: the object.
            into: flat writable bytes, as many as are wanted.
            start: ``None`` for the whole object, which must have ``len(into)`` bytes.
            version: as for :meth:`get_ranges`.
            new_hash: as for :meth:`download`; the digest is of what was read.

        Returns:
            What the store said of the whole object in the same answer. Without ``start``, if its size is not
            ``len(into)``, nothing was read.
        """
        check_key(key)
        return self.backend().read_into(key, into, None if start is None else int(start), version, new_hash)

    def download(
        self, key: str, path: Path, *, max_bytes: int | None = None, new_hash: NewHash | None = None
    ) -> ObjectInfo:
        """Stream the object into a local file; returns what the store said of it in the same answer.

        The file is made, or written over from its start and cut to the object's size. After an error it holds
        anything; the caller removes it. Objects of any size need a few MB of memory.

        With ``new_hash`` (such as ``hashlib.sha1``) the answer has the digest, which is computed chunk by chunk as the
        bytes come, while they are in the processor's cache.
        """
        return self.backend().download(check_key(key), Path(path), max_bytes, new_hash)

    def download_range(self, key: str, path: Path, start: int, end: int, *, at: int = 0, version: str = "") -> None:
        """Stream bytes ``[start, end)`` into a local file, from its byte ``at`` on; the rest of the file stays.

        The file is made where it is missing. Ranges of any size need a few MB of memory. ``version`` is as for
        :meth:`get_ranges`.
        """
        check_ranges([start], [end], self.url_of(check_key(key)))
        self.backend().download_range(key, Path(path), int(start), int(end), int(at), version)

    def put(self, key: str, data: PutData) -> None:
        """Write an object from one buffer or several in a row; it appears whole or not at all."""
        self.backend().put(check_key(key), as_parts(data))

    def put_file(self, key: str, path: Path) -> None:
        """Write an object from a local file; it appears whole or not at all."""
        self.backend().put_file(check_key(key), Path(path))

    def put_stream(self, key: str, chunks: Chunks) -> None:
        """Write an object that may be larger than memory while it is made; it appears whole or not at all.

        Files are written as chunks come; object stores get parts of 8 MiB, of which a few are in memory. What making
        the chunks raises ends the writing: it is passed on as it is, and nothing is left of the object.

        Args:
            key: the object.
            chunks: called for an iterator of the chunks, and again for each attempt after a failure of the store. Each
                chunk may be written over when the next is asked for.
        """
        self.backend().put_stream(check_key(key), chunks)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects in the folder ``prefix`` and below, by key; none where there is no such folder."""
        return self.backend().list(check_prefix(prefix))

    def keys_named(self, name: str) -> Iterator[str]:
        """Keys of all objects whose last part is ``name``, in no order."""
        ending = f"/{name}"
        return (item.key for item in self.list() if item.key == name or item.key.endswith(ending))

    def head(self, key: str) -> ObjectInfo:
        """The object's size, without its data."""
        return self.backend().head(check_key(key))

    def infos(self, keys: Iterable[str]) -> dict[str, ObjectInfo]:
        """Those of some objects that there are: a few are asked for one by one, of many all are listed."""
        wanted, kind = dict.fromkeys(keys), self._location.kind
        if len(wanted) > _FEW and kind not in ("file", "http"):  # which need no request, or can not be listed
            try:
                return {item.key: item for item in self.list() if item.key in wanted}
            except AccessDeniedError:
                pass  # reading may be allowed where listing is not
        work = [partial(self._info, key) for key in wanted]
        found = side_by_side(work, 1 if kind == "file" else _AT_ONCE, "heads")
        return {info.key: info for info in found if info is not None}

    def _info(self, key: str) -> ObjectInfo | None:
        try:
            return self.head(key)
        except ObjectNotFoundError:
            return None

    def exists(self, key: str) -> bool:
        """Whether there is such an object; ``False`` also where there is no bucket."""
        return self.backend().exists(check_key(key))

    def endpoint(self) -> str:
        """The server or account, which tells this store from others of the same URL; empty for the provider's usual one.

        Comes from ``storage_options``, the environment or a profile, without a request.
        """
        if self._location.kind not in ("s3", "gs", "azure"):
            return ""
        from stoker.storage.remote.options import client_spec, endpoint_of

        if self.transfer.endpoints:
            return " ".join(sorted(self.transfer.endpoints))
        spec = client_spec(
            self._location, self._options, os.environ, stall_timeout=self.stall_timeout, cloud=lambda: None
        )
        return endpoint_of(self._location, spec, os.environ)

    def delete(self, key: str) -> None:
        """Remove the object; no error where there is none."""
        self.backend().delete(check_key(key))

    def backend(self) -> Backend:
        """The way to the objects in this process; made when it is first needed."""
        backend = self._client.backend
        if backend is None:
            backend = self._client.backend = self._build()
        return backend

    def _build(self) -> Backend:
        if self._location.kind == "memory" and self._home != os.getpid():
            message = f"{self.url}: memory:// lives in one process ({self._home}). Use a path or an object store."
            raise StorageError(message, url=self.url)
        if runtime_lost():
            if self._location.kind == "memory":
                message = (
                    f"{self.url}: memory:// can not be used in a fork of a process that has obstore loaded. "
                    "Use a path, or start workers by 'spawn'."
                )
                raise StorageError(message, url=self.url)
            from stoker.storage.fork_proxy import ProxyStore

            return ProxyStore(self.url, self, self.stall_timeout)
        from stoker.storage.remote.remote_store import RemoteStore

        return RemoteStore(self._location, self._options, self._retries, self.stall_timeout, self.transfer)

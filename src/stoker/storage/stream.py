"""Writing objects that are larger than memory: chunk by chunk, and they appear whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.storage.local import LocalStore, write_all
from stoker.storage.remote import PART, RemoteStore, at_once
from stoker.storage.store import Store
from stoker.storage.types import BufferLike
from stoker.storage.url import check_key

__all__ = ["put_stream"]


def put_stream(store: Store, key: str, chunks: Callable[[], Iterator[BufferLike]], *, large: bool = True) -> None:
    """Write an object from chunks that follow each other.

    Object stores get them in parts of 8 MiB, of which a few are in memory; files are written as chunks come. Whatever the
    iterator raises ends the writing, and leaves nothing.

    Args:
        store: where to.
        key: the object.
        chunks: called for an iterator of the chunks, each of which may be overwritten when the next is asked for. Called
            again for each attempt after a failure of the store.
        large: whether there is more than one part; a small object is put in one request.

    Raises:
        StorageError: as :meth:`stoker.storage.Store.put`.
    """
    backend = store._backend()
    check_key(key)
    if isinstance(backend, LocalStore):

        def write(fd: int) -> None:
            for chunk in chunks():
                write_all(fd, chunk)

        backend._appear(key, write)
    elif not large:
        store.put(key, [bytes(chunk) for chunk in chunks()])
    elif isinstance(backend, RemoteStore):
        _upload(backend, key, chunks)
    else:  # in a forked process: the helper reads files
        with tempfile.NamedTemporaryFile(prefix="stoker-put-") as file:
            for chunk in chunks():
                file.write(chunk)
            file.flush()
            store.put_file(key, Path(file.name))


def _upload(backend: RemoteStore, key: str, chunks: Callable[[], Iterator[BufferLike]]) -> None:
    import obstore

    backend._refuse_writes(key)
    raised: list[BaseException] = []

    def guarded() -> Iterator[bytes]:
        try:
            for chunk in chunks():
                yield bytes(chunk)  # kept until its part is sent
        except GeneratorExit:
            raise
        except BaseException as error:
            raised.append(error)  # the store's own errors are told apart from it, and tried again
            raise

    def attempt(number: int) -> None:
        data: Any = guarded()
        try:
            obstore.put(
                backend._upload_client,
                backend._path(key),
                data,
                use_multipart=True,
                chunk_size=PART,
                max_concurrency=at_once(number),
            )
        except Exception:
            if not raised:
                raise

    backend._run(key, attempt)
    if raised:
        raise raised[0]

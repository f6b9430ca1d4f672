"""The helper process of :mod:`stoker.storage.fork_proxy.proxy`: stores in a process that was not forked."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from stoker.errors import StokerError, StorageError
from stoker.storage.fork_proxy.proxy import ALIVE, BEAT_SECONDS, read_frame, write_frame
from stoker.storage.store import Store
from stoker.storage.types import Backend, NewHash, ObjectInfo

_THREADS = 128
_WATCH_SECONDS = 1.0


def main(parent: int) -> NoReturn:
    """Serve requests from stdin on stdout until ``parent`` (its process id) is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever prints must not print into the answers
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    stores: dict[bytes, Any] = {}
    lock = threading.Lock()
    threading.Thread(target=_beat, args=(answers, lock), daemon=True).start()
    with ThreadPoolExecutor(_THREADS) as pool:
        while (frame := read_frame(requests)) is not None:
            pool.submit(_serve, stores, lock, answers, *frame)
        os._exit(0)  # at once: what is under way has nobody to go to


def _watch(parent: int) -> NoReturn:
    """Leave when the parent is gone even if a process that it forked holds the pipe open."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(0)


def _beat(answers: int, lock: threading.Lock) -> NoReturn:
    """Tell the parent that this process runs: one that is stopped would leave it waiting."""
    while True:
        try:
            with lock:
                write_frame(answers, ALIVE, b"")
        except OSError:
            os._exit(0)  # nobody reads
        time.sleep(BEAT_SECONDS)


def _serve(stores: dict[bytes, Any], lock: threading.Lock, answers: int, number: int, request: bytearray) -> None:
    ok, value = True, None
    try:
        pickled, method, args = pickle.loads(request)  # noqa: S301 - our own parent wrote it
        store = stores.get(pickled)
        if store is None:
            store = stores.setdefault(pickled, pickle.loads(pickled))  # noqa: S301
        value = _call(store.backend(), method, args) if isinstance(store, Store) else getattr(store, method)(*args)
    except StokerError as error:
        ok, value = False, error
    except BaseException as error:  # noqa: BLE001 - the caller must get an answer
        ok, value = False, StorageError(f"the helper process failed: {type(error).__name__}: {error}")
    try:
        payload = pickle.dumps((ok, value), protocol=5)
    except Exception as error:  # noqa: BLE001 - the same
        payload = pickle.dumps((False, StorageError(f"the helper process failed: {type(error).__name__}: {error}")))
    try:
        with lock:
            write_frame(answers, number, payload)
    except OSError:
        os._exit(0)  # nobody reads


def _call(backend: Backend, method: str, args: tuple[Any, ...]) -> Any:
    """Call a method of a store; its result as it can be pickled."""
    if method == "read_into":
        return _read_into(backend, *args)
    found = getattr(backend, method)(*args)
    if method == "get_ranges":
        return [bytes(part) for part in found]
    return list(found) if method == "list" else found


def _read_into(
    backend: Backend,
    key: str,
    path: str,
    first: int,
    size: int,
    start: int | None,
    version: str,
    new_hash: NewHash | None,
) -> ObjectInfo:
    """:meth:`~stoker.storage.Store.read_into` memory of the parent, which is bytes of a file here, from ``first`` on."""
    if not size:  # which can not be mapped
        return backend.read_into(key, memoryview(b""), start, version, new_hash)
    before = first % mmap.ALLOCATIONGRANULARITY
    with (
        open(path, "r+b") as file,
        mmap.mmap(file.fileno(), before + size, offset=first - before) as shared,
        memoryview(shared) as whole,
        whole[before:] as into,
    ):
        return backend.read_into(key, into, start, version, new_hash)

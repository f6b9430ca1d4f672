"""Object stores in a forked process: requests go to a helper process, which has a thread pool of its own.

Other packages that do not survive a fork are used there, too: see :class:`RemoteObject`.

A process that was forked from one with obstore loaded can not use obstore (see :func:`stoker.storage.store.runtime_lost`).
It starts a fresh interpreter, once, and sends it requests through a pipe, as numbered messages of known
length; many may be under way. Downloads are written by the helper, so their data do not cross the pipe. The
helper ends when the pipe closes, that is with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from stoker.concurrency.forks import ProcessLock, close_in_children
from stoker.concurrency.shared.node_file import path_for_others
from stoker.errors import ConfigError, StokerError, StorageError
from stoker.storage.files.copying import fill
from stoker.storage.files.file_errors import file_errors
from stoker.storage.types import Arrival, Backend, BufferLike, Chunks, Made, NewHash, ObjectInfo, at_hand, first_part
from stoker.types import PooledBuffer

ALIVE: Final = 2**64 - 1
"""The number of messages that only say that the helper process runs."""

BEAT_SECONDS: Final = 1.0
"""Time between two of them."""

_HEADER = struct.Struct("<QQ")
_READ_AT_ONCE = 1 << 20

# A fresh interpreter finds modules where this one does, even where sys.path was changed by hand.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from stoker.storage.fork_proxy import main; main(int(sys.argv[2]))"
)


# Seconds without a sign of life that a busy machine may cause, and the start of an interpreter on it.
_LEAST_PATIENCE = 20.0


def write_frame(fd: int, number: int, payload: bytes, wait: Callable[[], None] | None = None) -> None:
    """Write one message; blocks while the pipe is full. ``wait``: for a pipe that does not block: called while it is full."""
    for part in (_HEADER.pack(number, len(payload)), payload):
        view = memoryview(part)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                if wait is None:
                    raise
                wait()


def read_frame(fd: int) -> tuple[int, bytearray] | None:
    """The next message with its number, or ``None`` when the other end is closed."""
    header = _read(fd, _HEADER.size)
    if header is None:
        return None
    number, size = _HEADER.unpack(header)
    payload = _read(fd, size)
    return None if payload is None else (number, payload)


def _read(fd: int, size: int) -> bytearray | None:
    data = bytearray()
    while len(data) < size:
        try:
            chunk = os.read(fd, min(_READ_AT_ONCE, size - len(data)))
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    return data


class HelperDiedError(Exception):
    """The helper process went away, or was stopped, before it answered."""


class Helper:
    """A helper process and the requests that wait for it. Thread-safe."""

    def __init__(self) -> None:
        if not sys.executable:
            raise StorageError(
                "a helper process is needed, for object stores in a forked process or for tables of Lance, but "
                "sys.executable is not known. Set it, or start workers by 'spawn' or 'forkserver'."
            )
        self._ids = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._dead = False
        self._beats = 0
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own code
                [sys.executable, "-c", _BOOT, path, str(os.getpid())], stdin=theirs_in, stdout=theirs_out
            )
        except OSError as error:
            os.close(self._to)
            os.close(self._from)
            raise StorageError(f"the helper process can not start: {error}.") from None
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(self._to, False)
        close_in_children(self)
        threading.Thread(target=self._receive, name="stoker-storage-helper", daemon=True).start()

    @property
    def dead(self) -> bool:
        return self._dead

    def request(self, store: bytes, method: str, args: tuple[Any, ...], patience: float) -> Any:
        """Call a method of a pickled store over there.

        HelperDiedError if there will be no answer: it died, or was stopped and is killed by this. StokerError: what the
        method raised. ``patience``: seconds for which nothing need be heard of the helper.
        """
        message = pickle.dumps((store, method, args), protocol=5)
        answer: Future[Any] = Future()
        silence = Silence(self, patience)
        number = next(self._ids)
        with self._lock:
            if self._dead:
                raise HelperDiedError
            self._waiting[number] = answer
        try:
            with self._send_lock:
                if self._dead:
                    raise HelperDiedError
                try:
                    write_frame(self._to, number, message, partial(self._wait_until_writable, silence))
                except BaseException as error:
                    self._dead = True  # at once, so that the request that is repeated does not come here again
                    self._process.kill()  # half a message: what would follow could not be understood
                    if isinstance(error, OSError):
                        raise HelperDiedError from None
                    raise
            while True:
                try:
                    return answer.result(BEAT_SECONDS)
                except TimeoutError as error:
                    if isinstance(error, StorageError):  # the answer
                        raise
                    silence.check()
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _wait_until_writable(self, silence: Silence) -> None:
        poll = select.poll()
        poll.register(self._to, select.POLLOUT)
        if not poll.poll(BEAT_SECONDS * 1000):
            silence.check()

    def kill(self) -> None:
        """End it at once, stopped or not."""
        self._dead = True
        self._process.kill()

    def close(self) -> None:
        """In a fork of the process that made it: close the pipe, so that it closes with that process."""
        self._dead = True
        self._process.returncode = 0  # not our child: nobody is to wait for it
        self._close()

    def _close(self) -> None:
        """Close the pipes, once: afterwards their numbers are those of other files."""
        for name in ("_to", "_from"):
            number = self.__dict__.pop(name, -1)
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.close(number)

    def _receive(self) -> None:
        while (frame := read_frame(self._from)) is not None:
            self._beats += 1
            number, payload = frame
            if number == ALIVE:
                continue
            with self._lock:
                answer = self._waiting.get(number)
            if answer is None:
                continue
            ok, value = pickle.loads(payload)  # noqa: S301 - our own process wrote it
            if ok:
                answer.set_result(value)
            else:
                answer.set_exception(value)
        with self._lock:
            self._dead = True
            waiting = list(self._waiting.values())
        for answer in waiting:
            answer.set_exception(HelperDiedError())
        with self._send_lock:
            self._close()
        self._process.wait()


class Silence:
    """Notices that nothing is heard of a helper. It counts waits and not time, which also passes while we are stopped."""

    def __init__(self, helper: Helper, patience: float) -> None:
        self._helper = helper
        self._beats = helper._beats
        self._most = max(_LEAST_PATIENCE, patience) / BEAT_SECONDS
        self._waits = 0

    def check(self) -> None:
        """After a wait of :data:`BEAT_SECONDS`.

        HelperDiedError if nothing was heard for the whole of the patience; the helper is killed.
        """
        beats, self._beats = self._beats, self._helper._beats
        self._waits = 0 if beats != self._beats else self._waits + 1
        if self._waits > self._most:
            self._helper.kill()
            raise HelperDiedError


class RemoteObject:
    """An object in the process's helper, whose methods are called there.

    ConfigError if the object can not be pickled. ``subject``: pickled for the helper. Its methods may be called twice, and
    raise errors of stoker's own. ``patience``: seconds for which nothing need be heard of the helper.
    """

    def __init__(self, url: str, subject: object, patience: float, needed: str) -> None:
        self._url = url
        self._patience = patience
        self._needed = needed
        try:
            self._pickled = pickle.dumps(subject, protocol=5)
        except Exception as error:  # noqa: BLE001 - whatever the options hold
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{url}: storage_options can not be pickled, which a forked process needs ({reason}). "
                "Use a credential_provider of a module's top level, or start workers by 'spawn'."
            ) from None

    def call(self, method: str, *args: Any) -> Any:
        """Call a method there.

        StokerError: what it raised, or a :class:`~stoker.errors.StorageError` where the helper died twice.
        """
        for _ in range(2):
            try:
                return _helper().request(self._pickled, method, args, self._patience)
            except HelperDiedError:
                continue
        raise StorageError(
            f"{self._url}: the helper process that {self._needed} died twice, or was stopped "
            f"for {max(_LEAST_PATIENCE, self._patience):g} s. It may have been killed for memory, or be suspended "
            "(SIGSTOP, a debugger, a frozen container); its messages are on stderr.",
            url=self._url,
        )


class ProxyStore:
    """A store whose requests the process's helper carries out.

    ``store``: the :class:`~stoker.storage.Store`, which is pickled for the helper.
    """

    def __init__(self, url: str, store: object, stall_timeout: float) -> None:
        # Every request may be repeated: a put writes the same object, a download the same file.
        self._call = RemoteObject(url, store, stall_timeout, "a forked process needs for object stores").call

    def read(self, key: str, max_bytes: int) -> tuple[bytes, ObjectInfo]:
        found: tuple[bytes, ObjectInfo] = self._call("read", key, max_bytes)
        return found

    def request(self, key: str, max_bytes: int) -> Arrival:
        return at_hand(self.read(key, max_bytes))

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int], version: str) -> list[BufferLike]:
        parts: list[BufferLike] = self._call("get_ranges", key, list(starts), list(ends), version)
        return parts

    def read_into(
        self, key: str, into: memoryview, start: int | None, version: str, new_hash: NewHash | None
    ) -> ObjectInfo:
        size, place = len(into), _shared_place(into)
        if place is not None:
            found: ObjectInfo = self._call("read_into", key, *place, size, start, version, new_hash)
            return found
        # By way of memory that both have: what crosses the pipe is copied several times.
        with file_errors("memory shared with the helper process"):
            shared = os.memfd_create("stoker-read", os.MFD_CLOEXEC)
            try:
                os.ftruncate(shared, size)
                found = self._call("read_into", key, path_for_others(shared), 0, size, start, version, new_hash)
                if start is not None or found.size == size:
                    fill(shared, into, 0, None)
            finally:
                os.close(shared)
        return found

    def download(self, key: str, path: Path, max_bytes: int | None, new_hash: NewHash | None) -> ObjectInfo:
        info: ObjectInfo = self._call("download", key, Path(path).absolute(), max_bytes, new_hash)
        return info

    def download_range(self, key: str, path: Path, start: int, end: int, at: int, version: str) -> None:
        self._call("download_range", key, Path(path).absolute(), start, end, at, version)

    def put(self, key: str, parts: Sequence[memoryview]) -> None:
        self._call("put", key, [bytes(part) for part in parts])

    def put_file(self, key: str, path: Path) -> None:
        self._call("put_file", key, Path(path).absolute())

    def put_stream(self, key: str, chunks: Chunks) -> None:
        made = Made(chunks)
        source = iter(made)
        first, more = first_part(source)
        if not more:
            return self.put(key, [memoryview(part) for part in first])
        # By way of a file without a name, which goes with this process however it ends. The helper has it from /proc.
        try:
            with file_errors(tempfile.gettempdir()), tempfile.TemporaryFile(prefix="stoker-put-") as file:
                file.writelines(first)
                file.writelines(source)
                file.flush()
                self.put_file(key, Path(path_for_others(file.fileno())))
        except StorageError:
            if made.error is not None:  # an OSError of the caller's is none of this file's
                raise made.error from None
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._call("list", prefix))

    def head(self, key: str) -> ObjectInfo:
        info: ObjectInfo = self._call("head", key)
        return info

    def exists(self, key: str) -> bool:
        return bool(self._call("exists", key))

    def delete(self, key: str) -> None:
        self._call("delete", key)


def _shared_place(into: memoryview) -> tuple[str, int] | None:
    """Path of the anonymous file that some memory is, and the first byte there; ``None`` of memory that is none."""
    whole = into.obj
    if not isinstance(whole, PooledBuffer) or whole.shared is None or not len(into):
        return None
    file, first = whole.shared
    at: int = np.frombuffer(into, np.uint8).ctypes.data - whole.ctypes.data
    return path_for_others(file), first + at


_current: Helper | None = None
_current_lock: Final = ProcessLock()


def _helper() -> Helper:
    global _current
    with _current_lock:
        if _current is None or _current.dead:  # as that of a parent is
            _current = Helper()
        return _current


# -- in the helper process: stores in a process that was not forked ---------------------------------------------------------

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
        # A store, or a table of Lance.
        value = _call(store.backend(), method, args) if hasattr(store, "backend") else getattr(store, method)(*args)
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

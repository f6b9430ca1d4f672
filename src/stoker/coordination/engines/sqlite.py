"""SQLite as an engine: no process, no set-up, for all processes of one host.

Each call is one transaction of one statement, in WAL mode with ``synchronous=FULL``: a call that has returned survives the
kill of any process, and a power failure. A process that dies in the middle of a transaction leaves nothing of it. As the
file is locked while a transaction is written, a process that is *stopped* in just that moment holds up the others until it
continues or ends; their calls end with an error at the time limit.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stoker.concurrency.forks import ProcessLock
from stoker.coordination.engines.store import Stored, fresh_version, options_of
from stoker.coordination.errors import EngineError, EngineReplacedError, no_answer
from stoker.errors import ConfigError
from stoker.storage.files.mounts import file_system_of

_APPLICATION = 0x53544B52  # "STKR"
_TOGETHER = 500
# Locks and shared memory, which WAL needs, do not work over these, or not on all hosts alike.
_NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.cephfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "pvfs2",
        "smb3",
        "smbfs",
        "weka",
        "wekafs",
    ]
)


class _Link:
    """A connection of one thread, which another may close: SQLite crashes where that is done during a call."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.pid = os.getpid()
        self._connection = connection
        self._using = threading.Lock()
        self._closing = False

    # Bound as a default: at the interpreter's end a module's names are gone.
    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self.pid == getpid():
            self._connection.close()  # Python 3.13 warns of one that is not closed

    def execute(self, statement: str, values: Sequence[Any], *, fetch: bool) -> Any:
        """Rows, or the number of rows that were changed."""
        try:
            with self._using:
                cursor = self._connection.execute(statement, values)
                return cursor.fetchall() if fetch else cursor.rowcount
        finally:
            if self._closing:
                self.close()

    def close(self) -> None:
        """Close it, or have the thread do so whose call is under way."""
        self._closing = True
        if self.pid == os.getpid() and self._using.acquire(blocking=False):
            try:
                self._connection.close()
            finally:
                self._using.release()


class SqliteStore:
    """The records in a file.

    ``url``: ``sqlite://`` and the path of the file; its folder must exist. SQLite keeps ``-wal`` and ``-shm`` files next to
    it while it is in use. ``timeout``: seconds a call may take.
    """

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        options_of(url, {})
        path = url.removeprefix("sqlite://").partition("?")[0]
        file = Path(path).expanduser().absolute()
        if not str(path) or not file.parent.is_dir():
            raise ConfigError(f"sqlite://{path}: no folder {file.parent}: make it, or give another path")
        kind = file_system_of(file.parent)
        if kind in _NETWORK:
            raise ConfigError(
                f"sqlite://{path}: {file.parent} is a network file system ({kind}), on which SQLite can lose writes: give "
                f"a path on a local disk, or use a redis:// engine for more than one host"
            )
        self.url = f"sqlite://{file}"
        self._path = str(file)
        self._timeout = timeout
        self._local = threading.local()
        self._lock = ProcessLock()
        self._open: list[_Link] = []
        self._file: tuple[int, int] | None = None
        self._link()

    def get(self, keys: Sequence[str]) -> list[Stored | None]:
        found: dict[str, Stored] = {}
        for first in range(0, len(keys), _TOGETHER):
            part = list(keys[first : first + _TOGETHER])
            marks = ",".join("?" * len(part))
            rows = self._rows(f"SELECT key, value, version FROM records WHERE key IN ({marks})", part)  # noqa: S608
            found.update([(key, Stored(value, version)) for key, value, version in rows])
        return [found.get(key) for key in keys]

    def create(self, key: str, value: bytes) -> int | None:
        version = fresh_version()
        done = self._write(
            "INSERT OR IGNORE INTO records (key, value, version) VALUES (?, ?, ?)", (key, value, version)
        )
        return version if done else None

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        fresh = fresh_version()
        statement = "UPDATE records SET value = ?, version = ? WHERE key = ? AND version = ?"
        return fresh if self._write(statement, (value, fresh, key, version)) else None

    def delete(self, key: str, version: int) -> bool:
        return self._write("DELETE FROM records WHERE key = ? AND version = ?", (key, version))

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Stored]]:
        rows = self._rows(
            "SELECT key, value, version FROM records WHERE key >= ? AND key > ? AND substr(key, 1, ?) = ? "
            "ORDER BY key LIMIT ?",
            (prefix, after, len(prefix), prefix, limit),
        )
        return [(key, Stored(value, version)) for key, value, version in rows]

    def close(self) -> None:
        with self._lock:
            links, self._open = self._open, []
            self._local = threading.local()
        for link in links:
            link.close()

    def _write(self, statement: str, values: Sequence[Any]) -> bool:
        return bool(self._execute(statement, values) > 0)

    def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        rows: list[Any] = self._execute(statement, values, fetch=True)
        return rows

    def _execute(self, statement: str, values: Sequence[Any], *, fetch: bool = False) -> Any:
        begun = time.monotonic()
        try:
            done = self._link().execute(statement, values, fetch=fetch)
        except sqlite3.Error as error:
            self._check_file()
            raise self._failed(error, begun) from error
        # Asked last: what was written to a file that is not there any more is not acknowledged.
        self._check_file()
        return done

    def generation(self) -> int:
        """A random number of the records, given when the file was made."""
        (found,) = self._execute("PRAGMA user_version", (), fetch=True)
        return int(found[0])

    def _check_file(self) -> None:
        """Check that the file which is open is the one at the path."""
        try:
            found = _identity(self._path)
        except OSError as error:
            raise EngineError(f"the engine {self.url} can not be looked at: {error.strerror}", url=self.url) from error
        if found != self._file:
            what = "was deleted" if found is None else "was replaced by another file"
            raise EngineReplacedError(
                f"the engine {self.url} {what} while this worker used it: its records are lost. End all workers of the run, "
                "and start it again, or resume from a checkpoint"
            )

    def _link(self) -> _Link:
        # A connection belongs to one thread, and must not cross a fork.
        known: _Link | None = getattr(self._local, "link", None)
        if known is not None and known.pid == os.getpid():
            return known
        begun = time.monotonic()
        while True:
            try:
                connection = self._connect()
                break
            except sqlite3.Error as error:
                # Several processes that open a new file at once can find it locked whatever the busy time is.
                if "locked" not in str(error) or time.monotonic() > begun + self._timeout:
                    raise self._failed(error, begun) from error
                time.sleep(0.01)
        link = self._local.link = _Link(connection)
        with self._lock:
            self._open.append(link)
        return link

    def _connect(self) -> sqlite3.Connection:
        if self._file is not None:  # a connection would make a new file
            self._check_file()
        connection = sqlite3.connect(
            self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            connection.execute("BEGIN")  # so that both are of one moment
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute("COMMIT")
            if application != _APPLICATION and tables:
                raise ConfigError(f"{self.url} is an SQLite database of something else: give another path")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if application != _APPLICATION:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS records "
                    "(key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID"
                )
                if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):  # or another was faster
                    connection.execute(f"PRAGMA user_version = {fresh_version() >> 32 or 1}")
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute("COMMIT")
            if self._file is None:
                self._file = _identity(self._path)
            self._check_file()
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, error: sqlite3.Error, begun: float) -> Exception:
        said = str(error)
        if "not a database" in said:
            return ConfigError(f"{self.url} is not an SQLite database: give another path")
        if "locked" in said or "busy" in said:
            remedy = "another process holds the file: see whether one is stopped"
        elif "full" in said:
            remedy = "free space on its disk"
        else:
            remedy = "see whether its disk is there and writable"
        return no_answer(self.url, begun, said, remedy)


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; ``None`` if there is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino

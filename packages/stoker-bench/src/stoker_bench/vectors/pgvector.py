"""pgvector's HNSW in a PostgreSQL server that runs elsewhere: the server reads its storage, and says how much."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, StorageError, import_option
from stoker_bench.measure.call_times import CallTimer
from stoker_bench.settings.workload import VectorSettings
from stoker_bench.vectors.base import Searcher, VectorIndex
from stoker_bench.vectors.points import F32, I64

_BUILT_WITH: Final = 128
"""Nearest vectors that are kept while the index is built."""
_NAME: Final = "stoker bench"
"""Of connections, by which the server's processes are found."""
_SECONDS: Final = 10
"""For which counts of processes that end are waited for."""


class PgVectorIndex(VectorIndex):
    """A table with an HNSW index, in the database of ``vectors.server``. It stays, and the next run finds it.

    Args:
        settings: of the stage.
        path: its last part names the table.

    Raises:
        ConfigError: there is no ``vectors.server``, or it holds a password.
        MissingPackageError: psycopg is not installed.
    """

    suffix = "pgvector"
    served = True

    def __init__(self, settings: VectorSettings, path: str) -> None:
        if settings.server is None:
            raise ConfigError(
                "vectors.index pgvector needs a PostgreSQL server with the extension vector: vectors.server=postgresql://..."
            )
        self._driver: Any = import_option("psycopg", "vectors.index pgvector needs psycopg", "stoker-bench[pgvector]")
        try:
            given = self._driver.conninfo.conninfo_to_dict(settings.server)
        except self._driver.Error as error:
            raise ConfigError(f"vectors.server: {str(error).strip()}") from None
        if given.get("password"):
            raise ConfigError(
                "vectors.server holds a password, which results would record: use PGPASSWORD or ~/.pgpass"
            )
        self._table = "stoker_" + re.sub(r"\W", "_", os.path.basename(path).removesuffix(f".{self.suffix}"))
        super().__init__(
            settings, f"postgresql://{given.get('host', 'localhost')}/{given.get('dbname', '')}/{self._table}"
        )
        self._server = settings.server

    def exists(self) -> bool:
        return self._value("select to_regclass(%s)", self._table) is not None

    def bytes(self) -> int:
        return int(self._value("select pg_total_relation_size(%s::regclass)", self._table))

    def build(self, points: F32) -> None:
        edges = max(2, self.settings.degree // 2)
        with self._errors(), self._connect() as connection, connection.transaction():
            connection.execute("create extension if not exists vector")
            connection.execute("set local maintenance_work_mem = '512MB'")
            connection.execute(f"create table {self._table} (id bigint, v vector({points.shape[1]}))")
            with connection.cursor().copy(f"copy {self._table} (id, v) from stdin") as rows:
                for number, point in enumerate(points):
                    rows.write_row((number, _text(point)))
            connection.execute(
                f"create index on {self._table} using hnsw (v vector_l2_ops) "
                f"with (m = {edges}, ef_construction = {max(_BUILT_WITH, 2 * edges)})"
            )

    def open(self) -> None:
        count = self._value(f"select count(*) from {self._table}")  # noqa: S608 - a name of our own, of word characters
        if count != self.settings.count:
            raise StorageError(f"{self.path} has {count} vectors: drop the table, and it is made again", url=self.path)

    def bytes_read(self) -> int:
        """See :meth:`VectorIndex.bytes_read`: blocks that were not in the server's own buffers."""
        deadline = time.monotonic() + _SECONDS  # a process of the server tells its counts when it ends
        others = "select count(*) from pg_stat_activity where application_name = %s and pid <> pg_backend_pid()"
        while self._value(others, _NAME) and time.monotonic() < deadline:
            time.sleep(0.05)
        blocks = "coalesce(heap_blks_read, 0) + coalesce(idx_blks_read, 0)"
        query = f"select {blocks} from pg_statio_user_tables where relname = %s"  # noqa: S608
        return int(self._value(query, self._table)) * int(self._value("show block_size"))

    def searcher(self) -> Searcher:
        with self._errors():
            connection = self._connect()
            connection.execute(f"set hnsw.ef_search = {self.settings.kept}")
            connection.execute("set enable_seqscan = off")
        return _ServerSearcher(self, connection)

    def query(self, connection: Any, point: str) -> list[int]:
        """The numbers of the vectors that the server finds near one."""
        found = f"select id from {self._table} order by v <-> %s::vector limit {self.settings.neighbours}"  # noqa: S608
        with self._errors():
            return [row[0] for row in connection.execute(found, (point,), prepare=True)]

    def _connect(self) -> Any:
        return self._driver.connect(self._server, autocommit=True, application_name=_NAME, connect_timeout=_SECONDS)

    def _value(self, query: str, *given: object) -> Any:
        with self._errors(), self._connect() as connection:
            row = connection.execute(query, given).fetchone()
        return None if row is None else row[0]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._driver.Error as error:
            raise StorageError(f"{self.path}: {str(error).strip()}", url=self.path) from error


class _ServerSearcher(Searcher):
    def __init__(self, index: PgVectorIndex, connection: Any) -> None:
        self._index, self._connection = index, connection

    def search(self, query: F32, timer: CallTimer) -> tuple[I64, list[NDArray[np.int64]]]:
        return np.array(timer.call(self._index.query, self._connection, _text(query)), np.int64), []

    def close(self) -> None:
        self._connection.close()


def _text(point: F32) -> str:
    return f"[{','.join(map(repr, point.tolist()))}]"

"""A version of a Lance table as this process sees it: rows come from the helper process, by way of memory that both have."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.concurrency.shared.node_file import path_for_others
from stoker.errors import FormatError
from stoker.formats.lance.connection import LanceConnection, LanceFacts
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.pages.arrow_values import as_values
from stoker.formats.parquet.pages.values import ColumnValues
from stoker.lazy import cached_property
from stoker.storage.files.file_errors import file_errors
from stoker.storage.fork_proxy.proxy import RemoteObject
from stoker.types import Ids

_PATIENCE: Final = 60.0


def _remote(connection: LanceConnection) -> RemoteObject:
    return RemoteObject(connection.url, connection, _PATIENCE, "tables of Lance are read in")


@dataclass(frozen=True, eq=False)
class LanceTable:
    """A version of a table, to read from. It goes to other processes by pickling.

    Attributes:
        url: its path or URL.
        facts: what is known of it.
        options: settings of the store, as text.
    """

    url: str
    facts: LanceFacts
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def find(cls, url: str, version: int | str | None, options: Mapping[str, str]) -> LanceTable:
        """A version of the table at a path or URL.

        Raises:
            ObjectNotFoundError: there is none.
            MissingPackageError: ``lance`` is not installed.
        """
        return cls(url, _remote(LanceConnection(url, version, options)).call("facts"), options)

    @cached_property
    def schema(self) -> Any:
        """Its Arrow schema."""
        pa = pyarrow()
        return pa.ipc.read_schema(pa.py_buffer(self.facts.schema))

    @cached_property
    def blobs(self) -> frozenset[str]:
        """Its columns of blobs, which are read one by one."""
        return frozenset(self.facts.blobs)

    @cached_property
    def _helper(self) -> RemoteObject:
        return _remote(LanceConnection(self.url, self.facts.version, self.options, self.facts.mark))

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("url", "facts", "options")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def take(self, numbers: Ids, columns: Sequence[str]) -> dict[str, ColumnValues]:
        """Columns of rows, by their numbers in the version; int64, rising.

        Raises:
            StokerError: they can not be read; says why.
        """
        return self._read(lambda path: self._helper.call("take", path, numbers, list(columns)))

    def scan(self, fragment: int, first: int, count: int, columns: Sequence[str]) -> dict[str, ColumnValues]:
        """Columns of ``count`` rows of a fragment that follow each other from ``first`` on.

        Raises:
            StokerError: they can not be read; says why.
        """
        return self._read(lambda path: self._helper.call("scan", path, fragment, first, count, list(columns)))

    def _read(self, ask: Callable[[str], int]) -> dict[str, ColumnValues]:
        pa = pyarrow()
        with file_errors("memory shared with the helper process"):
            shared = os.memfd_create("stoker-lance", os.MFD_CLOEXEC)
            try:
                size = ask(path_for_others(shared))
                mapped = mmap.mmap(shared, size, prot=mmap.PROT_READ)
            finally:
                os.close(shared)
        table = pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()
        found = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.num_chunks != 1:
                raise FormatError(
                    f"{self.url}: column {name!r} has more than 2 GiB in {table.num_rows} rows that are read at once: read "
                    "fewer at once, by a smaller batch size"
                )
            found[name] = as_values(column.chunk(0))
        return found

"""Footers of many Parquet files, read side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stoker.catalog.unindexed.found_files import FoundFile, read_listed
from stoker.concurrency.threads import Threads
from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError
from stoker.formats.parquet.footer.facts import FileFacts
from stoker.formats.parquet.footer.footer import TAIL, footer_length, read_facts
from stoker.formats.parquet.footer.predicate import Predicate
from stoker.formats.parquet.footer.schema import FileSchema
from stoker.storage import Store

__all__ = ["BadFile", "FooterReader"]

# Most footers are smaller, so that one request brings them.
_FIRST_TAIL: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that can not be read.

    Attributes:
        key: the file.
        problem: what is wrong with it.
    """

    key: str
    problem: str


class FooterReader:
    """Reads footers of one dataset's files.

    Args:
        store: where the files are.
        columns: columns to read; ``None`` for all.
        predicate: which row groups to read.
        threads: how many footers are read at once.
    """

    def __init__(
        self, store: Store, columns: Sequence[str] | None, predicate: Predicate | None, *, threads: int
    ) -> None:
        self._store = store
        self._columns = columns
        self._predicate = predicate
        self._threads = threads
        self._schemas: dict[tuple[bytes, bytes, str], tuple[FileSchema, FileSchema]] = {}

    def sized(self, files: Sequence[FoundFile]) -> list[FoundFile]:
        """The files, with the sizes of those that were named and not listed."""
        return self._side_by_side(
            [partial(self._size, file) if file.size < 0 else partial(_same, file) for file in files]
        )

    def read(
        self, files: Sequence[FoundFile], constants: Sequence[Mapping[str, Any]], *, skip_bad: bool
    ) -> list[FileFacts | BadFile]:
        """Facts of files, in their order.

        Args:
            files: the files.
            constants: of each file, the values that its directory tells.
            skip_bad: return what is wrong with a file instead of raising it.

        Raises:
            CorruptDataError, FormatError: a file is no Parquet file, is damaged, or needs what is not supported.
            ConfigError: the predicate fits no file.
            StorageError: a file can not be read.
        """
        return self._side_by_side(
            [partial(self._facts, file, values, skip_bad) for file, values in zip(files, constants, strict=True)]
        )

    def _side_by_side(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        if len(work) < 2:
            return [action() for action in work]
        threads = Threads(min(self._threads, len(work)), "footers")
        try:
            return [future.result() for future in [threads.submit(action) for action in work]]
        finally:
            threads.close()

    def _size(self, file: FoundFile) -> FoundFile:
        info = self._store.head(file.key)
        return FoundFile(file.key, info.size, info.version)

    def _facts(self, file: FoundFile, constants: Mapping[str, Any], skip_bad: bool) -> FileFacts | BadFile:
        try:
            return read_facts(
                self.footer(file),
                key=file.key,
                size=file.size,
                version=file.version,
                columns=self._columns,
                predicate=self._predicate,
                constants=constants,
                schemas=self._schemas,
            )
        except FormatError as error:
            if skip_bad:
                return BadFile(file.key, str(error))
            raise type(error)(
                f'{self._store.url_of(file.key)}: {error}. Mend or remove the file, or leave it out with on_bad_files="skip"'
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{self._store.url_of(file.key)}: {error}") from error

    def footer(self, file: FoundFile) -> bytes:
        """The bytes of a file's footer."""
        start = max(0, file.size - _FIRST_TAIL)
        tail = self._bytes(file, start, file.size)
        length = footer_length(tail, file.size)
        if length + TAIL > len(tail):
            tail = self._bytes(file, file.size - TAIL - length, start) + tail
        return tail[len(tail) - TAIL - length : len(tail) - TAIL]

    def _bytes(self, file: FoundFile, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        try:
            return read_listed(self._store, lambda: self._store.get_range(file.key, start, end))
        except StokerError:
            size = self._store.head(file.key).size
            if size == file.size:
                raise
            raise CorruptDataError(f"it is being written to: it had {file.size} bytes, and has {size}") from None


def _same(file: FoundFile) -> FoundFile:
    return file

"""The base of writers of datasets that consist of numbered files and have no index: their files are found by listing them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from stoker.errors import ConfigError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.storage import Store
from stoker.storage.files.staged_file import StagedFile
from stoker.storage.types import PutData
from stoker.writing.base import Writer, WriterOptions, check_size_limit
from stoker.writing.destination import OutPath
from stoker.writing.output_files import NumberedFiles


class FileSetWriter(Writer):
    """Base of these writers: ``part-00000.parquet``, ``part-00001.parquet``, ...

    In a local directory the files lie in a hidden folder until all are there. In a store they lie where they belong from the
    beginning, and programs other than stoker, which reads the mark next to them, see those that are complete.

    Args:
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        identity: what the files are; files of another can not be added to.
        options: see :class:`~stoker.writing.base.WriterOptions`; ``hashes`` are not taken, as there is no index for them.
        compression: how the files are compressed.

    Raises:
        ConfigError: an argument makes no sense, or what is there is in the way; says what to do.
    """

    stem: ClassVar[str] = "part"
    """Prefix of the files' names."""
    indexed = False
    ends: ClassVar[tuple[str, ...]]
    """Suffixes of the names of the files of one number. The last one is stored last, and describes the others."""

    def __init__(
        self,
        out: OutPath,
        remote: str | os.PathLike[str] | None,
        identity: Mapping[str, Any],
        options: WriterOptions,
        compression: str | None,
    ) -> None:
        if options.get("hashes"):
            raise ConfigError(f"hashes: {self.ends[-1][1:]} files have no index that these could stand in")
        self._limit = check_size_limit(options.get("size_limit", 1 << 26)) or MAX_OFFSET
        settings = {"compression": compression, "size_limit": self._limit}
        self._files = NumberedFiles(identity, settings, self.stem, self.ends, self._look)
        super().__init__(out, remote, self._files, options, waiting=1)
        written = self._begun.written
        self._number = written[-1].number + 1 if written else 0
        self._samples = sum(one.samples for one in written)

    @property
    def samples_written(self) -> int:
        return self._samples

    def end_shard(self) -> None:
        self._check_open()
        self._end_file(empty=False)

    # -- what formats do -------------------------------------------------------------------------------------------

    @abstractmethod
    def _end_file(self, *, empty: bool) -> None:
        """Store the samples that wait, if there are any; with ``empty``, a file without samples otherwise."""

    @abstractmethod
    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        """Samples and identity of the files of a number, which are all there.

        Args:
            store: where they are.
            key: the last one's key.
            sizes: bytes, by :attr:`ends`.

        Raises:
            CorruptDataError, FormatError: they are damaged, or another program's.
        """

    def _put(self, files: Sequence[PutData | StagedFile], samples: int) -> None:
        """Store the files of the next number, in the order of :attr:`ends`."""
        number = self._number
        self._number += 1
        self._uploads.submit(partial(self._upload, number, files, samples))

    def _upload(self, number: int, files: Sequence[PutData | StagedFile], samples: int) -> None:
        for end, data in zip(self.ends, files, strict=True):
            self._destination.put(self._files.name(number, end), data)
        self._stored(samples, sum(map(size_of, files)))

    def _end(self) -> None:
        self._end_file(empty=self._number == 0 and self._destination.whole)


def size_of(data: PutData | StagedFile) -> int:
    """Bytes of what is stored."""
    if isinstance(data, StagedFile):
        return data.size
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return sum(memoryview(part).nbytes for part in data)

"""Write a dataset of Megatron's indexed files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Unpack

import numpy as np

from stoker.arguments import checked
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.common.records import batch_length, blame, check_sample
from stoker.formats.indexed_binary import DTYPES, index_bytes, read_index
from stoker.formats.mds.encodings.base import UnfitValueError, describe
from stoker.storage import Store
from stoker.types import Array
from stoker.writing.base import FileSetWriter, WriterOptions, check_encoding
from stoker.writing.destination import OutPath

ENDS: Final = (".bin", ".idx")
"""Suffixes of the names of a pair; the second file is the index of the first."""

_MOST_TOKENS: Final = np.iinfo(np.int32).max


def tokens_of(columns: Mapping[str, str]) -> tuple[str, np.dtype[Any], int | None]:
    """The one column of tokens, their data type, and how many a document has, where that is said.

    Columns are its name to ``ndarray:DTYPE`` or ``ndarray:DTYPE:n``.
    """
    if len(columns) != 1:
        raise ConfigError(
            f"Megatron's files hold one column, of tokens, not {', '.join(sorted(columns)) or 'none'}: leave the others out"
        )
    ((name, encoding),) = columns.items()
    check_encoding(name, encoding)
    head, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if head != "ndarray" or dtype not in DTYPES.values() or "," in shape:
        raise ConfigError(
            f"column {name!r} is {encoding!r}: Megatron's files hold ndarray:DTYPE, of {', '.join(DTYPES.values())}; "
            "declare the column as one of these"
        )
    return name, np.dtype(dtype), int(shape) if shape else None


class MegatronShardWriter(FileSetWriter):
    """Writes pairs of Megatron's files, ``part-00000.bin`` and ``part-00000.idx`` and so on: a sample is a document, and of
    one sequence.

    The dataset is read with ``format="megatron"``; Megatron reads each pair, or all by their paths in its blend. For one pair
    of files, however large, see :class:`stoker.tokens.MegatronWriter`.

    Args:
        columns: name of the one column to ``ndarray:DTYPE``, or ``ndarray:DTYPE:n`` for documents of n tokens. DTYPE is one
            of uint8, int8, uint16, int16, int32 and int64.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`~stoker.writing.base.WriterOptions`, but ``hashes`` and ``compression``. ``size_limit``:
            bytes of a ``.bin``; one document may be larger.

    Raises:
        ConfigError: an argument makes no sense, or what is there is in the way.
    """

    ends = ENDS

    @checked
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        self.check_compression(options.get("compression"))
        self._column, self._dtype, self._length = tokens_of(columns)
        super().__init__(out, remote, {"dtype": self._dtype.name}, options, None)
        self._waiting: list[Array] = []
        self._bytes = 0

    @classmethod
    def check_compression(cls, compression: str | None) -> None:
        if compression:
            raise ConfigError("compression: Megatron's files are read where they lie, and so not compressed")

    @classmethod
    def check_columns(cls, columns: Mapping[str, str]) -> None:
        tokens_of(columns)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a document: the column's name to its tokens, an array of shape ``(n,)``. Other keys are ignored.

        The tokens are copied before this returns.

        Raises:
            EncodingError: they are missing or do not fit; tells the sample and what was expected. Nothing of it is written,
                and the next may follow.
            ConfigError: the writer is closed.
            StorageError: storing an earlier file failed.
        """
        self._check_open()
        check_sample(sample, [self._column], self._samples)
        self._add([sample[self._column]])

    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """Add n documents: a list of n arrays, or an array of shape ``(n, tokens)``.

        Raises:
            EncodingError: as for :meth:`write`. Nothing of the batch is written.
        """
        self._check_open()
        batch_length(columns, [self._column], self._samples)
        self._add(columns[self._column])

    def _add(self, documents: Any) -> None:
        """Add documents: all, or none where one does not fit."""
        copied: list[Array] = []
        for number, value in enumerate(documents, self._samples):
            try:
                copied.append(self._copied(value))
            except UnfitValueError as error:
                raise blame(self._column, number, error) from error
        for document in copied:
            if self._waiting and self._bytes + document.nbytes > self._limit:
                self._store()
            self._waiting.append(document)
            self._bytes += document.nbytes
        self._samples += len(copied)

    def _copied(self, value: Any) -> Array:
        """A copy of a document's tokens."""
        good = isinstance(value, np.ndarray) and value.ndim == 1 and (value.dtype == self._dtype or not value.size)
        if not good or (self._length is not None and len(value) != self._length) or len(value) > _MOST_TOKENS:
            length = "any number of" if self._length is None else str(self._length)
            raise UnfitValueError(f"expected an array of {length} {self._dtype.name} tokens, got {describe(value)}")
        return np.array(value, self._dtype)

    def _store(self) -> None:
        """Store the documents that wait as a pair of files."""
        documents = self._waiting
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        tokens = np.concatenate([np.zeros(0, self._dtype), *documents])
        index = index_bytes(self._dtype, lengths, np.arange(len(documents) + 1, dtype=np.int64))
        self._waiting, self._bytes = [], 0
        little = tokens.astype(self._dtype.newbyteorder("<"), copy=False)
        self._put([little.view(np.uint8).data, index], len(documents))

    def _end_file(self, *, empty: bool) -> None:
        if self._waiting or (empty and self._number == 0):
            self._store()

    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        index = read_index(np.frombuffer(store.get(key, max_bytes=sizes[".idx"]), np.uint8), store.url_of(key))
        end = int(index.ends.max()) if len(index.lengths) else 0
        if end != sizes[".bin"]:
            raise CorruptDataError(
                f"{store.url_of(key)} tells of {end} bytes of tokens, and its .bin has {sizes['.bin']}"
            )
        return len(index.borders) - 1, {"dtype": index.dtype.name}

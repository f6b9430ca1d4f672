"""Write a dataset of Megatron's indexed files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from stoker.arguments import checked
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.common.records import batch_length, blame, check_sample
from stoker.formats.common.values import UnfitValueError
from stoker.formats.megatron import read_index
from stoker.storage import Store
from stoker.writing.base import WriterOptions
from stoker.writing.destination import OutPath
from stoker.writing.file_sets import FileSetWriter
from stoker.writing.megatron_parts import ENDS, MegatronParts, tokens_of


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
        self._column, dtype, _ = tokens_of(columns)
        super().__init__(out, remote, {"dtype": dtype.name}, options, None)
        self._parts = MegatronParts(columns, self._limit, None, lambda _, files, samples: self._put(files, samples))

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
        try:
            self._parts.write({self._column: documents})
        except UnfitValueError as error:
            raise blame(self._column, self._samples + (error.row or 0), error) from error
        self._samples += len(documents)

    def _end_file(self, *, empty: bool) -> None:
        if empty:
            self._parts.finish(empty=True)
        else:
            self._parts.end_file()

    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        index = read_index(np.frombuffer(store.get(key, max_bytes=sizes[".idx"]), np.uint8), store.url_of(key))
        end = int(index.ends.max()) if len(index.lengths) else 0
        if end != sizes[".bin"]:
            raise CorruptDataError(
                f"{store.url_of(key)} tells of {end} bytes of tokens, and its .bin has {sizes['.bin']}"
            )
        return len(index.borders) - 1, {"dtype": index.dtype.name}

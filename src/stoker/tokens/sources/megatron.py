"""Token files of other libraries, mapped into memory: Megatron's indexed data sets, with their writer, and raw arrays.

See :mod:`stoker.formats.indexed_binary` for what Megatron's files hold.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import DTypeLike

from stoker.arguments import at_least
from stoker.errors import ConfigError, CorruptDataError, EncodingError
from stoker.formats.indexed_binary import DTYPES, index_bytes, read_index
from stoker.integers import first_true
from stoker.storage import open_store
from stoker.storage.files import mapped
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.mapped import MappedFile, check_mapped
from stoker.storage.files.staged_file import StagedFile
from stoker.tokens.sources.ragged import Ragged, gather_spans, offsets_of
from stoker.types import Array, Ids

# Raw files of llm.c and its kin begin with 256 int32, of which the first is one of these.
_LLM_C: Final = (20240520, 20240801)


class RawTokens:
    """A file that is one array of tokens, mapped into memory, as nanoGPT's ``prepare.py`` writes it.

    Args:
        path: of the file.
        dtype: of the tokens: ``"uint16"`` or ``"uint32"``; the file does not say.
        header_bytes: bytes before the first token; 1024 in files of llm.c and modded-nanogpt.

    Raises:
        ObjectNotFoundError: there is no such file.
        CorruptDataError: it is no whole number of tokens, or has a header that was not told of.
        ConfigError: ``dtype`` is not one of integers.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike, *, header_bytes: int = 0) -> None:
        self.path = os.fspath(path)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        if self.dtype.kind not in "iu":
            raise ConfigError(f"dtype={self.dtype}: tokens are integers, like uint16")
        at_least(0, header_bytes=header_bytes)
        self._file = map_file(self.path)
        data = np.frombuffer(self._file, np.uint8)
        if not header_bytes and data.size >= 1024 and int.from_bytes(bytes(data[:4]), "little") in _LLM_C:
            raise CorruptDataError(f"{self.path} begins with a header as llm.c writes it: pass header_bytes=1024")
        if data.size < header_bytes or (data.size - header_bytes) % self.dtype.itemsize:
            raise CorruptDataError(
                f"{self.path} has {data.size} bytes, {header_bytes} of them a header, which leaves no whole number of "
                f"{self.dtype.name}: is dtype right, and was the file written to the end?"
            )
        self.tokens: Array = data[header_bytes:].view(self.dtype)

    def __len__(self) -> int:
        return self.tokens.size

    def check(self) -> None:
        """Check that the file was not cut since it was mapped, so that its tokens can be read.

        Raises:
            CorruptDataError: it was.
        """
        check_mapped([self._file])

    def read(self, first: int = 0, stop: int | None = None) -> Ragged:
        """Tokens ``[first, stop)``, all by default, as one document, without a copy."""
        stop = len(self) if stop is None else stop
        _check_range(self.path, "tokens", first, stop, len(self))
        self.check()
        return Ragged(self.tokens[first:stop], np.array([0, stop - first], dtype=np.int64), where=self.path)

    def documents(self, eos_id: int) -> Ragged:
        """All tokens without a copy, as documents that end with ``eos_id``, which stays; the last may end without it."""
        self.check()
        ends = np.flatnonzero(self.tokens == eos_id) + 1
        if not ends.size or ends[-1] != len(self):
            ends = np.append(ends, len(self))
        offsets = np.concatenate([np.zeros(1, np.int64), ends]) if len(self) else np.zeros(1, np.int64)
        return Ragged(self.tokens, offsets, where=self.path)


def map_file(path: str) -> MappedFile | bytes:
    """The bytes of a regular file, read-only; errors are stoker's own."""
    with file_errors(path):
        return mapped.map_file(path)


class MegatronFile:
    """Megatron's indexed data set, mapped into memory: sequences of tokens, grouped into documents.

    Args:
        path: of the ``.bin``, of the ``.idx``, or of both without the ending.

    Attributes:
        dtype: of the tokens.
        lengths: tokens in each sequence; int64, shape ``(sequences,)``.
        borders: sequence with which each document begins, and their number; int64, shape ``(documents + 1,)``.

    Raises:
        ObjectNotFoundError: one of the files is missing.
        CorruptDataError: they are not what the format says; names the file, and what to do.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        prefix = _prefix(path)
        self._index, self._data = f"{prefix}.idx", f"{prefix}.bin"
        index = read_index(np.frombuffer(map_file(self._index), np.uint8), self._index)
        self.dtype = index.dtype
        self.lengths: Ids = index.lengths
        self.borders: Ids = index.borders
        self._starts: Ids = index.byte_offsets
        self._file = map_file(self._data)
        data = np.frombuffer(self._file, np.uint8)
        if (row := first_true(index.ends > data.size)) is not None:
            raise CorruptDataError(
                f"{self._index} says that sequence {row} of {int(self.lengths[row])} tokens begins at byte "
                f"{int(self._starts[row])} of {self._data}, which has {data.size} bytes. Were both written together?"
            )
        self._tokens = index.tokens(data)

    def __len__(self) -> int:
        return self.lengths.size

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self.borders.size - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.lengths.sum())

    def read(self, first: int = 0, stop: int | None = None) -> Ragged:
        """Sequences ``[first, stop)``, all by default; without a copy where they lie end to end, as they do when written
        by Megatron.

        Raises:
            ConfigError: there are no such sequences.
        """
        stop = len(self) if stop is None else stop
        _check_range(self._data, "sequences", first, stop, len(self))
        return self._rows(np.arange(first, stop, dtype=np.int64))

    def documents(self, first: int = 0, stop: int | None = None) -> Ragged:
        """Documents ``[first, stop)``, all by default, each of all its sequences.

        Raises:
            ConfigError: there are no such documents.
        """
        stop = self.num_documents if stop is None else stop
        _check_range(self._data, "documents", first, stop, self.num_documents)
        borders = self.borders[first : stop + 1]
        rows = self._rows(np.arange(borders[0], borders[-1], dtype=np.int64))
        return Ragged(rows.values, rows.offsets[borders - borders[0]], where=self._data, rows=first)

    def take(self, rows: Ids) -> Ragged:
        """These sequences, in this order, each in ``[0, len)``."""
        if rows.size:
            _check_range(self._data, "sequences", int(rows.min()), int(rows.max()) + 1, len(self))
        return self._rows(rows)

    def _rows(self, rows: Ids) -> Ragged:
        check_mapped([self._file])
        lengths, starts = self.lengths[rows], self._starts[rows] // self.dtype.itemsize
        offsets = offsets_of(lengths)
        if not rows.size or np.array_equal(starts, starts[0] + offsets[:-1]):
            first = int(starts[0]) if rows.size else 0
            return Ragged(self._tokens[first : first + int(offsets[-1])], offsets, where=self._data, rows=rows)
        values = gather_spans(self._tokens, starts, lengths, offsets[:-1], int(offsets[-1]))
        return Ragged(values, offsets, where=self._data, rows=rows)


class MegatronWriter:
    """Writes Megatron's indexed data set. Use it in a ``with`` statement: both files appear at its end, the index last.

    Args:
        path: a path or URL of the ``.bin``, of the ``.idx``, or of both without the ending.
        dtype: of the tokens: uint16, int32, ...

    Raises:
        ConfigError: there is a file already, or the format does not know the dtype.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike) -> None:
        prefix = _prefix(path)
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in DTYPES.values():
            raise ConfigError(f"Megatron's files hold no {self.dtype}; they hold {', '.join(DTYPES.values())}")
        self._lengths: list[Ids] = []
        self._borders: list[Ids] = [np.zeros(1, dtype=np.int64)]
        self._sequences = 0
        folder, self._name = os.path.split(prefix)
        self._store = open_store(folder or ".")
        for name in (f"{self._name}.bin", f"{self._name}.idx"):
            if self._store.exists(name):
                raise ConfigError(f"{self._store.url_of(name)} exists: write elsewhere, or remove it")
        self._data: StagedFile | None = StagedFile(self._store, f"{self._name}.bin")

    def write(self, documents: Ragged, *, sequences: Sequence[int] | Ids | None = None) -> None:
        """Add documents, each as one sequence.

        Args:
            documents: what to add; with ``sequences``, they are sequences.
            sequences: how many sequences each document has.

        Raises:
            EncodingError: a sequence is too long for the format.
            FormatError: a token does not fit the dtype.
        """
        if self._data is None:
            raise ConfigError(f"the writer of {self._store.url_of(self._name)}.bin is closed: make a new one")
        info = np.iinfo(self.dtype)
        documents.check(int(info.max) + 1)
        lengths = documents.lengths
        if lengths.size and int(lengths.max()) > np.iinfo(np.int32).max:
            raise EncodingError(
                f"a sequence has {int(lengths.max())} tokens: Megatron's files hold less than 2^31 a sequence"
            )
        counts = np.ones(len(documents), np.int64) if sequences is None else np.asarray(sequences, dtype=np.int64)
        if counts.sum() != len(documents) or (counts.size and int(counts.min()) < 0):
            raise ConfigError(f"{int(counts.sum())} sequences in all documents, but {len(documents)} were given")
        self._data.file.write(np.ascontiguousarray(documents.values, self.dtype.newbyteorder("<")).data.cast("B"))
        self._lengths.append(lengths)
        self._borders.append(self._sequences + np.cumsum(counts))
        self._sequences += len(documents)

    def finish(self) -> None:
        """Write the index, and give both files their names."""
        data, self._data = self._data, None
        if data is None:
            return
        lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
        index = StagedFile(self._store, f"{self._name}.idx")
        try:
            index.file.writelines(index_bytes(self.dtype, lengths, np.concatenate(self._borders)))
            data.store(self._store, f"{self._name}.bin")
            index.store(self._store, f"{self._name}.idx")
        except BaseException:
            data.discard()
            index.discard()
            raise

    def abort(self) -> None:
        """Leave nothing."""
        if self._data is not None:
            self._data.discard()
            self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        else:
            self.finish()


def _prefix(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    return name[:-4] if name.endswith((".bin", ".idx")) else name


def _check_range(path: str, what: str, first: int, stop: int, count: int) -> None:
    if not 0 <= first <= stop <= count:
        raise ConfigError(f"{path} has {count} {what}: there are no {what} {first} to {stop}")

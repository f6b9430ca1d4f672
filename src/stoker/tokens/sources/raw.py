"""Raw arrays of tokens in a file, as nanoGPT and llm.c write them."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from stoker.errors import ConfigError, CorruptDataError
from stoker.storage.files import mapped
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.mapped import MappedFile, check_mapped
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Array

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
        if header_bytes < 0:
            raise ConfigError(f"header_bytes={header_bytes}: not negative")
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
        if not 0 <= first <= stop <= len(self):
            raise ConfigError(f"tokens {first} to {stop} of {self.path}, which has {len(self)}")
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

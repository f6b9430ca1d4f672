"""Tokens to pairs of Megatron's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError, FormatError
from stoker.formats.common.values import UnfitValueError, describe
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.megatron import DTYPES, index_bytes
from stoker.storage.types import PutData
from stoker.types import Array, Batch

ENDS: Final = (".bin", ".idx")
"""Suffixes of the names of a pair; the second file is the index of the first."""

_MOST_TOKENS: Final = np.iinfo(np.int32).max


class MegatronParts:
    """Pairs of files of the documents that are written, each handed over when it is complete. A document is one sequence.

    Args:
        columns: see :func:`tokens_of`.
        size_limit: most bytes of tokens in a pair; one document may be larger.
        samples_limit: most documents of a pair; ``None`` for no limit.
        put: stores a pair: gets its number, from 0 on, the bytes of both files, and its documents.

    Attributes:
        dtype: of the tokens.
        count: pairs that were handed over.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        size_limit: int,
        samples_limit: int | None,
        put: Callable[[int, Sequence[PutData], int], None],
    ) -> None:
        self._column, self.dtype, self._length = tokens_of(columns)
        self._limits = size_limit, samples_limit
        self._put = put
        self._waiting: list[Array] = []
        self._bytes = 0
        self.count = 0

    def write(self, batch: Batch) -> None:
        """Add documents: all, or none where one does not fit.

        Raises:
            UnfitValueError: one does not fit; ``row`` and ``column`` tell which.
        """
        documents: list[Array] = []
        for row, value in enumerate(batch[self._column]):
            try:
                documents.append(self._checked(value))
            except UnfitValueError as error:
                error.row, error.column = row, self._column
                raise
        for document in documents:
            size, most = self._limits
            full = most is not None and len(self._waiting) >= most
            if self._waiting and (full or self._bytes + document.nbytes > size):
                self.end_file()
            self._waiting.append(document)
            self._bytes += document.nbytes

    def end_file(self) -> None:
        """End the pair with the last document that was added, if there is one."""
        if self._waiting:
            self._close()

    def finish(self, *, empty: bool) -> None:
        """Hand over what is left; with ``empty`` a pair without documents, if there was none."""
        self.end_file()
        if empty and not self.count:
            self._close()

    def _checked(self, value: Any) -> Array:
        """A copy of a document's tokens."""
        good = isinstance(value, np.ndarray) and value.ndim == 1 and (value.dtype == self.dtype or not value.size)
        if not good or (self._length is not None and len(value) != self._length) or len(value) > _MOST_TOKENS:
            length = "any number of" if self._length is None else str(self._length)
            raise UnfitValueError(f"expected an array of {length} {self.dtype.name} tokens, got {describe(value)}")
        return np.array(value, self.dtype)

    def _close(self) -> None:
        documents = self._waiting
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        tokens = np.concatenate([np.zeros(0, self.dtype), *documents]).astype(self.dtype.newbyteorder("<"), copy=False)
        index = index_bytes(self.dtype, lengths, np.arange(len(documents) + 1, dtype=np.int64))
        self._waiting, self._bytes = [], 0
        self._put(self.count, [tokens.view(np.uint8).data, index], len(documents))
        self.count += 1


def tokens_of(columns: Mapping[str, str]) -> tuple[str, np.dtype[Any], int | None]:
    """The one column of tokens, their data type, and how many a document has, where that is said.

    Args:
        columns: its name to ``ndarray:DTYPE`` or ``ndarray:DTYPE:n``.

    Raises:
        ConfigError: Megatron's files can not hold that; says what they hold.
    """
    if len(columns) != 1:
        raise ConfigError(
            f"Megatron's files hold one column, of tokens, not {', '.join(sorted(columns)) or 'none'}: leave the others out"
        )
    ((name, encoding),) = columns.items()
    try:
        get_encoding(encoding)
    except FormatError as error:
        raise ConfigError(f"column {name!r}: {error}") from None
    head, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if head != "ndarray" or dtype not in DTYPES.values() or "," in shape:
        raise ConfigError(
            f"column {name!r} is {encoding!r}: Megatron's files hold ndarray:DTYPE, of {', '.join(DTYPES.values())}; "
            "declare the column as one of these"
        )
    return name, np.dtype(dtype), int(shape) if shape else None

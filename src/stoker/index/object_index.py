"""Objects of a store that are a sample each: arrays that processes share, and no Python object for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.concurrency.shared.arrays import cut_arrays
from stoker.concurrency.shared.bytes import SharedBytes
from stoker.formats.base import ShardInfo
from stoker.formats.common.file_shards import whole_file
from stoker.index.file_index import SampleFiles
from stoker.storage import ObjectInfo
from stoker.types import Ids

_CHUNK: Final = 4096


class ObjectShards(SampleFiles):
    """Objects of a store.

    The memory holds the end of each object's text (int64), its bytes (int64), and the texts as UTF-8: key and version, each
    ended by a zero byte.

    Args:
        data, at, count, format, spec: see :class:`~stoker.index.file_index.SampleFiles`.
    """

    def __init__(self, data: SharedBytes, at: int, count: int, format: str, spec: Mapping[str, Any]) -> None:  # noqa: A002
        super().__init__(data, at, count, format, spec)
        self._ends, self._sizes, self._texts = cut_arrays(data.view, at, [("q", count), ("q", count)])
        self.file_bytes = np.frombuffer(self._sizes, np.int64)
        ends = np.frombuffer(self._ends, np.int64)
        if (
            min(self.file_bytes.min(), ends[0]) < 0
            or bool((ends[1:] <= ends[:-1]).any())
            or ends[-1] != len(self._texts)
        ):
            raise ValueError("the arrays of objects do not go together")

    @staticmethod
    def pack(texts: Sequence[bytes], sizes: Sequence[Ids]) -> list[bytes | memoryview]:
        """The bytes that the memory holds, in parts.

        Args:
            texts: key and version of each object, both ended by a zero byte, in any number of pieces of whole objects.
            sizes: bytes of each object, in the same pieces.
        """
        ends, begin = [], 0
        for piece in texts:
            zeros = np.flatnonzero(np.frombuffer(piece, np.uint8) == 0)
            ends.append(zeros[1::2] + (begin + 1))
            begin += len(piece)
        return [*(one.astype(np.int64).data.cast("B") for one in (*ends, *sizes)), *texts]

    def size(self, number: int) -> int:
        """An object's bytes."""
        return self._sizes[number]

    def lines(self, template: str) -> Iterator[str]:
        """See :class:`~stoker.index.file_index.SampleFiles`."""
        for chunk in self.chunks():
            yield "".join([template % (key, size) for key, size, _ in chunk])

    def chunks(self) -> Iterator[Iterator[tuple[str, int, str]]]:
        """Key, size and version of some thousand objects at a time, all in order."""
        begin = 0
        for low in range(0, len(self), _CHUNK):
            high = min(len(self), low + _CHUNK)
            end = self._ends[high - 1]
            texts = str(self._texts[begin:end], "utf-8").split("\0")
            yield zip(texts[0:-1:2], self.file_bytes[low:high].tolist(), texts[1:-1:2], strict=True)
            begin = end

    def _get(self, number: int) -> ShardInfo:
        text = str(self._texts[self._ends[number - 1] if number else 0 : self._ends[number]], "utf-8")
        key, version, _ = text.split("\0")
        file = ObjectInfo(key, self._sizes[number], version)
        return ShardInfo(self.format, 1, (whole_file(file, in_place=False),), (), None, self.spec)

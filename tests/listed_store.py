"""An object store that makes up its objects: any number of them, of which nothing is kept. In a process of its own.

``python listed_store.py COUNT`` serves buckets of any name that hold ``COUNT`` objects of :data:`BYTES` bytes, 1,000 a
folder, whose names :func:`name_of` gives, and prints its port. Listings come in pages of 1,000, as S3 has them.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import overload

from slow_store import TIME, Connection, serve, started

BYTES = 200
_PER_FOLDER, _PAGE = 1000, 1000


def name_of(number: int) -> str:
    """The key of an object. Keys are in the order of their numbers."""
    return f"{number // _PER_FOLDER:06}/{number:09}.bin"


def content_of(number: int) -> bytes:
    """An object's bytes."""
    return number.to_bytes(8, "little") * (BYTES // 8)


class _Names(Sequence[str]):
    """The keys, in order."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...
    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        if isinstance(number, slice):
            return [name_of(one) for one in range(*number.indices(self._count))]
        return name_of(number)


class _Objects(Mapping[str, bytes]):
    """The objects by key."""

    def __init__(self, count: int) -> None:
        self.names = _Names(count)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, key: str) -> bytes:
        text = key.rpartition("/")[2].removesuffix(".bin")
        if not text.isdecimal() or int(text) >= len(self.names) or key != name_of(int(text)):
            raise KeyError(key)
        return content_of(int(text))


class _Paged(Connection):
    """Answers listings in pages."""

    def __init__(self, objects: _Objects) -> None:
        super().__init__(objects, 0.0)
        self._names = objects.names

    def _listed(self, asked: dict[str, str]) -> bytes:
        names, prefix = self._names, asked.get("prefix", "")
        first, end = bisect_left(names, prefix), bisect_left(names, prefix + "\U0010ffff")
        if after := asked.get("continuation-token") or asked.get("start-after"):
            first = max(first, bisect_right(names, after))
        stop = min(end, first + _PAGE)
        found = "".join(
            f"<Contents><Key>{name_of(number)}</Key><LastModified>{TIME}</LastModified>"
            f"<ETag>&quot;{BYTES}&quot;</ETag><Size>{BYTES}</Size></Contents>"
            for number in range(first, stop)
        )
        more = "<IsTruncated>false</IsTruncated>"
        if stop < end:
            token = name_of(stop - 1)
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        return f"<ListBucketResult>{more}{found}</ListBucketResult>".encode()


def listed_store(count: int) -> AbstractContextManager[dict[str, str]]:
    """``storage_options`` of ``s3://any-bucket`` that holds ``count`` objects."""
    return started(__file__, count)


if __name__ == "__main__":
    made_up = _Objects(int(sys.argv[1]))
    asyncio.run(serve(lambda: _Paged(made_up)))

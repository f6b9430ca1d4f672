"""Descriptions of many shards as arrays that processes share; each description is made when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from stoker.formats.base import NO_HASHES, UNKNOWN, FileInfo, ShardInfo
from stoker.types import Ids

if TYPE_CHECKING:
    from stoker.concurrency.shared.bytes import SharedBytes

FEW: Final = 2000
"""Shards that take little memory as objects."""

_CHUNK: Final = 4096


class LazyShards(Sequence[ShardInfo]):
    """Descriptions of shards, made when they are asked for: equal at each time, but not the same object."""

    @abstractmethod
    def _get(self, number: int) -> ShardInfo: ...

    @abstractmethod
    def size(self, number: int) -> int:
        """Bytes of the raw files of one shard, as :attr:`~stoker.formats.base.ShardInfo.size` has them."""

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShardInfo]: ...
    def __getitem__(self, index: int | slice) -> ShardInfo | Sequence[ShardInfo]:
        if isinstance(index, slice):
            return tuple([self._get(number) for number in range(*index.indices(len(self)))])
        return self._get(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LazyShards | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} shards>"


class ArrayShards(LazyShards):
    """Shards of one index, as arrays that processes share. Immutable; picklable.

    ``samples``: samples in each shard; int64, shape ``(count,)``, read-only.
    """

    samples: Ids

    @property
    @abstractmethod
    def raw_bytes(self) -> Ids:
        """Bytes of each shard's raw files; int64, shape ``(count,)``."""

    @property
    @abstractmethod
    def distinct(self) -> Sequence[ShardInfo]:
        """See :attr:`~stoker.index.index.ShardList.distinct_shards`."""

    def identity(self) -> Iterator[str] | None:
        """The text that the index's fingerprint is a hash of, where no description of each shard is needed for it."""
        return None


@dataclass(frozen=True, slots=True)
class ShardKind:
    """Properties that many shards have in common.

    Attributes:
        format, compression, spec: see :class:`~stoker.formats.base.ShardInfo`.
        raw: of each raw file, the names of its hashes.
        zip: likewise of the compressed files.
        first: number of the first such shard.
    """

    format: str
    compression: str | None
    spec: Mapping[str, Any]
    raw: tuple[tuple[str, ...], ...]
    zip: tuple[tuple[str, ...], ...]
    first: int


class ColumnarShards(ArrayShards):
    """Shards that are whole files.

    The arrays lie one after the other: samples (int64), sizes of files (int64, ``width`` a shard, those that a shard
    lacks are 0), ends of texts (int64), kinds (int32), texts. A shard's text is the name and the hashes of each file, raw
    ones first, each ended by a zero byte.

    Args:
        data: memory that holds them.
        at: where they begin in it; a multiple of 8.
        width: files of a shard at most.
        kinds: what shards have in common, in the order of their first shards. Shards with samples and without are of
            different kinds.

    Raises:
        ValueError: the arrays do not go together, or have numbers that no shard has.

    Attributes:
        kinds: see above.
        data, at, width: see above.
    """

    def __init__(self, data: SharedBytes, at: int, count: int, width: int, kinds: Sequence[ShardKind]) -> None:
        self.kinds = tuple(kinds)
        self.data = data
        self.at = at
        self.width = width
        self._count = count
        if count < 1 or width < max(len(kind.raw) + len(kind.zip) for kind in self.kinds):
            raise ValueError(f"{count} shards of {width} files at most can not be")
        from stoker.concurrency.shared.bytes import cut_arrays

        arrays = cut_arrays(data.view, at, [("q", count), ("q", count * width), ("q", count), ("i", count)])
        self._one_samples, self._one_sizes, self._one_ends, self._one_kinds, self._texts = arrays
        self.samples = np.frombuffer(self._one_samples, np.int64)
        self._sizes: Ids = np.ndarray((count, width), np.int64, self._one_sizes)
        ends, numbers = np.frombuffer(self._one_ends, np.int64), np.frombuffer(self._one_kinds, np.int32)
        if (
            min(self.samples.min(), ends[0], numbers.min()) < 0
            or self._sizes.min(initial=0) < UNKNOWN
            or bool((ends[1:] < ends[:-1]).any())
            or ends[-1] != len(self._texts)
            or numbers.max() >= len(self.kinds)
        ):
            raise ValueError("the arrays of shards do not go together")

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnarShards, (self.data, self.at, self._count, self.width, self.kinds)

    def __len__(self) -> int:
        return self._count

    @property
    def arrays(self) -> memoryview:
        """All arrays, as they lie in memory."""
        return self.data.view[self.at :]

    @property
    def distinct(self) -> Sequence[ShardInfo]:
        return [self[kind.first] for kind in self.kinds]

    @property
    def raw_bytes(self) -> Ids:
        found = np.zeros(len(self), np.int64)
        numbers = np.frombuffer(self._one_kinds, np.int32)
        for number, kind in enumerate(self.kinds):
            chosen = slice(None) if len(self.kinds) == 1 else numbers == number
            found[chosen] = self._sizes[chosen, : len(kind.raw)].sum(1)
        return found

    def size(self, number: int) -> int:
        at = number * self.width
        return sum(self._one_sizes[at : at + len(self.kinds[self._one_kinds[number]].raw)])

    def _get(self, number: int) -> ShardInfo:
        ends = self._one_ends
        text = self._texts[ends[number - 1] if number else 0 : ends[number]]
        sizes = self._one_sizes[number * self.width : (number + 1) * self.width]
        return _info(
            self.kinds[self._one_kinds[number]],
            self._one_samples[number],
            iter(sizes),
            iter(str(text, "utf-8", "surrogatepass").split("\0")),
        )

    def __iter__(self) -> Iterator[ShardInfo]:
        count, begin = len(self), 0
        for low in range(0, count, _CHUNK):
            high = min(count, low + _CHUNK)
            end = self._one_ends[high - 1]
            # Each shard takes from it what is its own.
            texts = iter(str(self._texts[begin:end], "utf-8", "surrogatepass").split("\0"))
            rows = zip(
                self._one_kinds[low:high].tolist(),
                self._one_samples[low:high].tolist(),
                self._sizes[low:high].tolist(),
                strict=True,
            )
            for kind, samples, sizes in rows:
                yield _info(self.kinds[kind], samples, iter(sizes), texts)
            begin = end


def kind_of(shard: ShardInfo, first: int) -> ShardKind:
    """The kind of a shard, whose first one has the number ``first``."""
    raw, packed = (tuple([tuple(file.hashes) for file in files]) for files in (shard.raw, shard.zip))
    return ShardKind(shard.format, shard.compression, shard.spec, raw, packed, first)


def to_columnar(shards: Sequence[ShardInfo]) -> ColumnarShards | None:
    """The same shards as arrays; ``None`` where they have details, parts of files or names that arrays can not hold."""
    kinds: list[ShardKind] = []
    numbers: dict[tuple[Any, ...], int] = {}
    samples: list[int] = []
    chosen: list[int] = []
    sizes: list[int] = []
    ends: list[int] = []
    texts: list[bytes] = []
    end = 0
    width = max([len(shard.raw) + len(shard.zip) for shard in shards])
    for shard in shards:
        files = (*shard.raw, *shard.zip)
        named = [tuple(file.hashes) for file in files]
        key = (id(shard.spec), shard.format, shard.compression, len(shard.raw), not shard.samples, *named)
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(kinds)
            kinds.append(kind_of(shard, len(samples)))
        words: list[str] = []
        for file in files:
            if file.part is not None:
                return None
            words.append(file.basename)
            words += file.hashes.values()
            sizes.append(file.bytes)
        sizes += [0] * (width - len(files))
        if shard.detail is not None:
            return None
        text = "".join([word + "\0" for word in words]).encode("utf-8", "surrogatepass")
        if text.count(b"\0") != len(words):
            return None
        end += len(text)
        samples.append(shard.samples)
        chosen.append(number)
        texts.append(text)
        ends.append(end)
    try:
        counts, bytes_of, ends_of = (np.array(one, np.int64) for one in (samples, sizes, ends))
        return pack_shards(counts, bytes_of, ends_of, np.array(chosen, np.int32), texts, kinds)
    except (OverflowError, OSError):
        return None


def pack_shards(
    samples: Ids, sizes: Ids, ends: Ids, numbers: NDArray[np.int32], texts: Sequence[bytes], kinds: Sequence[ShardKind]
) -> ColumnarShards:
    """Shards of these arrays, which are copied; see :class:`ColumnarShards`.

    Args:
        samples, ends: int64, shape ``(count,)``.
        sizes: int64, ``count * width`` in all.
        numbers: the kind of each; shape ``(count,)``.

    Raises:
        ValueError: the arrays do not go together.
        OSError: the process has too many files open, or memory is full.
    """
    from stoker.concurrency.shared.bytes import SharedBytes

    data = SharedBytes.of([*(one.tobytes() for one in (samples, sizes, ends, numbers)), *texts])
    return ColumnarShards(data, 0, samples.size, sizes.size // samples.size, kinds)


def shard_bytes(shards: Sequence[ShardInfo], number: int) -> int:
    """Bytes of the raw files of one shard."""
    return shards.size(number) if isinstance(shards, LazyShards) else shards[number].size


def sample_counts(shards: Sequence[ShardInfo]) -> Ids:
    """Samples in each shard; int64, shape ``(shards,)``, read-only."""
    if isinstance(shards, ArrayShards):
        return shards.samples
    counts = np.array([shard.samples for shard in shards], dtype=np.int64)
    counts.flags.writeable = False
    return counts


def _info(kind: ShardKind, samples: int, sizes: Iterator[int], texts: Iterator[str]) -> ShardInfo:
    raw = tuple([_file(names, sizes, texts) for names in kind.raw])
    packed = tuple([_file(names, sizes, texts) for names in kind.zip]) if kind.zip else ()
    return ShardInfo(kind.format, samples, raw, packed, kind.compression, kind.spec)


def _file(names: Sequence[str], sizes: Iterator[int], texts: Iterator[str]) -> FileInfo:
    return FileInfo(next(texts), next(sizes), {name: next(texts) for name in names} if names else NO_HASHES)

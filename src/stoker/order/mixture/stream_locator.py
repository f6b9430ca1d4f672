"""Locates samples of several streams: from codes to shards and rows.

A stream, or a part of one, is an endless sequence: its samples pass after pass (:mod:`stoker.order.shuffle.shuffle`). A
*code* names a sample of one of them: ``stream << 42 | number``. For stream 0 code and number are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture
from stoker.order.sample_order import Order
from stoker.order.shuffle.passes import BlockPass, PassTables
from stoker.order.shuffle.shuffle import ShuffledStream
from stoker.types import Array, Ids

_FEWEST: Final = 256


class ConcatPasses:
    """Passes of many streams with the same shuffle as one table, by numbers from 0 on: samples of a thousand streams are
    located in one call instead of a thousand. Each pass costs about 16 bytes a shard and 28 a block.

    The offsets of all passes lie one after the other in one sequence of *addresses*. What a pass looks up by an offset is
    here looked up by an address in the tables of all passes, so the samples are those that :meth:`ShufflePass.locate` finds.
    """

    def __init__(self) -> None:
        # By pass: canonical nodes, number of the first one's span, and bits of the blocks' tables.
        self._nodes, self._first_span, self._bits = (_Growing(np.int64) for _ in range(3))
        self._spans = _Growing(np.int64)
        self._shard_starts, self._shards = _Growing(np.int64), _Growing(np.int64)
        self._block_starts, self._block_sizes, self._keys = (
            _Growing(np.int64),
            _Growing(np.int64),
            _Growing(np.uint32),
        )
        self._total = 0

    def add(self, tables: PassTables, first_shards: Ids) -> int:
        """Add passes.

        ``tables``: the passes. All that are added have blocks, or none has. ``first_shards``: what is added to the numbers of
        the shards of each pass; shape ``(passes,)``. Gives the number of the first of them; the others follow.
        """
        first, count, spans = self._nodes.count, len(tables.shards), tables.spans.size
        bases = (self._total + tables.total * np.arange(count))[:, None]
        self._total += tables.total * count
        self._first_span.extend(self._spans.count + spans * np.arange(count))
        self._nodes.extend(np.full(count, spans))
        self._spans.extend(tables.spans + bases)
        self._shard_starts.extend(tables.shard_starts + bases)
        self._shards.extend(tables.shards + first_shards[:, None])
        blocks = tables.blocks
        if blocks is not None:
            self._bits.extend(np.full(count, blocks.bits))
            self._block_starts.extend(blocks.starts + bases)
            self._block_sizes.extend(np.tile(blocks.sizes, count))
            self._keys.extend(blocks.keys)
        return first

    def locate(self, passes: Ids, numbers: Ids) -> tuple[Ids, Ids]:
        """Shard and row of samples.

        ``passes``: number of the pass of each, shape ``(k,)``. ``numbers``: number of each in its pass, shape ``(k,)``. Gives
        two int64 arrays of shape ``(k,)``.
        """
        nodes = self._nodes.values[passes]
        inside = numbers // nodes
        span = numbers - inside * nodes + self._first_span.values[passes]
        addresses: Ids = self._spans.values[span] + inside
        if self._keys.count:
            block = np.searchsorted(self._block_starts.values, addresses, side="right") - 1
            starts = self._block_starts.values[block]
            x = (addresses - starts).astype(np.uint32)
            BlockPass.move(x, self._keys.values[block], self._block_sizes.values[block], self._bits.values[passes])
            addresses = starts + x.astype(np.int64)
        shard = np.searchsorted(self._shard_starts.values, addresses, side="right") - 1
        return self._shards.values[shard], addresses - self._shard_starts.values[shard]


class _Growing:
    """An array to which values are appended, in a time that is proportional to their number."""

    __slots__ = ("_held", "count")

    def __init__(self, dtype: Any) -> None:
        self._held: Array = np.empty(_FEWEST, dtype=dtype)
        self.count = 0

    @property
    def values(self) -> Array:
        return self._held[: self.count]

    def extend(self, values: Array) -> None:
        end = self.count + values.size
        if end > self._held.size:
            larger = np.empty(2 * end, dtype=self._held.dtype)
            larger[: self.count] = self.values
            self._held = larger
        self._held[self.count : end] = values.reshape(-1)
        self.count = end


_NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
_KEPT: Final = 64
# Where a call has fewer samples of a stream on average, what streams cost each would be more than what samples cost.
_FEW: Final = 256
# So many passes of each stream are concatenated until they are thrown away.
_JOINED: Final = 4
_UNKNOWN: Final = -2


class StreamLocator:
    """Several streams, made when they are first read. Several threads may locate single samples at once.

    ``make``: makes the stream of a number: the order of an endless sequence of samples. It is called again for a stream that
    was dropped, so it must be pure. ``shard_offsets``: for each stream, number of its first shard among the shards of all
    streams. Number n is a part of stream ``n % streams``. ``keep``: how many are kept, those used last. Each costs memory for
    its shards. Default: 64, and no fewer than there are streams. ``renumber``: codes that are asked for to those of the
    streams' numbers. Default: they are the same.
    """

    def __init__(
        self,
        make: Callable[[int], Order],
        shard_offsets: Sequence[int],
        keep: int | None = None,
        renumber: Callable[[Ids], Ids] | None = None,
    ) -> None:
        self._make = make
        self._renumber = renumber
        self._offsets: Ids = np.array(shard_offsets, dtype=np.int64)
        self._keep = max(_KEPT, self._offsets.size) if keep is None else keep
        self._made: dict[int, Order] = {}  # the least recently used first
        # By stream: samples of a pass, 0 where that is not known yet; and two passes, with their numbers among the
        # concatenated ones. -1: the pass is located alone.
        self._sizes: Ids = np.zeros(0, dtype=np.int64)
        self._pass_of: Ids
        self._concat_of: Ids
        self._concat: ConcatPasses
        self._count = 0

    def locate(self, codes: Ids) -> tuple[Ids, Ids]:
        """Shard number among those of all streams, and row in the shard, of each code; two int64 arrays of its shape."""
        if codes.size == 0:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty
        if self._renumber is not None:
            codes = self._renumber(codes)
        streams = codes >> NUMBER_BITS
        first = int(streams.min())
        count = int(streams.max()) - first + 1
        if count == 1:
            stream, offset = self._stream(first)
            shards, rows = stream.locate(codes & _NUMBER_MASK)
            return (shards + offset if offset else shards), rows
        # NumPy sorts integers of 16 bits or fewer by radix, in linear time.
        width = np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.int64
        by_stream = np.argsort((streams - first).astype(width), kind="stable")
        sorted_streams = streams[by_stream]
        borders = np.flatnonzero(np.diff(sorted_streams)) + 1
        starts = [0, *borders.tolist()]
        ends = [*starts[1:], codes.size]
        numbers = codes[by_stream] & _NUMBER_MASK
        found_shards, found_rows = np.empty_like(codes), np.empty_like(codes)
        locate = self._locate_together if codes.size < _FEW * len(starts) else self._locate_each
        locate(sorted_streams[starts].tolist(), starts, ends, numbers, found_shards, found_rows)
        shards, rows = np.empty_like(codes), np.empty_like(codes)
        shards[by_stream], rows[by_stream] = found_shards, found_rows
        return shards, rows

    def _locate_each(
        self, streams: list[int], starts: list[int], ends: list[int], numbers: Ids, shards: Ids, rows: Ids
    ) -> None:
        """Write shard and row of the ``numbers[starts[i] : ends[i]]`` of stream ``streams[i]``, for each i."""
        for number, start, end in zip(streams, starts, ends, strict=True):
            stream, offset = self._stream(number)
            found, rows[start:end] = stream.locate(numbers[start:end])
            shards[start:end] = found + offset if offset else found

    def _locate_together(
        self, streams: list[int], starts: list[int], ends: list[int], numbers: Ids, shards: Ids, rows: Ids
    ) -> None:
        """Likewise, in one call for all streams whose passes can be concatenated."""
        if not self._sizes.size or self._count > _JOINED * self._keep:
            self._forget()
        numbers_of = np.array(streams, dtype=np.int64)
        self._look_at(numbers_of)
        which = np.repeat(numbers_of, np.subtract(ends, starts))
        size = self._sizes[which]
        passes = numbers // size
        inside = numbers - passes * size
        first = np.flatnonzero(np.diff(which, prepend=-1) | np.diff(passes, prepend=-1))
        of, number = which[first], passes[first]
        concatenated = np.where(self._pass_of[of, number & 1] == number, self._concat_of[of, number & 1], _UNKNOWN)
        unknown = np.flatnonzero(concatenated == _UNKNOWN)
        if unknown.size:
            keys = list(zip(of[unknown].tolist(), number[unknown].tolist(), strict=True))
            new = dict.fromkeys(keys)  # samples of a pass may be there several times
            found = dict(zip(new, self._concatenate(list(new)), strict=True))
            concatenated[unknown] = [found[key] for key in keys]
        lengths = np.diff(first, append=numbers.size)
        of_sample = np.repeat(concatenated, lengths)
        alone = np.flatnonzero(concatenated < 0)
        if not alone.size:
            shards[...], rows[...] = self._concat.locate(of_sample, inside)
            return
        here = np.flatnonzero(of_sample >= 0)
        if here.size:
            shards[here], rows[here] = self._concat.locate(of_sample[here], inside[here])
        begins = first[alone]
        self._locate_each(
            of[alone].tolist(), begins.tolist(), (begins + lengths[alone]).tolist(), numbers, shards, rows
        )

    def _look_at(self, streams: Ids) -> None:
        """Note the samples of these streams, where they are not known."""
        more = int(streams[-1]) + 1 - self._sizes.size
        if more > 0:
            self._sizes = np.pad(self._sizes, (0, more))
            rows = ((0, more), (0, 0))
            self._pass_of, self._concat_of = (
                np.pad(self._pass_of, rows, constant_values=-1),
                np.pad(self._concat_of, rows),
            )
        for number in streams[self._sizes[streams] == 0].tolist():
            stream, _ = self._stream(number)
            self._sizes[number] = max(1, stream.total) if isinstance(stream, ShuffledStream) else 1 << NUMBER_BITS

    def _concatenate(self, passes: Sequence[tuple[int, int]]) -> list[int]:
        """Join passes, given as numbers of stream and pass, if they can be: their numbers among the concatenated ones."""
        found: Ids = np.full(len(passes), -1, dtype=np.int64)
        streams = [self._stream(number) for number, _ in passes]
        shuffled = [at for at, (stream, _) in enumerate(streams) if isinstance(stream, ShuffledStream)]
        groups = ShuffledStream.tables(
            [cast(ShuffledStream, streams[at][0]) for at in shuffled], [passes[at][1] for at in shuffled]
        )
        for group, tables in groups:
            if tables is not None:
                which = [shuffled[at] for at in group]
                first = self._concat.add(tables, np.array([streams[at][1] for at in which], dtype=np.int64))
                found[which] = first + np.arange(len(which))
        for (number, of_pass), concatenated in zip(passes, found.tolist(), strict=True):
            self._pass_of[number, of_pass & 1] = of_pass
            self._concat_of[number, of_pass & 1] = concatenated
        self._count += len(passes)
        return found.tolist()  # type: ignore[no-any-return]

    def _forget(self) -> None:
        """Forget which passes are concatenated."""
        self._concat, self._count = ConcatPasses(), 0
        self._pass_of = np.full((self._sizes.size, 2), -1, dtype=np.int64)
        self._concat_of = np.zeros((self._sizes.size, 2), dtype=np.int64)

    def _stream(self, number: int) -> tuple[Order, int]:
        """A stream, made where need be, and number of its first shard."""
        # Each step is one operation of a dict: threads that look for samples in the places of others come here, too, and
        # at worst a stream is made twice.
        stream = self._made.pop(number, None)
        if stream is None:
            for oldest in list(self._made)[: max(0, len(self._made) + 1 - self._keep)]:
                self._made.pop(oldest, None)
            stream = self._make(number)
        self._made[number] = stream
        return stream, int(self._offsets[number % self._offsets.size])


class MixedOrder:
    """The order of an epoch that is of several streams.

    ``locator``: where the samples lie. ``mixture``: which sample comes at which position.
    """

    def __init__(self, locator: StreamLocator, mixture: EpochMixture) -> None:
        self.locator = locator
        self.mixture = mixture

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Shard number and row at each position of the epoch; two int64 arrays of the shape of ``positions``."""
        return self.locator.locate(self.mixture.codes(positions))

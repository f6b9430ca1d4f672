"""Batches by length: an order in which all ranks take batches of samples of like length, padded to a bounded cost.

The epoch of another order is cut into *windows* of so many positions. The samples of a window are sorted into *buckets* by
their lengths, and each bucket is cut into *groups*: ``ranks`` batches, each of as many samples as ``max_tokens`` allows
where all are as long as the bucket's bound. Samples that do not fill a group join the next longer bucket of the window; the
last samples of the longest bucket make a smaller group. Groups are shuffled, and the samples of a group are ordered by node.

A position counts samples as they lie then. A window follows from the order, the lengths and its number alone, so that an
epoch is begun, or resumed at any position, in the time that one window takes.

A step of R ranks takes the next samples of a group, at most a batch for each rank, in R equal parts. So where R divides
``ranks``, all groups end where a step ends, on any number of ranks. Another R, or a position inside a group, leaves smaller
steps at the end of groups; where fewer samples than ranks are left there, ranks take one each, and others those of the group
that follows. What is left at the epoch's end is less than a sample a rank.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from stoker.arguments import at_least, checked
from stoker.errors import ConfigError
from stoker.integers import MASK, mix, mix_array, ranges
from stoker.lazy import cached_property
from stoker.order.global_batches import Remainder
from stoker.order.native import NativeOrder
from stoker.order.sample_order import DataRank, EpochPosition, Order, Run
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

logger = logging.getLogger(__name__)

_TAG_GROUPS: Final = 21
_GROUPS: Final = 8
"""Groups of each bucket that a window has on average, unless it is told: what does not fill one is little beside them."""
_MOST_BUCKETS: Final = 256
_CANDIDATES: Final = 256
_WINDOWS_KEPT: Final = 4

LengthSource: TypeAlias = str | os.PathLike[str] | NDArray[np.integer[Any]] | Sequence[int] | Callable[..., Any]
LengthArray: TypeAlias = NDArray[np.integer[Any]]


@checked
@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of samples, by which ``StreamingDataset(batch_by=...)`` makes batches; see docs/batches_by_length.md.

    Attributes:
        lengths: name of a column: its integers, or the lengths of its texts, bytes or lists; it is read once. Or the lengths
            of all samples by id, an array or the path of a ``.npy`` file. Or a function of columns, see ``columns``.
        max_tokens: the most that a rank's batch costs: samples times the longest.
        buckets: how many buckets, with such bounds that there are the fewest batches; or the longest length of each, rising.
        ranks: batches of one bucket that come in a row: the number of ranks of the largest world, or a multiple of it.
        max_samples: the most samples of a rank's batch.
        window: samples of the shuffled order that are sorted by length together. Default: so many that each bucket has
            about 8 groups of ``ranks`` batches among them.
        columns: names of the columns that the function gets, an argument each, for many samples at once; it gives an array of
            as many integers.

    Raises:
        ConfigError: numbers that make no sense.
    """

    lengths: LengthSource
    _: KW_ONLY
    max_tokens: int
    buckets: int | Sequence[int] = 16
    ranks: int = 8
    max_samples: int | None = None
    window: int | None = None
    columns: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        at_least(1, max_tokens=self.max_tokens, ranks=self.ranks, max_samples=self.max_samples, window=self.window)
        buckets = range(self.buckets) if isinstance(self.buckets, int) else self.buckets
        if not 1 <= len(buckets) <= _MOST_BUCKETS or any(a >= b for a, b in pairwise(buckets)):
            raise ConfigError(
                f"buckets={self.buckets!r}: give 1 to {_MOST_BUCKETS}, or the longest length of each, rising"
            )
        if (self.columns is None) is callable(self.lengths):
            raise ConfigError("columns= names what a function of lengths gets: give both, or neither")

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that are read for it."""
        if callable(self.lengths):
            return (self.columns,) if isinstance(self.columns, str) else tuple(self.columns or ())
        is_column = isinstance(self.lengths, str) and not self.lengths.endswith(".npy")
        return (str(self.lengths),) if is_column else ()

    def bounds(self, values: Ids, counts: Ids) -> Ids:
        """The longest length of each bucket, rising; int64. ``values``, ``counts``: all lengths, and the samples of each."""
        if isinstance(self.buckets, int):
            return _best_bounds(np.maximum(values, 1), counts, self.max_tokens, self.buckets)
        longest = int(values.max(initial=1))
        if self.buckets[0] < 1 or not longest <= self.buckets[-1] <= self.max_tokens:
            raise ConfigError(
                f"buckets={self.buckets!r}: the first must be at least 1, and the last at least the longest sample, "
                f"{longest}, and at most max_tokens={self.max_tokens}"
            )
        return np.array(self.buckets, np.int64)


def _best_bounds(values: Ids, counts: Ids, max_tokens: int, buckets: int) -> Ids:
    """The bounds of up to so many buckets with which the fewest batches are made; of rising values, with their counts."""
    if not values.size:
        return np.ones(1, np.int64)
    below, tokens = np.cumsum(counts), np.cumsum(counts * values)
    # Of many values those that follow equally many samples, or equally many tokens.
    shares = np.arange(1, _CANDIDATES + 1) / _CANDIDATES
    chosen = np.unique([np.searchsorted(one, shares * one[-1]) for one in (below, tokens)]).clip(0, values.size - 1)
    bounds, below = values[chosen], below[chosen].astype(np.float64)
    cost = below / (max_tokens // bounds)
    # [i, j]: the batches of a bucket from behind bound i up to bound j; and by number of buckets, the best i for each j.
    more = (below - below[:, None]) / (max_tokens // bounds)
    more[np.tri(bounds.size, dtype=bool)] = np.inf
    before = []
    for _ in range(min(buckets, bounds.size) - 1):
        before.append((cost[:, None] + more).argmin(axis=0))
        cost = np.minimum(cost, (cost[:, None] + more).min(axis=0))
    found = [bounds.size - 1]
    for best in reversed(before):
        found.append(int(best[found[-1]]))
    return np.unique(bounds[found])


class LengthWindows:
    """The windows of an epoch, each divided when it is first asked for; the :class:`~stoker.order.sample_order.Order` of it.

    ``order``: locates the positions of the epoch before samples were moved. ``buckets``: of each sample by its id.
    """

    def __init__(self, order: Order, by_length: ByLengthOrder, key: int) -> None:
        self._order, self._by_length, self._key = order, by_length, key
        self.end, self.ranks, self.window = by_length.epoch_size, by_length.ranks, by_length.window
        self.batch_size = by_length.batch_size
        self.last = max(0, self.end // self.window - 1)
        # By start and number of ranks, where steps end, as far as that was asked.
        self.step_ends: dict[tuple[int, int], list[int]] = {}
        self._groups: dict[int, tuple[Ids, Ids]] = {}
        self._located = lru_cache(maxsize=_WINDOWS_KEPT)(self._divide)

    def number(self, position: int) -> int:
        """The window that a position is in; the last one is up to twice as large as others."""
        return min(position // self.window, self.last)

    def groups(self, position: int) -> Iterator[tuple[int, int]]:
        """The groups of the position's window from it on: the end of each, and the most samples of a batch."""
        number = self.number(position)
        if number not in self._groups:
            self._located(number)
        ends, most = self._groups[number]
        first = int(np.searchsorted(ends, position, side="right"))
        return zip(ends[first:].tolist(), most[first:].tolist(), strict=True)

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Shard number and row at each position; see :class:`~stoker.order.sample_order.Order`."""
        numbers = np.minimum(positions // self.window, self.last)
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            inside = positions[here] - number * self.window
            shards[here], rows[here] = (found[inside] for found in self._located(number))
        return shards, rows

    def _divide(self, number: int) -> tuple[Ids, Ids]:
        begin = number * self.window
        positions: Ids = np.arange(begin, self.end if number == self.last else begin + self.window, dtype=np.int64)
        shards, rows = self._order.locate(positions)
        one = self._by_length
        key = mix(self._key, number) if one.shuffled else None
        moved, sizes = divide(one.buckets[one.table.ids(shards, rows)], one.most, one.ranks, key)
        if one.nodes > 1:
            of = np.repeat(np.arange(sizes.size), sizes)
            moved = moved[np.argsort(of * one.nodes + positions[moved] % one.nodes, kind="stable")]
        self._groups[number] = begin + np.cumsum(sizes), -(-sizes // one.ranks)
        return shards[moved], rows[moved]


def divide(buckets: NDArray[np.uint8], most: Ids, ranks: int, key: int | None) -> tuple[Ids, Ids]:
    """Divide the samples of a window into groups.

    ``buckets``: of each sample. ``most``: samples of a batch of each bucket. ``ranks``: batches of a group. ``key``: of the
    order of groups; ``None``: short ones first. Gives the samples' numbers, group after group, and the groups' sizes; int64.
    """
    counts = np.bincount(buckets)
    found: list[Ids] = []
    begin = end = 0
    for bucket in np.flatnonzero(counts).tolist():
        end += int(counts[bucket])
        each = ranks * int(most[bucket])
        found.append(np.full((end - begin) // each, each, np.int64))
        begin = end - (end - begin) % each
    sizes = np.concatenate([*found, np.full(int(end > begin), end - begin, np.int64)])
    begins = np.cumsum(sizes) - sizes
    if key is not None:
        keys = mix_array(key, np.arange(sizes.size))
        if end % ranks:  # what its ranks do not take in whole steps comes last
            keys[-1] = MASK
        turns = np.argsort(keys)
        begins, sizes = begins[turns], sizes[turns]
    return np.argsort(buckets, kind="stable")[ranges(begins, sizes)], sizes


class ByLengthPlan:
    """The batches of one rank from a position to the epoch's end; see :class:`~stoker.order.sample_order.Plan`.

    ``windows``: of the epoch. ``start``: first position. ``data_rank``: the reader. ``remainder``: what becomes of the
    samples at the epoch's end that are fewer than ranks.
    """

    longest = 0

    def __init__(self, windows: LengthWindows, start: int, data_rank: DataRank, remainder: Remainder) -> None:
        self._windows, self.start, self.end = windows, start, windows.end
        self.rank, self.world_size, self._remainder = data_rank.rank, data_rank.world_size, remainder
        self.batch_size = windows.batch_size

    def _steps(self, position: int) -> Iterator[list[int]]:
        """The steps from a position on: where the batches of each begin, and where it ends.

        The last one may have batches for the first ranks alone, of a sample each.
        """
        step = [position]
        while position < self.end:
            for end, most in self._windows.groups(position):
                while position < end:
                    free = self.world_size + 1 - len(step)
                    samples = min(end - position, free * most)
                    batches = min(free, samples)
                    step += [position + samples * (one + 1) // batches for one in range(batches)]
                    position += samples
                    if len(step) > self.world_size:
                        yield step
                        step = [position]
        if len(step) > 1:
            yield step

    def _own(self, step: list[int]) -> Ids | None:
        """This rank's batch of a step."""
        batches = len(step) - 1
        if batches < self.world_size and (self._drops or (self._remainder == "uneven" and self.rank >= batches)):
            return None
        at = self.rank % batches
        return np.arange(step[at], step[at + 1], dtype=np.int64)

    @property
    def _drops(self) -> bool:
        return self._remainder == "drop"

    def _ends(self, steps: int | None = None) -> list[int]:
        """The ends of so many steps in which all ranks have a batch, or of all."""
        ends = self._windows.step_ends.setdefault((self.start, self.world_size), [])
        if steps is None or len(ends) < steps:
            for step in self._steps(ends[-1] if ends else self.start):
                if len(step) <= self.world_size:
                    break
                ends.append(step[-1])
                if len(ends) == steps:
                    break
        return ends

    @cached_property
    def _tail(self) -> list[int]:
        """The step at the epoch's end in which not all ranks have a batch, or an empty list."""
        windows, ranks = self._windows, self.world_size
        last = windows.last * windows.window
        for step in self._steps(self.start):
            if len(step) <= ranks:
                return step
            if step[-1] <= last and not windows.ranks % ranks and not step[-1] % windows.window:
                # From here on steps end where windows do, so that the last window tells.
                return next((step for step in self._steps(last) if len(step) <= ranks), [])
        return []

    @property
    def full_batches(self) -> int:
        """Batches in which all ranks take part, with samples of their own."""
        return len(self._ends())

    full_steps = full_batches

    @property
    def samples(self) -> int:
        """Number of samples that this rank takes."""
        return sum(own.size for step in self._steps(self.start) if (own := self._own(step)) is not None)

    @property
    def padding(self) -> int:
        """Samples over all ranks that are repeated at the epoch's end: fewer than ranks."""
        return self.world_size + 1 - len(self._tail) if self._tail and self._remainder == "pad" else 0

    def __len__(self) -> int:
        """Number of batches that this rank takes. All of the epoch is divided for it."""
        tail = self._tail
        return len(self._ends()) + (bool(tail) and self._own(tail) is not None)

    def __bool__(self) -> bool:
        return next(self.chunks(1), None) is not None

    def position_after(self, batches: int) -> int:
        """The position that a resume starts from after ``batches`` batches of every rank."""
        ends = self._ends(batches)
        if len(ends) < batches:
            return self.end
        return self.position_at(ends[batches - 1] - self.start if batches else 0)

    def position_at(self, samples: int) -> int:
        """The position that a resume starts from after ``samples`` of all ranks together, repeated ones counted."""
        found = min(self.start + samples, self.end)
        return self.end if self._drops and self._tail and found >= self._tail[0] else found

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches, several at a time; see :meth:`stoker.order.sample_order.Plan.chunks`."""
        first, held = worker + skip * workers, 0
        together: list[Ids] = []
        for number, step in enumerate(self._steps(self.start)):
            if number < first or (number - first) % workers or (own := self._own(step)) is None:
                continue
            together.append(own)
            held += own.size
            if held >= samples:
                yield together
                together, held = [], 0
        if together:
            yield together


class ByLengthOrder:
    """The :class:`~stoker.order.sample_order.SampleOrder` of batches by length.

    ``base``: the order whose samples it moves. ``table``: where the ids of each shard begin. ``lengths``: of all samples, by
    id. ``given``: how batches are made. ConfigError for an order that can not be divided, or a sample that no batch can hold.
    """

    makes_batches: ClassVar = True

    def __init__(self, base: NativeOrder, table: ShardTable, lengths: LengthArray, given: Lengths) -> None:
        settings = base.settings
        if settings.partition.static or (len(base.sources) > 1 and settings.batching_method != "random"):
            raise ConfigError(
                "batch_by= makes batches of the samples of all streams, for any rank: use it with partition_algo='elastic' "
                "and batching_method='random', which are the defaults"
            )
        self.base, self.table, self.ranks = base, table, given.ranks
        self.chosen, self.repeats, self.urls = base.chosen, base.repeats, base.urls
        self.epoch_size, self.shuffled = base.epoch_size, settings.shuffle != "none"
        counts: Ids = np.bincount(lengths)
        if counts.size > given.max_tokens + 1:
            _check_fits(base, lengths, given.max_tokens)
            counts = counts[: given.max_tokens + 1]
        values: Ids = np.flatnonzero(counts)
        bounds = given.bounds(values, counts[values])
        self.most: Ids = np.minimum(given.max_tokens // bounds, given.max_samples or given.max_tokens)
        buckets = np.searchsorted(bounds, np.arange(int(lengths.max(initial=0)) + 1)).clip(0, bounds.size - 1)
        self.buckets = buckets.astype(np.uint8)[lengths]
        batches = float((counts[values] / self.most[buckets[values]]).sum())
        self.batch_size = max(1, round(int(counts.sum()) / max(1.0, batches)))
        window = given.window or 1 << int(_GROUPS * bounds.size * self.ranks * self.batch_size - 1).bit_length()
        self.window = -(-window // self.ranks) * self.ranks
        plan = base.run(EpochPosition(0), DataRank()).plan
        self.nodes: int = getattr(plan, "num_canonical_nodes", 1)
        self._about = {
            "max_tokens": given.max_tokens,
            "max_samples": given.max_samples,
            "ranks": given.ranks,
            "window": self.window,
            "buckets": bounds.tolist(),
            "lengths": xxhash.xxh64_hexdigest(self.buckets.tobytes()),
        }
        self._told = False
        self._windows: dict[int, LengthWindows] = {}

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        """The samples of one reader from ``position`` on.

        ConfigError for a batch size: lengths say how large batches are.
        """
        if data_rank.batch_size != 1:
            raise ConfigError(
                f"batch_size={data_rank.batch_size}: batches are as large as batch_by=Lengths(max_tokens=...) says, leave "
                "batch_size out"
            )
        if self.ranks % data_rank.world_size and not self._told and not data_rank.rank:
            self._told = True
            logger.warning(
                "Lengths(ranks=%d) is not a multiple of the %d ranks: some steps have smaller batches, or batches of two "
                "buckets. Set ranks=%d, or a multiple of it",
                self.ranks,
                data_rank.world_size,
                data_rank.world_size,
            )
        if (windows := self._windows.get(position.epoch)) is None:
            order = self.base.run(EpochPosition(position.epoch), DataRank()).order
            windows = LengthWindows(order, self, mix(self.base.settings.seed, _TAG_GROUPS, position.epoch))
            # Those of the epoch before are kept, as its end may be asked for.
            kept = {number: one for number, one in self._windows.items() if number == position.epoch - 1}
            self._windows = {**kept, position.epoch: windows}
        return Run(windows, ByLengthPlan(windows, position.position, data_rank, self.base.settings.remainder))

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides which sample comes when."""
        about = self.base.as_dict()
        return {**about, "order": {**about["order"], "batch_by": self._about}}

    @property
    def shards_at_once(self) -> int:
        """About how many shards are read at once: those that the shuffle reads, and those that it passes in a window."""
        shards = int(np.count_nonzero(self.table.sizes))
        return min(shards, self.base.shards_at_once + -(-self.window * shards // max(1, self.table.total)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_windows": {}}


def _check_fits(base: NativeOrder, lengths: LengthArray, most: int) -> None:
    """See that a batch can hold each sample of an order. ConfigError if it can not."""
    long = np.flatnonzero(lengths > most)
    first = 0
    for source in base.sources:
        ids = long[(long >= first) & (long < first + source.table.total)]
        shards, rows = source.table.locate(ids - first)
        chosen = ids[source.selection.numbers(shards, rows) >= 0]
        if chosen.size:
            raise ConfigError(
                f"{chosen.size} samples of stream {source.name!r} are longer than max_tokens={most}, such as sample "
                f"{int(chosen[0])}, of {int(lengths[chosen[0]])}: raise max_tokens, or leave them out, by "
                "subset=Where(...) or SkipIds(...)"
            )
        first += source.table.total

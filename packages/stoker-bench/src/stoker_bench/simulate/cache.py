"""A node's cache: when it fetches which shard, what it must hold, and what it evicts and fetches again.

A *stretch* is the time through which a node holds a shard without a break: from when the lookahead reaches a use of it
until the last of the uses that lie no further apart than the lookahead reaches. Within a stretch the loader has the shard
open, so it can not be evicted; after it the file stays until room is needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from stoker.types import Ids
from stoker_bench.simulate.shard_access import NodeUses

# Once files must go, the cache makes this part of its limit free.
_SLACK = 32
# Of a limited cache the loader lets what it looks ahead to fill this part.
_AHEAD_SHARE = 2
# Gaps of less than this part of the run are not told.
_SPANS = 200


@dataclass(frozen=True, slots=True)
class NodeCache:
    """Statistics of one node's cache.

    Attributes:
        shards: numbers of the shards that the node uses, rising.
        first: step of the first use of each.
        last: step of the last use of each.
        spans: shard, first and last step of each time of use, parted where a shard is not used for longer than is
            looked ahead and than a two-hundredth of the run; three int64 arrays, by shard, then step.
        fetched: shard numbers in the order in which they are fetched, refetches included.
        needed_at: the step that each fetch is for, not falling.
        lookahead: steps ahead of the current one whose shards are fetched.
        live: most bytes of shards between their first and last use.
        needed: the same, each shard counted from when it is fetched ahead: what a cache must hold so as to fetch each
            shard once.
        held: bytes in the cache after each fetch; int64, as long as ``fetched``.
        evictions: files that were removed.
        over: most bytes above the limit that were in use at once.
    """

    shards: Ids
    first: Ids
    last: Ids
    spans: tuple[Ids, Ids, Ids]
    fetched: Ids
    needed_at: Ids
    lookahead: int
    live: int
    needed: int
    held: Ids
    evictions: int
    over: int


def run_cache(uses: NodeUses, raw: Ids, lookahead: int, limit: int | None) -> NodeCache:
    """Follow one node's cache through the run.

    Args:
        uses: the node's uses of shards.
        raw: bytes of every shard's files.
        lookahead: steps ahead whose shards are fetched.
        limit: bytes that the cache may hold, or ``None``.
    """
    end = int(uses.steps.max(initial=0))
    shards, first, last = _stretches(uses, end)
    spans = _stretches(uses, max(lookahead, end // _SPANS))
    live = _most_at_once(first, last, raw[shards], 0)
    needed = _most_at_once(first, last, raw[shards], lookahead)
    if limit is None or int(raw[shards].sum()) <= limit:
        order = np.lexsort((shards, first))
        held = np.cumsum(raw[shards[order]])
        return NodeCache(shards, first, last, spans, shards[order], first[order], lookahead, live, needed, held, 0, 0)
    begin = _stretches(uses, lookahead)
    while lookahead and _most_at_once(begin[1], begin[2], raw[begin[0]], lookahead) > limit // _AHEAD_SHARE:
        lookahead //= 2
        begin = _stretches(uses, lookahead)
    fetched, needed_at, held, evictions, over = _evicting(*begin, raw, lookahead, limit)
    return NodeCache(shards, first, last, spans, fetched, needed_at, lookahead, live, needed, held, evictions, over)


def _stretches(uses: NodeUses, lookahead: int) -> tuple[Ids, Ids, Ids]:
    """Shard, first step and last step of each stretch, by shard, then step."""
    numbers, steps = uses.shards, uses.steps
    begins = np.ones(numbers.shape, dtype=np.bool_)
    # After the batch of step e the loader looks at the steps from e + 1 to e + 1 + lookahead.
    begins[1:] = (numbers[1:] != numbers[:-1]) | (steps[1:] - steps[:-1] > lookahead + 1)
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], numbers.size) - 1 if at.size else at
    return numbers[at], steps[at], steps[ends]


def _most_at_once(first: Ids, last: Ids, sizes: Ids, lookahead: int) -> int:
    """Largest sum of sizes over the intervals ``[first - lookahead, last]`` that have a step in common."""
    times = np.concatenate([np.maximum(first - lookahead, 0), last + 1])
    change = np.concatenate([sizes, -sizes])
    # What ends at a step goes before what begins at it comes.
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


def _evicting(
    shards: Ids, first: Ids, last: Ids, raw: Ids, lookahead: int, limit: int
) -> tuple[Ids, Ids, Ids, int, int]:
    """Fetches, steps they are for, bytes held after each, evictions, and the most bytes in use above the limit."""
    order = np.lexsort((shards, first))
    # Bytes and end of the latest stretch of each shard that is in the cache.
    inside: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    fetched: list[int] = []
    needed_at: list[int] = []
    held: list[int] = []
    used = evictions = over = 0
    sizes = raw[shards[order]].tolist()
    stretches = zip(shards[order].tolist(), first[order].tolist(), last[order].tolist(), sizes, strict=True)
    for shard, begin, end, size in stretches:
        if shard not in inside:
            used += size
            if used > limit:
                while ended and used > limit - limit // _SLACK and ended[0][0] < begin - lookahead:
                    step, number = heapq.heappop(ended)
                    if inside.get(number) == step:
                        del inside[number]
                        used -= int(raw[number])
                        evictions += 1
                over = max(over, used - limit)
            fetched.append(shard)
            needed_at.append(begin)
            held.append(used)
        inside[shard] = end
        heapq.heappush(ended, (end, shard))
    as_ids = [np.array(values, dtype=np.int64) for values in (fetched, needed_at, held)]
    return as_ids[0], as_ids[1], as_ids[2], evictions, over

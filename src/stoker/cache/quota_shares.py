"""How a limit is divided among cache directories."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.errors import ConfigError
from stoker.types import Ids

__all__ = ["share_limit"]

# A directory holds the shard that is read and the one that comes next.
_LEAST_SHARDS = 2


def share_limit(limit: int, shard_bytes: Sequence[Ids], names: Sequence[str]) -> list[int]:
    """Divide a limit among cache directories: equal parts, but none more than it can fill, and each at least two shards.

    What a stream has in use at a time is so many shards, however many it has in all, so parts by size would starve the small
    streams of a mixture, which come round most often. What small ones do not fill goes to the large.

    Args:
        limit: bytes for all together.
        shard_bytes: for each directory, bytes of each of its shards.
        names: name the directories in errors.

    Returns:
        Bytes for each; their sum is at most ``limit``.

    Raises:
        ConfigError: the limit can not hold two of the largest shards of each.
    """
    totals = [int(sizes.sum()) for sizes in shard_bytes]
    least = [
        min(total, _LEAST_SHARDS * int(sizes.max(initial=0))) for total, sizes in zip(totals, shard_bytes, strict=True)
    ]
    if sum(least) > limit:
        worst = max(range(len(least)), key=least.__getitem__)
        raise ConfigError(
            f"cache_limit={limit} can not hold two shards of each of {len(least)} caches, which take {sum(least)} bytes; "
            f"{names[worst]} takes most of them, {least[worst]}"
        )
    spare = limit - sum(totals)
    if spare >= 0:
        return [total + spare // len(totals) for total in totals]

    def parts(level: int) -> list[int]:
        return [max(low, min(level, high)) for low, high in zip(least, totals, strict=True)]

    # The highest level of water that the limit fills these vessels to.
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(parts(middle)) <= limit else (low, middle - 1)
    return parts(low)

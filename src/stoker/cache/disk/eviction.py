"""Eviction policies: the order in which files leave a cache on disk that is full.

A policy is a function from the files of a cache to the same files in the order in which they go. The cache takes from its
front until there is room, and passes over files in use. :attr:`stoker.cache.base.CacheSettings.eviction` names the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias


class CachedFile(NamedTuple):
    """A whole file of a cache.

    Attributes:
        opened: when a process last mapped it, in nanoseconds since 1970.
        bytes: its size.
        path: where it is.
    """

    opened: int
    bytes: int
    path: Path


EvictionPolicy: TypeAlias = Callable[[Sequence[CachedFile]], Iterable[CachedFile]]


def least_recently_opened(files: Sequence[CachedFile]) -> Iterable[CachedFile]:
    """Files that were opened longest ago go first; of those opened at one time, the small ones."""
    return sorted(files)

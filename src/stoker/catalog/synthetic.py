"""Opens samples that are made when they are read: a location without files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from stoker.cache.base import CacheSettings
from stoker.cache.disk.disk_cache import DiskCache
from stoker.catalog.location import DatasetLocation, default_cache
from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.common.file_shards import SpanDetail
from stoker.formats.common.inspect_header import only_settings
from stoker.formats.synthetic import SETTINGS, row_bytes, synthetic_spec
from stoker.index.index import Index

MADE: Final = "synthetic"
"""The name of the format."""

_SHARD_BYTES: Final = 1 << 26
_MOST_SHARDS: Final = 1 << 20


class _MadeSpan(SpanDetail):
    def __str__(self) -> str:
        return f"synthetic samples from {self.first} on"


def open_synthetic(settings: CacheSettings = CacheSettings(), **options: Any) -> DatasetLocation:  # noqa: B008 - frozen
    """Describe samples that are made when they are read.

    ``**options``: ``samples`` (how many), ``columns``, ``seed`` (0) and ``distinct`` (true), for which see
    :func:`~stoker.formats.synthetic.synthetic_spec`, and ``shard_samples`` (default: 64 MiB's worth).
    """
    only_settings(options, SETTINGS, MADE)
    spec = synthetic_spec(options.get("columns"), options.get("seed", 0), options.get("distinct", True))
    samples = _count(options, "samples", None, 0)
    width = row_bytes(spec)
    most = _count(options, "shard_samples", max(1, min(_SHARD_BYTES // max(1, width), MAX_OFFSET)), 1)
    if -(-samples // most) > _MOST_SHARDS:
        raise ConfigError(f"synthetic: {samples} samples in shards of {most}: raise shard_samples")
    kind = hashlib.blake2b(repr(spec).encode(), digest_size=8).hexdigest()
    shards = []
    for first in range(0, samples, most):
        count = min(most, samples - first)
        detail = _MadeSpan(count * width, f"{kind}\0{first}", first)
        shards.append(ShardInfo(MADE, count, (), (), None, spec, detail))
    root = default_cache(MADE, None)
    return DatasetLocation(Index(shards, where=MADE), DiskCache(root, None, settings), (root,))


def _count(options: Mapping[str, Any], name: str, usual: int | None, least: int) -> int:
    value = options.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"synthetic: {name}={value!r}: a whole number, at least {least}")
    return value

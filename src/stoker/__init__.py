"""Stoker feeds training data to accelerators.

Write training data as shards, stream it to any number of nodes, ranks and workers in one deterministic order, and
resume anywhere. Names are imported when first used, so ``import stoker`` is quick and needs no framework.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.cluster import World
    from stoker.cluster.mesh import Mesh
    from stoker.coordination import Coordination
    from stoker.errors import StokerError
    from stoker.formats.base import ReadOptions
    from stoker.formats.mds.encodings import Encoding, register_encoding
    from stoker.index.merge import merge_index
    from stoker.index.rebuild import rebuild_index
    from stoker.loaders.dataloader import StreamingDataLoader
    from stoker.loaders.dataset import StreamingDataset
    from stoker.loaders.lm_stream import LMStream
    from stoker.loaders.parquet_loader import StreamingParquetLoader
    from stoker.loaders.protocol import Loader
    from stoker.loaders.shard_loader import StreamingShardLoader
    from stoker.order.mixture.schedule import Schedule
    from stoker.order.partition.partition import Contiguous, Elastic, HashBased, RangeBased, RoundRobin, Stratified
    from stoker.pipeline.stats.stats import StreamStats
    from stoker.pipeline.workers.adaptive import Adaptive
    from stoker.pipeline.workers.config import StreamingConfig
    from stoker.streams.conditions import Where
    from stoker.streams.streams import Stream
    from stoker.streams.subsets import HashSplit, KeepIds, SkipIds, train_validation_split
    from stoker.tokens.batch import LMBatch
    from stoker.tokens.settings import ShardConfig
    from stoker.tokens.sources.source import MegatronSource, RawSource, TokenSource
    from stoker.writing.shard_formats import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

__version__ = "0.1.0"

_WHERE = {
    "Adaptive": "stoker.pipeline.workers.adaptive",
    "CSVWriter": "stoker.writing.shard_formats",
    "Contiguous": "stoker.order.partition.partition",
    "Coordination": "stoker.coordination",
    "Elastic": "stoker.order.partition.partition",
    "Encoding": "stoker.formats.mds.encodings",
    "HashBased": "stoker.order.partition.partition",
    "HashSplit": "stoker.streams.subsets",
    "JSONWriter": "stoker.writing.shard_formats",
    "KeepIds": "stoker.streams.subsets",
    "LMBatch": "stoker.tokens.batch",
    "LMStream": "stoker.loaders.lm_stream",
    "Loader": "stoker.loaders.protocol",
    "MDSWriter": "stoker.writing.shard_formats",
    "MegatronSource": "stoker.tokens.sources.source",
    "Mesh": "stoker.cluster.mesh",
    "RangeBased": "stoker.order.partition.partition",
    "ReadOptions": "stoker.formats.base",
    "RawSource": "stoker.tokens.sources.source",
    "RoundRobin": "stoker.order.partition.partition",
    "Schedule": "stoker.order.mixture.schedule",
    "ShardConfig": "stoker.tokens.settings",
    "SkipIds": "stoker.streams.subsets",
    "StokerError": "stoker.errors",
    "Stratified": "stoker.order.partition.partition",
    "Stream": "stoker.streams.streams",
    "StreamStats": "stoker.pipeline.stats.stats",
    "StreamingConfig": "stoker.pipeline.workers.config",
    "StreamingDataLoader": "stoker.loaders.dataloader",
    "StreamingDataset": "stoker.loaders.dataset",
    "StreamingParquetLoader": "stoker.loaders.parquet_loader",
    "StreamingShardLoader": "stoker.loaders.shard_loader",
    "TSVWriter": "stoker.writing.shard_formats",
    "TokenSource": "stoker.tokens.sources.source",
    "Where": "stoker.streams.conditions",
    "World": "stoker.cluster",
    "XSVWriter": "stoker.writing.shard_formats",
    "merge_index": "stoker.index.merge",
    "rebuild_index": "stoker.index.rebuild",
    "register_encoding": "stoker.formats.mds.encodings",
    "train_validation_split": "stoker.streams.subsets",
}

__all__ = [
    "Adaptive",
    "CSVWriter",
    "Contiguous",
    "Coordination",
    "Elastic",
    "Encoding",
    "HashBased",
    "HashSplit",
    "JSONWriter",
    "KeepIds",
    "LMBatch",
    "LMStream",
    "Loader",
    "MDSWriter",
    "MegatronSource",
    "Mesh",
    "RangeBased",
    "RawSource",
    "ReadOptions",
    "RoundRobin",
    "Schedule",
    "ShardConfig",
    "SkipIds",
    "StokerError",
    "Stratified",
    "Stream",
    "StreamStats",
    "StreamingConfig",
    "StreamingDataLoader",
    "StreamingDataset",
    "StreamingParquetLoader",
    "StreamingShardLoader",
    "TSVWriter",
    "TokenSource",
    "Where",
    "World",
    "XSVWriter",
    "__version__",
    "merge_index",
    "rebuild_index",
    "register_encoding",
    "train_validation_split",
]


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ImportError:  # an import hook that keeps it out
        return False


if not TYPE_CHECKING and not _has_torch():
    __all__.remove("StreamingDataLoader")  # noqa: PYI056 - so that a star import works without torch


def __getattr__(name: str) -> Any:
    try:
        module = _WHERE[name]
    except KeyError:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

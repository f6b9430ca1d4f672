"""Stoker keeps accelerators fed.

Write training data as shards, stream it to any number of nodes, ranks and workers in one deterministic order, stop and go
on anywhere. Names are imported when first used, so ``import stoker`` is quick and needs no framework.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.cluster import World
    from stoker.cluster.coordination import Coordination
    from stoker.cluster.mesh import Mesh
    from stoker.dataset.conditions import Where
    from stoker.dataset.merge import merge_index
    from stoker.dataset.rebuild import rebuild_index
    from stoker.dataset.streams import Stream
    from stoker.dataset.subsets import HashSplit, KeepIds, SkipIds, train_validation_split
    from stoker.dataset.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
    from stoker.errors import StokerError
    from stoker.formats.mds.encodings import Encoding, register_encoding
    from stoker.loader.adaptive import Adaptive
    from stoker.loader.config import StreamingConfig
    from stoker.loader.stats import StreamStats
    from stoker.order.partition import Contiguous, Elastic, HashBased, RangeBased, RoundRobin, Stratified
    from stoker.order.schedule import Schedule
    from stoker.shards import StreamingShardLoader
    from stoker.streaming import StreamingDataset
    from stoker.tokens.batch import LMBatch
    from stoker.tokens.loader import StreamingParquetLoader
    from stoker.tokens.shardconfig import LoaderStats, ShardConfig
    from stoker.tokens.sources import MegatronSource, RawSource, TokenSource
    from stoker.tokens.streams import LMStream
    from stoker.torch import StreamingDataLoader

__version__ = "0.1.0"

_WHERE = {
    "Adaptive": "stoker.loader.adaptive",
    "CSVWriter": "stoker.dataset.writers",
    "Contiguous": "stoker.order.partition",
    "Coordination": "stoker.cluster.coordination",
    "Elastic": "stoker.order.partition",
    "Encoding": "stoker.formats.mds.encodings",
    "HashBased": "stoker.order.partition",
    "HashSplit": "stoker.dataset.subsets",
    "JSONWriter": "stoker.dataset.writers",
    "KeepIds": "stoker.dataset.subsets",
    "LMBatch": "stoker.tokens.batch",
    "LMStream": "stoker.tokens.streams",
    "LoaderStats": "stoker.tokens.shardconfig",
    "MDSWriter": "stoker.dataset.writers",
    "MegatronSource": "stoker.tokens.sources",
    "Mesh": "stoker.cluster.mesh",
    "RangeBased": "stoker.order.partition",
    "RawSource": "stoker.tokens.sources",
    "RoundRobin": "stoker.order.partition",
    "Schedule": "stoker.order.schedule",
    "ShardConfig": "stoker.tokens.shardconfig",
    "SkipIds": "stoker.dataset.subsets",
    "StokerError": "stoker.errors",
    "Stratified": "stoker.order.partition",
    "Stream": "stoker.dataset.streams",
    "StreamStats": "stoker.loader.stats",
    "StreamingConfig": "stoker.loader.config",
    "StreamingDataLoader": "stoker.torch",
    "StreamingDataset": "stoker.streaming",
    "StreamingParquetLoader": "stoker.tokens.loader",
    "StreamingShardLoader": "stoker.shards",
    "TSVWriter": "stoker.dataset.writers",
    "TokenSource": "stoker.tokens.sources",
    "Where": "stoker.dataset.conditions",
    "World": "stoker.cluster",
    "XSVWriter": "stoker.dataset.writers",
    "merge_index": "stoker.dataset.merge",
    "rebuild_index": "stoker.dataset.rebuild",
    "register_encoding": "stoker.formats.mds.encodings",
    "train_validation_split": "stoker.dataset.subsets",
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
    "LoaderStats",
    "MDSWriter",
    "MegatronSource",
    "Mesh",
    "RangeBased",
    "RawSource",
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

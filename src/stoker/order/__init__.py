"""The order of samples: which sample is at which position, and which rank reads it. Pure functions over integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.order.global_batches import BatchPlan, Remainder
    from stoker.order.native import NativeOrder
    from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
    from stoker.order.settings import NativeSettings, StreamSource
    from stoker.order.shuffle.shard_table import ShardTable

__all__ = [
    "BatchPlan",
    "DataRank",
    "EpochPosition",
    "NativeOrder",
    "NativeSettings",
    "Remainder",
    "Run",
    "SampleOrder",
    "ShardTable",
    "StreamSource",
]

_MODULES: Final = {
    "BatchPlan": "stoker.order.global_batches",
    "DataRank": "stoker.order.sample_order",
    "EpochPosition": "stoker.order.sample_order",
    "NativeOrder": "stoker.order.native",
    "NativeSettings": "stoker.order.settings",
    "Remainder": "stoker.order.global_batches",
    "Run": "stoker.order.sample_order",
    "SampleOrder": "stoker.order.sample_order",
    "ShardTable": "stoker.order.shuffle.shard_table",
    "StreamSource": "stoker.order.settings",
}

__getattr__ = lazy_names(__name__, _MODULES)

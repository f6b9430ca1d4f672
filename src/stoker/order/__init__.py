"""The order of samples: which sample is at which position, and which rank reads it. Pure functions over integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.lazy import lazy_package

if TYPE_CHECKING:
    from stoker.order.global_batches import BatchPlan as BatchPlan
    from stoker.order.global_batches import Remainder as Remainder
    from stoker.order.native import NativeOrder as NativeOrder
    from stoker.order.sample_order import DataRank as DataRank
    from stoker.order.sample_order import EpochPosition as EpochPosition
    from stoker.order.sample_order import Run as Run
    from stoker.order.sample_order import SampleOrder as SampleOrder
    from stoker.order.settings import NativeSettings as NativeSettings
    from stoker.order.settings import StreamSource as StreamSource
    from stoker.order.shuffle.shard_table import ShardTable as ShardTable

_MODULES: Final = {
    "global_batches": "BatchPlan Remainder",
    "native": "NativeOrder",
    "sample_order": "DataRank EpochPosition Run SampleOrder",
    "settings": "NativeSettings StreamSource",
    "shuffle.shard_table": "ShardTable",
}

__all__, __getattr__ = lazy_package(__name__, _MODULES)

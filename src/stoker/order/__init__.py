"""The order of samples: which sample is at which position, and which rank reads it. Pure functions over integers."""

from stoker.order.global_batches import BatchPlan, Remainder
from stoker.order.native import NativeOrder, NativeSettings, StreamSource
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
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

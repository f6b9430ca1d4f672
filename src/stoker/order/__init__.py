"""The order of samples: which sample is at which position, and which rank reads it. Pure functions over integers."""

from stoker.order.epoch import EpochOrder, OrderSettings, ShuffleName
from stoker.order.global_batches import BatchPlan, Remainder
from stoker.order.shuffle.shard_table import ShardTable

__all__ = ["BatchPlan", "EpochOrder", "OrderSettings", "Remainder", "ShardTable", "ShuffleName"]

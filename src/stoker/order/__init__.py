"""Which sample comes at which position, and which rank takes it: pure functions over integers."""

from stoker.order.batches import BatchPlan, Remainder
from stoker.order.epoch import EpochOrder, OrderSettings, ShuffleName
from stoker.order.shards import ShardTable

__all__ = ["BatchPlan", "EpochOrder", "OrderSettings", "Remainder", "ShardTable", "ShuffleName"]

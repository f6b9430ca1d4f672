"""Partitions of an epoch among ranks: values of a dataset's ``partition_algo=``, and of ``partition=`` of a worker's config.

    from stoker.partitions import RoundRobin

``Elastic``, the default, deals global batches; the others give each rank a part of its own. See docs/order/partitions.md.
"""

from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import Contiguous, HashBased, RangeBased, RoundRobin, Stratified

__all__ = ["Contiguous", "Elastic", "HashBased", "Partition", "RangeBased", "RoundRobin", "Stratified"]

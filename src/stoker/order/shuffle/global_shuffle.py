"""The shuffle ``global``: one keyed bijection over all samples."""

from __future__ import annotations

from typing import Final

import numpy as np

from stoker.integers import mix
from stoker.order.shuffle.bijection import Domain, split_keys
from stoker.order.shuffle.shuffle_pass import ShufflePass
from stoker.types import Ids

_TAG_GLOBAL: Final = 3


class GlobalPass(ShufflePass):
    """Every sample can come at every position. Canonical nodes have no effect, and every node reads every shard."""

    moves_shards = False

    def _prepare(self) -> None:
        self._domain = Domain(np.int64(self.total))
        self._keys = split_keys(np.uint64(mix(self._key, _TAG_GLOBAL)), self._domain.word)

    def offsets(self, numbers: Ids) -> Ids:
        x = numbers.astype(self._domain.word)
        self._domain.move(x, *self._keys)
        return x.astype(np.int64)

    @classmethod
    def shards_per_node(cls, shards: int, samples: int, block_size: int) -> int:  # noqa: ARG003
        """All of them."""
        return shards

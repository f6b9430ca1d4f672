"""A base class that torch's DataLoader takes for an ``IterableDataset``, without importing torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Generic, TypeVar

__all__ = ["TorchIterable"]

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset as TorchIterable
else:
    _Item = TypeVar("_Item")

    class TorchIterable(Generic[_Item]):
        """Base of what counts as an ``IterableDataset`` wherever torch is installed; type checkers see torch's own."""

        @property
        def __class__(self):
            # isinstance() asks for this. It is the one moment at which torch, imported before or after stoker or not at all,
            # must learn that this is an IterableDataset; a base class would make `import stoker` import torch.
            kind = type(self)
            iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
            if iterable is not None and kind not in _registered:
                _registered.add(kind)
                iterable.register(kind)
            return kind


_registered: set[type] = set()

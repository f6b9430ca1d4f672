"""A base class that torch's DataLoader takes for an ``IterableDataset``, without importing torch."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar

__all__ = ["TorchIterable"]

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset as TorchIterable
else:
    _Item = TypeVar("_Item")

    class _WithoutTorch(Generic[_Item]):
        """Stands in for torch's class until torch is imported."""

    class TorchIterable(_WithoutTorch[_Item]):
        """Base of what is an ``IterableDataset`` wherever torch is imported; type checkers see torch's own.

        As soon as torch is imported, before or after stoker, torch's class becomes the base of this one. A base that is
        torch's from the beginning would make `import stoker` import torch.
        """

        def __init_subclass__(cls, **options: Any) -> None:
            _adopt()
            super().__init_subclass__(**options)

        def __new__(cls, *_: Any, **__: Any) -> Any:
            _adopt()
            return super().__new__(cls)

        @property
        def __class__(self):
            # isinstance() asks for this where the class alone does not tell. If torch was imported since this object was
            # made, the answer is torch's class, once; from then on the class tells.
            return _adopt() or type(self)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _adopt()
            return super().__reduce_ex__(protocol)

    def _adopt() -> type | None:
        """Make torch's class the base, if it is imported and not yet the base; it, or ``None`` where nothing was done."""
        found = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
        if found is None or found in _adopted:
            return None
        found.register(TorchIterable)  # what DataLoader asks for, wherever Python can not change a class's bases
        with contextlib.suppress(TypeError):
            TorchIterable.__bases__ = (found,)
        _adopted.append(found)  # last: other threads may ask meanwhile
        return found


_adopted: list[type] = []

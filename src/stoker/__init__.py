"""Stoker keeps accelerators fed.

Write training data as shards, stream it to any number of nodes, ranks and workers in one deterministic order, stop and go
on anywhere. Names are imported when first used, so ``import stoker`` is quick and needs no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.cluster import World
    from stoker.dataset.merge import merge_index
    from stoker.dataset.rebuild import rebuild_index
    from stoker.dataset.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter
    from stoker.errors import StokerError
    from stoker.formats.mds.encodings import Encoding, register_encoding
    from stoker.streaming import StreamingDataset
    from stoker.torch import StreamingDataLoader

__version__ = "0.1.0"

_WHERE = {
    "CSVWriter": "stoker.dataset.writers",
    "Encoding": "stoker.formats.mds.encodings",
    "JSONWriter": "stoker.dataset.writers",
    "MDSWriter": "stoker.dataset.writers",
    "StokerError": "stoker.errors",
    "StreamingDataLoader": "stoker.torch",
    "StreamingDataset": "stoker.streaming",
    "TSVWriter": "stoker.dataset.writers",
    "World": "stoker.cluster",
    "XSVWriter": "stoker.dataset.writers",
    "merge_index": "stoker.dataset.merge",
    "rebuild_index": "stoker.dataset.rebuild",
    "register_encoding": "stoker.formats.mds.encodings",
}

__all__ = [
    "CSVWriter",
    "Encoding",
    "JSONWriter",
    "MDSWriter",
    "StokerError",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "World",
    "XSVWriter",
    "__version__",
    "merge_index",
    "rebuild_index",
    "register_encoding",
]


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

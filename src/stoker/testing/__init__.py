"""Conformance tests that a third party subclasses, for a format, a store, a loader, an order or an engine.

They are the tests of stoker's own. The classes need no test framework to be imported. pytest runs a subclass whose name
begins with ``Test``.
"""

from stoker.testing.engines import EngineTests
from stoker.testing.formats import FormatTests, WrittenFormatTests
from stoker.testing.loaders import LoaderTests
from stoker.testing.orders import OrderTests
from stoker.testing.stores import ReadOnlyStoreTests, StoreTests

__all__ = [
    "EngineTests",
    "FormatTests",
    "LoaderTests",
    "OrderTests",
    "ReadOnlyStoreTests",
    "StoreTests",
    "WrittenFormatTests",
]

"""Conformance tests that a third party subclasses, for a shard format, a loader, a sample order or a coordination engine.

They are the tests of stoker's own. The classes need no test framework to be imported. pytest runs a subclass whose name
begins with ``Test``.
"""

from stoker.testing.engines import EngineTests
from stoker.testing.formats import FormatTests
from stoker.testing.loaders import LoaderTests
from stoker.testing.orders import OrderTests
from stoker.testing.written_formats import WrittenFormatTests

__all__ = ["EngineTests", "FormatTests", "LoaderTests", "OrderTests", "WrittenFormatTests"]

"""Conformance tests that a third party subclasses: for a shard format or a loader, what stoker's own are tested by.

The classes need no test framework to be imported. pytest runs a subclass whose name begins with ``Test``.
"""

from stoker.testing.formats import FormatTests
from stoker.testing.loaders import LoaderTests
from stoker.testing.written_formats import WrittenFormatTests

__all__ = ["FormatTests", "LoaderTests", "WrittenFormatTests"]

"""The encodings of MDS columns: values to bytes and back.

Two names go beyond MDS: ``bool`` and ``bfloat16``, also as ``ndarray:bool:...`` and
``ndarray:bfloat16:...``. They are written under these names, so the reference reader refuses such a
column with an error and can not misread it; use ``uint8`` and ``float32`` where it must read them.
"""

from __future__ import annotations

from stoker.formats.mds.encodings.base import Encoding, RawColumn, UnfitValueError
from stoker.formats.mds.encodings.registry import encoding_names, get_encoding, register_encoding

__all__ = [
    "Encoding",
    "RawColumn",
    "UnfitValueError",
    "encoding_names",
    "get_encoding",
    "register_encoding",
]

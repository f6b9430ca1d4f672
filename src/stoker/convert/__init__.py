"""Conversion of any format to any other, in parallel; see :func:`convert`."""

from __future__ import annotations

from stoker.convert.convert import convert
from stoker.convert.report import ConvertReport

__all__ = ["ConvertReport", "convert"]

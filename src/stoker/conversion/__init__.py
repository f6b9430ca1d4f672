"""Conversion of any format to any other, in parallel; see :func:`convert`."""

from __future__ import annotations

from stoker.conversion.convert import ConvertReport, convert

__all__ = ["ConvertReport", "convert"]

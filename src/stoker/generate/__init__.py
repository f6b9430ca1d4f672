"""Synthetic datasets of any format, generated about as fast as their bytes can be written."""

from __future__ import annotations

from stoker.generate.columns import Column
from stoker.generate.job import GenerateReport, generate
from stoker.generate.making import iterate_file
from stoker.generate.names import file_names
from stoker.generate.spec import DatasetSpec

__all__ = ["Column", "DatasetSpec", "GenerateReport", "file_names", "generate", "iterate_file"]

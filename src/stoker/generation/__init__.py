"""Synthetic datasets of any format, generated about as fast as their bytes can be written."""

from __future__ import annotations

from stoker.generation.columns import Column
from stoker.generation.job import GenerateReport, generate
from stoker.generation.making import iterate_file
from stoker.generation.names import file_names
from stoker.generation.spec import DatasetSpec

__all__ = ["Column", "DatasetSpec", "GenerateReport", "file_names", "generate", "iterate_file"]

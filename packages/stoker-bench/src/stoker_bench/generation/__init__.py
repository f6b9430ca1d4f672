"""Synthetic datasets of any format, generated about as fast as their bytes can be written."""

from __future__ import annotations

from stoker_bench.generation.columns import Column
from stoker_bench.generation.job import GenerateReport, generate
from stoker_bench.generation.making import iterate_file
from stoker_bench.generation.names import file_names
from stoker_bench.generation.spec import DatasetSpec

__all__ = ["Column", "DatasetSpec", "GenerateReport", "file_names", "generate", "iterate_file"]

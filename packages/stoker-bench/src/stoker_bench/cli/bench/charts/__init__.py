"""Charts of a benchmark's report: storage first, then what it did to the training, and runs side by side."""

from stoker_bench.cli.bench.charts.sections import charts

__all__ = ["charts"]

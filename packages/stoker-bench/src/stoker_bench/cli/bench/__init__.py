"""The commands of stoker bench."""

from stoker_bench.cli.bench.commands import add, run

__all__ = ["add", "run"]

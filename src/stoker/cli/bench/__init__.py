"""The commands of stoker bench."""

from stoker.cli.bench.commands import add, run

__all__ = ["add", "run"]

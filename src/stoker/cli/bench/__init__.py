"""The commands of stoker bench."""

from stoker.cli.bench.commands import add

__all__ = ["add"]

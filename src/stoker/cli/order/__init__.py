"""The command stoker order."""

from stoker.cli.order.commands import add, run

__all__ = ["add", "run"]

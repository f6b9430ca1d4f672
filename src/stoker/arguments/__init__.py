"""Checks of the arguments of public classes and functions."""

from stoker.arguments.calls import check_argument, checked

__all__ = ["check_argument", "checked"]

"""The version of stoker: a module of its own, which all others may import."""

__version__ = "0.1.0"

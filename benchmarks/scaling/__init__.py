"""Directions in which stoker is to scale, for ``benchmarks/scale.py``."""

"""Columns of other datasets beside those of a dataset: ``zip`` and ``join``."""

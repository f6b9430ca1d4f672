"""Selections: which samples of a dataset belong to an epoch."""

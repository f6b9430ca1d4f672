"""Benchmark of checkpoints: the size of a model's state, divided among ranks as in DLIO and MLPerf Storage."""

from __future__ import annotations

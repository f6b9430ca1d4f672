"""Saving and loading of checkpoints: as large as a model's state, spread over ranks as DLIO and MLPerf Storage spread it."""

from __future__ import annotations

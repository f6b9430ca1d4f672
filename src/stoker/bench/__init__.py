"""The benchmark of storages and loaders: would accelerators wait for them? See docs/bench.md."""

from __future__ import annotations

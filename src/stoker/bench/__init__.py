"""The storage benchmark: is this storage, and this loader, fast enough for these accelerators? See docs/bench.md."""

from __future__ import annotations

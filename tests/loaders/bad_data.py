"""A dataset in which some samples do not decode."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from support import write_samples


def write_with_bad(out: Path, samples: int, bad: Collection[int], size_limit: int = 2000) -> Path:
    """Write samples of which the bad ones hold text that is no JSON; returns ``out``."""
    rows = ({"id": number, "doc": [f"sample {number:04}"]} for number in range(samples))
    write_samples(out, rows, size_limit=size_limit, hashes=[])
    for shard in out.glob("*.mds"):
        content = shard.read_bytes()
        for number in bad:
            content = content.replace(b'["sample %04d"]' % number, b'["sample %04d"}' % number)
        shard.write_bytes(content)
    return out

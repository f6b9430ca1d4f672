"""The pool of open shards: what is interrupted keeps nobody waiting."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stoker import StreamingDataset
from support import make_dataset


def test_a_shard_whose_opening_was_interrupted_is_opened_by_the_next_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(tmp_path / "data", 20, size_limit=1000)
    pool = StreamingDataset(tmp_path / "data")._epoch_reader.pool

    def interrupted() -> None:
        raise KeyboardInterrupt

    # As Ctrl-C does after the shard was noted as coming, and before it is loaded.
    with monkeypatch.context() as patched:
        patched.setattr(pool.times, "awaiting", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.get(0)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(pool.get(0)), daemon=True)
    thread.start()
    thread.join(30)
    assert found
    pool.close()

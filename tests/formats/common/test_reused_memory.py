"""Memory that is used again."""

from __future__ import annotations

import threading

from patience import PATIENCE
from stoker.formats.common.gather import ReusedBlocks


def test_memory_that_nobody_uses_is_given_out_again() -> None:
    blocks = ReusedBlocks(1 << 24)
    first = blocks.take(1 << 20)
    address = first.ctypes.data
    del first
    assert blocks.kept == 1 << 20
    assert blocks.take(1 << 20).ctypes.data == address


def test_a_finalizer_does_not_wait_for_another_thread() -> None:
    blocks = ReusedBlocks(1 << 24)
    used = [blocks.take(1 << 20)]
    with blocks._lock:
        thread = threading.Thread(target=used.clear, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert blocks.kept == 0

"""An iterator that waits for others ends with its buffer, also where the buffer is only forgotten."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from patience import PATIENCE
from stoker.concurrency.shared.counters import Counts
from stoker.pipeline.prefetch_buffer import PrefetchBuffer


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_iterator_that_waits_ends_with_its_buffer(forgotten: bool) -> None:
    closing, ended = threading.Event(), threading.Event()

    def waits() -> Iterator[int]:
        try:
            yield 1
            while not closing.is_set():
                ended.wait(0.01)
        finally:
            ended.set()

    buffer = PrefetchBuffer(waits(), int, 8, Counts(), closing=closing)
    assert buffer.take() == 1
    if forgotten:
        del buffer
        gc.collect()
    else:
        buffer.close()
    assert ended.wait(PATIENCE)

"""A writer's progress on the terminal."""

from __future__ import annotations

import threading

__all__ = ["ProgressLine"]


class ProgressLine:
    """A line that counts stored samples, shards and bytes. Threads may advance it.

    Args:
        title: what is being written.
    """

    def __init__(self, title: str) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.TextColumn("{task.fields[samples]:,} samples, {task.fields[shards]:,} shards"),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeElapsedColumn(),
        )
        self._task = self._bar.add_task(title, total=None, samples=0, shards=0)
        self._samples = self._shards = 0
        self._lock = threading.Lock()
        self._bar.start()

    def advance(self, samples: int, size: int) -> None:
        """Count one stored shard."""
        with self._lock:
            self._samples += samples
            self._shards += 1
        self._bar.update(self._task, advance=size, samples=self._samples, shards=self._shards)

    def stop(self) -> None:
        """Leave the line as it is."""
        self._bar.stop()

"""The progress bar of all long work: writers, jobs and commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from rich.console import Console

_MOST_TITLE: Final = 24


class ProgressBar:
    """Progress of some work on one line of stderr: part, amount, rate, time left. Threads may advance it.

    ``total`` is how much there is to do, in ``unit``: ``bytes``, or what is counted, in the plural; ``None`` while nobody
    knows. ``rate_of`` is that of ``counts`` whose rate is shown in place of the amount's. On a ``console`` the bar goes when
    the work is done; on stderr, by default, it stays.
    """

    def __init__(
        self,
        title: str,
        total: float | None,
        unit: str,
        *,
        counts: Sequence[str] = (),
        rate_of: str | None = None,
        console: Console | None = None,
        shown: bool = True,
    ) -> None:
        self._bar: Any = None
        if not shown:
            return
        from rich import progress
        from rich.console import Console

        if (
            len(title) > _MOST_TITLE
        ):  # the end of a path tells more than its beginning, and the counts must stay in sight
            title = f"...{title[3 - _MOST_TITLE :]}"
        columns: list[Any] = [progress.TextColumn("{task.description}", markup=False)]
        columns += [progress.BarColumn(), progress.TaskProgressColumn()] if total is not None or not counts else []
        if unit == "bytes":
            columns.append(progress.DownloadColumn())
        else:
            columns += [progress.MofNCompleteColumn(), progress.TextColumn(unit)]
        columns += [progress.TextColumn(f"{{task.fields[{name}]:,}} {name}") for name in counts]
        shows_speed = unit == "bytes" and rate_of is None
        columns.append(progress.TransferSpeedColumn() if shows_speed else progress.TextColumn("{task.fields[rate]}"))
        columns += [progress.TimeElapsedColumn(), progress.TimeRemainingColumn()]
        self._bar = progress.Progress(*columns, console=console or Console(stderr=True), transient=console is not None)
        self._counts = dict.fromkeys(counts, 0)
        self._rate_of = rate_of
        self._task = self._bar.add_task(title, total=total, rate="", **self._counts)
        self._began = time.monotonic()
        self._done = 0.0
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Draw it from now on."""
        if self._bar is not None:
            self._bar.start()
        return self

    def stop(self) -> None:
        """Draw it no more."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def advance(self, amount: float, **counts: int) -> None:
        """Count work that was done."""
        if self._bar is None:
            return
        with self._lock:
            self._done += amount
            for name, count in counts.items():
                self._counts[name] += count
            seconds = max(time.monotonic() - self._began, 1e-9)
            done = self._done if self._rate_of is None else self._counts[self._rate_of]
            self._bar.update(self._task, advance=amount, rate=f"{done / seconds:,.0f}/s", **self._counts)

    def expect(self, total: float) -> None:
        """Say how much there is to do, once that is known."""
        if self._bar is not None:
            self._bar.update(self._task, total=total)

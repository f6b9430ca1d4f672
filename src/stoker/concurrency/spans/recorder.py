"""The recorder of spans: each process writes into a file of its own, which it maps, so that nothing is lost with it.

There is none unless a trace runs. Then all of stoker in this process records, and in each child that is forked, or spawned
with a dataset. What is recorded takes about a microsecond a span; without a recorder, :func:`span` does nothing.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from enum import IntEnum
from itertools import count
from pathlib import Path
from struct import Struct
from threading import get_native_id
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final

from stoker.concurrency.forks import NO_FILE, ProcessFile, ProcessLocal
from stoker.concurrency.spans.thread_times import ThreadTimes

logger = logging.getLogger(__name__)


class Stage(IntEnum):
    """The kinds of a loader's work."""

    LIST = 1
    """Indexes are read, files listed and their headers read."""
    FETCH = 2
    """A shard is fetched, by this process or by another one that it waits for."""
    DECOMPRESS = 3
    """A fetched shard is decompressed."""
    OPEN = 4
    """Samples are to be read, and wait until their shard is there and open."""
    DECODE = 5
    """Bytes become values."""
    TRANSFORM = 6
    """A function of the user runs."""
    COLLATE = 7
    """Samples become a batch."""
    SEND = 8
    """A batch goes into memory that another process reads, or comes out of it."""
    WAIT = 9
    """The consumer has asked for a batch or sample, and waits."""
    LOOKAHEAD = 10
    """No more is asked for ahead, as settings allow no more; other spans of the thread lie across its ends."""
    PROCESSOR = 11
    """Processor time of a thread, and time in which it was runnable and other threads had the processors. Overlaps with
    its other spans."""


APART: Final = (Stage.LOOKAHEAD, Stage.PROCESSOR)
"""Stages whose spans do not nest with the others of their thread."""


RECORD: Final = Struct("<qqIBxHq")
"""A span: its begin and end in ns of the monotonic clock, the system's number of the thread, the stage, how many of its kind
may run at once (0: not said), and an amount: bytes of ``FETCH`` and ``DECOMPRESS``, samples of all else.

Of ``PROCESSOR`` the amount is the ns that the thread had a processor, and "how many" the part of the span for which it could
run and had none, of :data:`WHOLE`."""

WHOLE: Final = (1 << 16) - 1

_SHIFT: Final = 10
_SEGMENT: Final = 1 << _SHIFT
"""Spans for which a file has room at first, in whole pages: many processes record few, and the system clears each page."""
_MOST_SEGMENTS: Final = 256
"""Segments by which it grows at most. It doubles until then: each growth keeps a file descriptor open."""

_pack_into: Final = RECORD.pack_into
_SIZE: Final = RECORD.size

_SHORT_WAIT: Final = 50_000
_SUMMED_WAITS: Final = 1_000_000
"""Nanoseconds of a wait that is recorded by itself, and after which a sum of shorter ones is recorded."""

_AT_HAND: Final = 8
_QUICK: Final = 400_000
"""Items at hand that are taken between two looks at the clock, where those before took fewer nanoseconds."""

_LOOKED: Final = 10_000_000
_MOST_LOOKED: Final = 160_000_000
"""Nanoseconds after which a thread's time on the processors is asked for again: at first, and at most. They double each time:
asking lets go of Python's lock, and then waits for it where other threads want it."""

_SIMPLE: Final = (bool, int, str, type(None))
"""Types of values of settings that are noted as they are, others as text."""

MOST_SPANS: Final = 1 << 22
"""Spans that a process records at most: 128 MiB."""


class Recorder(ProcessLocal):
    """Records spans of this process and of its children in a folder.

    ``folder``: of the files: for each process one of spans and one of lines of JSON about it and its threads.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._name = ""
        # Open until the end: reading threads of each epoch are noted.
        self._file, self._notes = NO_FILE, NO_FILE
        self._closed = False
        self._segments: list[memoryview] = []
        self._slots = count()
        self._threads: set[int] = set()
        self._loaders: dict[str, Mapping[str, Any]] = {}
        self._of_thread = _OfThread()
        self._full = False

    def add(self, stage: Stage, begin: int, end: int, amount: int = 0, at_once: int = 0) -> None:
        """Record a span of this thread; see :data:`RECORD`."""
        mine = self._of_thread
        thread = mine.number or self._begin_thread(mine)
        slot = next(self._slots)
        try:
            segment = self._segments[slot >> _SHIFT]
        except IndexError:
            if not self._grow(slot >> _SHIFT):
                return
            segment = self._segments[slot >> _SHIFT]
        _pack_into(segment, (slot & _SEGMENT - 1) * _SIZE, begin, end, thread, stage, at_once, amount)

    def _begin_thread(self, mine: _OfThread) -> int:
        """The system's number of this thread, which is noted. It is asked once: that takes as long as half a span."""
        number = mine.number = get_native_id()
        if number not in self._threads:
            self._threads.add(number)
            self.note(thread=number, name=threading.current_thread().name)
        return number

    def look(self, now: int) -> None:
        """Record what this thread had of the processors since it was looked at last, if that is some time ago."""
        mine = self._of_thread
        since = mine.since
        if not since:
            mine.since = now
        elif now - since >= mine.look_after:
            mine.since = now
            if mine.times is None:  # it opens a file: threads that end sooner do without
                mine.times = ThreadTimes()
                return
            mine.look_after = min(2 * mine.look_after, _MOST_LOOKED)
            computed, displaced = mine.times.ask()
            self.add(Stage.PROCESSOR, since, now, computed, min(WHOLE, WHOLE * displaced // (now - since)))

    def note(self, **facts: Any) -> None:
        """Add a line about this process. Of several with the same name the last one holds."""
        with self._lock:
            self._write(facts)

    def note_loader(self, loader: str, settings: Mapping[str, Any]) -> None:
        """Add a line about the settings of a loader of this process, unless its last one says the same.

        Each epoch notes them, and writing takes as long as many spans.
        """
        settings = {name: one if isinstance(one, _SIMPLE) else str(one) for name, one in settings.items()}
        with self._lock:
            if self._loaders.get(loader) != settings:
                self._loaders[loader] = settings
                self._write({"loader": loader, "settings": settings})

    def _write(self, facts: Mapping[str, Any]) -> None:
        """Add a line; the lock is held."""
        line = json.dumps(facts).encode() + b"\n"
        try:
            if self._notes.number < 0 and not self._closed:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._notes = ProcessFile(os.open(self._path("jsonl"), flags, 0o644))
            if self._notes.number >= 0:
                os.write(self._notes.number, line)
        except OSError as error:
            self._give_up(error)

    def _path(self, ending: str) -> str:
        if not self._name:
            self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        return f"{self.folder}/{self._name}.{ending}"

    def _grow(self, number: int) -> bool:
        """Have segments up to one; whether there is room."""
        if self._full:
            return False
        try:
            with self._lock:
                if number >= MOST_SPANS // _SEGMENT:
                    self._full = True
                elif self._file.number < 0:
                    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                    self._file = ProcessFile(os.open(self._path("spans"), flags, 0o644))
                while not self._full and number >= (there := len(self._segments)):
                    more = min(max(1, there), _MOST_SEGMENTS, MOST_SPANS // _SEGMENT - there)
                    size = _SEGMENT * _SIZE
                    # A full disk is an error here, and not a signal later.
                    os.posix_fallocate(self._file.number, there * size, more * size)
                    mapped = memoryview(mmap.mmap(self._file.number, more * size, offset=there * size))
                    self._segments += [mapped[part * size : (part + 1) * size] for part in range(more)]
        except OSError as error:
            self._give_up(error)
        if self._full:
            self.note(full=True)
        return not self._full

    def _give_up(self, error: OSError) -> None:
        if not self._full and Path(self.folder).is_dir():  # else the trace has ended, and this process has not
            logger.warning("the trace in %s has nothing more of process %d: %s", self.folder, os.getpid(), error)
        self._full = True

    def close(self) -> None:
        """Let go of the file. Spans of threads that are still in one are dropped."""
        with self._lock:
            self._full = self._closed = True
            self._segments = []  # or a thread that begins now would have spans in the file, and no name in the notes
            self._file, self._notes = NO_FILE, NO_FILE


class _OfThread(threading.local):
    """Of each thread: its number, its times, when they were last asked for (ns, monotonic), and for how long they are not."""

    number = 0
    times: ThreadTimes | None = None
    since = 0
    look_after = _LOOKED


_recorder: Recorder | None = None


def recorder() -> Recorder | None:
    """The recorder of this process; ``None`` where no trace runs."""
    return _recorder


def record(new: Recorder | None) -> None:
    """Have spans of this process recorded, or by ``None`` no more."""
    global _recorder
    _recorder = new


def join_recording(folder: str | None) -> None:
    """In a spawned child: record as the parent did when it sent a dataset, if it did."""
    if folder is not None and _recorder is None and Path(folder).is_dir():
        record(Recorder(folder))


def note_settings(loader: str, settings: Mapping[str, Any]) -> None:
    """Note the settings of a loader that begins to iterate, where a trace runs: a profile names no others.

    ``loader``: its public class. ``settings``: as they are written, such as ``"read=ReadOptions(read_threads=)"``, to their
    values; a method that is called instead is written ``"batches()"``.
    """
    if _recorder is not None:
        _recorder.note_loader(loader, settings)


class _Span:
    """A span of the block that it is the context of."""

    __slots__ = ("_amount", "_at_once", "_begun", "_recorder", "_stage")

    def __init__(self, recorder: Recorder, stage: Stage, amount: int, at_once: int) -> None:
        self._recorder, self._stage, self._amount, self._at_once = recorder, stage, amount, at_once

    def __enter__(self) -> None:
        self._begun = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.add(self._stage, self._begun, perf_counter_ns(), self._amount, self._at_once)


_NOTHING: Final = nullcontext()


def span(stage: Stage, amount: int = 0, at_once: int = 0) -> _Span | nullcontext[None]:
    """A context whose block is recorded as a span; see :data:`RECORD`."""
    return _NOTHING if _recorder is None else _Span(_recorder, stage, amount, at_once)


def begin_span() -> int:
    """The begin of a span for :func:`end_span`; 0 where none is recorded."""
    return 0 if _recorder is None else perf_counter_ns()


def end_span(stage: Stage, begun: int, amount: int = 0) -> None:
    """Record a span of this thread since ``begun``."""
    if begun and _recorder is not None:
        _recorder.add(stage, begun, perf_counter_ns(), amount)


class WaitClock:
    """Records the waits of an iteration. Those of less than 50 µs are summed up, over a millisecond at most."""

    __slots__ = ("_amount", "_begun", "_came", "_due", "_look_due", "_took")

    def __init__(self) -> None:
        self._took = self._amount = self._begun = self._came = self._due = self._look_due = 0

    def begin(self) -> None:
        """Say that the consumer asks for something."""
        running = _recorder
        if running is None:
            self._begun = 0
            return
        self._begun = now = perf_counter_ns()
        if now > self._look_due:
            self._look_due = now + _LOOKED
            running.look(now)

    def end(self, amount: int) -> None:
        """Say that it has it: so many samples."""
        begun, running = self._begun, _recorder
        if not begun or running is None:
            return
        now = perf_counter_ns()
        if now > self._look_due:
            self._look_due = now + _LOOKED
            running.look(now)
        self._took += now - begun
        self._amount += amount
        # Short waits before a long one become part of it, as if they had been the last ones before it.
        if now > self._due or now - begun >= _SHORT_WAIT:
            self._record(running, now)

    def at_hand(self) -> int:
        """Say that the consumer has come back, and gets what came together with the item before.

        Gives after how many items it is to be said again: the next one, or some where those before took little time.
        """
        running = _recorder
        if running is None:
            return _AT_HAND
        now = perf_counter_ns()
        took, self._came = now - self._came, now
        if now > self._due:
            self._record(running, now)
        return _AT_HAND if took < _QUICK else 1

    def flush(self) -> None:
        """Record what was summed up."""
        if self._amount and _recorder is not None:
            self._record(_recorder, perf_counter_ns())

    def _record(self, running: Recorder, now: int) -> None:
        running.add(Stage.WAIT, now - (self._took or 1), now, self._amount)
        self._took = self._amount = 0
        self._due = now + _SUMMED_WAITS

"""Bad samples: what becomes of those that are damaged, do not decode, or of which a function of the user raised an error."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast, get_args

import xxhash

from stoker.arguments import at_least, checked, must_be
from stoker.concurrency.shared.counters import Count, Counts
from stoker.display import counted
from stoker.errors import (
    CacheError,
    ConfigError,
    DatasetChangedError,
    FormatError,
    IndexFileError,
    SampleError,
    StokerError,
    StorageError,
    TooManyBadSamplesError,
)
from stoker.storage.files.part_files import try_lock

logger = logging.getLogger(__name__)

OnBadSample: TypeAlias = Literal["raise", "skip", "replace"]
"""Treatment of a bad sample: its error ends the iteration; it is left out; another sample comes in its place."""

VARIABLE: Final = "STOKER_ON_BAD_SAMPLE"
"""The environment variable that overrides what every dataset says, such as ``raise`` in tests."""

_CHOICES: Final = "'raise', 'skip' or 'replace'"
_OF_MACHINE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)

# A share is judged as if so many samples had been read at least.
_JUDGED: Final = 1000
# Bad samples of a process that are logged one by one; later ones where their number is a power of two.
_LOGGED: Final = 20
# Seconds to wait for a process that appends at the same time: it may have been stopped.
_PATIENCE: Final = 1.0
_TOLD: Final = ("sample", "url", "shard", "row", "column")
_WHERE: Final = _TOLD[:-1]
# Bytes before the end of what was read of a list, by which it is known again.
_TAIL: Final = 256


@checked
@dataclass(frozen=True, slots=True)
class BadSamples:
    """The handling of bad samples: skip, replace or raise; limits on their number; and a file that lists them.

    A sample is bad if its bytes are damaged, if a column does not decode, or if ``transform`` or a subclass raises
    an error for it. Faults that are not the sample's (storage, a full disk, a missing package) always raise an error.

    >>> BadSamples("replace", max_bad=1000, file="bad.jsonl").on_bad_sample
    'replace'

    Args:
        on_bad_sample: ``"skip"`` leaves it out: its batch is shorter, and all ranks take as many steps as without it.
            ``"replace"`` delivers another sample of the epoch in its place, which comes before it in the order, the same one
            in any world: batches are full. ``"raise"`` ends the iteration.
        max_bad: most bad samples in all processes of this dataset object; one more ends the iteration. A dataset that
            ``map()`` returns has a count of its own. ``None``: no limit.
        max_share: largest share of bad samples among those that one process has read, 0 to 1. The share is taken of at least
            1,000 samples, so with 0.1 the first 100 bad samples are always allowed.
        max_in_a_row: most consecutive bad samples in one process.
        file: a file to which each bad sample is appended as a line of JSON: ``sample``, ``url``, ``shard``, ``row``,
            ``column``, ``reason``. One that it lists already, from another epoch or run, is not appended again. All
            processes of this machine may append to the same file.

    Raises:
        ConfigError: a limit makes no sense.
    """

    on_bad_sample: OnBadSample = "skip"
    max_bad: int | None = None
    max_share: float | None = 0.1
    max_in_a_row: int | None = None
    file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        must_be(_CHOICES, self.on_bad_sample in get_args(OnBadSample), on_bad_sample=self.on_bad_sample)
        at_least(0, max_bad=self.max_bad, max_in_a_row=self.max_in_a_row)
        must_be("from 0 to 1", self.max_share is None or 0 <= self.max_share <= 1, max_share=self.max_share)

    @classmethod
    def of(cls, given: OnBadSample | BadSamples) -> BadSamples | None:
        """The settings that a caller and the environment ask for; ``None`` where bad samples are errors.

        Raises:
            ConfigError: the environment asks for something unknown, or the file can not be written to.
        """
        named = os.environ.get(VARIABLE)
        if given == "raise" and not named:
            return None
        wanted = given if isinstance(given, BadSamples) else cls(given)
        if named:
            must_be(_CHOICES, named in get_args(OnBadSample), **{VARIABLE: named})
            wanted = replace(wanted, on_bad_sample=cast(OnBadSample, named))
        if wanted.on_bad_sample == "raise":
            return None
        if wanted.file is not None:
            _append(wanted.file)
        return wanted


def is_of_sample(error: BaseException) -> bool:
    """Whether an error is a sample's own: of its bytes, their decoding, or a function of the user."""
    if _is_of_machine(error) or (error.__cause__ is not None and _is_of_machine(error.__cause__)):
        return False
    if isinstance(error, StokerError):
        return isinstance(error, SampleError | FormatError) and not isinstance(error, TooManyBadSamplesError)
    return True


def _is_of_machine(error: BaseException) -> bool:
    """Whether an error says that something else than a sample is wrong, which other samples would meet, too."""
    if isinstance(error, OSError) and error.errno in _OF_MACHINE:
        return True
    others = MemoryError | ImportError | StorageError | CacheError | ConfigError | DatasetChangedError | IndexFileError
    return isinstance(error, others)


class BadSampleNotes:
    """Bad samples of a run that is read ahead, until the samples beside them are taken.

    ``waiting``: those that were not taken: number in the run, and error.
    """

    def __init__(self) -> None:
        self._before = self._read = 0
        self.waiting: deque[tuple[int, SampleError]] = deque()

    def enter(self, samples: int) -> None:
        """Say that so many samples, bad ones counted, come next."""
        self._before = self._read
        self._read += samples

    def note(self, number: int, error: SampleError) -> None:
        """Add a bad sample: its number among those that were entered last, rising from call to call, and its error."""
        self.waiting.append((self._before + number, error))

    def take(self, begin: int, end: int) -> list[tuple[int, SampleError]]:
        """Those with numbers ``[begin, end)`` in the run, by their numbers from ``begin`` on; earlier ones are forgotten."""
        found: list[tuple[int, SampleError]] = []
        while self.waiting and self.waiting[0][0] < end:
            number, error = self.waiting.popleft()
            if number >= begin:
                found.append((number - begin, error))
        return found


class BadSampleLog:
    """Counts, lists and bounds the bad samples of one iteration, in the order in which they would have been delivered.

    Args:
        settings: what is asked for.
        counts: of the loader's statistics, over all its processes.
        own: what ``max_bad`` bounds, over all processes of the dataset object; default ``counts``, which datasets share that
            are made of each other.
        passed: samples at the beginning that were delivered before the run resumed: bad ones among them were noted then.
        warned: bad samples that iterations of this process have logged, which are not logged again; it is added to.
        silent: only count and bound them, as another log of the same samples lists them.
    """

    def __init__(
        self,
        settings: BadSamples,
        counts: Counts,
        own: Counts | None = None,
        *,
        passed: int = 0,
        warned: set[bytes] | None = None,
        silent: bool = False,
    ) -> None:
        self._settings, self._counts, self._own, self._passed = settings, counts, own or counts, passed
        self._warned: set[bytes] = set() if warned is None else warned
        self._silent = silent
        self._read = self._before = self._bad = self._row = 0
        self._last = -2

    def enter(self, samples: int) -> None:
        """Note that so many samples, bad ones counted, are about to be delivered."""
        self._before = self._read
        self._read += samples

    def note(self, number: int, error: SampleError) -> None:
        """Note a bad sample: its number among those that were entered last, rising from call to call, and its error.

        TooManyBadSamplesError if there are more than allowed.
        """
        place = self._before + number
        if place < self._passed:
            return
        self._row = self._row + 1 if place == self._last + 1 else 1
        self._last = place
        self._bad += 1
        for counts in {self._counts, self._own}:
            counts.add(Count.BAD_SAMPLES, 1)
        if not self._silent:
            self._tell(error)
        exceeded = self._exceeded()
        if exceeded is not None:
            raise TooManyBadSamplesError(
                f"{exceeded}; the last: {error}. Repair the data, leave the samples out (subset=SkipIds), or allow more "
                "(on_bad_sample=BadSamples(...))",
                url=error.url,
                shard=error.shard,
                row=error.row,
                column=error.column,
                sample=error.sample,
            ) from error

    def _tell(self, error: SampleError) -> None:
        settings = self._settings
        if settings.file is not None:
            _append(settings.file, error)
        if len(self._warned) < _LOGGED or (self._bad > _LOGGED and not self._bad & (self._bad - 1)):
            key = _key(as_dict(error))
            if key not in self._warned:
                self._warned.add(key)
                done = "left out" if settings.on_bad_sample == "skip" else "replaced by another"
                logger.warning("bad sample, %s: %s (%d of this epoch so far in this process)", done, error, self._bad)

    def _exceeded(self) -> str | None:
        """The limit that is exceeded, in words."""
        settings = self._settings
        if settings.max_in_a_row is not None and self._row > settings.max_in_a_row:
            return f"{counted(self._row, 'bad sample')} in a row, and max_in_a_row={settings.max_in_a_row}"
        if settings.max_share is not None and self._bad > settings.max_share * max(self._read, _JUDGED):
            return f"{counted(self._bad, 'bad sample')} of {self._read} read, and max_share={settings.max_share}"
        if settings.max_bad is not None:
            total = int(self._own.totals()[0][Count.BAD_SAMPLES])
            if total > settings.max_bad:
                return f"{counted(total, 'bad sample')}, and max_bad={settings.max_bad}"
        return None


BadSampleSink: TypeAlias = BadSampleNotes | BadSampleLog
"""Takes note of bad samples, in the order in which they are read."""


def as_dict(error: SampleError) -> dict[str, Any]:
    """A bad sample as a list of them has it: ``sample``, ``url``, ``shard``, ``row``, ``column``, ``reason``."""
    told = {name: getattr(error, name) for name in _TOLD}
    return told | {"reason": str(error)}


def of_dict(listed: Mapping[str, Any]) -> SampleError:
    """The error of which :func:`as_dict` made a dict, without its class and cause."""
    return SampleError(listed["reason"], **{name: listed[name] for name in _TOLD})


def _key(listed: Mapping[str, Any]) -> bytes:
    """Hash what identifies a listed bad sample: its location, or without one, its whole entry."""
    where = [listed.get(name) for name in _WHERE]
    told = where if where != [None] * len(where) else [listed.get(name) for name in (*_TOLD, "reason")]
    return xxhash.xxh3_128_digest(json.dumps(told).encode())


class _BadSampleList:
    """The bad samples that a file lists, as far as this process has read it: other processes append to it, too."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._end, self._tail = 0, b""

    def lists(self, error: SampleError, opened: BinaryIO, size: int) -> bool:
        """Whether a bad sample is among the whole lines of the file, which has so many bytes."""
        number = opened.fileno()
        if self._end > size or os.pread(number, len(self._tail), self._end - len(self._tail)) != self._tail:
            self._keys, self._end, self._tail = set(), 0, b""  # it was emptied, or is another
        opened.seek(self._end)
        while self._end < size and (line := opened.readline()).endswith(b"\n"):
            self._end += len(line)
            self._tail = line[-_TAIL:]
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                self._keys.add(_key(found))
        return _key(as_dict(error)) in self._keys


@lru_cache(maxsize=16)
def _list_of(path: str) -> _BadSampleList:  # noqa: ARG001
    return _BadSampleList()


def _append(file: str | os.PathLike[str], error: SampleError | None = None) -> None:
    """Append a bad sample to a list of them, unless it is there: a whole line, or nothing. Others may append, too.

    ConfigError if it can not be written to. ``file``: the list; made where there is none. ``error``: of the bad sample;
    ``None`` only sees that the list can be written to.
    """
    try:
        with open(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666), "rb") as opened:
            number = opened.fileno()
            if error is None:
                return
            end = time.monotonic() + _PATIENCE  # without the lock, lines mix only on a full disk
            while not try_lock(number, fcntl.LOCK_EX) and time.monotonic() < end:
                time.sleep(0.001)
            size = os.fstat(number).st_size
            if _list_of(os.path.abspath(file)).lists(error, opened, size):
                return
            line = (json.dumps(as_dict(error)) + "\n").encode()
            if size and os.pread(number, 1, size - 1) != b"\n":  # another program left half a line
                line = b"\n" + line
            if os.write(number, line) < len(line):
                os.ftruncate(number, size)
                raise OSError(errno.ENOSPC, "only part of a line could be written: the disk is full")
    except OSError as problem:
        raise ConfigError(
            f"the list of bad samples, BadSamples(file={os.fspath(file)!r}), can not be written to: {problem}. It is a file "
            "of this machine, in a directory that exists"
        ) from problem

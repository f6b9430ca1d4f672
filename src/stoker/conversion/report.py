"""The report of a conversion, and its list of bad samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.concurrency.shared.counters import Counts
from stoker.display import counted
from stoker.errors import ConfigError
from stoker.reading.bad_samples import BadSampleLog, BadSamples, of_dict


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The result of a conversion.

    Attributes:
        samples_read: samples of the source.
        samples: samples written, of all splits; fewer where a transform left some out, more where it made several of one.
        splits: name of each split to its samples; ``""`` where the dataset was not split.
        shards: files or shards written.
        bytes: of them as they are stored, meta files included.
        columns: name of each column to its encoding.
        format: of the destination.
        tasks: how many the work was cut into.
        resumed: tasks of them that a run before had done.
        retried: times that a task was begun again, because its process was killed.
        seconds: this run took.
        bad_samples: samples of the source that were left out because they are bad.
    """

    samples_read: int
    samples: int
    splits: Mapping[str, int]
    shards: int
    bytes: int
    columns: Mapping[str, str]
    format: str
    tasks: int
    resumed: int
    retried: int
    seconds: float
    bad_samples: int = 0


class TaskBadSamples:
    """Lists and bounds the bad samples of tasks, in the order of the tasks, whichever process does them, and when.

    Args:
        settings: what is asked for; ``None``: there may be none.
    """

    def __init__(self, settings: BadSamples | None) -> None:
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._next = 0
        self._log: BadSampleLog | None = None
        if settings is not None:
            self._log = BadSampleLog(settings, Counts())

    def add(self, task: int, note: Mapping[str, Any]) -> None:
        """Take the note of a task that is done.

        Raises:
            TooManyBadSamplesError: there are more than allowed.
            ConfigError: there may be none, and a run before left some out.
        """
        bad = note.get("bad", ())
        if self._log is None and bad:
            raise ConfigError(
                f"a run before left out {counted(len(bad), 'bad sample')} of task {task}, the first: {bad[0]['reason']}. Go "
                "on with on_bad_sample='skip', or begin anew with resume=False (--restart)"
            )
        self._waiting[task] = note
        while self._next in self._waiting:
            self._list(self._waiting.pop(self._next))
            self._next += 1
        if note.get("exceeded"):
            self._list(note)

    def _list(self, note: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.enter(note["read"])
            for one in note["bad"]:
                self._log.note(one["number"], of_dict(one))

"""The report of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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

"""The choice of what executes the functions of a dataset, and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ExecutedBy: TypeAlias = Literal["consumer", "threads", "processes"]
"""Samples are read by the thread that asks for them, by threads of its process, or by processes that stoker starts."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The choice of what reads samples and runs the functions of an iteration.

    Attributes:
        run_in: ``"consumer"`` (the thread that asks for samples), ``"threads"`` or ``"processes"``.
        workers: how many threads or processes, with a tuner as many as there are now; 0: the consumer's thread.
        reason: why.
    """

    run_in: ExecutedBy
    workers: int
    reason: str

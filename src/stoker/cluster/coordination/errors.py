"""Errors of coordinated work. Their bases are stoker's, so ``except StokerError`` catches them all."""

from __future__ import annotations

from stoker.errors import ConfigError, StateError, StokerError, StorageTimeoutError

__all__ = [
    "EngineError",
    "EngineRegressedError",
    "LeaseLostError",
    "RankTakenError",
    "StaleCheckpointError",
    "StalledError",
    "WaitTimeoutError",
]


class EngineError(StorageTimeoutError):
    """The engine that holds the run's records gave no answer within the time limit. What was asked may or may not
    have been done."""


class EngineRegressedError(StateError):
    """The engine has forgotten writes that it had acknowledged: go on from a checkpoint."""


class LeaseLostError(StokerError):
    """A split is no longer this worker's: nothing more of it may be delivered or committed by this worker."""


class RankTakenError(ConfigError):
    """Another live process has this rank."""


class StaleCheckpointError(StateError):
    """The engine knows of commits that the checkpoint does not have."""


class StalledError(StokerError):
    """All that is left of the epoch are splits that failed too often and were set aside."""


class WaitTimeoutError(StokerError, TimeoutError):
    """What was waited for did not come in the time that the caller gave."""

"""Work that is leased to workers on request, and committed once although workers fail; see ``docs/coordination.md``."""

from stoker.coordination.client import Coordination, LeasedSplit
from stoker.coordination.engines.store import CoordinationStore, open_store
from stoker.coordination.errors import (
    CommitRefusedError,
    EngineError,
    EngineRegressedError,
    EngineReplacedError,
    LeaseLostError,
    Owner,
    RankTakenError,
    RefusedRange,
    StaleCheckpointError,
    StalledError,
    WaitTimeoutError,
)
from stoker.coordination.health import WorkerState
from stoker.coordination.history.assignment import Replay
from stoker.coordination.history.records import CoordinationSettings, Entry
from stoker.coordination.run import EpochProgress, WorkerHealth

__all__ = [
    "CommitRefusedError",
    "Coordination",
    "CoordinationStore",
    "EngineError",
    "EngineRegressedError",
    "EngineReplacedError",
    "Entry",
    "LeaseLostError",
    "LeasedSplit",
    "Owner",
    "EpochProgress",
    "RankTakenError",
    "RefusedRange",
    "Replay",
    "CoordinationSettings",
    "StaleCheckpointError",
    "StalledError",
    "WaitTimeoutError",
    "WorkerHealth",
    "WorkerState",
    "open_store",
]

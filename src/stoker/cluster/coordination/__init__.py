"""Work that is handed out as workers ask for it, and done once although they fail; see ``docs/coordination.md``."""

from stoker.cluster.coordination.assignment import Replay
from stoker.cluster.coordination.client import Coordination, LeasedSplit
from stoker.cluster.coordination.errors import (
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
from stoker.cluster.coordination.health import WorkerState
from stoker.cluster.coordination.records import Entry, Settings
from stoker.cluster.coordination.run import Progress, WorkerHealth
from stoker.cluster.coordination.store import CoordinationStore, open_store

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
    "Progress",
    "RankTakenError",
    "RefusedRange",
    "Replay",
    "Settings",
    "StaleCheckpointError",
    "StalledError",
    "WaitTimeoutError",
    "WorkerHealth",
    "WorkerState",
    "open_store",
]

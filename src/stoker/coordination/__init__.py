"""Work that is leased to workers on request, and committed once although workers fail; see ``docs/coordination.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.lazy import lazy_names

if TYPE_CHECKING:
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
    "CoordinationSettings",
    "CoordinationStore",
    "EngineError",
    "EngineRegressedError",
    "EngineReplacedError",
    "Entry",
    "EpochProgress",
    "LeaseLostError",
    "LeasedSplit",
    "Owner",
    "RankTakenError",
    "RefusedRange",
    "Replay",
    "StaleCheckpointError",
    "StalledError",
    "WaitTimeoutError",
    "WorkerHealth",
    "WorkerState",
    "open_store",
]

_MODULES: Final = {
    "CommitRefusedError": "stoker.coordination.errors",
    "Coordination": "stoker.coordination.client",
    "CoordinationSettings": "stoker.coordination.history.records",
    "CoordinationStore": "stoker.coordination.engines.store",
    "EngineError": "stoker.coordination.errors",
    "EngineRegressedError": "stoker.coordination.errors",
    "EngineReplacedError": "stoker.coordination.errors",
    "Entry": "stoker.coordination.history.records",
    "EpochProgress": "stoker.coordination.run",
    "LeaseLostError": "stoker.coordination.errors",
    "LeasedSplit": "stoker.coordination.client",
    "Owner": "stoker.coordination.errors",
    "RankTakenError": "stoker.coordination.errors",
    "RefusedRange": "stoker.coordination.errors",
    "Replay": "stoker.coordination.history.assignment",
    "StaleCheckpointError": "stoker.coordination.errors",
    "StalledError": "stoker.coordination.errors",
    "WaitTimeoutError": "stoker.coordination.errors",
    "WorkerHealth": "stoker.coordination.run",
    "WorkerState": "stoker.coordination.health",
    "open_store": "stoker.coordination.engines.store",
}

__getattr__ = lazy_names(__name__, _MODULES)

"""Work that is leased to workers on request, and committed once although workers fail; see ``docs/coordination.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.lazy import lazy_package

if TYPE_CHECKING:
    from stoker.coordination.checkpoint import Replay as Replay
    from stoker.coordination.client import Coordination as Coordination
    from stoker.coordination.client import LeasedSplit as LeasedSplit
    from stoker.coordination.engines.store import CoordinationStore as CoordinationStore
    from stoker.coordination.engines.store import open_store as open_store
    from stoker.coordination.errors import CommitRefusedError as CommitRefusedError
    from stoker.coordination.errors import EngineError as EngineError
    from stoker.coordination.errors import EngineRegressedError as EngineRegressedError
    from stoker.coordination.errors import EngineReplacedError as EngineReplacedError
    from stoker.coordination.errors import LeaseLostError as LeaseLostError
    from stoker.coordination.errors import Owner as Owner
    from stoker.coordination.errors import RankTakenError as RankTakenError
    from stoker.coordination.errors import RefusedRange as RefusedRange
    from stoker.coordination.errors import StaleCheckpointError as StaleCheckpointError
    from stoker.coordination.errors import StalledError as StalledError
    from stoker.coordination.errors import WaitTimeoutError as WaitTimeoutError
    from stoker.coordination.health import WorkerState as WorkerState
    from stoker.coordination.records import CoordinationSettings as CoordinationSettings
    from stoker.coordination.records import Entry as Entry
    from stoker.coordination.run import EpochProgress as EpochProgress
    from stoker.coordination.run import WorkerHealth as WorkerHealth

_MODULES: Final = {
    "checkpoint": "Replay",
    "client": "Coordination LeasedSplit",
    "engines.store": "CoordinationStore open_store",
    "errors": "CommitRefusedError EngineError EngineRegressedError EngineReplacedError LeaseLostError "
    "Owner RankTakenError RefusedRange StaleCheckpointError StalledError WaitTimeoutError",
    "health": "WorkerState",
    "records": "CoordinationSettings Entry",
    "run": "EpochProgress WorkerHealth",
}

__all__, __getattr__ = lazy_package(__name__, _MODULES)

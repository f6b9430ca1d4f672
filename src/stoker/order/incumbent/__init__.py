"""The sample orders of mosaicml-streaming 0.13.0, id for id, so that its runs can go on in stoker."""

from stoker.order.incumbent.plan import IncumbentPlan
from stoker.order.incumbent.sampling import Mixture, StreamWeight
from stoker.order.incumbent.settings import IncumbentSettings, IncumbentState, IncumbentWorld, read_incumbent_state
from stoker.order.incumbent.shuffles import shuffle_ids

__all__ = [
    "IncumbentPlan",
    "IncumbentSettings",
    "IncumbentState",
    "IncumbentWorld",
    "Mixture",
    "StreamWeight",
    "read_incumbent_state",
    "shuffle_ids",
]

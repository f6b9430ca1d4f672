"""The sample orders of mosaicml-streaming 0.13.0, id for id, so that stoker can resume its runs."""

from stoker.order.mosaicml.sample_order import MosaicmlPlan
from stoker.order.mosaicml.settings import MosaicmlSettings, MosaicmlState, MosaicmlWorld, read_mosaicml_state
from stoker.order.mosaicml.shuffles import shuffle_ids

__all__ = [
    "MosaicmlPlan",
    "MosaicmlSettings",
    "MosaicmlState",
    "MosaicmlWorld",
    "read_mosaicml_state",
    "shuffle_ids",
]

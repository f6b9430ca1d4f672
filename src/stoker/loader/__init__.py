"""The prefetch pipeline, its progress and its state."""

from stoker.loader.pipeline import Pipeline, PipelineSettings
from stoker.loader.progress import EpochClock, StartingPoint
from stoker.loader.state import make_state, read_state

__all__ = ["EpochClock", "Pipeline", "PipelineSettings", "StartingPoint", "make_state", "read_state"]

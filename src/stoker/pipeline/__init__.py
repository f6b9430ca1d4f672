"""The prefetch pipeline, its progress and its state."""

from stoker.pipeline.pipeline import Pipeline, PipelineSettings
from stoker.pipeline.read_ahead import Sizing
from stoker.pipeline.state.epoch_counter import StartingPoint
from stoker.pipeline.state.resume import Session

__all__ = ["Pipeline", "PipelineSettings", "Session", "Sizing", "StartingPoint"]

"""The prefetch pipeline, its progress and its state."""

from stoker.loader.pipeline import Pipeline, PipelineSettings
from stoker.loader.progress import StartingPoint
from stoker.loader.session import Session
from stoker.loader.sizing import Sizing

__all__ = ["Pipeline", "PipelineSettings", "Session", "Sizing", "StartingPoint"]

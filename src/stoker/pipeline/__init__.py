"""The prefetch pipeline, its progress and its state."""

from stoker.pipeline.pipeline import Pipeline, PipelineSettings
from stoker.pipeline.read_ahead import ReadAhead
from stoker.pipeline.state.resume import ResumeState

__all__ = ["Pipeline", "PipelineSettings", "ResumeState", "ReadAhead"]

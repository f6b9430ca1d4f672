"""Simulation of a run on a cluster, from its order alone, without reading data."""

from stoker.simulate.report import NodeReport, Report
from stoker.simulate.run import simulate
from stoker.simulate.settings import Cluster, CostModel, Shards

__all__ = ["Cluster", "CostModel", "NodeReport", "Report", "Shards", "simulate"]

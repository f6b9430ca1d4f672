"""Simulation of a run on a cluster, from its order alone, without reading data."""

from stoker_bench.simulate.report import NodeReport, Report
from stoker_bench.simulate.run import simulate
from stoker_bench.simulate.settings import Cluster, CostModel, Shards

__all__ = ["Cluster", "CostModel", "NodeReport", "Report", "Shards", "simulate"]

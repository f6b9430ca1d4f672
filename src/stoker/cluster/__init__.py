"""Rank and world size of this process."""

from stoker.cluster.mesh import Mesh
from stoker.cluster.worker import LoaderWorker
from stoker.cluster.world import World

__all__ = ["LoaderWorker", "Mesh", "World"]

"""Rank and world size of this process."""

from stoker.cluster.mesh import Mesh
from stoker.cluster.world import LoaderWorker, World

__all__ = ["LoaderWorker", "Mesh", "World"]

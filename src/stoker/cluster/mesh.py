"""Device meshes: ranks that differ only in dimensions other than data parallelism read the same samples.

Ranks that hold parts of one copy of a model (tensor, sequence or pipeline parallel) need the same samples. To the order they
are one reader: it sees a world of data-parallel ranks, each of which is several processes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from stoker.arguments import at_least, checked
from stoker.cluster.world import World, ranks_of_node
from stoker.errors import ConfigError
from stoker.types import Ids

_SAME_SAMPLES: Final = ("tp", "cp", "sp", "pp")


def model_parallel() -> dict[str, int]:
    """Dimensions of torch's device meshes in this process whose ranks read the same samples, by their usual names: sizes."""
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    meshes = () if kind is None else [one for one in gc.get_referrers(kind) if type(one) is kind]
    return {
        name: size
        for mesh in meshes
        for name, size in zip(mesh.mesh_dim_names or (), mesh.mesh.shape, strict=False)
        if name in _SAME_SAMPLES and size > 1
    }


class DeviceMesh(Protocol):
    """The part of ``torch.distributed.DeviceMesh`` that is used."""

    @property
    def mesh(self) -> Any:
        """An integer tensor of the mesh's shape: the rank at each of its coordinates."""
        ...

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """A name for each dimension."""
        ...


class Mesh:
    """The ranks of a job, arranged along named dimensions such as data and tensor parallelism.

    Args:
        shape: name to size of each dimension, outermost first; ranks count row by row, as
            ``torch.distributed.init_device_mesh`` lays them out. For example ``{"pp": 2, "dp": 4, "tp": 2}``.
        data: the dimensions along which samples differ. Ranks that differ in the others only read the same samples.

    Raises:
        ConfigError: no dimensions, a size below 1, or ``data`` that is not among the dimensions.
    """

    @checked
    def __init__(self, shape: Mapping[str, int], data: Sequence[str] = ("dp",)) -> None:
        for name, size in shape.items():
            at_least(1, **{f"shape[{name!r}]": size})
        sizes = tuple(shape.values())
        ranks = np.arange(int(np.prod(sizes, dtype=np.int64)), dtype=np.int64).reshape(sizes)
        self._set(tuple(shape), ranks, data, whole=True)

    @classmethod
    def of(cls, mesh: DeviceMesh, data: Sequence[str] = ("dp",)) -> Mesh:
        """A mesh as torch has it; its ranks may lie in any order, and it may be a part of a larger mesh.

        Args:
            mesh: a ``torch.distributed.DeviceMesh`` with names.
            data: see :class:`Mesh`.

        Raises:
            ConfigError: the mesh has no names, or ``data`` is not among them.
        """
        names = mesh.mesh_dim_names
        if not names:
            raise ConfigError("the device mesh has no dimension names: give mesh_dim_names= to init_device_mesh")
        made = cls.__new__(cls)
        made._set(tuple(names), np.asarray(mesh.mesh.tolist(), dtype=np.int64), data, whole=False)
        return made

    def _set(self, names: tuple[str, ...], ranks: Ids, data: Sequence[str], *, whole: bool) -> None:
        if not names:
            raise ConfigError("a mesh needs at least one dimension, such as {'dp': 8}")
        chosen = (data,) if isinstance(data, str) else tuple(data)
        unknown = [name for name in chosen if name not in names]
        if unknown or not chosen or len(set(chosen)) < len(chosen):
            raise ConfigError(
                f"data={list(chosen)} must name dimensions of the mesh along which samples differ, each once; it has "
                f"{', '.join(names)}"
            )
        self.names = names
        self.data = tuple(name for name in names if name in chosen)
        self._ranks = ranks
        self._whole = whole
        # Row-major number, over the data dimensions alone, of every coordinate of the mesh.
        numbers: Ids = np.zeros(ranks.shape, dtype=np.int64)
        for axis, name in enumerate(names):
            if name in chosen:
                along = np.arange(ranks.shape[axis], dtype=np.int64)
                numbers = numbers * ranks.shape[axis] + along.reshape(
                    [-1 if k == axis else 1 for k in range(len(names))]
                )
        self._numbers = numbers

    @property
    def shape(self) -> dict[str, int]:
        """Name to size of each dimension."""
        return dict(zip(self.names, self._ranks.shape, strict=True))

    @property
    def data_size(self) -> int:
        """Number of data-parallel ranks."""
        return int(self._numbers.max()) + 1

    def data_world(self, world: World) -> World:
        """The data-parallel world that ``world``, this process among all processes, has a part in.

        Returns:
            The data-parallel rank and their number, and how many of them have processes on this node, for which
            ranks are taken to fill one node after the other.

        Raises:
            ConfigError: the mesh is not of the world's size, or lacks this rank.
        """
        if self._whole and self._ranks.size != world.world_size:
            raise ConfigError(
                f"a mesh of {' x '.join(f'{name}={size}' for name, size in self.shape.items())} has "
                f"{self._ranks.size} ranks, the world has {world.world_size} ({world.source}): their numbers must agree"
            )
        here = np.flatnonzero(self._ranks.reshape(-1) == world.rank)
        if here.size != 1:
            raise ConfigError(
                f"rank {world.rank} is {'not' if here.size == 0 else 'more than once'} in the device mesh over ranks "
                f"{_shortened(self._ranks)}: give each rank the mesh that it belongs to"
            )
        node = ranks_of_node(world)
        on_node = np.isin(self._ranks, np.arange(node.start, node.stop))
        local = int(np.unique(self._numbers[on_node]).size)
        return World(int(self._numbers.reshape(-1)[here[0]]), self.data_size, max(1, local), world.source)

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, data={list(self.data)})"


def _shortened(ranks: Ids) -> str:
    listed = ranks.reshape(-1).tolist()
    return ", ".join(map(str, listed[:8])) + (", ..." if len(listed) > 8 else "")

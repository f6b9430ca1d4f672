"""Steps that loaders of other packages share: the files they read, the values in them, how they learn of the ranks."""

from __future__ import annotations

import os

import numpy as np

from stoker.display import counted
from stoker.errors import ConfigError
from stoker.storage import is_local
from stoker.types import Array
from stoker_bench.loaders.base import LoaderJob
from stoker_bench.loaders.listing import data_files
from stoker_bench.settings.workload import DatasetSettings


def leave_torch(met: bool) -> None:
    """End the connection that :func:`meet_in_torch` made, if it did."""
    if met:
        import torch.distributed as dist

        dist.destroy_process_group()


def local_folder(job: LoaderJob, loader: str) -> str:
    """The split's directory.

    Raises:
        ConfigError: the data set is in no directory.
    """
    folder = is_local(job.split_url)
    if folder is None:
        raise ConfigError(f"the loader {loader} reads directories here, not {job.split_url}")
    return str(folder)


def files_of_rank(job: LoaderJob, loader: str) -> tuple[list[str], int]:
    """Paths of the files that a rank reads whole; and how many files are left over when all ranks have as many.

    Raises:
        ConfigError: the data set is in no directory, or has fewer files than there are ranks.
        ObjectNotFoundError: as :func:`data_files`.
    """
    folder = local_folder(job, loader)
    files = [f"{folder}/{name}" for name in data_files(job)]
    mine = files[job.world.rank :: job.world.world_size]
    if not mine:
        raise ConfigError(
            f"{counted(len(files), 'file')} for {counted(job.world.world_size, 'rank')}: {loader} gives each rank whole files"
        )
    return mine, len(files) % job.world.world_size


def array_of(data: bytes, dataset: DatasetSettings, column: str) -> Array:
    """Bytes of a generated value: an array of the column's dtype and shape, or uint8 where columns are not given."""
    found = next((one for one in dataset.columns if one.name == column), None)
    if found is None or found.dtype in {"string", "bytes"}:
        return np.frombuffer(data, np.uint8)
    return np.frombuffer(data, found.dtype).reshape(found.shape)


def _set_rank_variables(job: LoaderJob) -> None:
    """Set the variables that torchrun sets: packages read there which rank this process is.

    A rank is a process of its own, so this is seen by the loader and its workers alone.
    """
    world = job.world
    local = world.local_world_size
    given = {
        "RANK": world.rank,
        "WORLD_SIZE": world.world_size,
        "LOCAL_RANK": world.rank % local,
        "LOCAL_WORLD_SIZE": local,
    }
    for name, value in given.items():
        os.environ[name] = str(value)


def meet_in_torch(job: LoaderJob) -> bool:
    """Connect ``torch.distributed``, as packages do that let ranks wait for each other; whether this made the connection.

    Raises:
        ConfigError: there are several hosts, and nothing says where they meet.
    """
    import torch.distributed as dist

    _set_rank_variables(job)
    world = job.world
    if world.world_size == 1 or dist.is_initialized():
        return False
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        method = "env://"
    elif world.local_world_size == world.world_size and job.scratch:
        method = f"file://{job.scratch}/torch-distributed"
    else:
        raise ConfigError("ranks of several hosts meet in torch.distributed for this loader: start them with torchrun")
    dist.init_process_group("gloo", init_method=method, rank=world.rank, world_size=world.world_size)
    return True

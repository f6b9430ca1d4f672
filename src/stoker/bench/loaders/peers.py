"""What loaders of other packages share: whether they are here, which files they read, how they learn of the ranks."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from stoker.bench.loaders.base import LoaderJob
from stoker.bench.loaders.decode import suffixes
from stoker.bench.settings.workload import DatasetSettings
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.storage import is_local, open_store
from stoker.types import Array

__all__ = [
    "array_of",
    "data_files",
    "leave_torch",
    "local_folder",
    "meet_in_torch",
    "missing",
    "need_format",
    "refuse_settings",
    "set_rank_variables",
    "versions",
]


def leave_torch(met: bool) -> None:
    """End the connection that :func:`meet_in_torch` made, if it did."""
    if met:
        import torch.distributed as dist

        dist.destroy_process_group()


def missing(packages: dict[str, str]) -> str | None:
    """What is not installed of these, module to package, as ``available()`` says it; ``None`` if nothing is."""
    absent = list(
        dict.fromkeys(package for module, package in packages.items() if not importlib.util.find_spec(module))
    )
    return f"{', '.join(absent)} is not installed: pip install {' '.join(absent)}" if absent else None


def versions(*packages: str) -> dict[str, str]:
    """Versions of packages, of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def need_format(job: LoaderJob, loader: str, *formats: str) -> None:
    """Check that the loader reads the data set's format.

    Raises:
        ConfigError: it does not.
    """
    found = job.workload.dataset.format
    if found not in formats:
        raise ConfigError(
            f"the loader {loader} reads {', '.join(formats)}, not {found!r}: set dataset.format, and generate it"
        )


def refuse_settings(job: LoaderJob, loader: str, *, decodes: bool) -> None:
    """Refuse settings that a package has nothing like.

    Args:
        job: what is to be read.
        loader: its name.
        decodes: whether it decodes samples whatever it is told.

    Raises:
        ConfigError: one of them is set; names it.
    """
    if decodes and not job.workload.reader.decode:
        raise ConfigError(f"reader.decode: false: the loader {loader} always decodes samples")
    if job.workload.dataset.resize_bytes:
        raise ConfigError(f"dataset.resize_bytes: the loader {loader} hands samples over as they are")


def data_files(job: LoaderJob) -> list[str]:
    """Names of the split's files, sorted, below ``job.place``: as many as the workload says.

    Raises:
        ObjectNotFoundError: there are fewer.
    """
    dataset = job.workload.dataset
    ends = suffixes(dataset.format)
    store = open_store(job.place, job.workload.storage.options or None)
    names = sorted(one.key for one in store.list() if not ends or one.key.lower().endswith(ends))
    wanted = dataset.files if job.split == "train" else dataset.files_eval
    if len(names) < wanted:
        raise ObjectNotFoundError(
            f"{job.place} has {len(names)} {dataset.format} files, the workload says {wanted}: generate them first",
            url=job.place,
        )
    return names[:wanted]


def local_folder(job: LoaderJob, loader: str) -> str:
    """The split's directory.

    Raises:
        ConfigError: the data set is in no directory.
    """
    folder = is_local(job.place)
    if folder is None:
        raise ConfigError(f"the loader {loader} reads directories here, not {job.place}")
    return str(folder)


def array_of(data: bytes, dataset: DatasetSettings, column: str) -> Array:
    """Bytes of a generated value: an array of the column's dtype and shape, or uint8 where columns are not given."""
    found = next((one for one in dataset.columns if one.name == column), None)
    if found is None or found.dtype in {"string", "bytes"}:
        return np.frombuffer(data, np.uint8)
    return np.frombuffer(data, found.dtype).reshape(found.shape)


def set_rank_variables(job: LoaderJob) -> None:
    """What torchrun sets, where it has not: packages read there which rank this process is.

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

    set_rank_variables(job)
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

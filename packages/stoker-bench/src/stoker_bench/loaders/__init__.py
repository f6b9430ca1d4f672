"""Loaders under test by name: stoker's own, and those that other packages name in entry points ``stoker_bench.loaders``."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from stoker.display import unknown_name
from stoker.errors import ConfigError, MissingPackageError
from stoker.lazy import plugins
from stoker.storage import is_local
from stoker_bench.clients import CLIENTS, check_requests, find_client
from stoker_bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport, LoaderUnderTest, OpenLoader
from stoker_bench.settings.workload import Workload

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUP",
    "LoaderJob",
    "LoadedBatch",
    "LoaderReport",
    "LoaderUnderTest",
    "OpenLoader",
    "check_client",
    "find_loader",
    "get_loader",
    "loader_names",
    "reads_files",
    "saves_objects",
]

GROUP: Final = "stoker_bench.loaders"
"""Group of entry points: the name is the loader's, the object a class of :class:`LoaderUnderTest`'s shape."""

_OF_STOKER: Final = ("auto", "mmap", "buffered", "direct", "obstore", "boto3", "minio")
"""Storage clients that stoker's own loader reads through."""
_OWN: Final[dict[str, str]] = {
    "huggingface": "huggingface:HuggingFaceLoader",
    "litdata": "litdatas:LitDataLoader",
    "mosaicml": "mosaicml:MosaicLoader",
    "ray": "raydata:RayDataLoader",
    "stoker": "pipeline:StokerLoader",
    "synthetic": "synthetic:SyntheticLoader",
    "torch": "torchfiles:TorchLoader",
    "webdataset": "webdatasets:WebDatasetLoader",
}
"""Module of this folder and class (:class:`~stoker_bench.loaders.rank_loader.RankLoader`) of each of stoker's own."""


def loader_names() -> tuple[str, ...]:
    """Names of all loaders that there are, other packages' too."""
    return tuple(sorted({*_OWN, *_others()}))


def get_loader(name: str) -> LoaderUnderTest:
    """The loader that is asked for, and no other, if it can be used here.

    Args:
        name: of :func:`loader_names`, or ``module:Class``.

    Raises:
        ConfigError: there is none, or it is no loader.
        MissingPackageError: it can not be used here; says what is missing.
    """
    loader = find_loader(name)
    missing = loader.available()
    if missing is not None:
        raise MissingPackageError(f"the loader {name!r} can not be used here: {missing}")
    return loader


def find_loader(name: str) -> LoaderUnderTest:
    """As :func:`get_loader`, also where the packages that it needs are missing."""
    if name in _OWN:
        module, _, kind = _OWN[name].partition(":")
        loader: Any = getattr(importlib.import_module(f"stoker_bench.loaders.{module}"), kind)
    elif ":" in name:
        loader = _imported(name)
    elif name in _others():
        entry = _others()[name]
        try:
            loader = entry.load()()
        except Exception as error:  # another package's code
            raise ConfigError(f"the loader {name!r} of {entry.value} can not be loaded: {error!r}") from error
    else:
        raise ConfigError(unknown_name("loader", name, loader_names()))
    if not isinstance(loader, LoaderUnderTest):
        raise ConfigError(f"{name!r} is not a loader: it needs name, available() and open(job)")
    return loader


def reads_files(name: str) -> bool:
    """Whether a loader reads the files of the workload; one of another package may read what it likes."""
    return name in _OWN and name != "synthetic"


def saves_objects(workload: Workload, url: str | None) -> bool:
    """Whether a run over data at ``url``, or over none, saves checkpoints to an object store, or loads them from there."""
    where = workload.checkpoint.url or url
    return "checkpoint" in workload.stages and where is not None and is_local(where) is None


def check_client(workload: Workload, url: str | None) -> None:
    """Check before anything starts that the storage client that is asked for is the one that will read.

    Settings of requests must be heeded where the data is read; where that is a directory, they may be for checkpoints on an
    object store.

    Args:
        workload: the settings.
        url: of the data; ``None`` where nothing is read.

    Raises:
        ConfigError: the loader does not read through one, or the client not there, or a setting of requests has no effect.
        MissingPackageError: the client can not be used here; says what is missing.
    """
    storage, loader = workload.storage, workload.reader.loader
    name = storage.client
    local = url is None or is_local(url) is not None
    if local and saves_objects(workload, url):
        storage = replace(storage, endpoints=(), part_bytes=None, part_requests=None, attempts=None)
    if "train" not in workload.stages and local:
        check_requests(storage, url, (), "a run without training")
    if loader not in _OWN or "train" not in workload.stages:
        return
    if loader not in ("stoker", "torch"):
        if name != "auto":
            raise ConfigError(
                f"storage.client: the loader {loader!r} fetches its files itself; those that read through {name} are torch"
                f"{' and stoker' if name in _OF_STOKER else ''}"
            )
        check_requests(storage, url, (), f"the loader {loader}")
        if not local and getattr(find_loader(loader), "directories", False):
            raise ConfigError(f"the loader {loader} reads directories here, not {url}: take another, or copy the data")
        return
    if loader == "stoker" and name in CLIENTS and name not in _OF_STOKER:
        raise ConfigError(
            f"storage.client: the loader stoker reads through {', '.join(_OF_STOKER)}, not {name}: take the loader torch "
            "(--loader torch), which does"
        )
    if url is None:
        return
    client = find_client(name, url)
    if loader == "torch":
        heeds = {*client.heeds, "endpoints"} if client.package not in ("", "s3dlio") else client.heeds
        check_requests(storage, url, heeds, f"the storage client {client.__name__.lower()}")
        return
    called = {"part_bytes", "part_requests"} if name in ("direct", "buffered") else set[str]()
    heeds = called if local else set(storage.transfer)
    check_requests(storage, url, heeds, "the loader stoker")


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # the user's code
        raise ConfigError(f"the loader {name!r} can not be loaded: {error!r}") from error


@cache
def _others() -> dict[str, EntryPoint]:
    """Loaders of other packages. Stoker's own names are not theirs to take."""
    return plugins(GROUP, own=_OWN)

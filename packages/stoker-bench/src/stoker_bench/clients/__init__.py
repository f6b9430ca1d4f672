"""Storage clients by name: each fetches a file's bytes in its own way. The one that is asked for is used, and no other."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stoker.display import unknown_name
from stoker.errors import ConfigError, MissingPackageError
from stoker.storage import is_local
from stoker_bench.clients.base import Client, ClientLocation, Data
from stoker_bench.settings.workload import ENDPOINT_NAMES, Storage

__all__ = ["CLIENTS", "Client", "ClientLocation", "check_requests", "find_client", "open_client", "reads_objects"]

CLIENTS: Final[dict[str, str]] = {
    "buffered": "files:Buffered",
    "direct": "files:Direct",
    "mmap": "files:Mapped",
    "obstore": "objects:Obstore",
    "s3dlio": "objects:S3dlio",
    "s3torchconnector": "objects:S3Torch",
    "minio": "objects:Minio",
    "boto3": "objects:Boto3",
}
"""Module of this package and class of each client, by the name for ``storage.client``."""


def find_client(name: str, url: str) -> type[Client]:
    """A client that can be used here and for this URL; ``auto`` is ``buffered`` for directories, else ``obstore``.

    Raises:
        ConfigError: there is none of this name, or it does not read such URLs.
        MissingPackageError: its package is missing; says how to get it.
    """
    if name == "auto":
        name = "buffered" if is_local(url) else "obstore"
    if name not in CLIENTS:
        raise ConfigError(unknown_name("storage client", name, CLIENTS))
    client = _client(name)
    missing = client.available()
    if missing is not None:
        raise MissingPackageError(f"the storage client {name!r} can not be used here: {missing}")
    if not client.reads(url):
        fit = [other for other in CLIENTS if _client(other).reads(url)]
        raise ConfigError(f"the storage client {name!r} does not read {url}; {', '.join(fit)} do")
    return client


def reads_objects(name: str) -> bool:
    """Whether a client of this name reads object stores."""
    return name in CLIENTS and CLIENTS[name].startswith("objects:")


class Turns(Client):
    """Clients of several endpoints, which read in turn."""

    def __init__(self, clients: Sequence[Client]) -> None:
        super().__init__(clients[0].location)
        self._clients, self.counts_requests = clients, clients[0].counts_requests
        # Processes that begin together do not all begin at the same endpoint.
        self._turn = itertools.count(os.getpid())

    def read(self, name: str) -> Data:
        return self._clients[next(self._turn) % len(self._clients)].read(name)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def open_client(storage: Storage, url: str, rank: int) -> Client:
    """The client that a workload's storage asks for, with its settings; of several endpoints, one for all.

    Raises:
        StokerError: as :func:`find_client`, and a client's own refusal of settings.
    """
    kind = find_client(storage.client, url)
    options = dict(storage.options)
    endpoints = storage.endpoints
    if endpoints:
        options = {name: value for name, value in options.items() if name.removeprefix("aws_") not in ENDPOINT_NAMES}
        if storage.endpoint_per == "rank":
            endpoints = (endpoints[rank % len(endpoints)],)
    told = {name: getattr(storage, name) for name in kind.heeds}
    several: list[dict[str, Any]] = [{**options, "endpoint": one} for one in endpoints] or [options]
    if endpoints and kind.counts_requests:  # a store of stoker's, which repeats a request at the next endpoint
        several = [{**options, "endpoints": [*endpoints]}]
    clients = [kind(ClientLocation(url, one, **told)) for one in several]
    return clients[0] if len(clients) == 1 else Turns(clients)


def check_requests(storage: Storage, url: str | None, heeds: Iterable[str], who: str) -> None:
    """See that settings of requests are heeded by what reads.

    Args:
        storage: the settings.
        url: what is read; ``None`` for nothing.
        heeds: those that are heeded there.
        who: reads, for the message.

    Raises:
        ConfigError: one would have no effect.
    """
    useless = [f"storage.{name}" for name in storage.transfer if name not in heeds]
    if useless:
        reads = "no data" if url is None else url
        raise ConfigError(f"{', '.join(useless)}: {who} can not be told so where it reads {reads}: leave that out")


def _client(name: str) -> type[Client]:
    module, _, kind = CLIENTS[name].partition(":")
    found: type[Client] = getattr(importlib.import_module(f"stoker_bench.clients.{module}"), kind)
    return found

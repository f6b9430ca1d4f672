"""Storage clients by name: each fetches a file's bytes in its own way. The one that is asked for is used, and no other."""

from __future__ import annotations

import importlib
from typing import Final

from stoker.arguments import unknown_name
from stoker.bench.clients.base import Client, ClientLocation
from stoker.errors import ConfigError, MissingPackageError
from stoker.storage import is_local

__all__ = ["CLIENTS", "Client", "ClientLocation", "find_client"]

CLIENTS: Final[dict[str, str]] = {
    "buffered": "files:Buffered",
    "direct": "files:Direct",
    "mmap": "files:Mapped",
    "obstore": "objects:Obstore",
    "s3dlio": "objects:S3dlio",
    "s3torchconnector": "objects:S3Torch",
    "minio": "objects:Minio",
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


def _client(name: str) -> type[Client]:
    module, _, kind = CLIENTS[name].partition(":")
    found: type[Client] = getattr(importlib.import_module(f"stoker.bench.clients.{module}"), kind)
    return found

"""Storage clients by name: what fetches a file's bytes. The one that is asked for, and no other."""

from __future__ import annotations

import importlib
from typing import Any, Final

from stoker.arguments import nearest
from stoker.bench.clients.base import Client, ClientLocation, ClientMaker
from stoker.errors import ConfigError, MissingPackageError
from stoker.storage import is_local

__all__ = ["CLIENTS", "CLIENT_PACKAGES", "Client", "ClientMaker", "ClientLocation", "find_client", "open_client"]

CLIENTS: Final[dict[str, tuple[str, str]]] = {
    "buffered": ("stoker.bench.clients.files", "Buffered"),
    "direct": ("stoker.bench.clients.files", "Direct"),
    "mmap": ("stoker.bench.clients.files", "Mapped"),
    "obstore": ("stoker.bench.clients.objects", "Obstore"),
    "s3dlio": ("stoker.bench.clients.objects", "S3dlio"),
    "s3torchconnector": ("stoker.bench.clients.objects", "S3Torch"),
    "minio": ("stoker.bench.clients.objects", "Minio"),
}
"""Module and class of each, by the name for ``storage.client``."""

CLIENT_PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    name: (name,) for name in ("obstore", "s3dlio", "s3torchconnector", "minio")
}
"""Packages that do a client's work, for their versions."""


def find_client(name: str, url: str) -> ClientMaker:
    """A client that can be used here and for this place; ``auto`` is ``buffered`` for directories, else ``obstore``.

    Raises:
        ConfigError: there is none of this name, or it does not read such places.
        MissingPackageError: its package is missing; says how to get it.
    """
    if name == "auto":
        name = "buffered" if is_local(url) else "obstore"
    if name not in CLIENTS:
        raise ConfigError(
            f"there is no storage client {name!r}{nearest(name, CLIENTS) or '.'} There are {', '.join(CLIENTS)}"
        )
    module, made = CLIENTS[name]
    client: Any = getattr(importlib.import_module(module), made)()
    missing = client.available()
    if missing is not None:
        raise MissingPackageError(f"the storage client {name!r} can not be used here: {missing}")
    if not client.reads(url):
        fit = [other for other, (where, kind) in CLIENTS.items() if _kind(where, kind).reads(url)]
        raise ConfigError(f"the storage client {name!r} does not read {url}; {', '.join(fit)} do")
    found: ClientMaker = client
    return found


def open_client(name: str, place: ClientLocation) -> Client:
    """Open a client; errors are those of :func:`find_client`."""
    return find_client(name, place.url).open(place)


def _kind(module: str, made: str) -> ClientMaker:
    found: ClientMaker = getattr(importlib.import_module(module), made)()
    return found

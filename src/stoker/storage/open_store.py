"""Opens the store that a URL names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from stoker.errors import ConfigError, import_option
from stoker.lazy import load_plugin, plugins
from stoker.storage.local import LocalStore
from stoker.storage.retry import RetryPolicy
from stoker.storage.store import Store
from stoker.storage.transfer import FILE_STORES, split_transfer
from stoker.storage.url import parse_url

if TYPE_CHECKING:
    from stoker.types import StorageOptions


def open_store(
    url: str | os.PathLike[str],
    options: StorageOptions | None = None,
    *,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
) -> Store:
    """Open the store that ``url`` names; nothing is connected, or checked to exist, before the first use.

    Args:
        url: ``s3://``, ``gs://``, ``az://`` (``abfs://``), ``http(s)://`` and ``hf://datasets/`` (reading only),
            ``file://``, ``memory://`` or a plain path.
        options: credentials and settings by obstore's names (``access_key_id``, ``endpoint``, ``region``,
            ...; ``client_options`` for those of the HTTP client; of ``hf://``, ``token`` and ``endpoint``). Each
            overrides the environment
            (``AWS_*``, ``S3_ENDPOINT_URL``, ...), and credentials replace the environment's as a whole. Besides,
            ``endpoints``, ``library``, ``part_size``, ``part_requests`` and ``patience``: see
            :class:`~stoker.storage.transfer.Transfer`.
        retry: how long to try again; by default for 300 s.
        stall_timeout: seconds without a byte after which a request fails. Beyond them, what is read must come at
            4 KiB/s on the whole; a listing, an upload of up to 1 MiB and other requests that carry little end within
            five times as long.

    Raises:
        ConfigError: the URL or an argument makes no sense.

    >>> store = open_store("memory://example")
    >>> store.put("a/b", b"hello")
    >>> store.get("a/b", max_bytes=100)
    b'hello'
    """
    location = parse_url(url)
    if location.kind == "hf":
        for package in ("huggingface_hub", "httpx2"):
            import_option(package, f"{location.url}: hf:// needs huggingface_hub", "stoker[hf]")
        from stoker.storage.hub.hub_store import HubStore

        return HubStore(url, options, retry=retry, stall_timeout=stall_timeout)
    if location.kind != "file":
        return Store(url, options, retry=retry, stall_timeout=stall_timeout)
    if not options:
        return LocalStore(url, retry=retry, stall_timeout=stall_timeout)
    transfer, rest = split_transfer(location, options)
    if rest:
        raise ConfigError(f"{location.url}: storage_options {sorted(rest)} mean nothing for local files.")
    if transfer.read_by is not None:
        made = load_plugin(plugins(FILE_STORES)[transfer.read_by], f"the store of read_by={transfer.read_by!r}")
        return cast("Store", made(url, options, retry=retry, stall_timeout=stall_timeout))
    return LocalStore(url, retry=retry, stall_timeout=stall_timeout)

"""Redirects to other hosts, which the client would follow: refused, as the other may be one that only this machine reaches.

The client library has no setting for it, but one for proxies. With a proxy that no connection reaches, and the
store's own hosts excluded from it, a request to any other host fails before a byte leaves this machine.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stoker.errors import ConfigError

_NOWHERE: Final = "127.0.0.1:0"
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROXY_URL")
_HOST: Final = re.compile(r"[\w.:-]+")


def parse_hosts(value: Any) -> list[str]:
    """The hosts of ``storage_options['redirect_hosts']``: a list, or names with commas between them."""
    hosts = value.split(",") if isinstance(value, str) else value
    if not isinstance(hosts, Iterable) or isinstance(hosts, Mapping):
        hosts = [value]
    found = [host.strip() if isinstance(host, str) else host for host in hosts]
    for host in found:
        if not isinstance(host, str) or (host and not _HOST.fullmatch(host)):
            raise ConfigError(
                f"storage_options['redirect_hosts'] has {host!r}: expected names of hosts, without scheme and port, "
                "in a list or with commas between them."
            )
    return [host for host in found if host]


def guarded(
    client: Mapping[str, Any], host: str | None, allowed: Iterable[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The client options with which only ``host``, the hosts ``allowed`` and those below them are reached.

    Where a proxy is set, by option or environment, it decides what is reached, and nothing is changed.
    """
    if (
        host is None
        or "proxy_url" in client
        or any(environ.get(name) or environ.get(name.lower()) for name in _PROXIES)
    ):
        return dict(client)
    with contextlib.suppress(OSError):  # as the client spells it: 127.1 is 127.0.0.1
        host = socket.inet_ntoa(socket.inet_aton(host))
    if not host.isascii():
        with contextlib.suppress(UnicodeError):
            host = host.encode("idna").decode()
    return {**client, "proxy_url": f"http://{_NOWHERE}", "proxy_excludes": ",".join([host, *allowed])}


def is_refused(text: str) -> bool:
    """Whether the client's failure, in words, is that of a redirect to another host."""
    return f"{_NOWHERE}," in text

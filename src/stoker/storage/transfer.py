"""Settings of how a store's bytes travel: its endpoints, the size and number of requests, and patience."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stoker.concurrency.threads import Threads
from stoker.display import nearest
from stoker.errors import ConfigError
from stoker.lazy import INSTALL_BENCH, plugins
from stoker.storage.types import PART
from stoker.storage.url import Location
from stoker.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

LEAST_PART: Final = 1 << 20
"""Bytes below which requests would cost more than what they carry."""
OBJECT_CLIENTS: Final = "stoker.object_clients"
"""Group of entry points: a package that can fetch objects of S3, besides obstore, and a function that makes
:data:`~stoker.storage.remote.clients.Fetch` of a bucket and a :class:`~stoker.storage.remote.options.ClientSpec`."""
FILE_STORES: Final = "stoker.file_stores"
"""Group of entry points: a way to read local files into memory, and the :class:`~stoker.storage.local.LocalStore` of it."""
LEAST_UPLOAD_PART: Final = 5 << 20
"""Bytes below which S3 takes a part of an upload only as the last one."""
_USUAL_REQUESTS: Final = 4


@dataclass(frozen=True, slots=True)
class Transfer:
    """The way of a store's bytes, by ``storage_options``.

    Attributes:
        endpoints: servers of the same data; requests go to them in turn, and a repeated request goes to the next.
        endpoint_number: the one of ``endpoints`` that gets all requests, counted from 0 and around; ``None`` for all.
        part_size: most bytes that one request reads or uploads; ``None``: an object is read by one request, and uploaded
            in parts of 8 MiB.
        part_requests: requests of one object at once, where it comes or goes in parts.
        patience: seconds in which a request is tried again; ``None`` for those of the store's
            :class:`~stoker.storage.retry.RetryPolicy`.
        library: the package that fetches objects of S3; ``None`` for obstore, by which all else is done in any case.
        read_by: local files are read into memory in a way that another package has; ``None``: they are mapped.
    """

    endpoints: tuple[str, ...] = ()
    endpoint_number: int | None = None
    part_size: int | None = None
    part_requests: int = _USUAL_REQUESTS
    patience: float | None = None
    library: str | None = None
    read_by: str | None = None

    @property
    def used_endpoints(self) -> tuple[str, ...]:
        """The endpoints that get requests."""
        if self.endpoint_number is None or not self.endpoints:
            return self.endpoints
        return (self.endpoints[self.endpoint_number % len(self.endpoints)],)

    @property
    def upload_part(self) -> int:
        """Bytes of a part of an upload."""
        return PART if self.part_size is None else max(self.part_size, LEAST_UPLOAD_PART)


def split_transfer(location: Location, options: Mapping[str, Any]) -> tuple[Transfer, dict[str, Any]]:
    """These settings of some ``storage_options``, and the other options. Values may be texts, as a command line has them.

    ConfigError if a value makes no sense, or means nothing for this kind of store.
    """
    rest = dict(options)
    given = {name: rest.pop(name) for name in _READ if name in rest}
    given = {name: _READ[name](name, value) for name, value in given.items() if value is not None}
    allowed = _MEANT.get(location.kind, ("part_size", "part_requests", "patience"))
    useless = [name for name in given if name not in allowed]
    if useless:
        raise ConfigError(f"storage_options {useless} mean nothing for {location.url}: leave them out")
    if "endpoints" in given and any(
        name.lower().removeprefix("aws_") in ("endpoint", "endpoint_url", "endpoint_url_s3") for name in rest
    ):
        raise ConfigError("storage_options has endpoint and endpoints: give one of them")
    if "endpoint_number" in given and "endpoints" not in given:
        raise ConfigError("storage_options['endpoint_number'] selects one of endpoints, which is not given")
    if location.kind == "file" and given and "read_by" not in given:
        raise ConfigError(
            f"storage_options {[*given]} mean nothing for {location.url} without read_by: files are mapped"
        )
    return Transfer(**given), rest


def over_parts(start: int, end: int, transfer: Transfer, read: Callable[[int, int], T]) -> list[T]:
    """``read(first, last)`` of each part of the bytes ``[start, end)``: results in order, several requests at once.

    The first error of a part is raised when no part is being read any more.
    """
    size = transfer.part_size or max(1, end - start)
    work = [partial(read, first, min(first + size, end)) for first in range(start, end, size)]
    return side_by_side(
        work, transfer.part_requests, "parts", threading.TIMEOUT_MAX
    )  # what they write to is the caller's


def side_by_side(work: Sequence[Callable[[], T]], most: int, name: str, patience: float = 10.0) -> list[T]:
    """Results of calls that wait for storage, in order, by ``most`` threads; after the first error what waits is dropped.

    The error is raised when no call is under way any more; each is waited for that many seconds.
    """
    most = min(most, len(work))
    if most < 2:
        return [action() for action in work]
    threads = Threads(most, name)
    try:
        return [future.result() for future in [threads.submit(action) for action in work]]
    finally:
        threads.close(patience)


def _endpoints(name: str, value: Any) -> tuple[str, ...]:
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not found or not all(isinstance(one, str) and one.strip() for one in found):
        raise ConfigError(
            f"storage_options[{name!r}] is {value!r}: expected URLs of servers, such as ['http://host:9000']"
        )
    urls = tuple(one.strip().rstrip("/") for one in found)
    for one in urls:
        if not one.startswith(("http://", "https://")):
            raise ConfigError(f"storage_options[{name!r}]: {one!r} is not a URL: it begins with http:// or https://")
        if "@" in one:
            raise ConfigError(f"storage_options[{name!r}]: credentials do not belong in a URL: give keys of their own")
    if len(set(urls)) != len(urls):
        raise ConfigError(f"storage_options[{name!r}] names a server twice: {', '.join(urls)}")
    return urls


def _part_size(name: str, value: Any) -> int:
    size = parse_bytes(value, f"storage_options[{name!r}]")
    if size < LEAST_PART:
        raise ConfigError(f"storage_options[{name!r}] is {value!r}: expected at least 1 MiB a part")
    return size


def _count(name: str, value: Any, least: int = 1) -> int:
    found = parse_count(value, f"storage_options[{name!r}]")
    if found < least:
        raise ConfigError(f"storage_options[{name!r}] is {value!r}: expected at least {least}")
    return found


def _seconds(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ConfigError(f"storage_options[{name!r}] is {value!r}: expected seconds, such as 300; 0 never tries again")
    return found


def object_clients() -> dict[str, EntryPoint]:
    """Entry points of what fetches objects of S3 besides obstore, by the name of the package."""
    return plugins(OBJECT_CLIENTS, own=("obstore",))


def _library(name: str, value: Any) -> str | None:
    return None if value == "obstore" else _known(name, value, object_clients(), "obstore")


def _read_by(name: str, value: Any) -> str:
    return _known(name, value, plugins(FILE_STORES))


def _known(name: str, value: Any, known: Mapping[str, EntryPoint], *own: str) -> str:
    if value not in known:
        names = (*own, *sorted(known))
        expected = [f"expected {' or '.join(map(repr, names))}{nearest(value, names)}"] if names else []
        others = (
            []
            if known
            else [f"{'others come' if own else 'that comes'} with the package stoker-bench: {INSTALL_BENCH}"]
        )
        raise ConfigError(f"storage_options[{name!r}] is {value!r}: {'; '.join(expected + others)}")
    return str(value)


_READ: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "endpoints": _endpoints,
    "endpoint_number": partial(_count, least=0),
    "part_size": _part_size,
    "part_requests": _count,
    "patience": _seconds,
    "library": _library,
    "read_by": _read_by,
}
_MEANT: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": tuple(name for name in _READ if name != "read_by"),
    "hf": ("patience",),
    "file": ("read_by", "part_size", "part_requests"),
}
"""Settings that a kind of store understands; others understand those that are not of S3 alone."""

"""Requests of one bucket: to which endpoint they go, how often they are repeated, and their errors as stoker's."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stoker.concurrency.request_observer import ServedBy, observer
from stoker.errors import ConfigError, StokerError
from stoker.storage.remote.faults import classify, error_for, is_panic, transient
from stoker.storage.remote.response_bodies import AnswerError, ObjectClient
from stoker.storage.retry import Retries, TransientError
from stoker.storage.transfer.settings import Transfer
from stoker.storage.url import UNSENDABLE, Location

T = TypeVar("T")
C = TypeVar("C", bound=ObjectClient)


class _Turn(threading.local):
    """The number of the request that a thread makes, plus that of its attempt: it chooses the endpoint."""

    number = 0


class RemoteRequests(Generic[C]):
    """Requests for the objects under one root of a store, under the retries of the store.

    Args:
        location: the root.
        clients: one for each endpoint.
        retries: of the store.
        stall_timeout: seconds without a byte after which a request fails.
        transfer: endpoints, and the size and number of requests.
        identity: in words, where the credentials come from; for messages, without secrets.
    """

    def __init__(
        self,
        location: Location,
        clients: Sequence[C],
        retries: Retries,
        stall_timeout: float,
        transfer: Transfer = Transfer(),  # noqa: B008 - frozen
        identity: str = "",
    ) -> None:
        self._location = location
        self._clients = clients
        self._retries = retries
        self._stall_timeout = stall_timeout
        self._transfer = transfer
        self._identity = identity
        # Processes that begin together do not all begin at the same endpoint.
        self._request_numbers = itertools.count(os.getpid())
        self._turn = _Turn()

    @property
    def _next(self) -> C:
        """The clients of the endpoint whose turn it is: of a repeated request the one after that which it had before."""
        return self._clients[self._turn.number % len(self._clients)]

    def _run(
        self,
        key: str,
        attempt: Callable[[int], T],
        size_of: Callable[[T], int] | None = None,
        failed: BaseException | None = None,
    ) -> T:
        """``attempt``, repeated as the store's retries say, its exceptions turned into stoker's.

        Args:
            key: the object.
            attempt: makes one request; its argument counts the attempts from 0.
            size_of: of a request for data, the bytes that it gave, by what ``attempt`` returned; such requests are counted.
            failed: the error of a first attempt that was made already.
        """
        turn = next(self._request_numbers)

        def translated(number: int) -> T:
            begun, self._turn.number = time.perf_counter_ns(), turn + number
            try:
                if failed is not None and not number:
                    raise failed
                found = attempt(number)
                if size_of is not None and (counts := observer()) is not None:
                    counts.add(ServedBy.NETWORK, time.perf_counter_ns() - begun, size_of(found))
                return found
            except (StokerError, TransientError):
                raise
            except AnswerError as error:
                fault, after = error.fault, error.after
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
                fault, after = classify(error), getattr(error, "after", 0.0)
            # Outside of the except block, so that obstore's text, which may hold a signed URL, is not chained.
            url = self._url(key)
            if fault.retryable:
                asked = self._transfer.used_endpoints[(turn + number) % len(self._clients) :][:1]
                if (counts := observer()) is not None:
                    counts.repeat(*asked or ("",))
                raise transient(fault, url, after, *asked)
            raise error_for(fault, url, host=self._location.host, identity=self._identity)

        return self._retries.run(translated)

    def _path(self, key: str) -> str:
        """The object's name for the client.

        Raises:
            ConfigError: the client would refuse it, or end in a panic.
        """
        if not key.isprintable() and (bad := UNSENDABLE.search(key)):
            raise ConfigError(
                f"key {key!r} of {self._location.url!r} contains {bad[0]!r}: control characters and lone surrogates "
                "can not be sent to an object store. Rename the object."
            )
        return f"{self._location.prefix}/{key}" if self._location.prefix else key

    def _url(self, key: str) -> str:
        return f"{self._location.url}/{key}" if key else self._location.url

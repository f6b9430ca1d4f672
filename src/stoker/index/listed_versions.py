"""The versions of a store's objects when a dataset was opened, by a listing in the background.

An index without hashes tells nothing of its shards' versions, and the clock of a store may differ from this machine's. So
whether an object that was written about when the dataset was opened was there by then only the store can tell, and only then.
A listing has 1,000 objects in an answer; nothing waits for it, unless such an object is fetched.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import CancelledError, Future
from functools import cache
from itertools import islice
from typing import Any, Final

from stoker.concurrency.threads import Threads
from stoker.errors import StokerError
from stoker.storage import ObjectInfo, Store

logger = logging.getLogger(__name__)

_STORES: Final = ("s3://", "gs://", "az://")
_MOST: Final = 10_000
# Seconds for which a listing is waited for: then it is as if there were none.
_PATIENCE: Final = 60.0

_Listed = dict[str, tuple[str, int]]


@cache
def _threads() -> Threads:
    return Threads(4, "versions")


class ListedVersions:
    """The versions of a store's objects from about now on. Picklable, with what is known by then.

    Args:
        store: where the objects are. Those of more than 10,000, and of stores that can not list, are not known.
    """

    def __init__(self, store: Store) -> None:
        self._home = os.getpid()
        self._listed: _Listed | None = None
        self._coming: Future[_Listed | None] | None = None
        if store.url.startswith(_STORES):
            self._coming = _threads().submit(lambda: _list(store))

    def is_known_otherwise(self, store: Store, info: ObjectInfo) -> bool:
        """Whether an object that was fetched is not the one that was listed.

        Args:
            store: where it is.
            info: what the store said of it when it was fetched.
        """
        listed = (self._await() or {}).get(info.key)
        if listed is None or listed == (info.version.strip('"'), info.modified):
            return False
        version, modified = listed
        if modified != info.modified or not version:
            return True
        # Some stores write a version otherwise in a listing: then the object of that version is still there.
        try:
            store.get_ranges(info.key, [0], [min(1, info.size)], version=version)
        except StokerError:
            return True
        return False

    def _await(self) -> _Listed | None:
        coming = self._coming
        if coming is not None and self._home == os.getpid():
            try:
                self._listed = coming.result(_PATIENCE)
            except (CancelledError, TimeoutError):
                logger.debug("a listing has not come")
            self._coming = None
        return self._listed

    def __getstate__(self) -> dict[str, Any]:
        if self._coming is not None and self._coming.done():
            self._await()
        return {**self.__dict__, "_coming": None}


def _list(store: Store) -> _Listed | None:
    try:
        found = list(islice(store.list(), _MOST + 1))
    except StokerError as error:
        logger.debug("the objects can not be listed: %s", error)
        return None
    if len(found) > _MOST:
        return None
    return {info.key: (info.version.strip('"'), info.modified) for info in found}

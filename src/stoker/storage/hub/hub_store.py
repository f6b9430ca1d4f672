"""A folder of a dataset of the Hugging Face Hub as a store, which is read. All that is read is of one commit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.storage.hub.address import DEFAULT_ENDPOINT, hub_address, hub_login
from stoker.storage.hub.hub_folder import COMMIT, HubCommit, HubFolder
from stoker.storage.retry import RetryPolicy
from stoker.storage.store import Store
from stoker.storage.types import Backend

if TYPE_CHECKING:
    from stoker.types import StorageOptions


class HubStore(Store):
    """A folder of a dataset of the Hub, at the commit that its revision was when it was first read.

    The commit stays the same in copies of the store, in forks and in other processes that get it pickled.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        options: StorageOptions | None = None,
        *,
        retry: RetryPolicy | None = None,
        stall_timeout: float = 60.0,
    ) -> None:
        super().__init__(url, options, retry=retry, stall_timeout=stall_timeout)
        self._address = hub_address(self._location)
        hub_login(self._options, os.environ, self.url)  # which refuses what makes no sense
        self._commit: HubCommit | None = None
        if COMMIT.fullmatch(self._address.revision):
            self._commit = HubCommit(self._address.revision)

    @property
    def origin(self) -> str:
        base = f"{self._location.root}/{self._address.repo}"
        return f"{base}/{self.folder}" if self.folder else base

    def endpoint(self) -> str:
        endpoint = hub_login(self._options, os.environ, self.url).endpoint
        return "" if endpoint == DEFAULT_ENDPOINT else endpoint

    @property
    def folder(self) -> str:
        """The folder in the dataset; empty for all of it."""
        return self._address.path

    def commit(self) -> HubCommit:
        """The commit that is read."""
        if self._commit is None:
            backend = self._backend()
            assert isinstance(backend, HubFolder)
            self._commit = backend.commit()
        return self._commit

    def card(self) -> Mapping[str, Any]:
        """The header of the dataset's README, at the commit that is read."""
        found = self.commit()
        if found.card is None:
            backend = self._backend()
            assert isinstance(backend, HubFolder)
            self._commit = found = backend.ask_commit(found.sha)
        return found.card or {}

    def _build(self) -> Backend:
        login = hub_login(self._options, os.environ, self.url)
        return HubFolder(self.url, self._address, login, self._retries, self.stall_timeout, lambda: self.commit().sha)

"""A folder of a dataset of the Hugging Face Hub as a store, which is read. All that is read is of one commit."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import httpx2
from huggingface_hub.constants import DEFAULT_REVISION
from huggingface_hub.errors import HfUriError
from huggingface_hub.utils import parse_hf_uri

from stoker.concurrency.forks import ProcessLock
from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage.hub.hub_client import TOKEN, HubAddress, HubClient
from stoker.storage.remote.faults import Fault, error_for
from stoker.storage.remote.reads import RemoteReads
from stoker.storage.retry import Retries, RetryPolicy
from stoker.storage.store import Store
from stoker.storage.types import Backend, ObjectInfo
from stoker.storage.url import Location

if TYPE_CHECKING:
    from stoker.types import StorageOptions

_DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_OPTIONS: Final = ("endpoint", "token")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
# Stores that are opened one after another to open one dataset read one commit. What is opened later sees what is new.
_TOGETHER_SECONDS: Final = 5.0
_MOST_PAGES: Final = 20_000
"""Pages of a list of files; the Hub has 1,000 files on each."""
# How many folders' listings are kept.
_MOST_LISTINGS: Final = 8

recent_commits: dict[tuple[str, ...], tuple[float, HubCommit]] = {}
"""Commits that revisions were, and until when the next store takes them for it, by the monotonic clock."""

_asking: dict[tuple[str, ...], ProcessLock] = {}
"""Held while a revision's commit is asked for, so that stores that are opened side by side read one."""

kept_listings: dict[tuple[tuple[str, ...], str], Mapping[str, ObjectInfo]] = {}
"""Files of folders by key, at commits, which never change."""


@dataclass(frozen=True, slots=True)
class HubCommit:
    """A commit of a dataset.

    ``sha``: its name, 40 hex digits. ``card``: the header of its README, empty where it has none; ``None`` where nobody
    asked.
    """

    sha: str
    card: Mapping[str, Any] | None = None


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
        address = self._address()  # which refuses what makes no sense
        self._commit = HubCommit(address.revision) if _COMMIT.fullmatch(address.revision) else None

    @property
    def origin(self) -> str:
        of = self._address()
        return f"{self._location.root}/{of.repo}{'/' if of.path else ''}{of.path}"

    def endpoint(self) -> str:
        endpoint = self._address().endpoint
        return "" if endpoint == _DEFAULT_ENDPOINT else endpoint

    @property
    def folder(self) -> str:
        """The folder in the dataset; empty for all of it."""
        return self._address().path

    def commit(self) -> HubCommit:
        """The commit that is read."""
        if self._commit is None:
            self._commit = self._folder().commit()
        return self._commit

    def card(self) -> Mapping[str, Any]:
        """The header of the dataset's README, at the commit that is read."""
        found = self.commit()
        if found.card is None:
            self._commit = found = self._folder().ask_commit(found.sha)
        return found.card or {}

    def _folder(self) -> HubFolder:
        backend = self.backend()
        assert isinstance(backend, HubFolder)
        return backend

    def _build(self) -> Backend:
        return HubFolder(self._location, self._address(), self._retries, self.stall_timeout, lambda: self.commit().sha)

    def _address(self) -> HubAddress:
        """The folder that the URL names, the Hub's endpoint and the token, by ``storage_options`` and the environment."""
        try:
            named = parse_hf_uri(self.url)
        except HfUriError:
            named = None
        if named is None or named.type != "dataset":
            raise ConfigError(
                f"{self.url!r} names no dataset of the Hub: write hf://datasets/<owner>/<name>, with @<revision> and a "
                "/<path> behind it as needed"
            )
        endpoint = self._options.get("endpoint") or os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT
        try:
            parts = httpx2.URL(endpoint)
        except (httpx2.InvalidURL, TypeError):
            parts = httpx2.URL()
        token = self._options.get("token")
        problem = ""
        if unknown := sorted(set(map(str, self._options)) - set(_OPTIONS)):
            problem = f"storage_options {unknown} mean nothing for hf://: only {', '.join(_OPTIONS)} do."
        elif parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
            problem = "the Hub's endpoint is not of the form https://<host>. See HF_ENDPOINT."
        elif not (
            token is None or isinstance(token, bool) or (isinstance(token, str) and TOKEN.fullmatch(token or "-"))
        ):
            problem = "the token in storage_options is not text without spaces and control characters."
        if problem:
            raise ConfigError(f"{self.url}: {problem}")
        return HubAddress(
            url=self.url,
            repo=named.id,
            revision=named.revision or DEFAULT_REVISION,
            path=named.path_in_repo,
            endpoint=str(parts).rstrip("/"),
            token=False if token == "" else token,
        )


class HubFolder(RemoteReads[HubClient]):
    """The files of a folder of a dataset, at one commit. Thread-safe; belongs to the process that made it.

    ``sha``: names the commit that is read.
    """

    def __init__(
        self, location: Location, address: HubAddress, retries: Retries, stall_timeout: float, sha: Callable[[], str]
    ) -> None:
        client = HubClient(address, stall_timeout, sha)
        super().__init__(location, [client], retries, stall_timeout, identity=address.identity)
        self._address, self._sha = address, sha

    def commit(self) -> HubCommit:
        """The commit that the revision is now, or was for the store that was opened just before."""
        name = self._named(self._address.revision)
        with _asking.setdefault(name, ProcessLock()):  # of all folders of this process
            known = recent_commits.get(name)
            if known is None or time.monotonic() > known[0]:
                found = self.ask_commit(self._address.revision)
                known = recent_commits[name] = (time.monotonic() + _TOGETHER_SECONDS, found)
            return known[1]

    def ask_commit(self, revision: str) -> HubCommit:
        """The Hub's description of a revision."""
        found, _ = self._json(f"{self._address.page('revision', revision)}?expand=sha&expand=cardData")
        sha = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(sha, str) or not _COMMIT.fullmatch(sha):
            url = self._address.url
            raise StorageError(f"{url}: the Hub names no commit for {revision!r}.", url=url)
        card = found.get("cardData")
        return HubCommit(sha, card if isinstance(card, dict) else {})

    def head(self, key: str) -> ObjectInfo:
        listed = _kept_listing(self._named(self._sha()), self._address.path)
        if listed is None:
            return self._run(key, lambda _: self._next.file(self._path(key)).info)
        if key not in listed:
            raise error_for(Fault("not_found", ""), self._url(key), host="", identity="")
        return listed[key]

    def read(self, key: str, max_bytes: int) -> tuple[bytes, ObjectInfo]:
        self.head(key)  # which needs no request for what the listing does not have
        return super().read(key, max_bytes)

    def exists(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFoundError as error:
            if error.url == self._address.url and key:
                raise  # the dataset is missing, or its revision: a spelling that no other answer would show
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        commit, folder = self._named(self._sha()), self._address.path
        found = _kept_listing(commit, folder)
        if found is None:
            found = _keep_listing(commit, folder, self._pages())
        return iter([info for key, info in found.items() if not prefix or key.startswith(f"{prefix}/")])

    def _pages(self) -> Iterator[ObjectInfo]:
        """The files of the folder and below, in the order in which the Hub lists them."""
        url, folder = self._address.url, self._address.path
        page: str | None = f"{self._address.page('tree', self._sha(), folder)}?recursive=true"
        skip = f"{folder}/" if folder else ""
        asked: set[str] = set()
        while page is not None:
            asked.add(page)
            try:
                entries, page = self._json(page)
            except ObjectNotFoundError:
                if not folder:
                    raise
                self.ask_commit(self._sha())  # an error where the dataset or the commit is missing, not only the folder
                return
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise StorageError(f"{url}: the Hub's list of files is not understood.", url=url)
            try:
                yield from filter(None, (_listed_file(entry, skip) for entry in entries))
            except ValueError as error:
                raise StorageError(f"{url}: the Hub's list of files is not understood: {error}", url=url) from None
            if page is not None and (not entries or page in asked or len(asked) >= _MOST_PAGES):
                raise StorageError(
                    f"{url}: the Hub's list of files has no end: a page names an earlier one as the next, or is empty, or is "
                    f"the {_MOST_PAGES:,}th. Where HF_ENDPOINT names a mirror, use another",
                    url=url,
                )

    def _json(self, page: str) -> tuple[Any, str | None]:
        return self._run("", lambda _: self._next.json(page))

    def _named(self, revision: str) -> tuple[str, ...]:
        """A revision among those of all datasets, as who asks may see them."""
        return (self._address.endpoint, self._address.login().get("Authorization", ""), self._address.repo, revision)

    def _path(self, key: str) -> str:
        super()._path(key)  # which refuses what no request can ask for
        return key

    def put(self, key: str, *_: object) -> None:
        url = self._url(key)
        raise StorageError(
            f"{url}: the Hub is read-only here. Write to a directory, and upload it with `hf upload --repo-type dataset`.",
            url=url,
        )

    put_file = put_stream = delete = put


def _keep_listing(commit: tuple[str, ...], folder: str, files: Iterable[ObjectInfo]) -> Mapping[str, ObjectInfo]:
    """Keep the files of a folder and below, which never change, and return them by key, in the order of keys."""
    found = {info.key: info for info in sorted(files, key=lambda info: info.key)}
    for oldest in list(kept_listings)[: max(0, len(kept_listings) + 1 - _MOST_LISTINGS)]:
        kept_listings.pop(oldest, None)  # another thread may have done so
    kept_listings[commit, folder] = found
    return found


def _kept_listing(commit: tuple[str, ...], folder: str) -> Mapping[str, ObjectInfo] | None:
    """The files of a folder and below, by key, where its own listing or that of a folder above it is kept."""
    above = folder
    while (found := kept_listings.get((commit, above))) is None:
        if not above:
            return None
        above = above.rpartition("/")[0]
    if above == folder:
        return found
    skip = folder[len(above) :].lstrip("/") + "/"
    inside = [replace(info, key=key[len(skip) :]) for key, info in found.items() if key.startswith(skip)]
    return _keep_listing(commit, folder, inside)


def _listed_file(entry: Mapping[str, Any], skip: str) -> ObjectInfo | None:
    """An entry of the Hub's tree as an object below the folder ``skip``; ``None`` for what is no file of it."""
    large = entry.get("lfs")
    told = {**entry, **large} if isinstance(large, dict) else entry
    path, size = entry.get("path"), told.get("size")
    if (
        entry.get("type") != "file"
        or not isinstance(path, str)
        or not isinstance(size, int)
        or not path.startswith(skip)
    ):
        return None
    if isinstance(size, bool) or not 0 <= size < 1 << 63:
        raise ValueError(f"{path[:100]!r} has {str(size)[:40]} bytes")
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path[:100]!r} is not a path in a dataset")
    return ObjectInfo(path[len(skip) :], size, str(told.get("oid") or "").removeprefix("sha256:"))

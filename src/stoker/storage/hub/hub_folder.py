"""The files of a folder of a dataset of the Hugging Face Hub, at one commit: listed and read by requests."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

from stoker.errors import ObjectNotFoundError, StokerError, StorageError
from stoker.storage.files.copying import write_all
from stoker.storage.files.file_errors import file_errors, open_target
from stoker.storage.hub.address import HubAddress, HubLogin
from stoker.storage.hub.answers import refusal
from stoker.storage.hub.http_client import Answer, HTTPClient
from stoker.storage.hub.listings import keep_listing, kept_listing, listed_file
from stoker.storage.remote.faults import Fault, error_for, transient
from stoker.storage.remote.response_bodies import AnswerError, copy_body, read_ranges
from stoker.storage.retry import Retries
from stoker.storage.types import Arrival, BufferLike, Chunks, NewHash, ObjectInfo, at_hand, check_range, check_size

T = TypeVar("T")

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""Names of commits."""
_MOST_JSON: Final = 1 << 28
_MOST_REDIRECTS: Final = 5
_NEXT: Final = re.compile(r'<([^<>]+)>\s*;[^,]*\brel="?next"?')
# Stores that are opened one after another to open one dataset read one commit. What is opened later sees what is new.
_TOGETHER_SECONDS: Final = 5.0
# The address of a file's bytes is signed, for about an hour.
_ADDRESS_SECONDS: Final = 600.0

_commits: dict[tuple[str, ...], tuple[float, HubCommit]] = {}


@dataclass(frozen=True, slots=True)
class HubCommit:
    """A commit of a dataset.

    Attributes:
        sha: its name, 40 hex digits.
        card: the header of its README, empty where it has none; ``None`` where nobody asked.
    """

    sha: str
    card: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Bytes:
    """The address of a file's bytes.

    Attributes:
        info: the file.
        url: of the bytes.
        until: when the URL had better be asked for again, by the monotonic clock.
    """

    info: ObjectInfo
    url: str
    until: float


class HubFolder:
    """The files of a folder of a dataset. Thread-safe; belongs to the process that made it.

    Args:
        url: of the folder, for messages.
        address: of the folder.
        login: to the Hub.
        retries: repeats requests.
        stall_timeout: seconds without a byte after which a request fails.
        sha: names the commit that is read.
    """

    def __init__(
        self,
        url: str,
        address: HubAddress,
        login: HubLogin,
        retries: Retries,
        stall_timeout: float,
        sha: Callable[[], str],
    ) -> None:
        self._root = url
        self._address, self._login, self._retries, self._sha = address, login, retries, sha
        self._client = HTTPClient(stall_timeout)
        self._known: dict[str, _Bytes] = {}
        self._lock = threading.Lock()

    # -- the dataset -----------------------------------------------------------------------------------------------

    def commit(self) -> HubCommit:
        """The commit that the revision is now, or was for the store that was opened just before."""
        with self._lock:
            name = (self._login.endpoint, self._login.token or "", self._address.repo, self._address.revision)
            known = _commits.get(name)
            if known is None or time.monotonic() > known[0]:
                found = self.ask_commit(self._address.revision)
                known = _commits[name] = (time.monotonic() + _TOGETHER_SECONDS, found)
            return known[1]

    def ask_commit(self, revision: str) -> HubCommit:
        """The Hub's description of a revision."""
        page = f"/api{self._address.page('revision', revision)}?expand=sha&expand=cardData"
        found, _ = self._json(page)
        sha = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(sha, str) or not COMMIT.fullmatch(sha):
            raise StorageError(f"{self._root}: the Hub names no commit for {revision!r}.", url=self._root)
        card = found.get("cardData")
        return HubCommit(sha, card if isinstance(card, dict) else {})

    def _listing(self) -> Mapping[str, ObjectInfo]:
        """All files of the folder and below, by key, in the order of keys."""
        found = kept_listing(self._commit_name(), self._address.path)
        return keep_listing(self._commit_name(), self._address.path, self._pages()) if found is None else found

    def _commit_name(self) -> tuple[str, ...]:
        return (self._login.endpoint, self._login.token or "", self._address.repo, self._sha())

    def _pages(self) -> Iterator[ObjectInfo]:
        page: str | None = f"/api{self._address.page('tree', self._sha(), self._address.path)}?recursive=true"
        skip = f"{self._address.path}/" if self._address.path else ""
        asked: set[str] = set()
        while page is not None:
            asked.add(page)
            try:
                entries, page = self._json(page)
            except ObjectNotFoundError as error:
                if self._address.path and error.url == self._root:  # the folder, not the dataset or the commit
                    return
                raise
            for entry in entries if isinstance(entries, list) else [None]:
                info = listed_file(entry, skip)
                if info is not None:
                    yield info
                elif not isinstance(entry, dict):
                    url = self._root
                    raise StorageError(f"{url}: the Hub's list of files is not understood.", url=url)
            if page in asked:
                raise StorageError(
                    f"{self._root}: the Hub's list of files has no end: a page names an earlier one as the next. Where "
                    "HF_ENDPOINT names a mirror, use another",
                    url=self._root,
                )

    def _json(self, page: str) -> tuple[Any, str | None]:
        """A page of the Hub's API, and the path of the page that follows it."""

        def attempt(_: int) -> tuple[Any, str | None]:
            with self._ask("GET", f"{self._login.endpoint}{page}", "") as answer:
                data = answer.text(_MOST_JSON)
                link = _NEXT.search(answer.headers.get("Link") or "")
            try:
                found = json.loads(data)
            except (ValueError, RecursionError):
                raise AnswerError(Fault("other", "the Hub's answer is no JSON; see HF_ENDPOINT")) from None
            if link is None:
                return found, None
            after = urlsplit(link[1])  # of a mirror, which may name the Hub itself
            return found, f"{after.path.removeprefix(urlsplit(self._login.endpoint).path)}?{after.query}"

        return self._run("", attempt)

    # -- files -----------------------------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo:
        listed = kept_listing(self._commit_name(), self._address.path)
        if listed is None:
            return self._file(key).info
        if key not in listed:
            raise self._missing(key)
        return listed[key]

    def exists(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFoundError as error:
            if error.url == self._root and key:
                raise  # the dataset is missing, or its revision: a spelling that no other answer would show
            return False
        return True

    def read(self, key: str, max_bytes: int) -> tuple[bytes, ObjectInfo]:
        self.head(key)

        def attempt(_: int) -> tuple[bytes, ObjectInfo]:
            file = self._file(key)
            check_size(file.info.size, max_bytes, self._url(key))
            return b"".join(self._body(key, file, 0, file.info.size)), file.info

        return self._run(key, attempt)

    def request(self, key: str, max_bytes: int) -> Arrival:
        return at_hand(self.read(key, max_bytes))

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int], version: str) -> list[BufferLike]:
        def read(start: int, end: int) -> bytes:
            return self._run(key, partial(self._range_of, key, start, end, version))

        return read_ranges(starts, ends, read)

    def _range_of(self, key: str, start: int, end: int, version: str, _: int) -> bytes:
        return b"".join(self._body(key, self._version_of(key, version), start, end))

    def read_into(
        self, key: str, into: memoryview, start: int | None, version: str, new_hash: NewHash | None
    ) -> ObjectInfo:
        def attempt(_: int) -> ObjectInfo:
            file = self._version_of(key, version)
            digest = None if new_hash is None else new_hash()
            first = start or 0
            if start is not None or file.info.size == len(into):
                copy_body(self._body(key, file, first, first + len(into)), into, digest)
            return file.info.with_digest(digest)

        return self._run(key, attempt)

    def download(self, key: str, path: Path, max_bytes: int | None, new_hash: NewHash | None) -> ObjectInfo:
        with open_target(path) as target:

            def attempt(_: int) -> ObjectInfo:
                file = self._file(key)
                check_size(file.info.size, max_bytes, self._url(key))
                digest = None if new_hash is None else new_hash()
                self._write(key, file, (0, file.info.size), target, path, digest=digest)
                return file.info.with_digest(digest)

            info = self._run(key, attempt)
            with file_errors(path):
                os.ftruncate(target, info.size)
            return info

    def download_range(self, key: str, path: Path, start: int, end: int, at: int, version: str) -> None:
        if start == end:
            return
        with open_target(path) as target:

            def attempt(_: int) -> None:
                self._write(key, self._version_of(key, version), (start, end), target, path, at)

            self._run(key, attempt)

    def _write(
        self, key: str, file: _Bytes, part: tuple[int, int], target: int, path: Path, at: int = 0, digest: Any = None
    ) -> None:
        with file_errors(path):
            os.lseek(target, at, os.SEEK_SET)
        for chunk in self._body(key, file, *part):
            if digest is not None:
                digest.update(chunk)
            with file_errors(path):
                write_all(target, chunk)

    def _version_of(self, key: str, version: str) -> _Bytes:
        file = self._file(key)
        # Of one kind each: a listing gives the hash of a large file's bytes, and Git's of a small one.
        if version and version != file.info.version and len(version) == len(file.info.version):
            url = self._url(key)
            raise StorageError(f"{url}: it was written to since its version {version}.", url=url)
        return file

    def _file(self, key: str) -> _Bytes:
        """The address of a file's bytes: one request, which is asked again when the answer is about to expire."""
        known = self._known.get(key)
        if known is not None and time.monotonic() < known.until:
            return known
        page = self._address.page("resolve", self._sha(), self._address.path_of(key))

        def attempt(_: int) -> _Bytes:
            with self._ask("HEAD", f"{self._login.endpoint}{page}", key) as answer:
                headers, moved = answer.headers, 300 <= answer.status < 400
                tag = headers.get("X-Linked-ETag") or headers.get("ETag") or ""
                size = headers.get("X-Linked-Size") or (None if moved else headers.get("Content-Length"))
                if size is None or not size.isdecimal():
                    raise AnswerError(Fault("other", "the Hub does not say how long the file is"))
                info = ObjectInfo(key, int(size), tag.removeprefix("W/").strip('"'))
                url = headers["Location"] if moved else answer.url
            return _Bytes(info, url, time.monotonic() + _ADDRESS_SECONDS)

        self._known[key] = found = self._run(key, attempt)
        return found

    def _body(self, key: str, file: _Bytes, start: int, end: int) -> Iterator[bytes]:
        """Bytes ``[start, end)`` of a file, chunk by chunk."""
        check_range(start, end, file.info.size, self._url(key))
        if start == end:
            return
        with self._ask("GET", file.url, key, {"Range": f"bytes={start}-{end - 1}"}) as answer:
            if answer.status == 206:
                told = answer.headers.get("Content-Range") or ""
                if told.split() != ["bytes", f"{start}-{end - 1}/{file.info.size}"]:
                    raise AnswerError(
                        Fault("cut", f"{told[:80]!r} came where [{start}, {end}) was asked for", answered=True)
                    )
            elif answer.status != 200 or (start, end) != (0, file.info.size):
                raise AnswerError(Fault("other", f"the server answers no ranges of bytes (HTTP {answer.status})"))
            yield from answer.body(end - start)

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, method: str, url: str, key: str, headers: Mapping[str, str] = {}) -> Answer:
        """The answer of the Hub, or of where it leads; to ``HEAD``, the redirect that leads to another server.

        Raises:
            AnswerError: there is none, or one that says to try again.
            StokerError: the Hub refuses.
        """
        for _ in range(_MOST_REDIRECTS):
            ours = _origin(url) == _origin(self._login.endpoint)
            token = {"Authorization": f"Bearer {self._login.token}"} if ours and self._login.token else {}
            answer = self._client.ask(method, url, {"User-Agent": "stoker", **headers, **token})
            if answer.status < 300 or answer.status == 304:
                return answer
            if answer.status >= 400:
                with answer:
                    self._refuse(answer, key, url, ours=ours)
            target = urljoin(url, answer.headers.get("Location") or "")
            if urlsplit(target).scheme not in ("https", urlsplit(self._login.endpoint).scheme):
                answer.close()
                raise AnswerError(Fault("other", "the server redirects from https to what is not encrypted"))
            if method == "HEAD" and _origin(target) != _origin(url):
                answer.headers.replace_header("Location", target)
                return answer
            answer.close()
            url = target
        raise AnswerError(Fault("other", "the server redirects in a circle"))

    def _refuse(self, answer: Answer, key: str, url: str, *, ours: bool) -> None:
        """Raise what an answer of an error's status means."""
        if not ours and answer.status in (400, 401, 403, 404, 410):
            self._known.pop(key, None)  # the address expired
            raise AnswerError(Fault("transient", f"HTTP {answer.status} from {urlsplit(url).hostname}", answered=True))
        raise refusal(answer, self._address, self._login, self._url(key), self._root)

    def _run(self, key: str, attempt: Callable[[int], T]) -> T:
        """``attempt``, repeated as the store's retries say, its exceptions turned into stoker's."""
        url = self._url(key)

        def translated(number: int) -> T:
            try:
                return attempt(number)
            except AnswerError as error:
                fault, after = error.fault, error.after
            if fault.retryable:
                raise transient(fault, url, after)
            raise error_for(fault, url, host=self._address.repo, identity=self._login.identity)

        return self._retries.run(translated)

    def _url(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _missing(self, key: str) -> StokerError:
        return error_for(Fault("not_found", ""), self._url(key), host="", identity="")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = self._listing()
        if not prefix:
            return iter(list(folder.values()))
        return iter([info for key, info in folder.items() if key.startswith(f"{prefix}/")])

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: str, parts: Sequence[memoryview]) -> None:  # noqa: ARG002
        self._refuse_writes(key)

    def put_file(self, key: str, path: Path) -> None:  # noqa: ARG002
        self._refuse_writes(key)

    def put_stream(self, key: str, chunks: Chunks) -> None:  # noqa: ARG002
        self._refuse_writes(key)

    def delete(self, key: str) -> None:
        self._refuse_writes(key)

    def _refuse_writes(self, key: str) -> None:
        url = self._url(key)
        raise StorageError(
            f"{url}: the Hub is read-only here. Write to a directory, and upload it with `hf upload --repo-type dataset`.",
            url=url,
        )


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)

"""Requests to the Hugging Face Hub, with the login, the URLs, the rate limits and the offline mode of ``huggingface_hub``.

Its own requests are not used: they try again by a count, wait for as long as a server says, bound no answer, and send the
token to wherever the next page is said to be. Their session is closed in each fork, which never ends where a thread of the
parent held its lock.
"""

from __future__ import annotations

import json
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import httpx2
from huggingface_hub import hf_hub_url, is_offline_mode
from huggingface_hub.utils import get_token_to_send, parse_ratelimit_headers

from stoker.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError
from stoker.storage.remote.faults import Fault, is_busy
from stoker.storage.remote.response_bodies import BRIEF_STALLS, AnswerError, ObjectAnswer, body, seconds_to_wait
from stoker.storage.types import ObjectInfo
from stoker.version import __version__

TOKEN: Final = re.compile(r"[!-~]+")
"""What a token consists of."""

_MOST_JSON: Final = 1 << 28
_MOST_REDIRECTS: Final = 5
_MOST_SHOWN: Final = 200
_SIZE: Final = re.compile(r"[0-9]{1,18}")
# The address of a file's bytes is signed, for about an hour.
_ADDRESS_SECONDS: Final = 600.0
# Connections that nobody uses are closed after so many seconds.
_IDLE_SECONDS: Final = 30.0


class _Connections(httpx2.Client):
    """Connections that are kept open, as long as a client of the Hub uses them, in the process that made them.

    In a fork they stay as they are: to close them could wait for ever for a lock.
    """

    _home = -1

    def __init__(self) -> None:
        super().__init__(
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_SECONDS),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one login's would go with another's requests
        )
        self._home = os.getpid()

    def __del__(self) -> None:
        if self._home == os.getpid():
            self.close()


# Those that any client of this process has.
_shared: weakref.WeakValueDictionary[tuple[object, ...], _Connections] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A folder of a dataset.

    Attributes:
        url: of it, for messages.
        repo: ``owner/name``.
        revision: a branch, a tag or a commit.
        path: of the folder in the dataset, without slashes at its ends.
        endpoint: the Hub's URL, without a slash at its end.
        token: of who asks; ``None`` for that of the environment or of ``hf auth login``, ``False`` to ask as nobody.
    """

    url: str
    repo: str
    revision: str
    path: str
    endpoint: str
    token: str | bool | None = field(repr=False)

    def page(self, kind: str, revision: str, path: str = "") -> str:
        """The path of a request to the Hub's API: ``kind`` is ``revision`` or ``tree``."""
        return f"/api/datasets/{quote(self.repo)}/{kind}/{quote(revision, safe='')}{'/' if path else ''}{quote(path)}"

    def login(self) -> dict[str, str]:
        """Headers that say who asks."""
        try:  # not build_hf_headers, which asks the Hub for the names of coding agents, to tell it of them
            token = get_token_to_send(self.token)
        except Exception as error:  # noqa: BLE001 - each kind of login has its own
            reason = type(error).__name__
        else:
            if token is None:
                return {}
            if TOKEN.fullmatch(token):
                return {"Authorization": f"Bearer {token}"}
            reason = "it has spaces or control characters"
        raise ConfigError(f"{self.url}: {self.identity} can not be used ({reason}). See HF_TOKEN and `hf auth login`.")

    @property
    def identity(self) -> str:
        """In words, whose token is sent; for messages."""
        return (
            "the token in storage_options"
            if isinstance(self.token, str)
            else "the token of HF_TOKEN or `hf auth login`"
        )


@dataclass(frozen=True, slots=True)
class _File:
    """A file, the URL of its bytes, and when that had better be asked for again, by the monotonic clock."""

    info: ObjectInfo
    url: str
    until: float


class _FileAnswer:
    """An answer of which the request is made when its bytes are read; see ``ObjectAnswer``."""

    def __init__(
        self, info: ObjectInfo, size: int, stall_timeout: float, stream: Callable[[], Iterator[bytes]]
    ) -> None:
        self.meta: Mapping[str, Any] = {"size": info.size, "e_tag": info.version}
        self._size, self._stall_timeout, self._stream = size, stall_timeout, stream

    def bytes(self) -> Any:
        return b"".join(body(self, self._size, self._stall_timeout))

    def stream(self, min_chunk_size: int) -> Iterator[Any]:  # noqa: ARG002
        return self._stream()


class HubClient:
    """Requests for files of a dataset. Thread-safe; belongs to the process that made it.

    ``address``: of the folder to which keys are relative. ``sha``: names the commit that is read.
    """

    def __init__(self, address: HubAddress, stall_timeout: float, sha: Callable[[], str]) -> None:
        self._address, self._stall_timeout, self._sha = address, stall_timeout, sha
        self._endpoint = httpx2.URL(address.endpoint)
        self._connections: _Connections | None = None
        self._files: dict[str, _File] = {}

    def get(
        self,
        path: str,
        wanted: tuple[int, int] | None = None,
        version: str = "",
        *,
        brief: bool = False,  # noqa: ARG002
    ) -> ObjectAnswer:
        file = self.file(path)
        # Of one kind each: a listing gives the hash of a large file's bytes, and Git's of a small one.
        if version and version != file.info.version and len(version) == len(file.info.version):
            url = self._url(path)
            raise StorageError(f"{url}: it was written to since its version {version}.", url=url)
        start, end = wanted or (0, file.info.size)
        stream = partial(self._stream, path, file, start, end)
        return _FileAnswer(file.info, end - start, self._stall_timeout, stream)

    def file(self, key: str) -> _File:
        """The address of a file's bytes: one request, which is made again when the answer is about to expire."""
        known = self._files.get(key)
        if known is not None and time.monotonic() < known.until:
            return known
        of = self._address
        path = f"{of.path}/{key}" if of.path else key
        url = hf_hub_url(of.repo, path, repo_type="dataset", revision=self._sha(), endpoint=of.endpoint)
        with self._answer("HEAD", url, key) as response:
            headers, following = response.headers, response.next_request
            tag = headers.get("X-Linked-ETag") or headers.get("ETag") or ""
            size = headers.get("X-Linked-Size") or (None if following else headers.get("Content-Length"))
            if size is None or not _SIZE.fullmatch(size):
                elsewhere = f" (it redirects to {following.url.host})" if following else ""
                raise AnswerError(
                    Fault("other", f"the Hub does not say how long the file is{elsewhere}; see HF_ENDPOINT")
                )
            info = ObjectInfo(key, int(size), tag.removeprefix("W/").strip('"'))
            place = str((following or response).url)
        self._files[key] = found = _File(info, place, time.monotonic() + _ADDRESS_SECONDS)
        return found

    def json(self, page: str) -> tuple[Any, str | None]:
        """A page of the Hub's API, and the path of the page that follows it.

        AnswerError if it is no JSON, too large, or does not come soon.
        """
        data, end = bytearray(), time.monotonic() + BRIEF_STALLS * self._stall_timeout
        with self._answer("GET", f"{self._address.endpoint}{page}", "") as response:
            for piece in response.iter_raw():
                data += piece
                if len(data) > _MOST_JSON:
                    raise AnswerError(
                        Fault("other", f"the answer has more than the {_MOST_JSON} bytes that are expected")
                    )
                if time.monotonic() > end:
                    raise AnswerError(Fault("timeout", "the answer did not come whole in time"))
            after = response.links.get("next", {}).get("url")
        try:
            found = json.loads(data)
            parts = urlsplit(after or "")  # of a mirror, which may name the Hub itself
        except (ValueError, RecursionError):
            raise AnswerError(Fault("other", "the Hub's answer is not JSON; see HF_ENDPOINT")) from None
        below = parts.path.removeprefix(urlsplit(self._address.endpoint).path)
        if after and not below.startswith("/"):  # as a part of a host's name it would lead to another one
            raise AnswerError(Fault("other", f"the Hub names {after[:100]!r} as the next page; see HF_ENDPOINT"))
        return found, f"{below}?{parts.query}" if after else None

    def _stream(self, key: str, file: _File, start: int, end: int) -> Iterator[bytes]:
        """Bytes ``[start, end)`` of a file, as they come."""
        if start == end:
            return
        with self._answer("GET", file.url, key, {"Range": f"bytes={start}-{end - 1}"}) as response:
            if response.status_code == 206:
                told = response.headers.get("Content-Range", "")
                if told.split() != ["bytes", f"{start}-{end - 1}/{file.info.size}"]:
                    detail = f"{told[:80]!r} came where [{start}, {end}) was asked for"
                    raise AnswerError(Fault("cut", detail, answered=True))
            elif response.status_code != 200 or (start, end) != (0, file.info.size):
                detail = f"the server answers no ranges of bytes (HTTP {response.status_code})"
                raise AnswerError(Fault("other", detail))
            yield from response.iter_raw()

    @contextmanager
    def _answer(self, method: str, url: str, key: str, headers: Mapping[str, str] = {}) -> Iterator[httpx2.Response]:
        """The answer of the Hub, or of where it leads; to ``HEAD``, the redirect that leads to another server."""
        if is_offline_mode():
            url = self._url(key)
            raise StorageError(f"{url}: HF_HUB_OFFLINE is set. Unset it, or read a copy of the dataset.", url=url)
        stall = self._stall_timeout
        login = self._address.login() if self._is_ours(httpx2.URL(url)) else {}
        try:
            connections = self._connections = self._connections or _connections()
            request = connections.build_request(
                method,
                url,
                headers={"User-Agent": f"stoker/{__version__}", "Accept-Encoding": "identity", **login, **headers},
                timeout=(stall, stall, stall, None),
            )
            for _ in range(_MOST_REDIRECTS):
                if "https" == self._endpoint.scheme != request.url.scheme:
                    raise AnswerError(
                        Fault("other", "the server redirects from https to an address that is not encrypted")
                    )
                with closing(connections.send(request, stream=True)) as response:
                    following = response.next_request  # without the token where it is to another server
                    if following is None or (method == "HEAD" and following.url.origin != request.url.origin):
                        if response.status_code >= 400:
                            raise self._refusal(response, key)
                        yield response
                        return
                    request = following
            fault = Fault("other", "the server redirects in a circle")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            fault = _fault_of(error)
        raise AnswerError(fault)

    def _refusal(self, response: httpx2.Response, key: str) -> Exception:
        """The error that an answer of an error's status means. That of a missing dataset or revision has the folder's URL."""
        status, of = response.status_code, self._address
        url, page = self._url(key), f"{of.endpoint}/datasets/{of.repo}"
        if not self._is_ours(response.url) and status in (400, 401, 403, 404, 410):
            self._files.pop(key, None)  # the address expired
            return AnswerError(Fault("transient", f"HTTP {status} from {response.url.host}", answered=True))
        nobody = "Authorization" not in response.request.headers
        who = "a request without a token" if nobody else of.identity
        if is_busy(status):
            limit = parse_ratelimit_headers(response.headers)
            after = seconds_to_wait(response.headers) or 0.0
            if limit is not None and not limit.remaining:
                after = limit.reset_in_seconds + 1.0  # the Hub cuts fractions off
            detail = f"HTTP {status}{' too many requests' if status == 429 else ''}"
            if after:
                detail += f", and the Hub says to come back in {after:.0f} s"
            if status == 429 and nobody:
                detail += " (it allows more with a token: HF_TOKEN)"
            return AnswerError(Fault("transient", detail, answered=True), after)
        remedy = "give a token: HF_TOKEN, `hf auth login`, or storage_options={'token': ...}."
        # As huggingface_hub reads them, and without the answer's body, which may have no end.
        code, told = (response.headers.get(f"X-Error-{name}", "")[:_MOST_SHOWN] for name in ("Code", "Message"))
        if code == "GatedRepo":
            text = f"{url}: the dataset is gated, and {who} has no access. Accept its terms at {page}, then, as that account,"
            return AccessDeniedError(f"{text} {remedy}", url=url)
        if code == "RevisionNotFound":
            text = f"{of.url}: the dataset has no revision {of.revision!r}. Its branches and tags are at {page}."
            return ObjectNotFoundError(text, url=of.url)
        if code == "RepoNotFound" or (status == 401 and told != "Invalid credentials in Authorization header"):
            text = f"{of.url}: there is no dataset {of.repo!r} on {of.endpoint}, or it is private and {who} may not see it."
            return ObjectNotFoundError(f"{text} Check the name, or {remedy}", url=of.url)
        if status in (404, 410):
            return ObjectNotFoundError(f"{url}: no such file at revision {of.revision!r}. Check the path.", url=url)
        detail = " ".join(part for part in (f"HTTP {status}", code, told) if part)
        if status in (401, 403):
            return AccessDeniedError(
                f"{url}: access denied ({detail}) to {who}: check it, or make a token at {of.endpoint}/settings/tokens.",
                url=url,
            )
        return AnswerError(Fault("range" if status == 416 else "other", detail))

    def _is_ours(self, url: httpx2.URL) -> bool:
        return url.origin == self._endpoint.origin

    def _url(self, key: str) -> str:
        return f"{self._address.url}/{key}" if key else self._address.url


def _connections() -> _Connections:
    """Those of this process, through the proxies of the environment; they take a tenth of a second to make."""
    key = (os.getpid(), os.environ.get("SSL_CERT_FILE"), *sorted(getproxies().items()))
    found = _shared.get(key)
    if found is None:
        try:
            found = _shared[key] = _Connections()
        except (httpx2.InvalidURL, OSError, ValueError, ImportError) as error:
            # Other messages can quote a proxy's password.
            reason = error if isinstance(error, OSError | ImportError) else type(error).__name__
            detail = f"a proxy or the certificates of the environment can not be used ({reason}): see HTTPS_PROXY, "
            raise AnswerError(Fault("config", f"{detail}ALL_PROXY, NO_PROXY and SSL_CERT_FILE")) from None
    return found


def _fault_of(error: Exception) -> Fault:
    """The meaning of a failure in which no server answered with a status."""
    text = str(error)
    if isinstance(error, httpx2.TimeoutException):
        return Fault("timeout", "the server sent nothing within the stall time")
    if "certificate" in text.lower():
        return Fault(
            "other", f"the server's TLS certificate is not trusted ({text[:_MOST_SHOWN]}; SSL_CERT_FILE adds one)"
        )
    if "Too many open files" in text:
        return Fault("other", "this process may open no more files or connections: raise the limit (ulimit -n)")
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return Fault("transient", f"can not connect ({text[:_MOST_SHOWN]})")
    if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):
        return Fault("transient", "the connection broke before the answer was whole")
    return Fault("other", f"the server's answer is not understood ({type(error).__name__})")

"""A server that speaks the API of the Hugging Face Hub, and a second one, with addresses that expire, for large files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from patience import PATIENCE

__all__ = ["Fault", "Hub", "Repo", "own_hub", "serve_hub"]

LARGE = 1000


@dataclass
class Repo:
    """A dataset: its commits, oldest first, and the names of some of them."""

    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{}])
    tags: dict[str, int] = field(default_factory=dict)
    card: dict[str, Any] | None = None
    gated: bool = False
    private: bool = False

    def commit_of(self, revision: str) -> int | None:
        """The number of the commit that a revision names."""
        if revision == "main":
            return len(self.commits) - 1
        if revision in self.tags:
            return self.tags[revision]
        names = [sha_of(number) for number in range(len(self.commits))]
        return names.index(revision) if revision in names else None


def sha_of(number: int) -> str:
    """The name of a commit."""
    return hashlib.sha1(str(number).encode()).hexdigest()


@dataclass
class Fault:
    """An answer in place of the right one.

    Attributes:
        matches: whether it is meant for a request, ``"GET /path?query"``.
        status: of HTTP; 0 closes the connection without an answer, -1 in the middle of the body.
        times: how often.
    """

    matches: Callable[[str], bool]
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1


class Hub:
    """Datasets, the requests that came, and faults to answer with."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.token = "hf_right"
        self.page = 1000
        self.requests: list[str] = []
        self.cdn_requests: list[str] = []
        self.leaked: list[str] = []
        self.connections: set[tuple[str, int]] = set()
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        self.endpoint = self.cdn = ""
        self.generation = 0
        self.takes_ranges = True

    def fault(self, request: str) -> Fault | None:
        with self.lock:
            for one in self.faults:
                if one.times > 0 and one.matches(request):
                    one.times -= 1
                    return one
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    is_cdn = False

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        request = f"{self.command} {self.path}"
        with self.hub.lock:
            self.hub.connections.add(self.client_address)
            (self.hub.cdn_requests if self.is_cdn else self.hub.requests).append(request)
            if (self.is_cdn and self.headers.get("Authorization")) or self.headers.get("Cookie"):
                self.hub.leaked.append(request)
        fault = self.hub.fault(request)
        if fault is not None and fault.status == 0:
            self.close_connection = True
            return
        if fault is not None and fault.status > 0:
            self.answer(fault.status, b"", dict(fault.headers))
            return
        self.cut = fault is not None
        if self.is_cdn:
            self.serve_bytes()
        else:
            self.serve_api()

    def answer(self, status: int, data: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if self.cut else data)
            self.close_connection |= self.cut

    cut = False

    def refuse(self, status: int, code: str, message: str = "") -> None:
        self.answer(status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def repo(self, owner: str, name: str) -> Repo | None:
        """The dataset, if whoever asks may know of it."""
        login = self.headers.get("Authorization")
        if login not in (None, f"Bearer {self.hub.token}"):
            self.answer(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
            return None
        found = self.hub.repos.get(f"{owner}/{name}")
        if found is None or (found.private and login is None):
            self.refuse(401 if login is None else 404, "RepoNotFound", "Repository not found")
            return None
        return found

    def serve_api(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path.split("/")[1:]
        if path[0] == "api" and path[1] == "resolve-cache":
            self.serve_small(unquote("/".join(path[2:])))
            return
        api = path[0] == "api"
        kind_at = 4 if api else 3
        owner, name = path[kind_at - 2 : kind_at]
        repo = self.repo(unquote(owner), unquote(name))
        if repo is None:
            return
        path += ["revision", "main"] if len(path) == kind_at else []
        kind, revision, rest = path[kind_at], unquote(path[kind_at + 1]), unquote("/".join(path[kind_at + 2 :]))
        number = repo.commit_of(revision)
        if number is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif kind == "revision":
            found = {"id": f"{owner}/{name}", "sha": sha_of(number), "cardData": repo.card or {}}
            self.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        elif kind == "tree":
            self.serve_tree(repo.commits[number], rest, parse_qs(parts.query), parts.path)
        else:
            self.serve_resolve(repo, number, f"{unquote(owner)}/{unquote(name)}", rest)

    def serve_tree(self, files: Mapping[str, bytes], folder: str, query: Mapping[str, list[str]], path: str) -> None:
        below = sorted(key for key in files if not folder or key.startswith(f"{folder}/"))
        if folder and not below:
            self.refuse(404, "EntryNotFound", f"{folder} does not exist")
            return
        entries: list[dict[str, Any]] = (
            [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "x"}] if below else []
        )
        for key in below:
            data = files[key]
            entry: dict[str, Any] = {"type": "file", "oid": git_of(data), "size": len(data), "path": key}
            if len(data) >= LARGE:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
                entry["oid"] = git_of(b"pointer of " + hashlib.sha256(data).digest())
            entries.append(entry)
        first = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if first + self.hub.page < len(entries):
            url = f"{self.hub.endpoint}{path}?recursive=true&cursor={first + self.hub.page}"
            headers["Link"] = f'<{url}>; rel="next"'
        self.answer(200, json.dumps(entries[first : first + self.hub.page]).encode(), headers)

    def serve_resolve(self, repo: Repo, number: int, name: str, key: str) -> None:
        if repo.gated and self.headers.get("Authorization") is None:
            self.refuse(401, "GatedRepo", f"Access to dataset {name} is restricted.")
            return
        data = repo.commits[number].get(key)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": sha_of(number)}
        if len(data) >= LARGE:
            sha = hashlib.sha256(data).hexdigest()
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{sha}"'}
            signed = (
                f"{self.hub.cdn}/{quote(name, safe='')}/{number}/{quote(key)}?sig=a%2Fb&until={self.hub.generation}"
            )
            self.answer(302, b"", headers | {"Location": signed})
        else:
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{git_of(data)}"'}
            self.answer(307, b"", {"Location": f"/api/resolve-cache/{quote(name, safe='')}/{number}/{quote(key)}"})

    def serve_small(self, path: str) -> None:
        data = self.stored(path)
        headers = {"X-Repo-Commit": sha_of(int(path.split("/")[2])), "X-Linked-Size": str(len(data))}
        self.ranged(data, headers | {"ETag": f'"{git_of(data)}"'})

    def serve_bytes(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if query.get("sig") != ["a/b"] or query.get("until") != [str(self.hub.generation)]:
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        self.ranged(self.stored(unquote(parts.path)[1:]), {})

    def stored(self, path: str) -> bytes:
        owner, name, number, key = path.split("/", 3)
        return self.hub.repos[f"{owner}/{name}"].commits[int(number)][key]

    def ranged(self, data: bytes, headers: Mapping[str, str]) -> None:
        asked = self.headers.get("Range")
        if asked is None or not self.hub.takes_ranges:
            self.answer(200, data, headers)
            return
        first, last = asked.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) + 1, len(data))
        self.answer(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})


def git_of(data: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A Hub without datasets, as long as the context lasts."""
    hub = Hub()
    servers = []
    for is_cdn in (False, True):
        handler = type("Handler", (_Handler,), {"hub": hub, "is_cdn": is_cdn})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        servers.append((server, thread))
    hub.endpoint, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server, _ in servers)
    try:
        yield hub
    finally:
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join(PATIENCE)


@contextmanager
def own_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """A Hub that the environment names, asked by nobody, of which nothing is known."""
    from huggingface_hub import constants

    from stoker.storage.hub.hub_store import kept_listings, recent_commits

    for name in ("HF_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # Which huggingface_hub reads from the environment when it is imported.
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    recent_commits.clear()
    kept_listings.clear()
    with serve_hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        yield made

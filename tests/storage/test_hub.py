"""Datasets of the Hugging Face Hub as a store, from a server that speaks its API."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from huggingface_hub import set_client_factory

from hub_server import Fault, Hub, Repo, own_hub, sha_of
from patience import PATIENCE
from stoker.errors import (
    AccessDeniedError,
    ConfigError,
    MissingPackageError,
    ObjectNotFoundError,
    StorageError,
    StorageTimeoutError,
)
from stoker.storage import RetryPolicy, Store, open_store
from stoker.storage.hub import hub_store
from stoker.storage.hub.hub_client import HubClient
from stoker.storage.hub.hub_store import HubStore, kept_listings, recent_commits
from stoker.storage.remote.response_bodies import seconds_to_wait
from stoker.testing import ReadOnlyStoreTests

pytestmark = pytest.mark.processes

FAST = RetryPolicy(1.0, base_delay=0.01)
LARGE = bytes(range(256)) * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with own_hub(monkeypatch, tmp_path) as made:
        yield made


class TestHub(ReadOnlyStoreTests):
    """The Hub, which is only read."""

    hub: Hub

    @pytest.fixture(autouse=True)
    def _hub(self, hub: Hub) -> None:
        self.hub = hub
        hub.page = 2

    def open(self, path: str) -> Store:
        return open_store(f"hf://datasets/o/n/{path}")

    def fill(self, path: str, objects: Mapping[str, bytes]) -> None:
        repo = self.hub.repos.setdefault("o/n", Repo())
        repo.commits.append(repo.commits[-1] | {f"{path}/{key}": data for key, data in objects.items()})
        recent_commits.clear()

    def test_versions_tell_an_object_from_its_replacement(self) -> None:
        """By stores that are opened one after the other: each reads one commit."""
        self.fill("p", {"a": b"0123456789"})
        store = self.open("p")
        first = store.head("a").version
        assert [bytes(part) for part in store.get_ranges("a", [2, 7], [4, 9], version=first)] == [b"23", b"78"]
        self.fill("p", {"a": b"abcdefghij"})
        again = self.open("p")
        second = again.head("a").version
        assert (store.head("a").version, again.read("a", max_bytes=10)[1].version) == (first, second)
        assert first != second
        for call in (
            lambda: again.get_ranges("a", [2], [4], version=first),
            lambda: again.read_into("a", memoryview(bytearray(2)), start=3, version=first),
        ):
            with pytest.raises(StorageError, match="written to since"):
                call()

    def test_listing_gives_keys_sizes_and_versions_of_whole_folders_in_pages(self) -> None:
        objects = {"a/x": b"1", "a/y/z": LARGE, "ab/x": b"", "b é?#%20": b"22", "c": b"3"}
        store = self.filled(objects)
        assert [(info.key, info.size) for info in store.list()] == sorted(
            (key, len(data)) for key, data in objects.items()
        )
        assert [info.key for info in store.list("a")] == ["a/x", "a/y/z"]
        assert list(store.list("nothing")) == []
        assert list(self.open("nothing").list()) == []
        pages = [one for one in self.hub.requests if "/tree/" in one and "nothing" not in one]
        assert len(pages) == 3, "two entries a page"
        fresh = self.open(store.url.split("/", 5)[5])
        kept_listings.clear()
        assert [fresh.head(info.key).version for info in store.list()] == [info.version for info in store.list()]


def _store(hub: Hub, files: Mapping[str, bytes], url: str = "hf://datasets/o/n", **options: Any) -> Store:
    hub.repos["o/n"] = Repo([dict(files)])
    return open_store(url, options, retry=FAST, stall_timeout=5)


def test_a_file_takes_one_request_to_the_hub_and_its_token_goes_nowhere_else(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    store = _store(hub, {"a.bin": LARGE})
    hub.repos["o/n"].private = True
    for start in range(0, 10_000, 1000):
        assert store.get_range("a.bin", start, start + 10) == LARGE[start : start + 10]
    assert [re.sub("[0-9a-f]{40}", "SHA", one) for one in hub.requests] == [
        "GET /api/datasets/o/n/revision/main?expand=sha&expand=cardData",
        "HEAD /datasets/o/n/resolve/SHA/a.bin",
    ]
    assert len(hub.cdn_requests) == 10
    assert hub.leaked == []


def test_no_redirect_page_or_cookie_takes_the_token_or_a_login_elsewhere(hub: Hub) -> None:
    store = _store(hub, {"a": b"x", "b": LARGE}, token=hub.token)
    hub.faults.append(Fault(lambda request: "/revision/" in request, 503, {"Set-Cookie": "login=mine"}))
    hub.faults.append(Fault(lambda request: "/tree/" in request, 307, {"Location": f"{hub.cdn}/elsewhere"}))
    hub.faults.append(Fault(lambda request: "/elsewhere" in request, 503))
    hub.page = 1
    hub.endpoint = hub.cdn  # where the next page is said to be
    assert [info.key for info in store.list()] == ["a", "b"]
    assert hub.cdn_requests == ["GET /elsewhere"]
    assert hub.leaked == []


def test_a_folder_of_a_missing_dataset_is_not_an_empty_one(hub: Hub) -> None:
    assert list(_store(hub, {"a": b"x"}, f"hf://datasets/o/n@{sha_of(0)}/d").list()) == []
    for url in (f"hf://datasets/o/nope@{sha_of(0)}/d", f"hf://datasets/o/n@{sha_of(9)}/d"):
        with pytest.raises(ObjectNotFoundError, match=r"there is no dataset 'o/nope'|no revision"):
            list(open_store(url).list())


@pytest.mark.parametrize(("name", "value"), [("http_proxy", "x://u:hidden@p:1"), ("SSL_CERT_FILE", "/nonexistent")])
def test_a_proxy_or_certificates_that_can_not_be_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"hf://datasets/o/n: a proxy or the certificates.*SSL_CERT_FILE") as raised:
        list(_store(hub, {"a": b"x"}).list())
    assert "hidden" not in str(raised.value)


def test_all_is_read_of_the_commit_that_was_there_first(hub: Hub) -> None:
    store = _store(hub, {"a": b"old", "b": LARGE})
    assert store.get("a", max_bytes=9) == b"old"
    hub.repos["o/n"].commits.append({"a": b"new", "b": LARGE[1:]})
    recent_commits.clear()
    copy = pickle.loads(pickle.dumps(store))
    for one in (store, copy):
        assert one.get("a", max_bytes=9) == b"old"
        assert one.get("b", max_bytes=99_999) == LARGE
        assert [info.size for info in one.list()] == [3, len(LARGE)]
    assert open_store("hf://datasets/o/n").get("a", max_bytes=9) == b"new"
    assert open_store(f"hf://datasets/o/n@{sha_of(0)}").get("a", max_bytes=9) == b"old"


@pytest.mark.parametrize("spelled", ["v1", "refs/convert/parquet", "refs%2Fconvert%2Fparquet", "feature%2Fx"])
def test_revisions(hub: Hub, spelled: str) -> None:
    hub.repos["o/n"] = Repo(
        [{"d/a": b"tagged"}, {"d/a": b"main"}], tags={"v1": 0, "refs/convert/parquet": 0, "feature/x": 0}
    )
    assert open_store(f"hf://datasets/o/n@{spelled}/d").get("a", max_bytes=9) == b"tagged"


def _in_a_fork(store: Store, results: Any) -> None:
    results.put((store.get("b", max_bytes=99_999) == LARGE, len(list(store.list()))))


@pytest.mark.processes
def test_a_fork_reads_on(hub: Hub) -> None:
    import obstore  # noqa: F401 - which would need a helper process

    store = _store(hub, {"b": LARGE})
    assert store.get("b", max_bytes=99_999) == LARGE
    before = set(hub.connections)
    hub.connections.clear()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_a_fork, args=(store, results))
    child.start()
    try:
        assert results.get(timeout=PATIENCE) == (True, 1)
    finally:
        child.join(PATIENCE)
        child.kill()
    assert hub.connections, "of the fork's own"
    assert not hub.connections & before
    assert store.get("b", max_bytes=99_999) == LARGE


@pytest.fixture
def no_session() -> Iterator[None]:
    """A session of the package's that nobody may use: it hangs in a fork where a thread of the parent held its lock."""

    def refuse() -> httpx2.Client:
        raise AssertionError("the package's own session is used")

    set_client_factory(refuse)
    yield
    set_client_factory(lambda: httpx2.Client(follow_redirects=True))


def test_nothing_is_asked_but_for_the_dataset(hub: Hub, no_session: None) -> None:
    store = _store(hub, {"b": LARGE}, token=hub.token)
    assert [info.size for info in store.list()] == [len(LARGE)]
    assert store.get("b", max_bytes=99_999) == LARGE
    assert all("/datasets/o/n/" in one for one in hub.requests)


@pytest.mark.parametrize("where", ["/revision/", "/tree/", "HEAD /datasets/", "/o%2Fn/"])
@pytest.mark.parametrize(
    ("status", "headers"),
    [(429, {"Retry-After": "0"}), (429, {"RateLimit": '"api";r=0;t=0'}), (503, {}), (0, {}), (-1, {})],
)
def test_faults_that_pass_are_tried_again(hub: Hub, where: str, status: int, headers: Mapping[str, str]) -> None:
    store = _store(hub, {"b": LARGE})
    hub.faults.append(
        Fault(lambda request: where in request, status, headers, times=1 if "RateLimit" in headers else 2)
    )
    assert [info.size for info in store.list()] == [len(LARGE)]
    assert store.get("b", max_bytes=99_999) == LARGE


@pytest.mark.parametrize("headers", [{"Retry-After": "100000"}, {"RateLimit": '"api";r=0;t=99999', "Retry-After": "7"}])
def test_a_rate_limit_is_waited_for_and_named_where_it_is_too_long(hub: Hub, headers: Mapping[str, str]) -> None:
    store = _store(hub, {"b": LARGE})
    hub.faults.append(Fault(lambda request: "/revision/" in request, 429, headers, times=99))
    with pytest.raises(StorageTimeoutError, match=r"429.*come back in 100000 s.*HF_TOKEN.*after 1 attempt"):
        list(store.list())
    assert len(hub.requests) == 1


def test_when_to_come_back() -> None:
    from email.utils import formatdate
    from time import time

    def seconds(text: str) -> float | None:
        return seconds_to_wait({"Retry-After": text})

    assert seconds_to_wait({}) is None
    assert seconds("7") == 7
    assert seconds("nonsense") is None
    assert 30 < (seconds(formatdate(time() + 100, usegmt=True)) or 0) < 101
    assert seconds(formatdate(0, usegmt=True)) == 0


def test_an_expired_address_is_asked_for_again(hub: Hub) -> None:
    store = _store(hub, {"b": LARGE})
    assert store.get_range("b", 0, 5) == LARGE[:5]
    hub.generation += 1
    assert store.get_range("b", 5, 10) == LARGE[5:10]
    assert sum("HEAD" in one for one in hub.requests) == 2


def test_a_server_without_ranges_is_refused(hub: Hub) -> None:
    store = _store(hub, {"b": LARGE})
    hub.takes_ranges = False
    assert store.get("b", max_bytes=99_999) == LARGE, "all of the file, which needs no range"
    with pytest.raises(StorageError, match="no ranges"):
        store.get_range("b", 1, 5)


def test_a_list_whose_pages_go_round_is_refused(hub: Hub) -> None:
    store = _store(hub, {"b": LARGE})
    hub.page = 0
    with pytest.raises(StorageError, match="list of files has no end"):
        list(store.list())


@pytest.mark.parametrize(
    ("entries", "link", "said"),
    [
        ([{"type": "file", "path": "a", "size": -5}], "", "'a' has -5 bytes"),
        ([{"type": "file", "path": "a", "size": True}], "", "'a' has True bytes"),
        ([{"type": "file", "path": "a", "size": 10**30}], "", "'a' has 1000"),
        ([{"type": "file", "path": "../a", "size": 5}], "", "is not a path in a dataset"),
        ([{"type": "file", "path": "/a", "size": 5}], "", "is not a path in a dataset"),
        ([], "/api/datasets/o/n/tree?cursor={number}", "list of files has no end"),
        ([{"type": "file", "path": "{number}", "size": 5}], "/api/datasets/o/n/tree?cursor={number}", "no end"),
        ([{"type": "file", "path": "a", "size": 5}], "@127.0.0.1:1/x", "as the next page"),
    ],
)
def test_a_list_that_no_hub_makes_is_refused(
    entries: list[dict[str, Any]], link: str, said: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store(hub, {"b": LARGE})
    assert isinstance(store, HubStore)
    store.commit()
    numbers = itertools.count()
    monkeypatch.setattr(hub_store, "_MOST_PAGES", 5)

    @contextmanager
    def answer(*_: Any) -> Iterator[Any]:
        number = next(numbers)
        data = json.dumps(entries).replace("{number}", str(number)).encode()
        links = {"next": {"url": link.replace("{number}", str(number))}} if link else {}
        yield SimpleNamespace(iter_raw=lambda: iter([data]), links=links)

    monkeypatch.setattr(HubClient, "_answer", answer)
    with pytest.raises(StorageError, match=said):
        list(store.list())
    assert next(numbers) <= 6


def test_stores_that_are_opened_side_by_side_read_one_commit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(self: hub_store.HubFolder, revision: str) -> hub_store.HubCommit:
        asked.append(revision)
        time.sleep(0.05)  # the other comes meanwhile
        return hub_store.HubCommit(f"{len(asked):040x}", {})

    monkeypatch.setattr(hub_store.HubFolder, "ask_commit", ask)
    recent_commits.clear()
    stores = [_store(hub, {"b": LARGE}) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        found = set(threads.map(lambda store: store.commit().sha, [one for one in stores if isinstance(one, HubStore)]))
    assert (len(found), len(asked)) == (1, 1)


def _gate(repo: Repo) -> None:
    repo.gated = True


def _hide(repo: Repo) -> None:
    repo.private = True


@pytest.mark.parametrize(
    ("change", "url", "options", "error", "match"),
    [
        (
            None,
            "hf://datasets/o/nope",
            {},
            ObjectNotFoundError,
            r"hf://datasets/o/nope: there is no dataset 'o/nope' on http",
        ),
        (
            _hide,
            "hf://datasets/o/n",
            {},
            ObjectNotFoundError,
            r"private and a request without a token may not see it.*HF_TOKEN",
        ),
        (
            _gate,
            "hf://datasets/o/n",
            {},
            AccessDeniedError,
            r"gated.*Accept its terms at http://.*/datasets/o/n.*HF_TOKEN",
        ),
        (None, "hf://datasets/o/n@v9", {}, ObjectNotFoundError, r"no revision 'v9'"),
        (None, "hf://datasets/o/n", {"token": "hf_wrong"}, AccessDeniedError, r"the token in storage_options"),
        (None, "hf://datasets/o/n/x", {}, ObjectNotFoundError, r"hf://datasets/o/n/x/b: no such"),
    ],
)
def test_refusals_say_what_to_do(
    hub: Hub,
    change: Callable[[Repo], None] | None,
    url: str,
    options: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    hub.repos["o/n"] = Repo([{"b": LARGE}])
    if change is not None:
        change(hub.repos["o/n"])
    store = open_store(url, options, retry=FAST)
    with pytest.raises(error, match=match) as raised:
        store.get("b", max_bytes=99_999)
    assert "hf_wrong" not in str(raised.value)
    if "/x" in url:
        assert not store.exists("b")
    elif "gated" not in match and "wrong" not in str(options):
        with pytest.raises(ObjectNotFoundError):
            store.exists("b")


@pytest.mark.parametrize("place", ["HF_TOKEN", "login", "options"])
def test_the_token_comes_from_where_others_have_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    from huggingface_hub import constants

    options = {}
    if place == "HF_TOKEN":
        monkeypatch.setenv(place, hub.token)
    elif place == "options":
        options["token"] = hub.token
    else:
        (tmp_path / "token").write_text(f"{hub.token}\n")
    store = _store(hub, {"b": LARGE}, **options)
    hub.repos["o/n"].private = True
    assert store.exists("b")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    if place != "options":
        recent_commits.clear()
        for more in ({}, {"token": False}, {"token": ""}):
            with pytest.raises(ObjectNotFoundError, match="without a token"):
                open_store("hf://datasets/o/n", more).exists("b")


def test_a_login_that_can_not_be_used_is_refused_without_its_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(hub, {"b": LARGE})
    monkeypatch.setenv("HF_TOKEN", "hf_a b")
    with pytest.raises(ConfigError, match=r"HF_TOKEN.*spaces or control characters") as raised:
        store.exists("b")
    assert "hf_a" not in str(raised.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match="LocalTokenNotFoundError"):
        open_store("hf://datasets/o/n", {"token": True}).exists("b")


def test_offline_nothing_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    store = _store(hub, {"b": LARGE})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StorageError, match="HF_HUB_OFFLINE is set"):
        store.exists("b")
    assert hub.requests == []


def test_nothing_is_written_where_the_package_keeps_its_files(hub: Hub, tmp_path: Path) -> None:
    hub.repos["o/n"] = Repo([{"b": LARGE}])
    code = (
        "from stoker.storage import open_store; print(len(open_store('hf://datasets/o/n').get('b', max_bytes=99_999)))"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "HOME": str(tmp_path), "HF_ENDPOINT": hub.endpoint},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == (f"{len(LARGE)}\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["huggingface_hub", "httpx2"])
def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"hf:// needs huggingface_hub.*pip install 'stoker\[hf\]'"):
        open_store("hf://datasets/o/n")


@pytest.mark.parametrize(
    "url",
    ["hf://datasets/n", "hf://datasets/", "hf://o/n", "hf://models/o/n", "hf://datasets/o/@v", "hf://datasets/@/n"],
)
def test_urls_that_name_no_dataset(url: str) -> None:
    with pytest.raises(ConfigError, match="hf://datasets/<owner>/<name>"):
        open_store(url)


@pytest.mark.parametrize(
    "options",
    [
        {"region": "x"},
        *({"endpoint": one} for one in ("ftp://x", "https://u:p@x", "https://x:port", "https://[::1", "x", 3)),
        {"token": "a b"},
        {"token": 3},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        open_store("hf://datasets/o/n", options)


def test_nothing_is_written(hub: Hub, tmp_path: Path) -> None:
    store = _store(hub, {})
    (tmp_path / "x").write_bytes(b"x")
    calls: list[Callable[[], object]] = [
        lambda: store.put("a", b"x"),
        lambda: store.put_file("a", tmp_path / "x"),
        lambda: store.put_stream("a", lambda: iter([b"x"])),
        lambda: store.delete("a"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="read-only here"):
            call()


def test_a_proxy_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(hub, {"a": b"x"}, endpoint="http://hub.invalid")
    monkeypatch.setenv("http_proxy", hub.endpoint)
    monkeypatch.setenv("no_proxy", "")
    assert store.get("a", max_bytes=9) == b"x"
    assert any(one.startswith("GET http://hub.invalid/api/datasets/o/n/") for one in hub.requests)


def test_the_server_is_as_the_hubs_own_client_knows_the_hub(hub: Hub, tmp_path: Path) -> None:
    import huggingface_hub as client

    files = {"a/x": b"1", "a/y": LARGE, "b": b""}
    hub.repos["o/n"] = Repo([files])
    hub.page = 2
    api = client.HfApi(endpoint=hub.endpoint, token=hub.token)
    found = [one for one in api.list_repo_tree("o/n", repo_type="dataset", recursive=True) if hasattr(one, "size")]
    assert {one.path: one.size for one in found} == {key: len(data) for key, data in files.items()}
    assert api.dataset_info("o/n").sha == sha_of(0)
    for key, data in files.items():
        path = api.hf_hub_download("o/n", key, repo_type="dataset", cache_dir=tmp_path / "c")
        assert Path(path).read_bytes() == data
    assert os.listdir(tmp_path / "c")

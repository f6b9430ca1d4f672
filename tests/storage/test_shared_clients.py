"""Stores of one bucket with the same settings have one client: it takes milliseconds to make, and has connections."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest

from stoker.storage import open_store
from stoker.storage.store import Store

OPTIONS = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1", "endpoint": "http://127.0.0.1:1"}


def clients_of(store: Store) -> list[Any]:
    backend: Any = store.backend()
    return list(backend._clients)


def test_stores_of_one_bucket_share_clients_while_one_of_them_lives() -> None:
    first, second = (open_store(f"s3://shared/{name}", OPTIONS) for name in ("a", "b"))
    copy = pickle.loads(pickle.dumps(first))
    assert clients_of(first) == clients_of(second) == clients_of(copy)
    shared = weakref.ref(clients_of(first)[0])
    del first, second, copy
    gc.collect()
    assert shared() is None


@pytest.mark.parametrize(
    ("url", "changed", "settings"),
    [
        ("s3://other/a", {}, {}),
        ("s3://shared/a", {"secret_access_key": "c"}, {}),
        ("s3://shared/a", {"endpoint": "http://127.0.0.1:2"}, {}),
        ("s3://shared/a", {"client_options": {"timeout": "5s"}}, {}),
        ("s3://shared/a", {"credential_provider": lambda: {"access_key_id": "x", "secret_access_key": "y"}}, {}),
        ("s3://shared/a", {}, {"stall_timeout": 5.0}),
    ],
)
def test_other_settings_have_clients_of_their_own(url: str, changed: dict[str, Any], settings: Any) -> None:
    first = open_store("s3://shared/a", OPTIONS)
    options = OPTIONS | changed
    if "credential_provider" in changed:
        options = {name: value for name, value in options.items() if "key" not in name}
    assert clients_of(first) != clients_of(open_store(url, options, **settings))


def test_another_environment_has_clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store("s3://shared/a", OPTIONS)
    before = clients_of(first)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert clients_of(open_store("s3://shared/a", OPTIONS)) != before

"""Objects that boto3 and minio fetch for stoker's stores: the contract of a store, settings, waits, hostile servers."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from object_client_checks import CUT_RANGES, LARGE_FETCHES, check_cut_range, check_trickle
from scripted_server import serve, status

from s3server import Bucket
from stoker.errors import ConfigError, MissingPackageError, StorageTimeoutError
from stoker.storage import Store, open_store
from stoker.testing import ReadOnlyStoreTests

LIBRARIES = ("boto3", "minio")


@pytest.mark.s3
class TestBoto3(ReadOnlyStoreTests):
    """An S3 server, from which boto3 fetches, in parts."""

    bucket: Bucket
    more: Mapping[str, str] = {"library": "boto3", "part_size": "1MB"}

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: Bucket) -> None:
        pytest.importorskip(self.more["library"])
        self.bucket = bucket

    def open(self, path: str) -> Store:
        return open_store(f"{self.bucket.url}/{path}", {**self.bucket.storage_options, **self.more})


class TestMinio(TestBoto3):
    """An S3 server, from which minio fetches."""

    more: Mapping[str, str] = {"library": "minio"}


@pytest.mark.processes
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_gets_the_settings_of_the_store_or_refuses_them(library: str) -> None:
    pytest.importorskip(library)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = {
            "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "access_key_id": "a",
            "secret_access_key": "b",
            "library": library,
            "patience": 0,
        }
        with pytest.raises(StorageTimeoutError, match="gave up after 1 attempt"):
            open_store("s3://b", given, stall_timeout=0.3).get("a", max_bytes=1)  # a server that says nothing
        with pytest.raises(ConfigError, match=r"'proxy_url'.* can not be passed on to"):
            open_store("s3://b", {**given, "proxy_url": "http://127.0.0.1:1"}).get("a", max_bytes=1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    given = {"endpoint": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "b", "library": library}
    with pytest.raises(MissingPackageError, match=f"{library} is not installed: pip install {library}"):
        open_store("s3://b", given).get("a", max_bytes=1)


@pytest.mark.processes
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("code", [429, 503])
def test_a_library_shows_when_a_store_wants_to_be_asked_again(library: str, code: int) -> None:
    pytest.importorskip(library)
    body = b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>"
    with serve(status(code, body, "Retry-After: 100000\r\nContent-Type: application/xml\r\n")) as server:
        given = {"endpoint": server.endpoint, "access_key_id": "a", "secret_access_key": "b", "library": library}
        with pytest.raises(StorageTimeoutError, match=rf"{code} SlowDown.*gave up after 1 attempt"):
            open_store("s3://bucket", {**given, "region": "us-east-1"}).get("a", max_bytes=1)


@pytest.mark.processes
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("told", CUT_RANGES)
def test_a_range_that_comes_cut_or_shifted_is_asked_for_again_and_said(
    library: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cut_range(library, told, tmp_path, caplog, monkeypatch)


@pytest.mark.processes
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("fetch", LARGE_FETCHES)
def test_a_byte_now_and_then_is_noticed_in_a_large_object(library: str, fetch: str, tmp_path: Path) -> None:
    check_trickle(library, fetch, tmp_path)


def test_an_unknown_library_is_named() -> None:
    with pytest.raises(ConfigError, match=r"storage_options\['library'\] is 'mini': .*did you mean 'minio'"):
        open_store("s3://b", {"library": "mini"})

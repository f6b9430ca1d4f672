"""A real S3 server: identities, errors, uploads."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from s3server import Bucket, S3Server
from stoker.errors import AccessDeniedError, ConfigError, ObjectNotFoundError
from stoker.storage import RetryPolicy, open_store

pytestmark = pytest.mark.s3


def test_the_environment_is_the_default(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.server.environ.items():
        monkeypatch.setenv(name, value)
    open_store(f"{bucket.url}/x").put("a/b", b"data")
    assert bucket.keys() == ["x/a/b"]


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"])
def test_every_spelling_of_the_endpoint_is_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, bucket.server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.server.secret)
    store = open_store(bucket.url)
    store.put("a", b"data")
    assert bucket.keys() == ["a"]


def test_options_beat_the_environment_as_a_whole(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "would not go with the options' key")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    good = open_store(bucket.url, bucket.storage_options)
    good.put("a", b"data")
    assert good.get("a", max_bytes=1 << 30) == b"data"
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    wrong = open_store(bucket.url, {"endpoint": bucket.server.endpoint})
    with pytest.raises(AccessDeniedError):
        wrong.get("a", max_bytes=1 << 30)
    assert good.get("a", max_bytes=1 << 30) == b"data"


def test_names_of_other_libraries_are_understood(bucket: Bucket) -> None:
    server = bucket.server
    options = {
        "aws_access_key_id": server.key,
        "aws_secret_access_key": server.secret,
        "endpoint_url": server.endpoint,
        "region_name": "us-east-1",
        "client_options": {"timeout": "1min"},
    }
    open_store(bucket.url, options).put("a", b"data")
    assert bucket.keys() == ["a"]


def test_profiles_of_the_shared_files_are_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = bucket.server
    (tmp_path / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {server.endpoint}\n")
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = AKIAX\naws_secret_access_key = y\n\n"
        f"[lab]\naws_access_key_id = {server.key}\naws_secret_access_key = {server.secret}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(AccessDeniedError, match="default"):
        open_store(bucket.url, {"endpoint": server.endpoint}).get("a", max_bytes=1 << 30)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    open_store(bucket.url).put("a", b"data")
    monkeypatch.delenv("AWS_PROFILE")
    assert bucket.keys() == ["a"]
    assert open_store(bucket.url, {"profile": "lab"}).get("a", max_bytes=1 << 30) == b"data"


@pytest.mark.parametrize("wrong", [{"secret_access_key": "SECRETwrong"}, {"access_key_id": "AKIAWRONG"}])
def test_wrong_credentials_are_called_so_at_once(bucket: Bucket, wrong: dict[str, str], tmp_path: Path) -> None:
    open_store(bucket.url, bucket.storage_options).put("a", b"data")
    store = open_store(bucket.url, {**bucket.storage_options, **wrong})
    calls: list[Callable[[], object]] = [
        lambda: store.get("a", max_bytes=1 << 30),
        lambda: store.head("a"),
        lambda: store.exists("a"),
        lambda: store.put("b", b""),
        lambda: store.delete("a"),
        lambda: list(store.list()),
        lambda: store.download("a", tmp_path / "t"),
        lambda: store.get_ranges("a", [0, 2], [1, 3]),
    ]
    for call in calls:
        with pytest.raises(AccessDeniedError, match="storage_options") as caught:
            call()
        assert str(caught.value.url).startswith(bucket.url)
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "SECRET" not in str(chain)
            assert bucket.server.secret not in str(chain)
            chain = chain.__context__
    assert bucket.keys() == ["a"]


def test_a_missing_bucket_is_distinguished_from_a_missing_object(s3_server: S3Server, tmp_path: Path) -> None:
    store = open_store("s3://no-such-bucket-anywhere/x", s3_server.storage_options)
    calls: list[Callable[[], object]] = [
        lambda: store.get("a", max_bytes=1 << 30),
        lambda: store.head("a"),
        lambda: store.put("a", b""),
        lambda: store.put("a", b"x" * (20 << 20)),
        lambda: store.put_stream("a", lambda: iter([b"x" * (5 << 20)] * 4)),
        lambda: store.delete("a"),
        lambda: list(store.list()),
        lambda: store.download("a", tmp_path / "t"),
    ]
    for call in calls:
        with pytest.raises(ObjectNotFoundError, match="no bucket 'no-such-bucket-anywhere'"):
            call()
    assert not store.exists("a")


def test_unknown_options_are_named_and_values_are_not(bucket: Bucket) -> None:
    for options in ({"acces_key_id": "SECRET"}, {"client_options": {"bogus": "SECRET"}}):
        with pytest.raises(ConfigError) as caught:
            open_store(bucket.url, {**bucket.storage_options, **options}).get("a", max_bytes=1 << 30)
        assert next(iter(options)) in str(caught.value) or "bogus" in str(caught.value)
        assert "SECRET" not in str(caught.value)


def test_a_listing_has_no_end_at_a_thousand(bucket: Bucket) -> None:
    store = open_store(f"{bucket.url}/x", bucket.storage_options)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"{number:05d}", b""), range(1100)))
    assert [info.key for info in store.list()] == [f"{number:05d}" for number in range(1100)]


def test_large_uploads_come_whole_and_leave_no_parts(bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    data = os.urandom(40 << 20)
    (tmp_path / "source").write_bytes(data)
    store.put_file("file", tmp_path / "source")
    store.put("buffers", [data[: 5 << 20], data[5 << 20 :]])
    assert store.get("file", max_bytes=1 << 30) == data
    assert store.download("buffers", tmp_path / "target").size == len(data)
    assert (tmp_path / "target").read_bytes() == data
    assert not bucket.server.client().list_multipart_uploads(Bucket=bucket.name).get("Uploads")


def test_pickles_work_elsewhere_and_hide_nothing_in_repr(bucket: Bucket) -> None:
    store = open_store(bucket.url, bucket.storage_options, retry=RetryPolicy(patience=2), stall_timeout=7)
    store.put("a", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert bucket.server.secret not in repr(again)
    assert (again._retries.policy.patience, again.stall_timeout) == (2, 7)
    assert again.get("a", max_bytes=1 << 30) == b"x"

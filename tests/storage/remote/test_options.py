"""From options and environment to a client's settings, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ConfigError
from stoker.storage.remote.options import ClientSpec, Cloud, client_spec, detect_cloud
from stoker.storage.url import parse_url


def spec(
    url: str, options: dict[str, Any] | None = None, environ: dict[str, str] | None = None, cloud: Cloud | None = None
) -> ClientSpec:
    environ = {"HOME": "/nonexistent", **(environ or {})}
    return client_spec(parse_url(url), options or {}, environ, stall_timeout=60, cloud=lambda: cloud)


def test_custom_endpoints_get_a_region_and_may_be_plain_http() -> None:
    made = spec("s3://b", {"endpoint": "http://minio:9000/"})
    assert made.config["endpoint"] == "http://minio:9000"
    assert made.config["region"] == "us-east-1"
    assert made.client_options["allow_http"] is True
    assert "allow_http" not in spec("s3://b", {"endpoint": "https://minio"}).client_options
    assert "region" not in spec("s3://b", {"endpoint": "http://m"}, {"AWS_REGION": "eu-west-1"}).config
    assert "region" not in spec("s3://b").config


def test_stalls_end_requests_and_length_does_not() -> None:
    made = spec("s3://b")
    assert made.client_options["read_timeout"] == "60000ms"
    assert made.client_options["connect_timeout"] == "10000ms"
    assert made.client_options["timeout"] == "365days"
    assert spec("s3://b", {"client_options": {"timeout": "5s"}}).client_options["timeout"] == "5s"
    assert spec("s3://b", {"timeout": "5s"}).client_options["timeout"] == "5s"


def test_without_credentials_requests_are_anonymous_except_on_the_clouds_own_machines() -> None:
    assert spec("s3://b").config["skip_signature"] is True
    assert "skip_signature" not in spec("s3://b", cloud="aws").config
    assert spec("s3://b", cloud="gcp").config["skip_signature"] is True
    assert spec("s3://b", environ={"AWS_EC2_METADATA_DISABLED": "true"}, cloud="aws").config["skip_signature"] is True
    assert spec("s3://b", {"skip_signature": False}).config["skip_signature"] is False
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        assert "skip_signature" not in spec("s3://b", environ={name: "x"}).config
    assert spec("gs://b").config["skip_signature"] is True
    assert "skip_signature" not in spec("gs://b", cloud="gcp").config
    assert "skip_signature" not in spec("gs://b", environ={"GOOGLE_APPLICATION_CREDENTIALS": "x"}).config
    assert spec("az://c", {"account_name": "a"}).config["skip_signature"] is True
    assert "skip_signature" not in spec("az://c", {"account_name": "a", "account_key": "k"}).config
    assert "skip_signature" not in spec("az://c", environ={"AZURE_STORAGE_ACCOUNT_KEY": "k"}).config
    assert "skip_signature" not in spec("az://c", cloud="azure").config


def test_credentials_come_from_one_source() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T"}
    made = spec("s3://b", environ=environ).credentials
    assert made is not None
    assert (made.access_key_id, made.session_token) == ("ENV", "T")
    made = spec("s3://b", {"access_key_id": "OPT", "secret_access_key": "S"}, environ).credentials
    assert made is not None
    assert (made.access_key_id, made.session_token) == ("OPT", None)


@pytest.mark.parametrize(
    ("options", "environ", "says"),
    [
        ({"access_key_id": "K"}, {}, "secret_access_key"),
        ({"secret_access_key": "SECRET"}, {}, "access_key_id"),
        ({}, {"AWS_ACCESS_KEY_ID": "K"}, "AWS_SECRET_ACCESS_KEY"),
        ({"retry_config": {}}, {}, "retry="),
        ({"client_options": 3}, {}, "client_options"),
        ({3: 4}, {}, "3"),
    ],
)
def test_halves_are_refused(options: dict[str, Any], environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        spec("s3://b", options, environ)
    assert "SECRET " not in str(caught.value)


def test_nothing_secret_is_in_a_repr() -> None:
    made = spec(
        "s3://b",
        {"access_key_id": "K", "secret_access_key": "SECRET", "session_token": "SECRET", "sse_customer_key": "SECRET"},
    )
    assert "SECRET" not in repr(made)


def test_http_takes_no_credentials() -> None:
    with pytest.raises(ConfigError, match="access_key_id"):
        spec("https://h/x", {"access_key_id": "K"})
    assert spec("http://h/x", {"default_headers": {"a": "b"}}).client_options["allow_http"] is True


def test_a_profile_without_keys_needs_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    assert spec("s3://b", environ={"AWS_PROFILE": "sso"}).profile == "sso"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="boto3"):
        spec("s3://b", environ={"AWS_PROFILE": "sso"})


def test_a_broken_profile_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("no section SECRET")
    with pytest.raises(ConfigError, match=str(tmp_path)) as caught:
        spec("s3://b", environ={"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")})
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({}, None),
        ({"sys_vendor": "Amazon EC2\n"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation"}, None),
        ({"sys_vendor": "QEMU"}, None),
    ],
)
def test_clouds_are_known_by_their_firmware(files: dict[str, str], cloud: str | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert detect_cloud(tmp_path) == cloud

"""Objects of S3 for stoker's stores, fetched by boto3 and minio, by the settings that obstore would get.

Entry points name the two functions: ``storage_options={"library": "boto3"}``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from stoker.errors import ConfigError, MissingPackageError
from stoker.storage.remote.clients import Fetch
from stoker.storage.remote.faults import Fault
from stoker.storage.remote.options import ClientSpec
from stoker.storage.remote.response_bodies import AnswerError, ObjectAnswer, body, seconds_to_wait

CONNECTIONS: Final = 64
"""Requests of one process at once that keep their connections."""
_MOST_READ: Final = 256 << 10
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_SETTINGS: Final = frozenset(
    {"endpoint", "region", "skip_signature", "virtual_hosted_style_request", "aws_endpoint_url_s3", "allow_http"}
)


class LibraryError(Exception):
    """A server's refusal, in the words of obstore's errors, by which :mod:`stoker.storage.remote.faults` reads it.

    Attributes:
        after: seconds that the server asks to be left alone.
    """

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"status: {status}, <Code>{code}</Code><Message>{message[:300]}</Message>")
        self.after = seconds_to_wait({name.title(): value for name, value in headers.items()}) or 0.0


class _LibraryAnswer:
    """An answer of urllib3, which both packages use: its pieces are taken as they come, also single bytes."""

    def __init__(
        self, headers: Mapping[str, Any], answer: Any, wanted: tuple[int, int] | None, stall_timeout: float
    ) -> None:
        names = {name.lower(): value for name, value in headers.items()}
        whole = names["content-length"]
        if (told := names.get("content-range")) is not None and wanted is not None:
            came = _RANGE.fullmatch(str(told))
            if came is None or [int(came[1]), int(came[2]) + 1] != [wanted[0], min(wanted[1], int(came[3]))]:
                detail = f"{str(told)[:80]!r} came where [{wanted[0]}, {wanted[1]}) was asked for"
                raise AnswerError(Fault("cut", detail, answered=True))
            whole = came[3]
        modified = names.get("last-modified")
        self.meta = {
            "size": int(whole),
            "e_tag": names.get("etag"),
            "last_modified": modified if isinstance(modified, datetime | None) else parsedate_to_datetime(modified),
        }
        self._answer, self._size, self._stall_timeout = answer, int(names["content-length"]), stall_timeout

    def bytes(self) -> Any:
        return b"".join(body(self, self._size, self._stall_timeout))

    def stream(self, min_chunk_size: int) -> Iterator[Any]:
        try:
            with _failures():
                yield from iter(partial(self._answer.read1, max(min_chunk_size, _MOST_READ)), b"")
        finally:
            self._answer.close()
            self._answer.release_conn()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Errors of a package to those that stoker's store reads; what no server said may pass with the next attempt."""
    try:
        yield
        return
    except (LibraryError, AnswerError, GeneratorExit):
        raise
    except Exception as error:  # noqa: BLE001 - each package has its own
        told = getattr(error, "response", None)  # of botocore's errors and of minio's
        if isinstance(told, dict) and "Error" in told:
            answer, said = told.get("ResponseMetadata", {}), told["Error"]
            status, headers = int(answer.get("HTTPStatusCode", 0)), answer.get("HTTPHeaders", {})
            refusal = LibraryError(status, str(said.get("Code", "")), str(said.get("Message", "")), headers)
        elif told is not None and hasattr(told, "status"):
            code, text = (str(getattr(error, name, "")) for name in ("code", "message"))
            refusal = LibraryError(told.status, code, text, getattr(told, "headers", {}))
        else:
            raise AnswerError(Fault("transient", f"the request failed ({type(error).__name__})")) from None
    raise refusal


def _check(library: str, spec: ClientSpec) -> None:
    """Raise a ConfigError for settings that can not be passed on, a MissingPackageError where the package is missing."""
    if importlib.util.find_spec(library) is None:
        raise MissingPackageError(f"storage_options['library']: {library} is not installed: pip install {library}")
    unknown = sorted({*spec.config, *spec.client_given} - _SETTINGS)
    if unknown:
        raise ConfigError(
            f"storage_options {unknown} can not be passed on to {library}: leave them out, or read by obstore"
        )
    if spec.credential_provider is not None:
        raise ConfigError(f"credential_provider can not be passed on to {library}: give keys, or read by obstore")


def fetch_by_boto3(bucket: str, spec: ClientSpec) -> Fetch:
    """Requests for objects of a bucket, made by boto3."""
    _check("boto3", spec)
    client = boto3_client(spec)

    def fetch(key: str, wanted: tuple[int, int] | None, version: str) -> ObjectAnswer:
        given: dict[str, Any] = {"IfMatch": version} if version else {}
        if wanted is not None:
            given["Range"] = f"bytes={wanted[0]}-{wanted[1] - 1}"
        with _failures():
            found = client.get_object(Bucket=bucket, Key=key, **given)
        raw = found["Body"]._raw_stream
        return _LibraryAnswer(found["ResponseMetadata"]["HTTPHeaders"], raw, wanted, spec.stall_timeout)

    return fetch


def fetch_by_minio(bucket: str, spec: ClientSpec) -> Fetch:
    """Requests for objects of a bucket, made by minio."""
    _check("minio", spec)
    client = minio_client(spec)

    def fetch(key: str, wanted: tuple[int, int] | None, version: str) -> ObjectAnswer:
        start, end = wanted or (0, 0)
        headers: Any = {"If-Match": version} if version else None
        with _failures():
            found = client.get_object(
                bucket_name=bucket, object_name=key, offset=start, length=end - start, request_headers=headers
            )
        return _LibraryAnswer(found.headers, found, wanted, spec.stall_timeout)

    return fetch


def boto3_client(spec: ClientSpec, connections: int = CONNECTIONS, *, attempts: int = 1) -> Any:
    """boto3's client of S3 with a store's settings.

    Args:
        spec: the settings.
        connections: that are kept.
        attempts: tries of a request that boto3 makes itself.
    """
    import boto3
    import botocore
    import botocore.config

    keys = spec.credentials
    config = botocore.config.Config(
        signature_version=botocore.UNSIGNED if spec.config.get("skip_signature") is True else None,
        s3={"addressing_style": "virtual" if _virtual(spec) else "path"},
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=connections,
        connect_timeout=min(10.0, spec.stall_timeout),
        read_timeout=spec.stall_timeout,
    )
    return boto3.Session(profile_name=spec.profile).client(
        "s3",
        endpoint_url=spec.config.get("endpoint"),
        region_name=spec.config.get("region"),
        aws_access_key_id=None if keys is None else keys.access_key_id,
        aws_secret_access_key=None if keys is None else keys.secret_access_key,
        aws_session_token=None if keys is None else keys.session_token,
        config=config,
    )


def minio_client(spec: ClientSpec, connections: int = CONNECTIONS, *, attempts: int = 1) -> Any:
    """minio's client with a store's settings; arguments as of :func:`boto3_client`.

    Raises:
        ConfigError: credentials that minio would have to look for.
    """
    import minio
    import urllib3

    if spec.profile is not None or spec.finds_credentials:
        raise ConfigError(f"{spec.identity} can not be passed on to minio: give keys, or read by boto3")
    endpoint = urlsplit(str(spec.config.get("endpoint") or "https://s3.amazonaws.com"))
    keys = spec.credentials
    # As many connections as there are readers: urllib3 would throw away all above ten.
    pool = urllib3.PoolManager(
        maxsize=connections,
        timeout=urllib3.Timeout(connect=min(10.0, spec.stall_timeout), read=spec.stall_timeout),
        # Without a repetition a refusal is an answer, whose headers tell when to come back.
        retries=urllib3.Retry(
            total=attempts - 1, status_forcelist=(500, 502, 503, 504) if attempts > 1 else (), backoff_factor=0.2
        ),
    )
    client: Any = minio.Minio(
        endpoint=endpoint.netloc,
        access_key=None if keys is None else keys.access_key_id,
        secret_key=None if keys is None else keys.secret_access_key,
        session_token=None if keys is None else keys.session_token,
        secure=endpoint.scheme == "https",
        region=spec.config.get("region"),
        http_client=pool,
    )
    if _virtual(spec):
        client.enable_virtual_style_endpoint()
    return client


def _virtual(spec: ClientSpec) -> bool:
    return str(spec.config.get("virtual_hosted_style_request", "")).lower() == "true"

"""Objects, through the packages that training jobs read them with: a whole object a request, as each package does it."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from typing import Any, Final

from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage import is_local, open_store
from stoker.storage.remote.options import ClientSpec, client_spec, detect_cloud
from stoker.storage.url import parse_url
from stoker_bench.clients.base import Client, ClientLocation, Data
from stoker_bench.clients.object_libraries import boto3_client, minio_client
from stoker_bench.settings.workload import transfer_options

# Of one object, which is in memory whole, whatever the package.
_MOST_BYTES: Final = 1 << 36
_ABSENT: Final = ("NoSuchKey", "NoSuchBucket", "Not Found", "NotFound", "404", "does not exist")


class Obstore(Client):
    """stoker's own store: S3, GCS and Azure by obstore, with retries."""

    package = "obstore"
    counts_requests = True
    heeds = frozenset({"part_bytes", "part_requests", "attempts"})

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        given = {name: getattr(location, name) for name in self.heeds}
        self._store = open_store(location.url, {**location.options, **transfer_options(given)} or None)

    @classmethod
    def reads(cls, url: str) -> bool:
        return not is_local(url)

    def read(self, name: str) -> Data:
        return self._store.get(name, max_bytes=_MOST_BYTES)


class _Objects(Client):
    """Objects by another package, whose errors become stoker's, with the object's URL."""

    def read(self, name: str) -> Data:
        url = f"{self.location.url.rstrip('/')}/{name}"
        try:
            return self._read(self.location.bucket, self.location.key(name))
        except Exception as error:  # noqa: BLE001 - each package has its own errors
            text = f"{type(error).__name__}: {str(error)[:300]}"
            if any(word in text for word in _ABSENT):
                raise ObjectNotFoundError(f"{url} is not there ({text}): generate the data first", url=url) from None
            raise StorageError(f"{url} can not be read: {text}", url=url) from None

    @abstractmethod
    def _read(self, bucket: str, key: str) -> Data: ...


class S3dlio(_Objects):
    """``s3dlio.get``."""

    package = "s3dlio"

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        _give_keys(location, endpoint="AWS_ENDPOINT_URL")
        import s3dlio

        self._get: Any = s3dlio.get

    def _read(self, bucket: str, key: str) -> Data:
        return memoryview(self._get(f"s3://{bucket}/{key}"))


class S3Torch(_Objects):
    """The reader of s3torchconnector's ``S3Checkpoint``: one object, in one piece."""

    package = "s3torchconnector"
    heeds = frozenset({"part_bytes", "attempts"})

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        _give_keys(location)
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        given: dict[str, Any] = {"part_size": location.part_bytes, "max_attempts": location.attempts}
        config = S3ClientConfig(
            force_path_style=not location.option("virtual_hosted_style_request"),
            **{name: value for name, value in given.items() if value is not None},
        )
        self._client = S3Checkpoint(
            region=str(location.option("region") or os.environ.get("AWS_REGION") or "us-east-1"),
            endpoint=location.option("endpoint"),
            s3client_config=config,
        )

    def _read(self, bucket: str, key: str) -> Data:
        with self._client.reader(f"s3://{bucket}/{key}") as reader:
            data: bytes = reader.read()
            return data


class Minio(_Objects):
    """``Minio.get_object``."""

    package = "minio"
    heeds = frozenset({"attempts"})

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        self._client = minio_client(_spec(location), 10, attempts=location.attempts or 6)

    def _read(self, bucket: str, key: str) -> Data:
        response = self._client.get_object(bucket_name=bucket, object_name=key)
        try:
            data: bytes = response.read()
            return data
        finally:
            response.close()
            response.release_conn()

    def close(self) -> None:
        self._client._http.clear()


class Boto3(_Objects):
    """boto3's ``get_object``; with parts ``download_fileobj``, which reads an object by several requests at once."""

    package = "boto3"
    heeds = frozenset({"part_bytes", "part_requests", "attempts"})

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        at_once = location.part_requests or 4
        connections = max(10, at_once)
        self._client = boto3_client(_spec(location), connections, attempts=location.attempts or 6)
        self._config: Any = None
        if location.part_bytes is not None:
            from boto3.s3.transfer import TransferConfig

            self._config = TransferConfig(
                multipart_threshold=location.part_bytes,
                multipart_chunksize=location.part_bytes,
                max_concurrency=at_once,
            )

    def _read(self, bucket: str, key: str) -> Data:
        if self._config is None:
            data: bytes = self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
            return data
        into = io.BytesIO()
        self._client.download_fileobj(bucket, key, into, Config=self._config)
        return into.getbuffer().toreadonly()

    def close(self) -> None:
        self._client.close()


def _spec(location: ClientLocation) -> ClientSpec:
    """The settings that obstore would have."""
    return client_spec(parse_url(location.url), location.options, os.environ, stall_timeout=60.0, cloud=detect_cloud)


def _give_keys(location: ClientLocation, endpoint: str | None = None) -> None:
    """Credentials for packages that take them from the environment alone: of this process, which is a rank's own.

    Raises:
        ConfigError: a setting is given that can not be passed on.
    """
    names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    names |= {"session_token": "AWS_SESSION_TOKEN", "region": "AWS_REGION"}
    if endpoint is not None:
        names["endpoint"] = endpoint
    known = {*names, "endpoint", "virtual_hosted_style_request", "allow_http"}
    for name, value in location.options.items():
        plain = name.lower().removeprefix("aws_")
        if plain not in known:
            raise ConfigError(
                f"storage.options.{name} can not be passed on to this storage client; {', '.join(sorted(known))} can"
            )
        if plain in names:
            os.environ[names[plain]] = str(value)

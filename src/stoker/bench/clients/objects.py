"""Objects, through the packages that training jobs read them with: a whole object a request, as each package does it."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, Final
from urllib.parse import urlsplit

from stoker.bench.clients.base import Client, ClientLocation, Data
from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage import is_local, open_store

# Of one object, which is in memory whole, whatever the package.
_MOST_BYTES: Final = 1 << 36
_ABSENT: Final = ("NoSuchKey", "NoSuchBucket", "Not Found", "NotFound", "404", "does not exist")


class Obstore(Client):
    """stoker's own store: S3, GCS and Azure by obstore, with retries."""

    package = "obstore"
    counts_requests = True

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        self._store = open_store(location.url, dict(location.options) or None)

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

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        _give_keys(location)
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        config = S3ClientConfig(force_path_style=not location.option("virtual_hosted_style_request"))
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

    def __init__(self, location: ClientLocation) -> None:
        super().__init__(location)
        import minio
        import urllib3

        endpoint = urlsplit(str(location.option("endpoint") or "https://s3.amazonaws.com"))
        # As many connections as there are readers: urllib3 would throw away all above ten.
        self._pool = urllib3.PoolManager(
            maxsize=max(10, location.connections), timeout=urllib3.Timeout(connect=60, read=60)
        )
        self._client = minio.Minio(
            endpoint=endpoint.netloc,
            access_key=location.option("access_key_id") or os.environ.get("AWS_ACCESS_KEY_ID"),
            secret_key=location.option("secret_access_key") or os.environ.get("AWS_SECRET_ACCESS_KEY"),
            session_token=location.option("session_token") or os.environ.get("AWS_SESSION_TOKEN"),
            secure=endpoint.scheme == "https",
            region=location.option("region"),
            http_client=self._pool,
        )

    def _read(self, bucket: str, key: str) -> Data:
        response = self._client.get_object(bucket_name=bucket, object_name=key)
        try:
            data: bytes = response.read()
            return data
        finally:
            response.close()
            response.release_conn()

    def close(self) -> None:
        self._pool.clear()


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

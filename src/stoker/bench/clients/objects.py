"""Objects, through the packages that training jobs read them with: a whole object a request, as each package does it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from stoker.bench.clients.base import ClientLocation, Data
from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage import is_local, open_store

__all__ = ["Minio", "Obstore", "S3Torch", "S3dlio"]

# Of one object, which is in memory whole, whatever the package.
_MOST_BYTES: Final = 1 << 36


def _missing(module: str) -> str | None:
    return None if importlib.util.find_spec(module) else f"{module} is not installed: pip install {module}"


class _Objects:
    def __init__(self, place: ClientLocation) -> None:
        self._place = place

    def _told(self, name: str, read: Callable[[], Any]) -> Any:
        """What a package raises, with the object's URL."""
        url = f"{self._place.url.rstrip('/')}/{name}"
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - each package has its own errors
            text = f"{type(error).__name__}: {str(error)[:300]}"
            if any(
                word in text for word in ("NoSuchKey", "NoSuchBucket", "Not Found", "NotFound", "404", "does not exist")
            ):
                raise ObjectNotFoundError(f"{url} is not there ({text}): generate the data first", url=url) from None
            raise StorageError(f"{url} can not be read: {text}", url=url) from None

    def close(self) -> None:
        """See :class:`~stoker.bench.clients.base.Client`."""


class _Kind:
    module: str

    def available(self) -> str | None:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _missing(self.module)

    def reads(self, url: str) -> bool:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return url.startswith("s3://")


class _ObstoreObjects(_Objects):
    def __init__(self, place: ClientLocation) -> None:
        super().__init__(place)
        self._store = open_store(place.url, dict(place.options) or None)

    def read(self, name: str) -> Data:
        return self._store.get(name, max_bytes=_MOST_BYTES)


class Obstore(_Kind):
    """stoker's own store: S3, GCS and Azure by obstore, with retries."""

    module = "obstore"

    def reads(self, url: str) -> bool:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return not is_local(url)

    def open(self, place: ClientLocation) -> _ObstoreObjects:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _ObstoreObjects(place)


class _S3dlioObjects(_Objects):
    def __init__(self, place: ClientLocation) -> None:
        super().__init__(place)
        _give_keys(place, endpoint="AWS_ENDPOINT_URL")
        import s3dlio

        self._get: Any = s3dlio.get

    def read(self, name: str) -> Data:
        url = f"s3://{self._place.bucket}/{self._place.key(name)}"
        data = self._told(name, lambda: self._get(url))
        return memoryview(data)


class S3dlio(_Kind):
    """``s3dlio.get``."""

    module = "s3dlio"

    def open(self, place: ClientLocation) -> _S3dlioObjects:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _S3dlioObjects(place)


class _S3TorchObjects(_Objects):
    def __init__(self, place: ClientLocation) -> None:
        super().__init__(place)
        _give_keys(place)
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        config = S3ClientConfig(force_path_style=not place.option("virtual_hosted_style_request"))
        self._client = S3Checkpoint(
            region=str(place.option("region") or os.environ.get("AWS_REGION") or "us-east-1"),
            endpoint=place.option("endpoint"),
            s3client_config=config,
        )

    def read(self, name: str) -> Data:
        url = f"s3://{self._place.bucket}/{self._place.key(name)}"

        def whole() -> bytes:
            with self._client.reader(url) as reader:
                data: bytes = reader.read()
                return data

        found: bytes = self._told(name, whole)
        return found


class S3Torch(_Kind):
    """The reader of s3torchconnector's ``S3Checkpoint``: one object, in one piece."""

    module = "s3torchconnector"

    def open(self, place: ClientLocation) -> _S3TorchObjects:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _S3TorchObjects(place)


class _MinioObjects(_Objects):
    def __init__(self, place: ClientLocation) -> None:
        super().__init__(place)
        import minio
        import urllib3

        endpoint = urlsplit(str(place.option("endpoint") or "https://s3.amazonaws.com"))
        # As many connections as there are readers: urllib3 would throw away all above ten.
        pool = urllib3.PoolManager(maxsize=max(10, place.connections), timeout=urllib3.Timeout(connect=60, read=60))
        self._client = minio.Minio(
            endpoint=endpoint.netloc,
            access_key=place.option("access_key_id") or os.environ.get("AWS_ACCESS_KEY_ID"),
            secret_key=place.option("secret_access_key") or os.environ.get("AWS_SECRET_ACCESS_KEY"),
            session_token=place.option("session_token") or os.environ.get("AWS_SESSION_TOKEN"),
            secure=endpoint.scheme == "https",
            region=place.option("region"),
            http_client=pool,
        )
        self._pool = pool

    def read(self, name: str) -> Data:
        def whole() -> bytes:
            response = self._client.get_object(bucket_name=self._place.bucket, object_name=self._place.key(name))
            try:
                data: bytes = response.read()
                return data
            finally:
                response.close()
                response.release_conn()

        found: bytes = self._told(name, whole)
        return found

    def close(self) -> None:
        """See :class:`~stoker.bench.clients.base.Client`."""
        self._pool.clear()


class Minio(_Kind):
    """``Minio.get_object``."""

    module = "minio"

    def open(self, place: ClientLocation) -> _MinioObjects:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _MinioObjects(place)


def _give_keys(place: ClientLocation, endpoint: str | None = None) -> None:
    """Credentials for packages that take them from the environment alone: of this process, which is a rank's own.

    Raises:
        ConfigError: a setting is given that can not be passed on.
    """
    names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    names |= {"session_token": "AWS_SESSION_TOKEN", "region": "AWS_REGION"}
    if endpoint is not None:
        names["endpoint"] = endpoint
    known = {*names, "endpoint", "virtual_hosted_style_request", "allow_http"}
    for name, value in place.options.items():
        plain = name.lower().removeprefix("aws_")
        if plain not in known:
            raise ConfigError(
                f"storage.options.{name} can not be passed on to this storage client; {', '.join(sorted(known))} can"
            )
        if plain in names:
            os.environ[names[plain]] = str(value)

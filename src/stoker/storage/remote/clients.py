"""obstore's client of a bucket: its settings, its credentials, no retries of its own but of parts of uploads."""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import astuple
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stoker.concurrency.forks import ProcessLock
from stoker.errors import ConfigError
from stoker.lazy import cached_property, load_plugin
from stoker.storage.remote.faults import classify, is_panic
from stoker.storage.remote.options import ClientSpec, milliseconds
from stoker.storage.remote.response_bodies import BRIEF_STALLS, ObjectAnswer
from stoker.storage.transfer import object_clients
from stoker.storage.url import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# A client's stall time counts from the start of a request until the answer begins, so requests that carry data use a client
# that allows them longer, and they carry bounded amounts.
_UPLOAD_PATIENCE = 4
_MOST_RETRIES = 1000
# Seconds in which obstore repeats a part of an upload itself, as the parts before it would be lost; then all are repeated.
_PART_PATIENCE = 30.0

_memory_stores: dict[str, Any] = {}


def build_client(
    location: Location, spec: ClientSpec, client_overrides: Mapping[str, Any], patience: float = 0.0
) -> ObjectStore:
    """An obstore client of the bucket, which repeats requests for so many seconds.

    ConfigError for settings that obstore refuses, or boto3's refusal of a profile.
    """
    import obstore.store

    if location.kind == "memory":
        memory: ObjectStore = _memory_stores.setdefault(location.root, obstore.store.MemoryStore())
        return memory
    common: dict[str, Any] = {
        "client_options": {**spec.client_options, **client_overrides},
        # There is one rule for retries, ours.
        "retry_config": {
            "max_retries": _MOST_RETRIES if patience else 0,
            "retry_timeout": timedelta(seconds=patience) if patience else timedelta(days=365),
        },
    }
    provider = _provider(spec)
    if provider is not None:
        common["credential_provider"] = provider
    config: Any = dict(spec.config)
    try:
        match location.kind:
            case "s3":
                return obstore.store.S3Store(location.host, config=config, **common)
            case "gs":
                return obstore.store.GCSStore(location.host, config=config, **common)
            case "azure":
                return obstore.store.AzureStore.from_url(location.root, config=config, **common)
            case _:
                return obstore.store.HTTPStore(location.root, **common)
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        fault = classify(error)
    raise ConfigError(f"{location.url}: {fault.detail}. Check storage_options and the environment.")


def _provider(spec: ClientSpec) -> Any:
    if spec.credential_provider is not None:
        return spec.credential_provider
    if spec.credentials is not None:
        # Handed in through a call, as single settings would be mixed with those of the environment (a
        # session token).
        answer = {
            "access_key_id": spec.credentials.access_key_id,
            "secret_access_key": spec.credentials.secret_access_key,
            "token": spec.credentials.session_token,
            "expires_at": None,
        }
        return lambda: answer
    if spec.profile is not None:
        boto3 = importlib.import_module("boto3")  # optional
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            return Boto3CredentialProvider(boto3.Session(profile_name=spec.profile))
        except Exception as error:  # noqa: BLE001 - botocore raises many types
            reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"AWS profile {spec.profile!r} gives no credentials ({reason}). Log in, or set AWS_ACCESS_KEY_ID."
        )
    return None


Fetch: TypeAlias = Callable[[str, tuple[int, int] | None, str], ObjectAnswer]
"""From key, wanted bytes ``[start, end)`` or ``None`` for all, and the ETag that it must have, to the answer."""


def endpoint_clients(
    location: Location, spec: ClientSpec, stall_timeout: float, patience: float, library: str | None = None
) -> EndpointClients:
    """The clients of an endpoint: those that another store of the same bucket and settings has, where there is one.

    A client takes milliseconds to make, and has connections of its own; a dataset may be of a thousand streams of one bucket.
    """
    identity = (spec.credentials and astuple(spec.credentials), spec.profile, id(spec.credential_provider))
    asked = (spec.config, spec.client_options, spec.client_given, spec.stall_timeout, stall_timeout, patience, library)
    # obstore looks at variables of its own in the environment.
    environ = sorted(os.environ.items())
    key = repr((os.getpid(), location.kind, location.root, asked, identity, environ))
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = EndpointClients(location, spec, stall_timeout, patience, library)
        return found


_lock: Final = ProcessLock()


class EndpointClients:
    """The clients of one endpoint, of which each has other limits in time."""

    def __init__(
        self, location: Location, spec: ClientSpec, stall_timeout: float, patience: float, library: str | None = None
    ) -> None:
        self._location, self.spec, self._stall_timeout = location, spec, stall_timeout
        self._patience = patience
        self.plain = build_client(location, spec, {})
        self._fetch: Fetch | None = None
        if library is not None:  # which entry points name
            make = load_plugin(object_clients()[library], f"storage_options['library'] {library!r}")
            self._fetch = make(location.host, spec)

    def get(
        self, path: str, wanted: tuple[int, int] | None = None, version: str = "", *, brief: bool = False
    ) -> ObjectAnswer:
        """See :class:`~stoker.storage.remote.response_bodies.ObjectClient`; a version is an ETag."""
        if self._fetch is not None:
            return self._fetch(path, wanted, version)
        import obstore

        client = self.brief if brief else self.plain
        options: Any = {} if wanted is None else {"range": wanted}
        if version:
            options["if_match"] = version
        return obstore.get(client, path, options=options)

    @cached_property
    def upload(self) -> ObjectStore:
        """For requests that send data."""
        return self._with(read_timeout=_UPLOAD_PATIENCE)

    @cached_property
    def parts(self) -> ObjectStore:
        """For uploads in parts: a part that fails is repeated, not all of them."""
        limits = {"read_timeout": milliseconds(_UPLOAD_PATIENCE * self._stall_timeout)}
        return build_client(self._location, self.spec, limits, min(self._patience, _PART_PATIENCE))

    @cached_property
    def brief(self) -> ObjectStore:
        """For requests that carry little: they have a bound on the whole, as their answers are read inside of it."""
        return self._with(timeout=BRIEF_STALLS) if self.spec.unlimited else self.plain

    def _with(self, **stalls: int) -> ObjectStore:
        """A client with limits of so many stall times."""
        limits = {name: milliseconds(count * self._stall_timeout) for name, count in stalls.items()}
        return build_client(self._location, self.spec, limits)


# Those that any store of this process has.
_shared: weakref.WeakValueDictionary[str, EndpointClients] = weakref.WeakValueDictionary()

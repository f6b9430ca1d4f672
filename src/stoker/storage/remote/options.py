"""From a URL, its ``storage_options`` and the environment to the settings of one obstore client.

Pure but for reading the two files of AWS profiles: the environment and what machine this is are handed in.
Each option overrides what the environment says; credentials in the options replace those of the environment
as a whole, so two stores of one process never mix identities.
"""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.storage.remote.faults import NOWHERE
from stoker.storage.transfer import split_transfer
from stoker.storage.url import Location


def read_profile(name: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a profile in ``~/.aws/config`` and ``~/.aws/credentials``, plus its ``name``.

    ConfigError for a file that is there and can not be read. ``name``: the profile, or ``None`` for ``default``. ``environ``:
    ``AWS_CONFIG_FILE``, ``AWS_SHARED_CREDENTIALS_FILE`` and ``HOME`` say where the files are. Gives the profile's settings by
    AWS's names (``aws_access_key_id``, ``region``, ``endpoint_url``, ...); only ``name`` where there is no such profile.
    """
    name = name or "default"
    home = environ.get("HOME") or os.path.expanduser("~")
    found = {"name": name}
    sections = ("default",) if name == "default" else (f"profile {name}", name)
    for variable, default in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        path = Path(os.path.expanduser(environ.get(variable) or f"{home}/.aws/{default}"))
        parser = configparser.RawConfigParser(default_section="\0", strict=False)
        try:
            with path.open(encoding="utf-8") as file:
                parser.read_file(file)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            # The parser's own message quotes the line, which may hold a secret.
            raise ConfigError(f"{path}: not a readable AWS configuration file ({type(error).__name__}).") from None
        for section in sections:
            if parser.has_section(section):
                found.update((key, value.strip()) for key, value in parser.items(section) if value and value.strip())
                break
    return {**found, "name": name}


Cloud: TypeAlias = Literal["aws", "gcp", "azure"]

_CLIENT_OPTIONS = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "read_timeout",
        "redirect_hosts",
        "root_certificate",
        "timeout",
        "user_agent",
    ]
)
_S3_NAMES = {
    "endpoint_url": "endpoint",
    "region_name": "region",
    "default_region": "region",
    "anon": "skip_signature",
    "token": "session_token",
    "key": "access_key_id",
    "secret": "secret_access_key",
}
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_S3_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# A request may take as long as its data needs, so the limit on whole requests is out of reach; stalls and
# slowness end them.
_NO_LIMIT = "365days"
_GIVEN = "the credentials in storage_options"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A fixed S3 identity."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """All that a client of one bucket is made from.

    Attributes:
        config: settings by obstore's names.
        client_options: settings of the HTTP client by obstore's names.
        credentials: an S3 identity that replaces the environment's, or ``None``.
        profile: AWS profile that needs boto3 to resolve (SSO, roles), or ``None``.
        credential_provider: the caller's own, or ``None``.
        identity: in words, where the identity comes from; for messages, without secrets.
        stall_timeout: seconds without a byte after which a request fails.
        client_given: names of the HTTP client's settings that the caller gave.
    """

    config: Mapping[str, Any] = field(repr=False)
    client_options: Mapping[str, Any] = field(repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    profile: str | None = None
    credential_provider: Callable[[], Any] | None = field(default=None, repr=False)
    identity: str = ""
    stall_timeout: float = 60.0
    client_given: frozenset[str] = frozenset()

    @property
    def finds_credentials(self) -> bool:
        """Whether the client itself asks other hosts for credentials: a metadata service, a token service."""
        given = self.credentials or self.profile or self.credential_provider
        return not given and self.config.get("skip_signature") is not True

    @property
    def unlimited(self) -> bool:
        """Whether the caller has set no limit on whole requests."""
        return bool(self.client_options["timeout"] == _NO_LIMIT)


def client_spec(
    location: Location,
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    stall_timeout: float,
    cloud: Callable[[], Cloud | None],
) -> ClientSpec:
    """Settings of the client for ``location``.

    ConfigError for options that contradict each other or belong elsewhere. ``options``: the caller's ``storage_options``.
    ``cloud``: tells on whose virtual machine this runs; asked only where no credentials are found.
    """
    config, client = _split(options)
    given = frozenset(client)
    allowed = parse_hosts(client.pop("redirect_hosts", ""))
    client = {
        "timeout": _NO_LIMIT,
        "read_timeout": milliseconds(stall_timeout),
        "connect_timeout": milliseconds(min(10.0, stall_timeout)),
        **client,
    }
    if location.kind == "gs":
        return _gs(config, client, environ, cloud)
    if location.kind == "azure":
        return _azure(config, client, environ, cloud)
    if location.kind == "s3":
        spec = replace(_s3(config, client, environ, cloud), stall_timeout=stall_timeout, client_given=given)
        if spec.finds_credentials:  # which are on other hosts
            return spec
        host = urlsplit(spec.config.get("endpoint", "https://amazonaws.com")).hostname
        return replace(spec, client_options=guarded(spec.client_options, host, allowed, environ))
    if location.kind == "http" and location.root.startswith("http://"):
        client.setdefault("allow_http", True)
    if config:
        raise ConfigError(
            f"storage_options {sorted(config)} mean nothing for {location.url}: "
            f"only client options ({', '.join(sorted(_CLIENT_OPTIONS))}) do."
        )
    client = guarded(client, urlsplit(location.root).hostname, allowed, environ)
    return ClientSpec(config, client, identity="no credentials, as plain HTTP has none")


def flat_options(location: Location, options: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a store as text by name, for packages that open files themselves by the same client library.

    They are those that stoker's own requests have, from the options and the environment. ConfigError for options that are no
    text, or mean nothing there.
    """
    if location.kind == "file":
        return {}
    transfer, options = split_transfer(location, options)
    if transfer.endpoints:  # such packages know of one
        options = {**options, "endpoint": transfer.used_endpoints[0]}
    spec = client_spec(location, options, os.environ, stall_timeout=60.0, cloud=detect_cloud)
    if spec.credential_provider is not None:
        raise ConfigError(f"{location.url}: a table's package takes no credential_provider: give keys, or a profile's.")
    flat = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in spec.config.items()}
    if spec.client_options.get("allow_http"):
        flat["allow_http"] = "true"
    if spec.credentials is not None:
        flat |= {
            "access_key_id": spec.credentials.access_key_id,
            "secret_access_key": spec.credentials.secret_access_key,
        }
        if spec.credentials.session_token:
            flat["session_token"] = spec.credentials.session_token
    return flat


def endpoint_of(location: Location, spec: ClientSpec, environ: Mapping[str, str]) -> str:
    """The endpoint or account by which a client's server differs from others; empty for the provider's usual one.

    ``environ``: the environment, which obstore reads too.
    """
    names: tuple[str, ...] = ("endpoint",)
    prefix = "AWS"
    if location.kind == "azure":
        names, prefix = ("account_name", "endpoint"), "AZURE_STORAGE"
    elif location.kind == "gs":
        names, prefix = ("base_url",), "GOOGLE"
    config = {
        name.lower().removeprefix("azure_").removeprefix("storage_"): value for name, value in spec.config.items()
    }
    found = [str(config.get(name) or environ.get(f"{prefix}_{name.upper()}") or "") for name in names]
    return " ".join(one.rstrip("/") for one in found if one)


def detect_cloud(dmi: Path = Path("/sys/class/dmi/id")) -> Cloud | None:
    """The cloud on whose virtual machine this runs, by its firmware; never asks the network."""

    def read(name: str) -> str:
        try:
            return (dmi / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    vendor, product = read("sys_vendor"), read("product_name")
    if vendor == "Amazon EC2" or "amazon" in read("bios_version").lower():
        return "aws"
    if vendor == "Google" or product == "Google Compute Engine":
        return "gcp"
    if read("chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77":  # the tag of every Azure machine
        return "azure"
    return None


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the store and of its HTTP client; the latter may be nested in ``client_options`` or not."""
    config: dict[str, Any] = {}
    nested = options.get("client_options") or {}
    if not isinstance(nested, Mapping):
        raise ConfigError("storage_options['client_options'] is not a mapping of names to values.")
    client = dict(nested)
    for name, value in options.items():
        if not isinstance(name, str):
            raise ConfigError(f"storage_options has the key {name!r}: names are strings.")
        if name == "client_options" or value is None:
            continue
        if name == "retry_config":
            raise ConfigError("storage_options['retry_config'] is not used: pass retry= (a RetryPolicy) instead.")
        if name not in _CLIENT_OPTIONS and not (isinstance(value, str | bool) or callable(value)):
            raise ConfigError(
                f"storage_options[{name!r}] is {with_article(type(value).__name__)}: give a string, or True or False"
            )
        (client if name in _CLIENT_OPTIONS else config)[name] = value
    return config, client


def _s3(
    raw: dict[str, Any], client: dict[str, Any], environ: Mapping[str, str], cloud: Callable[[], Cloud | None]
) -> ClientSpec:
    config: dict[str, Any] = {}
    for name, value in raw.items():
        short = name.lower().removeprefix("aws_")
        config[_S3_NAMES.get(short, short)] = value
    profile_name = config.pop("profile", None)
    profile = read_profile(profile_name or environ.get("AWS_PROFILE"), environ)
    endpoint = (
        config.pop("endpoint_url_s3", None)
        or config.pop("endpoint", None)
        or next((environ[name] for name in _S3_ENDPOINTS if environ.get(name)), None)
        or profile.get("endpoint_url")
    )
    if endpoint:
        config["endpoint"] = str(endpoint).rstrip("/")
        if environ.get("AWS_ENDPOINT_URL_S3"):  # obstore would put it before the endpoint
            config["aws_endpoint_url_s3"] = config["endpoint"]
        if config["endpoint"].startswith("http://"):
            client.setdefault("allow_http", True)
    if "region" not in config and not (environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")):
        region = profile.get("region") or ("us-east-1" if endpoint else None)
        if region:
            config["region"] = region

    if "credential_provider" in config:
        return _found_by_client({**config, "skip_signature": False}, client, _GIVEN)
    if "access_key_id" in config or "secret_access_key" in config or "session_token" in config:
        return _with_keys(config, client, config, "", _GIVEN)
    if "skip_signature" in config:
        config["skip_signature"] = _truth(config["skip_signature"])
        if config["skip_signature"]:
            return _anonymous(config, client, "no credentials, as skip_signature asks")
    environment_keys = environ.get("AWS_ACCESS_KEY_ID") or environ.get("AWS_SECRET_ACCESS_KEY")
    if environment_keys and profile_name is None:
        keys = {
            "access_key_id": environ.get("AWS_ACCESS_KEY_ID"),
            "secret_access_key": environ.get("AWS_SECRET_ACCESS_KEY"),
            "session_token": environ.get("AWS_SESSION_TOKEN") or environ.get("AWS_TOKEN"),
        }
        return _with_keys(config, client, keys, "AWS_", "the keys in the environment (AWS_ACCESS_KEY_ID)")
    if profile_name is None and any(environ.get(name) for name in _S3_ROLES):
        return ClientSpec(config, client, identity="the environment's role")
    if profile.get("aws_access_key_id"):
        keys = {
            "access_key_id": profile["aws_access_key_id"],
            "secret_access_key": profile.get("aws_secret_access_key"),
            "session_token": profile.get("aws_session_token"),
        }
        return _with_keys(config, client, keys, "aws_", f"the keys of AWS profile {profile['name']!r}")
    wanted = profile_name or environ.get("AWS_PROFILE")
    if wanted:
        if importlib.util.find_spec("boto3") is None:
            raise ConfigError(
                f"AWS profile {wanted!r} has no access key of its own (SSO, a role, or no such profile): "
                "install boto3 to use it, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            )
        return ClientSpec(config, client, profile=wanted, identity=f"AWS profile {wanted!r}")
    if _truth(environ.get("AWS_SKIP_SIGNATURE", "")) and "skip_signature" not in config:
        return _anonymous(config, client, "no credentials, as AWS_SKIP_SIGNATURE asks")
    metadata = not _truth(environ.get("AWS_EC2_METADATA_DISABLED", "")) and (
        config.get("skip_signature") is False
        or "metadata_endpoint" in config
        or bool(environ.get("AWS_METADATA_ENDPOINT"))
        or (not endpoint and cloud() == "aws")
    )
    if metadata:
        return ClientSpec(config, client, identity="this machine's role, from its metadata service")
    # Elsewhere the metadata service would be a wait for nothing; public buckets need no credentials.
    return _anonymous(
        config, client, "no credentials: none in storage_options, AWS_ACCESS_KEY_ID or ~/.aws/credentials"
    )


def _with_keys(
    config: Mapping[str, Any], client: Mapping[str, Any], keys: Mapping[str, Any], prefix: str, source: str
) -> ClientSpec:
    for name in ("access_key_id", "secret_access_key"):
        if not keys.get(name):
            shown = (prefix + name).upper() if prefix == "AWS_" else prefix + name
            raise ConfigError(f"{source} lack {shown}: a key and its secret go together.")
    secrets = ("access_key_id", "secret_access_key", "session_token")
    rest = {name: value for name, value in config.items() if name not in secrets}
    credentials = Credentials(keys["access_key_id"], keys["secret_access_key"], keys.get("session_token"))
    return ClientSpec({**rest, "skip_signature": False}, client, credentials=credentials, identity=source)


def _gs(
    config: dict[str, Any], client: dict[str, Any], environ: Mapping[str, str], cloud: Callable[[], Cloud | None]
) -> ClientSpec:
    if str(config.get("base_url", "")).startswith("http://"):
        client.setdefault("allow_http", True)
    names = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
    more = ("GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SKIP_SIGNATURE", "GCE_METADATA_HOST")
    default = Path(environ.get("HOME", "/nonexistent"), ".config/gcloud/application_default_credentials.json")
    if any("service_account" in name or "credential" in name or "skip_signature" in name for name in config):
        identity = _GIVEN
    elif any(environ.get(name) for name in names + more) or default.exists():
        identity = "the environment's Google credentials"
    elif cloud() == "gcp":
        identity = "this machine's role, from its metadata service"
    else:
        return _anonymous(config, client, "no credentials: none in storage_options or GOOGLE_APPLICATION_CREDENTIALS")
    return _found_by_client(config, client, identity)


def _azure(
    config: dict[str, Any], client: dict[str, Any], environ: Mapping[str, str], cloud: Callable[[], Cloud | None]
) -> ClientSpec:
    if str(config.get("endpoint", environ.get("AZURE_STORAGE_ENDPOINT", ""))).startswith("http://"):
        client.setdefault("allow_http", True)
    names = ("account_name", "endpoint", "use_fabric_endpoint", "use_emulator", "authority_host", "tenant_id")
    hints = ("KEY", "SAS", "CLIENT", "TOKEN", "IDENTITY", "CLI", "SKIP_SIGNATURE", "MSI", "CREDENTIAL")
    found = any(
        value and (name.startswith("AZURE_") and any(hint in name for hint in hints)) for name, value in environ.items()
    )
    if any(name.lower().removeprefix("azure_").removeprefix("storage_") not in names for name in config):
        identity = _GIVEN
    elif found or environ.get("IDENTITY_ENDPOINT") or environ.get("MSI_ENDPOINT"):
        identity = "the environment's Azure credentials"
    elif cloud() == "azure":
        identity = "this machine's identity, from its metadata service"
    else:
        return _anonymous(config, client, "no credentials: none in storage_options or AZURE_STORAGE_ACCOUNT_KEY")
    return _found_by_client(config, client, identity)


def _found_by_client(config: Mapping[str, Any], client: Mapping[str, Any], identity: str) -> ClientSpec:
    """Settings of a client that finds its credentials itself, or is given a provider of them."""
    rest = dict(config)
    provider = rest.pop("credential_provider", None)
    return ClientSpec(rest, client, credential_provider=provider, identity=identity)


def _anonymous(config: Mapping[str, Any], client: Mapping[str, Any], identity: str) -> ClientSpec:
    return ClientSpec({**config, "skip_signature": True}, client, identity=identity)


def milliseconds(seconds: float) -> str:
    """Seconds as obstore's clients want them."""
    return f"{max(1, round(seconds * 1000))}ms"


def _truth(value: object) -> bool:
    return value is True or str(value).strip().lower() in ("1", "true", "yes", "on", "y", "t")


# -- redirects to other hosts ----------------------------------------------------------------------------------------------

# The client would follow them: they are refused, as the other host may be one that only this machine reaches. The client
# library has no setting for it, but one for proxies. With a proxy that no connection reaches, and the store's own hosts
# excluded from it, a request to any other host fails before a byte leaves this machine.

_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROXY_URL")
_HOST: Final = re.compile(r"[\w.:-]+")


def parse_hosts(value: Any) -> list[str]:
    """The hosts of ``storage_options['redirect_hosts']``: a list, or names with commas between them."""
    hosts = value.split(",") if isinstance(value, str) else value
    if not isinstance(hosts, Iterable) or isinstance(hosts, Mapping):
        hosts = [value]
    found = [host.strip() if isinstance(host, str) else host for host in hosts]
    for host in found:
        if not isinstance(host, str) or (host and not _HOST.fullmatch(host)):
            raise ConfigError(
                f"storage_options['redirect_hosts'] has {host!r}: expected names of hosts, without scheme and port, "
                "in a list or with commas between them."
            )
    return [host for host in found if host]


def guarded(
    client: Mapping[str, Any], host: str | None, allowed: Iterable[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The client options with which only ``host``, the hosts ``allowed`` and those below them are reached.

    Where a proxy is set, by option or environment, it decides what is reached, and nothing is changed.
    """
    if (
        host is None
        or "proxy_url" in client
        or any(environ.get(name) or environ.get(name.lower()) for name in _PROXIES)
    ):
        return dict(client)
    with contextlib.suppress(OSError):  # as the client spells it: 127.1 is 127.0.0.1
        host = socket.inet_ntoa(socket.inet_aton(host))
    if not host.isascii():
        with contextlib.suppress(UnicodeError):
            host = host.encode("idna").decode()
    return {**client, "proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join([host, *allowed])}

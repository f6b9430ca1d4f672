"""URLs and keys: where a store's root is, and how names under it are spelled."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import unquote

from stoker.display import is_secret, nearest, redact_url
from stoker.errors import ConfigError

Kind: TypeAlias = Literal["s3", "gs", "azure", "http", "hf", "file", "memory"]

_KINDS: dict[str, Kind] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "azure",
    "azure": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
    "http": "http",
    "https": "http",
    "hf": "hf",
    "file": "file",
    "memory": "memory",
}
UNSENDABLE = re.compile("[\\x00-\\x1f\\x7f\\ud800-\\udfff]")
"""Characters that an object store's keys and URLs can not have."""

# A dataset, a folder or a file of one, as a browser shows it. Large files are redirected to another host.
_HUB_PAGE = re.compile(
    r"(?:huggingface\.co|hf\.co)/datasets/(?:(?P<owner>[^/?#]+)/)?"
    r"(?!(?:tree|blob|resolve|raw|viewer)(?:/|$))(?P<name>[^/?#]+)"
    r"(?:/(?:(?:tree|blob|resolve|raw)/(?P<revision>[^/?#]+)(?:/(?P<path>[^?#]*))?|viewer.*)?)?(?:[?#].*)?"
)
_HOST = {
    "s3": "bucket",
    "gs": "bucket",
    "azure": "container",
    "http": "host",
    "hf": "kind of repository",
    "memory": "name",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A store's root, parsed.

    Attributes:
        kind: which sort of store.
        root: ``scheme://host`` as object stores know it; empty for local files.
        host: bucket, container, host or name; empty for local files.
        prefix: path inside the bucket without slashes at its ends; for local files the absolute path.
    """

    kind: Kind
    root: str
    host: str
    prefix: str

    @property
    def url(self) -> str:
        """The normalised URL, without a slash at its end; a plain absolute path for local files."""
        if self.kind == "file":
            return self.prefix
        return f"{self.root}/{self.prefix}" if self.prefix else self.root


def parse_url(url: str | os.PathLike[str]) -> Location:
    """Parse a URL or a plain path (``~`` is expanded; relative paths start at the working directory).

    ConfigError if it is empty, or has an unknown scheme, no bucket, ``..`` in the path, or a password.
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{text!r} is not a URL or a path: expected a non-empty string without NUL characters.")
    if text[0] == "/" and "://" not in text:
        return _absolute(text)
    if text.startswith("pipe:"):
        raise ConfigError(
            f"{redact_url(text)!r}: commands are not run. Give the URL that it reads, such as s3://bucket/path."
        )
    scheme, separator, rest = text.partition("://")
    if not separator:
        start, colon, path = text.partition(":")
        if colon and start.lower() in _KINDS and path.lstrip("/"):
            meant = f"{start}://{path.lstrip('/')}"
            raise ConfigError(
                f"{redact_url(text)!r} is not a URL: write {redact_url(meant)!r}, or './{start}:...' for a path."
            )
        return _local(text)
    shown = redact_url(text)
    kind = _KINDS.get(scheme.lower())
    if kind is None:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise ConfigError(
            f"{shown!r}: unknown scheme {scheme!r}{nearest(scheme, _KINDS)}. Known are {known} and plain paths."
        )
    if kind != "file" and (bad := UNSENDABLE.search(rest)):
        raise ConfigError(f"{shown!r} contains {bad[0]!r}: control characters can not be sent to a store.")
    host, _, path = rest.partition("/")
    if kind == "file":
        if host not in ("", "localhost"):
            raise ConfigError(f"{text!r}: a file URL has three slashes (file:///path); {host!r} reads as a host here.")
        return _local("/" + unquote(path))
    userinfo, at, _ = host.rpartition("@")
    query = rest.partition("?")[2]
    signed = any(is_secret(part.partition("=")[0]) for part in query.split("&"))
    if (at and (kind != "azure" or ":" in userinfo)) or (signed and kind not in ("http", "memory")):
        raise ConfigError(
            f"{shown!r}: credentials do not belong in a URL, which is printed and logged. "
            "Put them in storage_options= or in the environment."
        )
    if kind == "http" and (page := _HUB_PAGE.fullmatch(f"{host}/{path}")):
        revision = "" if page["revision"] in (None, "main") else f"@{page['revision']}"
        below = f"/{page['path']}" if page["path"] else ""
        named = f"hf://datasets/{page['owner'] or '<owner>'}/{page['name']}{revision}{below}"
        owner = "" if page["owner"] else ", with the owner's name that the page shows"
        raise ConfigError(f"{shown!r} is a web page of the Hugging Face Hub: write {named!r}{owner}.")
    if not host:
        raise ConfigError(f"{shown!r} has no {_HOST[kind]}: expected {scheme}://<{_HOST[kind]}>/<path>.")
    if kind == "http" and any(c in rest for c in "?#"):
        raise ConfigError(f"{shown!r}: a store's root can have no query or fragment: keys are appended to its path.")
    segments = [part for part in path.split("/") if part]
    _refuse_dots(segments, shown)
    scheme = "s3" if kind == "s3" else scheme.lower()
    return Location(kind, f"{scheme}://{host}", host, "/".join(segments))


def is_local(url: str | os.PathLike[str]) -> Path | None:
    """The absolute path of a plain path or ``file://`` URL, or ``None`` for everything else.

    Raises:
        ConfigError: as :func:`parse_url`.
    """
    location = parse_url(url)
    return _as_path(location.prefix) if location.kind == "file" else None


def join_url(base: str | os.PathLike[str], *parts: str) -> str:
    """``base`` with ``parts`` appended, one slash between them; empty parts are skipped.

    The base keeps its spelling, so a relative path stays relative.

    Raises:
        ConfigError: a part that is absolute or contains ``..``.

    >>> join_url("s3://bucket/data/", "train", "index.json")
    's3://bucket/data/train/index.json'
    """
    text = os.fspath(base)
    for part in parts:
        relative = part.rstrip("/") if part != "/" else part
        if relative:
            check_key(relative)
            text = f"{text}{relative}" if text.endswith("/") else f"{text}/{relative}"
    return text


def check_key(key: str) -> str:
    """``key`` itself, if it names an object inside a root.

    Raises:
        ConfigError: empty, absolute, with an empty, ``.`` or ``..`` segment, or with a NUL character.
    """
    if not isinstance(key, str) or not key:
        raise ConfigError(
            f"{key!r} is not a key: expected a non-empty '/'-separated path relative to the store's root."
        )
    if key.startswith("/"):
        raise ConfigError(f"key {key!r} is absolute: keys are relative to the store's root.")
    if "\0" in key:
        raise ConfigError(f"key {key!r} contains a NUL character.")
    segments = key.split("/")
    _refuse_dots(segments, key)
    if "" in segments or "." in segments:
        raise ConfigError(f"key {key!r} has an empty or '.' segment: write it without.")
    return key


def check_prefix(prefix: str) -> str:
    """``prefix`` without a slash at its end, if it names a folder inside a root or is empty.

    ConfigError: as :func:`check_key`.
    """
    if prefix == "":
        return prefix
    return check_key(prefix.removesuffix("/"))


# Of each of a thousand streams it is asked several times in a row whether it is local.


@lru_cache(maxsize=64)
def _absolute(text: str) -> Location:
    return _local(text)


@lru_cache(maxsize=64)
def _as_path(text: str) -> Path:
    return Path(text)


def _local(text: str) -> Location:
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{text!r} is not a path: {error.object[error.start]!r} is not a character of a file's name."
        ) from error
    path = os.path.abspath(os.path.expanduser(text))
    return Location("file", "", "", path)


def _refuse_dots(segments: list[str], text: str) -> None:
    if ".." in segments:
        raise ConfigError(f"{text!r} contains '..', which may leave the place it is relative to: write it without.")


def is_hidden(key: str) -> bool:
    """Whether engines that write Parquet keep such a file for themselves."""
    if "." not in key[:1] and "_" not in key[:1] and "/." not in key and "/_" not in key:  # nearly all
        return False
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in key.split("/"))

"""Addresses of datasets of the Hub: the parts of a URL, the Hub's endpoint, and the token."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from stoker.errors import ConfigError
from stoker.storage.url import Location

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_FORM: Final = re.compile(
    r"(?P<owner>[^/@]+)/(?P<name>[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.+))?"
)
_OPTIONS: Final = ("endpoint", "token")
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A folder of a dataset.

    Attributes:
        repo: ``owner/name``.
        revision: a branch, a tag or a commit.
        path: of the folder in the dataset, without slashes at its ends.
    """

    repo: str
    revision: str
    path: str

    def path_of(self, key: str) -> str:
        """The path of an object below the folder, from the dataset's root."""
        return f"{self.path}/{key}" if self.path and key else self.path or key

    def page(self, kind: str, revision: str, path: str = "") -> str:
        """The path of a request below ``/datasets/<repo>``: ``kind`` is ``revision``, ``tree`` or ``resolve``."""
        end = f"/{quote(path)}" if path else ""
        return f"/datasets/{quote(self.repo)}/{kind}/{quote(revision, safe='')}{end}"


@dataclass(frozen=True, slots=True)
class HubLogin:
    """The Hub's endpoint, and the token of who asks.

    Attributes:
        endpoint: the Hub's URL, without a slash at its end.
        token: ``None`` to ask as nobody.
        identity: in words, where the token comes from; for messages, without secrets.
    """

    endpoint: str
    token: str | None = field(repr=False)
    identity: str


def hub_address(location: Location) -> HubAddress:
    """The dataset that an ``hf://`` URL names.

    Raises:
        ConfigError: it names none.
    """
    match = _FORM.fullmatch(location.prefix)
    if location.host != "datasets" or match is None:
        raise ConfigError(
            f"{location.url!r} names no dataset of the Hub: write hf://datasets/<owner>/<name>, with @<revision> and a "
            "/<path> behind it as needed"
        )
    return HubAddress(f"{match['owner']}/{match['name']}", unquote(match["revision"] or "main"), match["path"] or "")


def hub_login(options: Mapping[str, Any], environ: Mapping[str, str], url: str) -> HubLogin:
    """The Hub's endpoint and the token: of ``storage_options``, of the environment, or of the file of ``hf auth login``.

    Args:
        options: ``endpoint`` and ``token``; a token of ``False`` asks as nobody.
        environ: ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_TOKEN_PATH``, ``HF_HOME``, ``XDG_CACHE_HOME``, ``HOME`` and
            ``HF_HUB_DISABLE_IMPLICIT_TOKEN``.
        url: of the dataset, for messages.

    Raises:
        ConfigError: an option that there is not, an endpoint that is no URL, or a token that no header can hold.
    """
    if unknown := sorted(set(map(str, options)) - set(_OPTIONS)):
        raise ConfigError(f"{url}: storage_options {unknown} mean nothing for hf://: only {', '.join(_OPTIONS)} do.")
    endpoint = options.get("endpoint") or environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    parts = urlsplit(endpoint) if isinstance(endpoint, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"{url}: the Hub's endpoint is not of the form https://<host>. See HF_ENDPOINT.")
    token, identity = options.get("token"), "the token in storage_options"
    if token is None or token is True:
        token, identity = _implicit_token(environ)
    if token is False or not token:
        return HubLogin(endpoint.rstrip("/"), None, "no token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigError(f"{url}: {identity} is none: expected text without spaces and control characters.")
    return HubLogin(endpoint.rstrip("/"), token, identity)


def _implicit_token(environ: Mapping[str, str]) -> tuple[str | None, str]:
    if environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None, ""
    if token := (environ.get("HF_TOKEN") or "").strip():
        return token, "the token in HF_TOKEN"
    home = environ.get("HOME") or os.path.expanduser("~")
    caches = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    path = environ.get("HF_TOKEN_PATH") or f"{environ.get('HF_HOME') or f'{caches}/huggingface'}/token"
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8").strip(), f"the token in {path}"
    except (OSError, UnicodeDecodeError):
        return None, ""

"""Refusals of the Hub, as stoker's errors: they say what to do about a name, a token, terms to accept, or a rate limit."""

from __future__ import annotations

from typing import Final

from stoker.errors import AccessDeniedError, ObjectNotFoundError
from stoker.storage.hub.address import HubAddress, HubLogin
from stoker.storage.hub.http_client import Answer
from stoker.storage.remote.faults import Fault, is_busy
from stoker.storage.remote.response_bodies import AnswerError, seconds_to_wait

_REFUSED_LOGIN: Final = "Invalid credentials in Authorization header"
_MOST_SHOWN: Final = 200


def refusal(answer: Answer, address: HubAddress, login: HubLogin, url: str, root: str) -> Exception:
    """The error that an answer of an error's status means.

    Args:
        answer: its headers say what is wrong.
        address: the dataset.
        login: who asked.
        url: of what was asked for.
        root: of the store.

    Returns:
        An :class:`~stoker.storage.remote.response_bodies.AnswerError` where trying again may help, and one of stoker's errors
        else. That of a missing dataset or revision has the root's URL.
    """
    status, code = answer.status, answer.headers.get("X-Error-Code") or ""
    said = (answer.headers.get("X-Error-Message") or "")[:_MOST_SHOWN]
    page = f"{login.endpoint}/datasets/{address.repo}"
    who = "a request without a token" if login.token is None else login.identity
    if is_busy(status):
        after = seconds_to_wait(answer.headers)
        detail = f"HTTP {status}{' too many requests' if status == 429 else ''}"
        if after:
            detail += f", and the Hub says to come back in {after:.0f} s"
        if status == 429 and login.token is None:
            detail += " (it allows more with a token: HF_TOKEN)"
        return AnswerError(Fault("transient", detail, answered=True), after or 0.0)
    if code == "GatedRepo":
        return AccessDeniedError(
            f"{url}: the dataset is gated, and {who} has no access. Accept its terms at {page}, and give a token "
            "of that account: HF_TOKEN, `hf auth login`, or storage_options={'token': ...}.",
            url=url,
        )
    if code == "RevisionNotFound":
        return ObjectNotFoundError(
            f"{root}: the dataset has no revision {address.revision!r}. Its branches and tags are at {page}.", url=root
        )
    if code == "RepoNotFound" or (status == 401 and not code and said != _REFUSED_LOGIN):
        return ObjectNotFoundError(
            f"{root}: there is no dataset {address.repo!r} on {login.endpoint}, or it is private and {who} "
            "may not see it. Check the name, or give a token: HF_TOKEN, `hf auth login`, or storage_options={'token': ...}.",
            url=root,
        )
    if status in (404, 410):
        return ObjectNotFoundError(f"{url}: no such file at revision {address.revision!r}. Check the path.", url=url)
    detail = " ".join(part for part in (f"HTTP {status}", code, said) if part)
    if status in (401, 403):
        return AccessDeniedError(
            f"{url}: access denied ({detail}). The request used {login.identity}: check it, or make another at "
            f"{login.endpoint}/settings/tokens.",
            url=url,
        )
    return AnswerError(Fault("range" if status == 416 else "other", detail))

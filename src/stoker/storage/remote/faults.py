"""Translates obstore's exceptions into stoker's errors, and says whether trying again can help.

obstore gives most failures as one type with a text, so the text is read. Nothing of it is passed on but the
server's code and message: the rest can contain signed URLs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from stoker.errors import (
    AccessDeniedError,
    ConfigError,
    IndexFileError,
    ObjectNotFoundError,
    StokerError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
)
from stoker.storage.retry import TransientError

FaultKind: TypeAlias = Literal[
    "not_found",
    "no_bucket",
    "denied",
    "credentials",
    "timeout",
    "transient",
    "cut",
    "full",
    "range",
    "region",
    "redirect",
    "config",
    "name",
    "other",
]

NOWHERE: Final = "127.0.0.1:0"
"""A proxy that no connection reaches: what is sent there is a redirect that is refused."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})|\bstatus: (\d{3}),")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,64})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_HTTP_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_OTHER_RANGE = re.compile(r"Requested (\d+)\.\.(\d+), got (\d+)\.\.(\d+)|value for CONTENT_RANGE header")
_PATH = re.compile(r'Path "(.*?)"(?: contained|: )')
_SYSTEM = re.compile(r"code: (\d+),\s*kind: (\w+)")

_DENIED_CODES = frozenset(
    [
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidToken",
        "NoAuthenticationInformation",
        "NotSignedUp",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    ]
)
_TRANSIENT_CODES = frozenset(
    [
        "InternalError",
        "InternalServerError",
        "OperationAborted",
        "OperationTimedOut",
        "RequestTimeout",
        "RequestLimitExceeded",
        "ServerBusy",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    ]
)
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist", "FilesystemNotFound")
_FULL_CODES = frozenset(["QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityTooLarge"])
_METADATA = (
    "169.254.169.254",
    "169.254.170.2",
    "metadata.google.internal",
    "/latest/api/token",
    "/metadata/identity",
)


def is_busy(status: int) -> bool:
    """Whether a status of HTTP says that the same request can succeed later: 501, 505, 507 and 511 do not."""
    return status in (408, 425, 429) or (500 <= status < 600 and status not in (501, 505, 507, 511))


@dataclass(frozen=True, slots=True)
class Fault:
    """One failed attempt.

    Attributes:
        detail: the same in words, for messages; without secrets.
        answered: the server did answer.
    """

    kind: FaultKind
    detail: str
    answered: bool = False

    @property
    def retryable(self) -> bool:
        """Whether the same request can succeed later."""
        return self.kind in ("timeout", "transient", "cut", "credentials")


def classify(error: BaseException) -> Fault:
    """The meaning of an exception that obstore raised."""
    name, text = type(error).__name__, str(error)
    status_match = _STATUS.search(text)
    status = int(status_match[1] or status_match[2]) if status_match else None
    code_match = _CODE.search(text)
    code = code_match[1] if code_match else None
    detail = _detail(status, code, text)

    if f"{NOWHERE}," in text:
        return Fault("redirect", "the server redirects to another host")
    if is_panic(error):
        return Fault("other", f"obstore failed within ({text.partition(chr(10))[0][:200]}); look for odd characters")
    if any(host in text.partition("\n")[0] for host in _METADATA):
        return Fault("credentials", "the machine's metadata service gave no credentials")
    if any(mark in text for mark in _NO_BUCKET):
        return Fault("no_bucket", detail)
    if code in _FULL_CODES or status == 507:
        return Fault("full", detail)
    if code in _TRANSIENT_CODES:
        return Fault("transient", detail, answered=True)
    if code in _DENIED_CODES or status in (401, 403) or name in ("PermissionDeniedError", "UnauthenticatedError"):
        return Fault("denied", detail)
    if status == 404 or name in ("FileNotFoundError", "NotFoundError"):
        return Fault("not_found", detail)
    if status == 416:
        return Fault("range", detail)
    if status in (301, 307, 308) or "redirect without LOCATION" in text or code == "PermanentRedirect":
        return Fault("region", "the server redirects elsewhere, which means another region")
    if status is not None:
        return Fault("transient" if is_busy(status) else "other", detail, answered=True)
    return _without_status(name, text)


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a failure within obstore, which is no :class:`Exception`."""
    return type(error).__name__ == "PanicException"


def error_for(fault: Fault, url: str, *, host: str, identity: str) -> StokerError:
    """The error for a fault that no retry will cure."""
    message: str
    match fault.kind:
        case "no_bucket":
            message = f"{url}: there is no bucket {host!r} ({fault.detail}). Check its name and the endpoint."
            return ObjectNotFoundError(message, url=url)
        case "not_found":
            return ObjectNotFoundError(f"{url}: no such object. Check the path.", url=url)
        case "denied":
            message = (
                f"{url}: access denied ({fault.detail}). The request used {identity}. "
                "Check the key, its secret and its rights; storage_options= or the environment pass them."
            )
            return AccessDeniedError(message, url=url)
        case "full":
            return StorageFullError(
                f"{url}: the store is full ({fault.detail}). Free some, or raise the quota.", url=url
            )
        case "range":
            return StorageError(f"{url}: the range lies outside of the object ({fault.detail}).", url=url)
        case "region":
            message = f"{url}: {fault.detail}. Set storage_options={{'region': ...}} or AWS_REGION to the bucket's."
            return StorageError(message, url=url)
        case "redirect":
            message = (
                f"{url}: {fault.detail}, which is refused: it can be one that only this machine reaches. Where it is "
                "meant to, name that host in storage_options={'redirect_hosts': ...}."
            )
            return StorageError(message, url=url)
        case "config":
            return ConfigError(f"{url}: {fault.detail}.")
        case "name":
            return IndexFileError(f"{url}: {fault.detail}. Rename or remove it, or name the files in a list.")
        case "credentials" | "timeout" | "transient" | "cut" | "other":
            return StorageError(f"{url}: {fault.detail}.", url=url)


def transient(fault: Fault, url: str, after: float = 0.0, *asked: str) -> TransientError:
    """A retryable fault, for :class:`~stoker.storage.retry.Retries`; of several endpoints, with that which was asked."""
    return TransientError(
        lambda attempts, elapsed: exhausted(fault, url, attempts, elapsed, *asked),
        after,
        answered=fault.answered,
        what=f"{url}: {fault.detail}",
        odd=fault.kind == "cut",
    )


def exhausted(fault: Fault, url: str, attempts: int, elapsed: float, endpoint: str = "") -> StorageError:
    """The error for a retryable fault after the last attempt, which was at the endpoint, where there are several."""
    tries = f"{attempts} attempt{'s' if attempts > 1 else ''} in {elapsed:.1f} s"
    if fault.kind == "credentials":
        message = (
            f"{url}: {fault.detail} ({tries}). Pass credentials in storage_options= or the environment, "
            "or skip_signature for a public bucket."
        )
        return AccessDeniedError(message, url=url)
    message = f"{url}: {fault.detail}; gave up after {tries}. The store or the network fails; check the endpoint"
    message += f" {endpoint}, which was asked last." if endpoint else "."
    return StorageTimeoutError(message, url=url)


def _without_status(name: str, text: str) -> Fault:
    """A fault in which no server answered with a status."""
    lowered = text.lower()
    if name == "UnknownConfigurationKeyError":
        match = re.search(r"Configuration key: '([^']{1,64})'", text)
        return Fault("config", f"storage_options has an unknown name {match[1] if match else '?'!r}")
    if name == "InvalidPathError":
        key = _PATH.search(text)
        told = f"the object {key[1][:300]!r}" if key else "an object"
        return Fault(
            "name",
            f"{told} can not be asked for, so nothing beside it is listed: its key has an empty part, "
            "'.', '..' or a control character",
        )
    if name in ("ValueError", "TypeError") or "account must be specified" in lowered:
        # Texts of these name an option, a path or a type; a value that could be secret is not in them.
        return Fault("config", f"obstore refuses these settings: {text.partition(chr(10))[0][:200]}")
    if "certificate" in lowered or ("tls" in lowered and "handshake" in lowered):
        return Fault("other", "the server's TLS certificate is not trusted (storage_options root_certificate adds one)")
    if match := _OTHER_RANGE.search(text):
        told = f"bytes [{match[3]}, {match[4]}) came where [{match[1]}, {match[2]}) were asked for"
        return Fault("cut", told if match[1] else "the answer's Content-Range is not understood", answered=True)
    if "content-length" in lowered or "content length" in lowered:
        return Fault("other", "the server does not say how long the object is (no Content-Length)")
    if name in ("NotImplementedError", "NotSupportedError") or "non-partial" in lowered:
        return Fault(
            "other",
            "the server answers no ranges of bytes, which is also so for a directory of a web server: plain HTTP can not "
            "list. Name the files, and see that the server takes ranges (python -m http.server does not)",
        )
    kind_match = _HTTP_KIND.search(text)
    kind = kind_match[1] if kind_match else ""
    if kind == "Timeout" or "TimedOut" in text:
        return Fault("timeout", "the server sent nothing within the stall time")
    if "dns error" in lowered or "failed to lookup" in lowered:
        return Fault("transient", "the server's name can not be resolved")
    if "TooManyOpenFiles" in text or "Too many open files" in text:
        return Fault("other", "this process may open no more files or connections: raise the limit (ulimit -n)")
    if kind == "Connect":
        system = _SYSTEM.search(text)
        return Fault("transient", f"can not connect ({system[2] if system else 'no connection'})")
    if kind in ("Interrupted", "Request") or any(
        mark in text
        for mark in ("IncompleteBody", "IncompleteMessage", "ConnectionReset", "UnexpectedEof", "BrokenPipe")
    ):
        return Fault("transient", "the connection broke before the answer was whole")
    if kind:
        return Fault("other", f"the server's answer is not understood ({kind})")
    return Fault("other", f"the request failed ({name})")


def _detail(status: int | None, code: str | None, text: str) -> str:
    message = _MESSAGE.search(text)
    parts = [f"HTTP {status}" if status else "", code or "", message[1].strip() if message else ""]
    return " ".join(part for part in parts if part) or "no details given"

"""Every error that stoker raises on purpose.

One base class, so ``except StokerError`` catches them all. A message names what is wrong, where
(URL, shard, column, sample number) and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "AccessDeniedError",
    "CacheError",
    "ConfigError",
    "CorruptDataError",
    "EncodingError",
    "FormatError",
    "IndexFileError",
    "MissingPackageError",
    "ObjectNotFoundError",
    "SourceChangedError",
    "StateError",
    "StokerError",
    "StorageError",
    "StorageFullError",
    "StorageTimeoutError",
    "UnsafeDataError",
]


class StokerError(Exception):
    """Base of every error that stoker raises on purpose."""


class ConfigError(StokerError, ValueError):
    """An argument, environment variable or combination of them makes no sense."""


class SourceChangedError(ConfigError):
    """Files that a job reads were changed since it began; what it has made of them is not of one source."""


class StateError(StokerError, ValueError):
    """A ``state_dict`` does not belong to this dataset or to these order settings."""


class EncodingError(StokerError, ValueError):
    """A value does not fit its column; nothing of that sample was written."""


class FormatError(StokerError, ValueError):
    """Bytes are not what their format says: a bad index, an unknown encoding, a wrong version."""


class IndexFileError(FormatError):
    """An ``index.json`` that is missing pieces, contradictory, unsafe or of another version."""


class CorruptDataError(FormatError):
    """A shard whose bytes, sizes, offsets or hashes contradict its index or itself."""


class MissingPackageError(StokerError, ImportError):
    """An optional package is not installed; names the extra that brings it."""


class UnsafeDataError(StokerError):
    """Reading would run code from the data (pickle) and the caller has not consented."""


class CacheError(StokerError):
    """The local cache can not be used: read-only, not a directory, limit too small."""


class StorageError(StokerError, OSError):
    """Reading or writing an object failed.

    Attributes:
        url: the object or prefix that failed, or ``None`` where there is none.
    """

    def __init__(self, message: str, *, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """No such object, or no such bucket."""


class AccessDeniedError(StorageError, PermissionError):
    """Credentials are missing, wrong, expired or do not allow this."""


class StorageTimeoutError(StorageError, TimeoutError):
    """The store made no progress within the stall time, or retries were used up."""


class StorageFullError(StorageError):
    """No space left where stoker had to write."""

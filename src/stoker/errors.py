"""Every error that stoker raises on purpose.

One base class, so ``except StokerError`` catches them all. A message names what is wrong, where
(URL, shard, column, sample number) and what to do about it.
"""

from __future__ import annotations

import importlib
import pickle
import traceback
from json import JSONDecodeError
from types import ModuleType
from typing import Any

__all__ = [
    "AccessDeniedError",
    "CacheError",
    "ClipError",
    "ConfigError",
    "CorruptDataError",
    "DatasetChangedError",
    "DecodeError",
    "DestinationExistsError",
    "EncodingError",
    "FormatError",
    "ImageError",
    "IndexFileError",
    "IndexSyntaxError",
    "MissingPackageError",
    "ObjectNotFoundError",
    "SampleError",
    "SourceChangedError",
    "StateError",
    "StokerError",
    "StorageError",
    "StorageFullError",
    "StorageTimeoutError",
    "TooManyBadSamplesError",
    "TransformError",
    "UnsafeDataError",
]


class StokerError(Exception):
    """Base class of all errors that stoker raises deliberately."""


class ConfigError(StokerError, ValueError):
    """An argument, environment variable or combination of them makes no sense."""


class DestinationExistsError(ConfigError, FileExistsError):
    """A writer's destination holds data already; says how to replace it, or to add to it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SourceChangedError(ConfigError):
    """Files that a job reads were changed since it began; what it has made of them is not of one source."""


class StateError(StokerError, ValueError):
    """A ``state_dict`` does not belong to this dataset or to these order settings."""


class EncodingError(StokerError, ValueError):
    """A value does not fit its column; nothing of that sample was written.

    Attributes:
        column: name of the column, where one is to blame.
    """

    column: str | None = None


class FormatError(StokerError, ValueError):
    """Bytes are not what their format says: a bad index, an unknown encoding, a wrong version."""


class IndexFileError(FormatError):
    """An ``index.json`` that is missing pieces, contradictory, unsafe or of another version."""


class IndexSyntaxError(IndexFileError, JSONDecodeError):
    """An ``index.json`` that is no JSON; has the attributes of the standard library's error."""


class CorruptDataError(FormatError):
    """A shard whose bytes, sizes, offsets or hashes contradict its index or itself."""


class ImageError(FormatError):
    """A picture that is damaged, of no known kind, or larger than is decoded; says which."""


class ClipError(FormatError):
    """A clip reaches beyond the end of its video or sound; says where that is."""


class DatasetChangedError(CorruptDataError):
    """A dataset, or a file of it, was written anew while it is read: what is left to read is not what was opened."""


class SampleError(StokerError):
    """One sample can not be delivered. ``__cause__`` is the original error, also after pickling.

    torch's ``DataLoader`` makes a worker's error anew from its text: there the attributes and ``__cause__`` are ``None``, and
    the text holds the worker's traceback, with the original error and this one.

    Attributes:
        url: the shard's URL or path; ``None`` where samples come from memory.
        shard: number of the shard in the dataset.
        row: number of the sample in its shard.
        column: name of the column, where one is to blame.
        sample: number of the sample in the dataset, as in ``dataset[sample]``.
    """

    def __init__(
        self,
        message: str,
        *,
        url: str | None = None,
        shard: int | None = None,
        row: int | None = None,
        column: str | None = None,
        sample: int | None = None,
    ) -> None:
        super().__init__(message)
        self.url = url
        self.shard = shard
        self.row = row
        self.column = column
        self.sample = sample

    def __reduce__(self) -> tuple[Any, ...]:
        cause = None if self.__cause__ is self else self.__cause__
        return _with_cause, (type(self), self.args, self.__dict__, picklable(cause))


def picklable(error: BaseException | None) -> BaseException | None:
    """The error, or one that says the same where it can not be pickled; its traceback is a note of it."""
    if error is None:
        return None
    try:
        copied: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - any class may refuse
        copied = StokerError(f"{type(error).__name__}: {error}")
    if error.__traceback__ is not None:
        copied.add_note("".join(traceback.format_exception(error)))
    return copied


def _with_cause(
    kind: type[SampleError], args: tuple[Any, ...], attributes: dict[str, Any], cause: BaseException | None
) -> SampleError:
    error = kind(*args)
    error.__dict__.update(attributes)
    error.__cause__ = cause
    return error


class DecodeError(SampleError, CorruptDataError):
    """A value of a sample does not decode."""


class TransformError(SampleError):
    """The caller's own function of a sample (``transform=``, ``tokenizer=``) raised an error or returned no sample."""


class TooManyBadSamplesError(SampleError):
    """More bad samples than :class:`~stoker.reading.bad_samples.BadSamples` allows; ``__cause__`` is the last one's error."""


class MissingPackageError(StokerError, ImportError):
    """An optional package is not installed; names the extra that brings it."""


class UnsafeDataError(StokerError, ValueError):
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


def import_option(module: str, needed: str, install: str) -> ModuleType:
    """Import a package that stoker works without, as long as nobody asks for what needs it.

    Args:
        module: to import.
        needed: who needs it, such as ``"images need Pillow"``.
        install: what to install.

    Raises:
        MissingPackageError: it is not installed; says who needs it, and how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"{needed} ({error}): pip install '{install}'") from error

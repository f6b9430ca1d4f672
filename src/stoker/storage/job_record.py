"""The record of a job that reads one dataset and writes another, and the versions of its source's files.

The record is a hidden file next to the output, and stays there. A later run compares it with its own settings and source, and
resumes the job, reports that it is done, or refuses.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError, SourceChangedError
from stoker.storage import Store, is_local
from stoker.storage.local import remove_unfinished
from stoker.storage.versions import same_version, stable_version

_VERSION: Final = 1
_MOST: Final = 1 << 28
_NAMED: Final = 5


def file_version(size: int, version: str) -> str:
    """A text of a file's size and version that differs when the file is replaced; see :mod:`stoker.storage.versions`."""
    return f"{size} {version}"


def file_versions(store: Store, keys: Iterable[str]) -> dict[str, str]:
    """The present version of each file, see :func:`file_version`; files that are gone are left out."""
    return {key: file_version(info.size, info.version) for key, info in store.infos(keys).items()}


def stable_versions(versions: Mapping[str, str]) -> dict[str, str]:
    """The same versions as a record keeps them: without what may differ once a file system was mounted again."""
    return {key: stable_version(version) for key, version in versions.items()}


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Says which files were changed, are gone, or are new; empty where none is."""
    told = [
        f"{key} was changed" if key in before and key in now else f"{key} is {'new' if key in now else 'gone'}"
        for key in sorted({**before, **now})
        if key not in before or key not in now or not same_version(before[key], now[key])
    ]
    return ", ".join(told[:_NAMED]) + (f", and {len(told) - _NAMED} more" if len(told) > _NAMED else "")


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str], where: str, remedy: str) -> None:
    """Check that a source's files are still those that a job began with."""
    told = changed_files(before, now)
    if told:
        raise SourceChangedError(f"{where}: files were changed while they were read ({told}): {remedy}")


def digest(about: Any) -> str:
    """Of a JSON value, such as a job's settings."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, as its record has it.

    Attributes:
        identity: tells the job from others: a digest of ``about``.
        about: settings and source, by name.
        done: what was done, where the job is done; else ``None``.
    """

    identity: str
    about: Mapping[str, Any]
    done: Mapping[str, Any] | None = None

    def differences(self, about: Mapping[str, Any]) -> list[str]:
        """Names of the settings that are not those of this record."""
        plain = json.loads(json.dumps(about))
        return [name for name in plain if self.about.get(name) != plain[name]]


def other_job(record: JobRecord, about: Mapping[str, Any], what: str, remedy: str, changed: str = "") -> ConfigError:
    """The error for ``what`` a job has left that may have been another; says what differs.

    ``changed`` says which of the files were changed whose versions are in ``about``, under ``files``, where that is known.
    """
    plain = json.loads(json.dumps(about))
    told = [
        f"the source's files were changed since it began{changed and ': '}{changed}"
        if name == "files"
        else f"{name} was {_short(record.about.get(name))}, is {_short(plain[name])}"
        for name in record.differences(about)
    ]
    of = f" of another source or with other settings ({'; '.join(told)})" if told else ""
    error = SourceChangedError if changed else ConfigError
    return error(f"{what}{of}{'.' if remedy[0].isupper() else ':'} {remedy}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_record(store: Store, key: str) -> JobRecord | None:
    """The record that lies at ``key``; ``None`` where there is none."""
    try:
        found = json.loads(store.get(key, max_bytes=_MOST))
        version, identity, about, done = (found[name] for name in ("version", "identity", "about", "done"))
    except ObjectNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        version, identity, about, done = None, None, None, None
    good = version == _VERSION and isinstance(identity, str) and isinstance(about, dict)
    if not good or not isinstance(done, dict | None):
        raise CorruptDataError(
            f"{store.url_of(key)} is damaged, so that it is not known to which job the files next to it belong. Write "
            "elsewhere, or remove what is there"
        )
    return JobRecord(identity, about, done)


def write_record(store: Store, key: str, record: JobRecord) -> None:
    """Put a record at ``key``, in place of the one that may be there."""
    told = {"version": _VERSION, "identity": record.identity, "about": record.about, "done": record.done}
    store.put(key, json.dumps(told, indent=1).encode())


def remove_partial_files(store: Store) -> None:
    """Remove what a killed process left of files that it was writing, in a local folder and below. Nobody may write there."""
    root = is_local(store.url)
    if root is not None:
        for folder, _, _ in os.walk(root):
            remove_unfinished(Path(folder))

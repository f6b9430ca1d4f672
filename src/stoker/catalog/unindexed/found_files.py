"""Which files a Parquet dataset has, by what the caller gives: a directory, a file, a pattern, or a list."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from stoker.catalog.splits import refuse_splits
from stoker.display import redact_url
from stoker.errors import ConfigError, IndexFileError, ObjectNotFoundError
from stoker.formats.common.checks import check_basename
from stoker.storage import Store, is_local
from stoker.storage.files import check_regular, walk_files
from stoker.storage.local import file_errors
from stoker.storage.unfinished import MARK, counted_files
from stoker.storage.versions import local_version, stable_version

__all__ = [
    "SUFFIXES",
    "FoundFile",
    "FilesLocation",
    "check_exists",
    "find_files",
    "is_hidden",
    "kinds_of",
    "list_files",
    "look_at",
    "partitions_of",
    "read_listed",
    "source_of",
]

SUFFIXES: Final = (".parquet", ".parq", ".pq")
"""How names of Parquet files end."""
_T = TypeVar("_T")
_LISTED_DELAYS: Final = (0.1, 0.3, 1.0, 2.0)
_WILD = re.compile(r"[*?\[]")
# How Hive spells a null in a directory's name.
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of the dataset.

    Attributes:
        key: relative to the dataset's root.
        size: bytes.
        version: what changes when the file is replaced; empty where the store does not tell.
    """

    key: str
    size: int
    version: str

    @property
    def mark(self) -> tuple[str, int, str]:
        """What tells the file from one that replaces it between two runs."""
        return self.key, self.size, stable_version(self.version)


@dataclass(frozen=True, slots=True)
class FilesLocation:
    """Where the files are.

    Attributes:
        root: URL or directory that keys are relative to.
        pattern: regular expression that the keys match; ``None`` for all Parquet files.
        keys: the files, where they are named one by one.
        given: the pattern as it was given.
    """

    root: str
    pattern: str | None = None
    keys: tuple[str, ...] | None = None
    given: str | None = None


def source_of(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> FilesLocation:
    """What the caller means.

    Args:
        given: a directory or URL prefix; a file; a pattern with ``*`` (within a name), ``**`` (any directories), ``?``
            and ``[...]``; or a list of files, all local or all of one bucket.

    Raises:
        ConfigError: an empty list, a file that comes twice, files of several buckets.
    """
    if isinstance(given, str | os.PathLike):
        return _one(os.fspath(given))
    names = [os.fspath(one) for one in given]
    if not names:
        raise ConfigError("the list of Parquet files is empty")
    local = [is_local(name) for name in names]
    if all(path is not None for path in local):
        names = [str(path) for path in local]
        root = os.path.commonpath([os.path.dirname(name) for name in names])
        keys = [os.path.relpath(name, root) for name in names]
    else:
        heads = [_split(name) for name in names]
        if len({head for head, _ in heads}) > 1:
            raise ConfigError(
                "a list of Parquet files must lie in one bucket, or on this machine; found "
                f"{' and '.join(sorted({head for head, _ in heads})[:2])}. Give each its own Stream"
            )
        parts = [tail.split("/") for _, tail in heads]
        common: list[str] = []
        for names_there in zip(*(one[:-1] for one in parts), strict=False):
            if len(set(names_there)) > 1:
                break
            common.append(names_there[0])
        root = "/".join([heads[0][0], *common])
        keys = ["/".join(one[len(common) :]) for one in parts]
    twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) != len(keys) else set()
    if twice:
        raise ConfigError(f"the list of Parquet files has {min(twice)!r} twice")
    return FilesLocation(root, keys=tuple(keys))


def check_exists(given: str | os.PathLike[str]) -> None:
    """See that a local path, which is no pattern, exists.

    Raises:
        ObjectNotFoundError: it does not; names what lies beside it and is named alike.
    """
    path = is_local(given)
    if path is None or path.exists() or _WILD.search(str(path)):
        return
    parent = path.parent
    if not parent.is_dir():
        raise ObjectNotFoundError(f"{path} does not exist, nor does its directory: check the path", url=str(path))
    near = difflib.get_close_matches(path.name, [entry.name for entry in os.scandir(parent)], 3)
    meant = f": did you mean {' or '.join(repr(name) for name in near)}?" if near else f": check what is in {parent}"
    raise ObjectNotFoundError(f"{path} does not exist{meant}", url=str(path))


def find_files(
    source: FilesLocation, open_root: Callable[[str], Store]
) -> tuple[FilesLocation, Store, list[FoundFile]]:
    """The files, in the order of their keys; a list's in its own.

    In directories and by patterns, what Spark and others leave beside the data is passed over: names that begin with
    ``_`` or ``.``, in any directory below the root. In directories only ``.parquet``, ``.parq`` and ``.pq`` count.

    Args:
        source: where.
        open_root: opens a root.

    Returns:
        The source, which may turn out to be a single file; a store of its root; and the files, with sizes of -1 where
        nobody has asked yet.

    Files of a writer that is not done do not count; see :mod:`stoker.storage.unfinished`.

    Raises:
        ObjectNotFoundError: there are none; says what is there.
        IndexFileError: a file's name leaves the root.
        ConfigError: a directory holds several splits (:mod:`stoker.catalog.splits`); says how to choose one.
    """
    store = open_root(source.root)
    if source.keys is not None:
        return source, store, [look_at(source, key) for key in source.keys]
    matches = re.compile(source.pattern).fullmatch if source.pattern is not None else None
    found: list[FoundFile] = []
    others = 0
    notes: list[str] = []
    for file in list_files(source, store):
        if file.key.endswith(MARK):
            notes.append(file.key)
        if is_hidden(file.key) or not (matches(file.key) if matches else file.key.lower().endswith(SUFFIXES)):
            others += 1
            continue
        if problem := check_basename(file.key):
            raise IndexFileError(f"{source.root}: a file has the unsafe name {file.key!r}: {problem}")
        found.append(file)
    found = counted_files(sorted(found, key=lambda file: file.key), notes, store)
    if found:
        if matches is None:
            refuse_splits((file.key for file in found), source.root)
        return source, store, found
    if source.pattern is None and not others and is_local(source.root) is None:
        # Only a listing tells a file from a directory that is named like one, as Spark names them.
        head, _, name = source.root.rpartition("/")
        if name.lower().endswith(SUFFIXES) and not head.endswith("/"):
            return FilesLocation(head, keys=(name,)), open_root(head), [FoundFile(name, -1, "")]
    what = f"match {source.given!r}" if source.pattern is not None else f"end with {', '.join(SUFFIXES)}"
    raise ObjectNotFoundError(
        f"{source.root}: no Parquet files there: of its {others} files, none does {what}, or it is hidden "
        "(beginning with _ or a dot)",
        url=source.root,
    )


def partitions_of(files: Sequence[FoundFile], where: str) -> list[tuple[tuple[str, Any], ...]]:
    """Names and values that directories of the form ``name=value`` tell, for each file.

    Values are integers where all of a name are, else text.

    Raises:
        IndexFileError: files are partitioned by different names.
    """
    raw: list[dict[str, str | None]] = []
    for file in files:
        values: dict[str, str | None] = {}
        for part in file.key.split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals and name:
                values[unquote(name)] = None if value == _HIVE_NULL else unquote(value)
        raw.append(values)
        if values.keys() != raw[0].keys():
            raise IndexFileError(
                f"{where}: {files[0].key} is partitioned by {', '.join(raw[0]) or 'nothing'}, {file.key} by "
                f"{', '.join(values) or 'nothing'}: open them apart, or name the files in a list with hive=False"
            )
    numeric = {name for name in (raw[0] if raw else {}) if all(_is_integer(values[name]) for values in raw)}
    return [tuple((name, _typed(value, name in numeric)) for name, value in values.items()) for values in raw]


def kinds_of(partitions: Sequence[tuple[tuple[str, Any], ...]]) -> Mapping[str, str]:
    """Types of the partitions' columns."""
    first = dict(partitions[0]) if partitions else {}
    whole = {name for name in first if all(isinstance(dict(values)[name], int | None) for values in partitions)}
    return {name: "int64" if name in whole else "string" for name in first}


def _one(text: str) -> FilesLocation:
    local = is_local(text)
    if local is not None:
        path = str(local)
        if _WILD.search(path) and not os.path.exists(path):
            return _wild(path)
        if os.path.isfile(path):
            return FilesLocation(os.path.dirname(path), keys=(os.path.basename(path),))
        return FilesLocation(path)
    head, tail = _split(text)
    if _WILD.search(tail):
        return _wild(text)
    if head.startswith(("http://", "https://")):  # which can not be listed
        parent, _, name = text.rpartition("/")
        if not name:
            raise ConfigError(
                f"{redact_url(text)}: plain HTTP can not list a directory. Name the files, in a list if several"
            )
        return FilesLocation(parent, keys=(name,))
    return FilesLocation(text.rstrip("/"))


def _wild(text: str) -> FilesLocation:
    first = _WILD.search(text)
    assert first is not None
    root, _, pattern = text[: first.start()].rpartition("/")
    return FilesLocation(root or "/", pattern=_regular(pattern + text[first.start() :]), given=text)


def _regular(pattern: str) -> str:
    """A pattern of files as a regular expression of keys."""
    out: list[str] = []
    segments = pattern.split("/")
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            out.append(".*" if last else "(?:.*/)?")
            continue
        at = 0
        while at < len(segment):
            char = segment[at]
            close = segment.find("]", at + 2) if char == "[" else -1
            if char == "*":
                out.append("[^/]*")
            elif char == "?":
                out.append("[^/]")
            elif close > 0:
                inside = segment[at + 1 : close].replace("\\", r"\\")
                out.append(f"[^{inside[1:]}]" if inside[0] == "!" else f"[{inside}]")
                at = close
            else:
                out.append(re.escape(char))
            at += 1
        if not last:
            out.append("/")
    return "".join(out)


def _split(url: str) -> tuple[str, str]:
    """``scheme://host`` and the path; a local path has no host."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "", url
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", path


def list_files(source: FilesLocation, store: Store) -> Iterator[FoundFile]:
    """All files below the source's root, of whatever kind."""
    directory = is_local(source.root)
    if directory is None:
        for info in store.list():
            yield FoundFile(info.key, info.size, info.version)
        return
    if not directory.is_dir():
        raise ObjectNotFoundError(f"{directory}: no such file or directory", url=str(directory))
    with file_errors(directory):
        for key, status in walk_files(str(directory)):
            yield FoundFile(key, status.st_size, local_version(status))


def read_listed(store: Store, read: Callable[[], _T]) -> _T:
    """What ``read`` gives of a file that was just listed.

    One that an object store does not find is asked for again for some seconds: a listing may be ahead of what can be read.

    Raises:
        ObjectNotFoundError: it is still not there.
    """
    for delay in () if is_local(store.url) is not None else _LISTED_DELAYS:
        try:
            return read()
        except ObjectNotFoundError:
            time.sleep(delay)
    return read()


def look_at(source: FilesLocation, key: str) -> FoundFile:
    """A named file; of a remote one nothing is known yet."""
    directory = is_local(source.root)
    if directory is None:
        if problem := check_basename(key):
            raise IndexFileError(f"{source.root}: a file has the unsafe name {key!r}: {problem}")
        return FoundFile(key, -1, "")
    path = directory / key
    try:
        status = os.stat(path)
    except OSError as error:
        raise ObjectNotFoundError(f"{path}: {error.strerror}: check the list of files", url=str(path)) from None
    check_regular(path, status)
    return FoundFile(key, status.st_size, local_version(status))


def is_hidden(key: str) -> bool:
    """Whether engines that write Parquet keep such a file for themselves."""
    if "." not in key[:1] and "_" not in key[:1] and "/." not in key and "/_" not in key:  # nearly all
        return False
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in key.split("/"))


def _is_integer(value: str | None) -> bool:
    return value is None or _INTEGER.fullmatch(value) is not None


def _typed(value: str | None, numeric: bool) -> Any:
    return int(value) if numeric and value is not None else value

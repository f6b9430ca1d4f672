"""The location of a dataset's files, from what the caller gives: a directory, a file, a pattern, or a list."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from stoker.display import counted, redact_url
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.index.index import INDEX_NAME
from stoker.storage import is_local, join_url
from stoker.storage.files.file_errors import file_errors
from stoker.storage.url import is_hidden

Files: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A directory or URL prefix, a file, a pattern, or a list of files."""

_BRACES: Final = re.compile(r"\{(?:(?P<first>[0-9]+)\.\.(?P<last>[0-9]+)|(?P<each>[^{}]*,[^{}]*))\}")
_WILD: Final = re.compile(rf"[*?\[]|{_BRACES.pattern}")
# A web server lists nothing: of its URLs, brackets are those of a name.
_WILD_OF_WEB: Final = re.compile(rf"\*|{_BRACES.pattern}")
_BRACE: Final = re.compile(r"[{}]")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+")
_MOST_NAMES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FilesLocation:
    """A root, and the files below it.

    Attributes:
        root: URL or directory that keys are relative to.
        pattern: regular expression that the keys match; ``None`` for all files of the format.
        keys: the files, where they are named one by one.
    """

    root: str
    pattern: str | None = None
    keys: tuple[str, ...] | None = None
    given: str | None = None

    @property
    def told(self) -> str:
        """The pattern, the file if it is a single one, or else the root, for messages."""
        if self.given is None and self.keys is not None and len(self.keys) == 1:
            return redact_url(f"{self.root.rstrip('/')}/{self.keys[0]}")
        return redact_url(self.given or self.root)


def source_of(given: Files) -> FilesLocation:
    """Parse the location that the caller gives.

    ConfigError for an empty list, a file that comes twice, files of several buckets, too many names. ``given``: a directory
    or URL prefix; a file; a pattern with ``*`` (within a name), ``**`` (any directories), ``?``, ``[...]``, ``{000..127}``
    and ``{a,b}``; or a list of files, all local or all of one bucket.
    """
    if isinstance(given, str | os.PathLike):
        return _one(os.fspath(given))
    names = [os.fspath(one) for one in given]
    if not names:
        raise ConfigError("the list of files is empty")
    local = [is_local(name) for name in names]
    if all(path is not None for path in local):
        names = [str(path) for path in local]
        root = os.path.commonpath([os.path.dirname(name) for name in names])
        keys = [os.path.relpath(name, root) for name in names]
    else:
        heads = [_split(name) for name in names]
        if len({head for head, _ in heads}) > 1:
            raise ConfigError(
                "a list of files must lie in one bucket, or on this machine; found "
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
        raise ConfigError(f"the list of files has {min(twice)!r} twice")
    return FilesLocation(root, keys=tuple(keys))


def files_location(
    remote: Files | FilesLocation | None, local: str | os.PathLike[str] | None, split: str | None
) -> tuple[FilesLocation, str | None]:
    """The files, and the cache's directory where one is named.

    ``remote``: a directory or URL prefix, a file, a pattern, or a list of files; or what was made of these. ``local``: the
    directory of the cache; without ``remote`` that of the files. ``split``: a sub-directory of both.
    """
    given = local if remote is None else remote
    if given is None:
        raise ConfigError("give remote= or local=: where the files are")
    if split is not None:
        if not isinstance(given, str | os.PathLike):
            raise ConfigError("split= needs one directory, not a list of files")
        given = join_url(given, split)
    cache_root = None if local is None or remote is None else os.path.join(os.path.expanduser(local), split or "")
    return given if isinstance(given, FilesLocation) else source_of(given), cache_root


def as_named(source: FilesLocation, keys: Iterable[str]) -> FilesLocation | None:
    """The location where characters of a pattern are those of names that there are; ``None`` where there are no such names.

    On this machine, folders of such names are looked for by :func:`source_of`. Of a store only a listing tells.
    """
    if source.pattern is None or source.given is None or is_local(source.root) is not None:
        return None
    tail = source.given[len(source.root) :].strip("/")
    parts = tail.split("/")
    folders = ["/".join(parts[:count]) + "/" for count in range(1, len(parts) + 1)]
    deepest = 0  # folders of these names that there are
    for key in keys:
        if key == tail:
            head, _, name = f"{source.root}/{tail}".rpartition("/")
            return FilesLocation(head, keys=(name,))
        while deepest < len(folders) and key.startswith(folders[deepest]):
            deepest += 1
    if not deepest:
        return None
    there = folders[deepest - 1]
    if not _WILD.search(tail, len(there)):
        return FilesLocation(f"{source.root}/{tail}")
    return _wild(f"{source.root}/{tail}", f"{source.root}/{there}")


def is_pattern(given: str | os.PathLike[str]) -> bool:
    """Whether a text stands for any number of files, as one with ``*`` or ``{00..12}``, and is no path of this machine."""
    path = is_local(given)
    return _is_wild(os.fspath(given)) if path is None else _is_local_pattern(str(path))


def is_hub(given: object) -> bool:
    """Whether this URL names a whole dataset of the Hub, and not a pattern of its files."""
    return isinstance(given, str) and given.lower().startswith("hf://") and not is_pattern(given)


def dataset_url(url: str | os.PathLike[str]) -> str:
    """The directory or URL of a dataset that is named by it, or by its ``index.json``."""
    text = os.fspath(url)
    head, _, last = text.rpartition("/")
    return (head or ".") if last == INDEX_NAME else text


def expand_braces(text: str) -> list[str]:
    """All that ``{000..127}`` (numbers, of as many digits as the first) and ``{a,b}`` stand for, as in a shell.

    ConfigError if these are more than a million names.

    >>> expand_braces("train-{08..10}.{tar,idx}")[:3]
    ['train-08.tar', 'train-08.idx', 'train-09.tar']
    """
    names = [""]
    at = 0
    for match in _BRACES.finditer(text):
        if match["each"] is not None:
            parts = match["each"].split(",")
        else:
            low, high, digits = int(match["first"]), int(match["last"]), len(match["first"])
            if high < low:
                raise ConfigError(
                    f"{text} stands for no name: the numbers in {match[0]} fall. Write the lower one first"
                )
            if high - low >= _MOST_NAMES:
                raise ConfigError(f"{text}: {match[0]} stands for more than {_MOST_NAMES:,} names")
            parts = [f"{number:0{digits}}" for number in range(low, high + 1)]
        if len(names) * len(parts) > _MOST_NAMES:
            raise ConfigError(f"{text} stands for more than {_MOST_NAMES:,} names")
        names = [f"{name}{text[at : match.start()]}{part}" for name in names for part in parts]
        at = match.end()
    names = [name + text[at:] for name in names]
    if at and _BRACES.search(names[0]):
        raise ConfigError(
            f"{text} has braces inside of braces, which leaves {names[0]}: write one pair, or a list of files"
        )
    return names


def matching(pattern: str, keys: Sequence[str]) -> list[str]:
    """The keys that a pattern means, sorted; that of a folder means all that is in it.

    ``pattern``: as :func:`source_of` has them, relative to what the keys are relative to.
    """
    pattern = pattern.removeprefix("./").strip("/")
    if not _WILD.search(pattern):
        return sorted(key for key in keys if key == pattern or key.startswith(f"{pattern}/"))
    matches = re.compile("|".join(map(_regular, expand_braces(pattern)))).fullmatch
    return sorted(filter(matches, keys))


def check_exists(given: str | os.PathLike[str]) -> None:
    """Check that a local path, which is no pattern, exists.

    ObjectNotFoundError if it does not; names files next to it of similar names.
    """
    path = is_local(given)
    if path is None:
        return
    with file_errors(path):
        if path.exists() or _is_local_pattern(str(path)):
            return
        parent = path.parent
        beside = [entry.name for entry in os.scandir(parent)] if parent.is_dir() else None
    if beside is None:
        hub = f". A dataset of the Hub is hf://datasets/{given}" if _HUB_NAME.fullmatch(os.fspath(given)) else ""
        raise ObjectNotFoundError(f"{path} does not exist, nor does its directory: check the path{hub}", url=str(path))
    import difflib  # of an error alone

    near = difflib.get_close_matches(path.name, beside, 3)
    meant = f": did you mean {' or '.join(repr(name) for name in near)}?" if near else f": check what is in {parent}"
    braces = ". Of braces, {a,b} and {000..127} stand for names" if _BRACE.search(str(path)) else ""
    several = ". Several files are a list, or a pattern" if "::" in path.name else ""
    said = f"{path} does not exist{meant}{braces}{several}"
    raise ObjectNotFoundError(said.replace("?. ", "? "), url=str(path))


def no_files(root: str) -> str:
    """A message for a directory or a URL below which no file is: says if links are there that lead nowhere."""
    directory = is_local(root)
    if directory is None:
        return f"{root}: nothing is there: there are no files"
    if not directory.is_dir():
        return f"{directory} does not exist"
    links = [entry.path for entry in os.scandir(directory) if entry.is_symlink() and not os.path.exists(entry.path)]
    if links:
        return (
            f"{directory} holds no files, but broken symbolic links: {min(links)} leads to {os.readlink(min(links))!r}. "
            "Mount what they lead to, or make the links again"
        )
    return f"{directory} is empty: there are no files to detect a format by, or to read. Check the path"


def no_match(source: FilesLocation, keys: Iterable[str]) -> str:
    """A message for a pattern that no file matches: names one that it would match but for the case of letters."""
    assert source.pattern is not None
    matches = re.compile(source.pattern, re.IGNORECASE).fullmatch
    count, near = 0, ""
    for key in keys:
        count += 1
        if not near and matches(key):
            near = key
    if near and is_hidden(near):
        hint = f"{near} is hidden (beginning with _ or a dot)"
    elif near:
        hint = f"{near} differs from it in upper and lower case"
    else:
        hint = f"there {'is' if count == 1 else 'are'} {counted(count, 'file')} below {source.root}"
    return f"{source.given}: no file matches this pattern: {hint}"


def _one(text: str) -> FilesLocation:
    local = is_local(text)
    if local is not None:
        path = str(local)
        if _is_local_pattern(path):
            return _wild(path, _existing(path))
        if os.path.isfile(path):
            return FilesLocation(os.path.dirname(path), keys=(os.path.basename(path),))
        return FilesLocation(path)
    head, _ = _split(text)
    if _is_wild(text):
        return _wild(text)
    if head.startswith(("http://", "https://")):  # which can not be listed
        parent, _, name = text.rpartition("/")
        if not name:
            raise ConfigError(
                f"{redact_url(text)}: plain HTTP can not list a directory. Name the files, in a list if several"
            )
        return FilesLocation(parent, keys=(name,))
    return FilesLocation(text.rstrip("/"))


def _wild(text: str, literal: str = "") -> FilesLocation:
    """The location of a pattern, which begins with ``literal``, that stands for itself."""
    rest = text[len(literal) :]
    first = _WILD.search(rest)
    assert first is not None
    if not re.search(r"[*?\[]", rest):
        named = source_of([literal + name for name in expand_braces(rest)])
        return FilesLocation(named.root, keys=named.keys, given=text)
    root, _, pattern = (literal + rest[: first.start()]).rpartition("/")
    patterns = map(_regular, expand_braces(pattern + rest[first.start() :]))
    joined = "|".join(patterns)
    try:
        re.compile(joined)
    except re.error as error:
        raise ConfigError(
            f"{redact_url(text)} is not a pattern of files: {error}. Ranges in [...] rise, such as [0-9]"
        ) from None
    return FilesLocation(root or "/", pattern=joined, given=text)


def _is_wild(url: str) -> bool:
    """Whether a URL has a pattern's characters."""
    head, tail = _split(url)
    return (_WILD_OF_WEB if head.startswith(("http://", "https://")) else _WILD).search(tail) is not None


def _is_local_pattern(path: str) -> bool:
    """Whether a path has a pattern's characters, where they are not those of a file's or a directory's own name."""
    return (
        _WILD.search(path) is not None
        and not os.path.exists(path)
        and _WILD.search(path, len(_existing(path))) is not None
    )


def _existing(path: str) -> str:
    """The directories that a pattern begins with and that exist, whatever characters their names have; ends with a slash."""
    end = path.rfind("/") + 1
    while end and not os.path.isdir(path[:end]):
        end = path.rfind("/", 0, end - 1) + 1
    return path[:end]


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

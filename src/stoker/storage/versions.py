"""Versions of files: text that tells a file from one that replaces it. And those of streams, as states have them.

A fingerprint holds no times of change, as a copy of a dataset must have the same. So a state's description of a stream also
has ``versions``: a hash of the URL that it was read from, and a hash of the version that was there. By them data that was
rewritten in place since a state was taken is refused. Only versions of one URL are compared. Streams whose files all have
hashes in the index have no such entry: ``content`` tells more there.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from stoker.digests import sha256
from stoker.errors import StateError

_LOCAL: Final = re.compile(r"(?P<time>.*file:-?\d+):(?P<change>-?\d+)(?::(?P<inode>\d+))?", re.DOTALL)


def local_version(status: os.stat_result) -> str:
    """The version of a local file: the times of its last write and of its last change of status, and its inode.

    Tools set the time of the last write as they like (``cp -p``, rsync, reproducible builds), but none can set the time of
    the last change of status, which every write and nearly every rename moves.
    """
    return version_text(status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def version_text(written: int, changed: int, inode: int) -> str:
    """The version of a local file by the times of its last write and change of status, in nanoseconds, and its inode."""
    return f"file:{written}:{changed}:{inode}"


def is_local_version(version: str) -> bool:
    """Whether a version is one that :func:`local_version` gave."""
    return _LOCAL.fullmatch(version) is not None


def stable_version(version: str) -> str:
    """A version without the inode, for names and records that outlive a run: mounted again, a file may have another inode."""
    found = _LOCAL.fullmatch(version)
    return version if found is None else f"{found['time']}:{found['change']}"


def written_version(version: str) -> str:
    """A version without what changes when a file is copied with its time of writing: a state must resume from a copy, too."""
    found = _LOCAL.fullmatch(version)
    return version if found is None else found["time"]


def same_version(before: str, now: str) -> bool:
    """Whether a file is still the one that was opened, by its versions.

    A local file is the same where its time of the last write is, and its time of the last change of status or its inode.
    So ``chmod`` and hard links, which backups make, do not count as changes, nor inodes that a mounted file system makes up.
    """
    if before == now:
        return True
    old, new = _LOCAL.fullmatch(before), _LOCAL.fullmatch(now)
    if old is None or new is None or old["time"] != new["time"]:
        return False
    return old["change"] == new["change"] or (old["inode"] is not None and old["inode"] == new["inode"])


# -- of streams, in states -----------------------------------------------------------------------------------------------

VERSIONS: Final = "versions"
"""The key, in the description of a stream."""
_DIGITS: Final = 12
_CHUNK: Final = 4096


def version_of_files(files: Iterable[tuple[str, int, str]]) -> str:
    """A text that is another if any of the files changes.

    ``files``: name, bytes and version of each, as the listing tells them.
    """
    lines = (file_line(name, str(size), written_version(version)) for name, size, version in files)
    return digest_of_lines(iter(lambda: "".join(islice(lines, _CHUNK)), ""))


def file_line(name: str, size: str, version: str) -> str:
    """The line of a file in the text that :func:`version_of_files` is a hash of; :func:`written_version` gave its version."""
    return f"\n{name}\0{size}\0{version}"


def digest_of_lines(texts: Iterable[str]) -> str:
    """Like :func:`version_of_files`, of files whose lines come in pieces."""
    digest = sha256()
    begin = 1  # nothing comes before the first line
    for text in texts:
        digest.update(text[begin:].encode(errors="surrogatepass"))
        begin = 0
    return digest.hexdigest()[:_DIGITS]


def describe_version(url: str, version: str) -> dict[str, Any]:
    """The entry for the description of a stream: ``{"versions": {URL: version}}``, as 12 hex digits each.

    ``version``: text that is another for another version; empty where there is none, which gives no entry.
    """
    return {VERSIONS: {_digest(url): _digest(version)}} if version else {}


def rewritten_streams(theirs: Any, ours: Any) -> list[tuple[str, str]]:
    """Streams that were read from the same URL in another version: their names there and here.

    ``theirs``: ``streams`` of a state or of a run: descriptions by name; anything else has none.
    """
    return [(name, mine) for name, mine, it, its in _pairs(theirs, ours) if is_rewritten(it, its)]


def is_rewritten(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether two descriptions of a stream are of one URL, of one fingerprint, and of two versions."""
    before, now = theirs.get(VERSIONS), ours.get(VERSIONS)
    if theirs.get("fingerprint") != ours.get("fingerprint"):
        return False
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return False
    return any(before[key] != now[key] for key in before.keys() & now.keys())


def with_versions_of(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The description in a state or run, with this sample order's versions in place of those that do not contradict them.

    After this, both can be compared as they are. ``theirs``: has ``streams``, as
    :meth:`stoker.order.sample_order.SampleOrder.as_dict` gives them.
    """
    streams = theirs.get("streams")
    if not isinstance(streams, Mapping):
        return dict(theirs)
    changed = dict(streams)
    for name, _, it, its in _pairs(streams, ours.get("streams")):
        if not is_rewritten(it, its):
            rest = {key: value for key, value in it.items() if key != VERSIONS}
            changed[name] = rest | ({VERSIONS: its[VERSIONS]} if VERSIONS in its else {})
    return {**theirs, "streams": changed}


def check_versions(theirs: Mapping[str, Any], ours: Mapping[str, Any], urls: Mapping[str, str], what: str) -> None:
    """Check that no stream was rewritten since.

    ``theirs``: has ``streams``, as :meth:`stoker.order.sample_order.SampleOrder.as_dict` gives them. ``what``: the user's
    expression for ``theirs``, such as ``checkpoint.state``.
    """
    taken = what.partition("[")[0].partition(".")[0]
    for name, mine in rewritten_streams(theirs.get("streams"), ours.get("streams")):
        where = f" at {urls[mine]}" if urls.get(mine) else ""
        raise StateError(
            f"stream {name!r}{where}: its files were rewritten since this {taken} was taken, so other samples may come at "
            "its positions. Read the data that it was taken with, for example a copy; or, if the content is the same (the "
            f"files were only copied or touched), remove {what}['streams'][{name!r}][{VERSIONS!r}]"
        )


def host_versions(described: Mapping[str, Any], urls: Mapping[str, str]) -> dict[str, Any]:
    """A sample order's description in which versions of directories are compared on this machine only.

    Workers on several machines may each have a copy of their own under one path, whose files have other times. ``described``:
    what :meth:`stoker.order.sample_order.SampleOrder.as_dict` gave.
    """
    streams = {}
    for name, about in described["streams"].items():
        streams[name] = dict(about)
        if VERSIONS in about and "://" not in urls.get(name, ""):
            host = socket.gethostname()
            streams[name][VERSIONS] = {_digest(f"{key}\n{host}"): one for key, one in about[VERSIONS].items()}
    return {**described, "streams": streams}


def _pairs(theirs: Any, ours: Any) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """Names and descriptions of the streams of both; where each has one, the names do not matter."""
    if not isinstance(theirs, Mapping) or not isinstance(ours, Mapping):
        return
    alone = len(theirs) == len(ours) == 1
    for name, it in theirs.items():
        mine = next(iter(ours)) if alone else name
        its = ours.get(mine)
        if isinstance(it, Mapping) and isinstance(its, Mapping):
            yield name, mine, it, its


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]

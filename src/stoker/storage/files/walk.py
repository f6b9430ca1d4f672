"""Walks through directories: regular files, links to them, and no copies in caches of stoker's."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from stoker.errors import StorageError
from stoker.storage.files.own import CACHE_MARK, CACHE_NAME, PRIVATE, REMOVED_CACHE
from stoker.storage.files.regular import what_it_is

logger = logging.getLogger(__name__)

# Errors of asking for what vanished, or for the end of a symbolic link that has none.
_LEADS_NOWHERE: Final = frozenset([errno.ENOENT, errno.ELOOP])


def walk_files(root: str, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files below a directory, in no order: path below ``root``, and status.

    A symbolic link to a file is that file, wherever it lies. A link to a directory below ``root`` is followed once, and not
    in circles. ``root`` itself may be a link. What vanishes meanwhile is passed over, and links that lead nowhere with a
    warning. So are stoker's caches below ``root``: they hold copies, which would be read as further data.

    StorageError if a link leads to a directory that is not below ``root``: it could be all of the machine, and what it holds
    must not be left out without a word. OSError if a directory can not be read. ``wanted``: says of a name whether to look at
    it; of a directory's name, whether to look into it.
    """
    for path, entry in _walk(root, wanted):
        if (status := _file_status(entry)) is not None:
            yield path, status


def walk_named(root: str, name: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Paths below a directory of its regular files of one name, as :func:`walk_files` finds them; asks for no status."""
    for path, entry in _walk(root, wanted):
        # Of what is no link, the listing of its directory tells whether it is a regular file.
        if entry.name == name and (entry.is_file(follow_symlinks=False) or _file_status(entry) is not None):
            yield path


def _walk(root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below ``root`` that is no directory: path below it, and entry."""
    top = os.path.realpath(root)
    linked: set[str] = set()
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = [entry for entry in found if wanted(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError as error:
                if error.errno in _LEADS_NOWHERE:
                    _pass_over(entry)
                    continue
                raise
            if not is_folder:
                yield prefix + entry.name, entry
                continue
            is_link = entry.is_symlink()
            if is_link and not _is_followed(entry.path, top, linked):
                continue
            if not _is_cache(entry.path, os.path.basename(os.path.realpath(entry.path)) if is_link else entry.name):
                folders.append((entry.path, f"{prefix}{entry.name}/"))


def _file_status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Status of a regular file; ``None`` where it is something else, which is logged, or vanished."""
    try:
        status = entry.stat()
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            _pass_over(entry)
            return None
        raise
    if stat.S_ISREG(status.st_mode):
        return status
    logger.warning("%s is passed over: it is not a file but %s", entry.path, what_it_is(status.st_mode))
    return None


def _pass_over(entry: os.DirEntry[str]) -> None:
    if entry.is_symlink():
        logger.warning("%s is passed over: it is a symbolic link to what is not there", entry.path)


def is_in_cache(path: str, root: str) -> bool:
    """Whether a file below ``root`` lies in one of stoker's caches below ``root``."""
    folder = os.path.dirname(path)
    while len(folder) > len(root):
        if _is_cache(folder, os.path.basename(os.path.realpath(folder) if os.path.islink(folder) else folder)):
            return True
        folder = os.path.dirname(folder)
    return False


def _is_cache(folder: str, name: str) -> bool:
    """Whether stoker made this directory as a cache; ``name`` is its own, not that of a link that leads there."""
    if CACHE_NAME.match(name) is None or (CACHE_NAME.fullmatch(name) is None and REMOVED_CACHE.fullmatch(name) is None):
        return False
    return os.path.isfile(f"{folder}/{PRIVATE}/{CACHE_MARK}")


def _is_followed(link: str, top: str, linked: set[str]) -> bool:
    """Whether to look into the directory that a link leads to; ``linked`` are those that other links have led to."""
    target = os.path.realpath(link)
    if os.path.commonpath([top, target]) != top:
        raise StorageError(
            f"{link} is a symbolic link to {target}, which is not below {top}: links to directories elsewhere are not "
            "followed. Give that directory itself, a list of files, or put it there (a bind mount, a copy)",
            url=link,
        )
    here = os.path.realpath(os.path.dirname(link))
    if target in linked or os.path.commonpath([here, target]) == target:
        return False
    linked.add(target)
    return True

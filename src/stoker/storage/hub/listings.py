"""Listings of commits, which never change: kept in memory for the stores that open one dataset one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from stoker.storage.types import ObjectInfo

# How many folders' listings are kept.
_MOST: Final = 8

_kept: dict[tuple[tuple[str, ...], str], Mapping[str, ObjectInfo]] = {}


def keep_listing(commit: tuple[str, ...], folder: str, files: Iterable[ObjectInfo]) -> Mapping[str, ObjectInfo]:
    """Keep the files of a folder and below, and return them by key, in the order of keys."""
    found = {info.key: info for info in sorted(files, key=lambda info: info.key)}
    for oldest in list(_kept)[: max(0, len(_kept) + 1 - _MOST)]:  # other threads keep others meanwhile
        _kept.pop(oldest, None)
    _kept[commit, folder] = found
    return found


def kept_listing(commit: tuple[str, ...], folder: str) -> Mapping[str, ObjectInfo] | None:
    """The files of a folder and below, by key, where its own listing or that of a folder above it is kept."""
    above = folder
    while True:
        found = _kept.get((commit, above))
        if found is not None and above == folder:
            return found
        if found is not None:
            skip = folder[len(above) :].lstrip("/") + "/"
            inside = {key[len(skip) :]: info for key, info in found.items() if key.startswith(skip)}
            return keep_listing(commit, folder, [replace(info, key=key) for key, info in inside.items()])
        if not above:
            return None
        above = above.rpartition("/")[0]


def listed_file(entry: Any, skip: str) -> ObjectInfo | None:
    """An entry of the Hub's tree as an object below the folder ``skip``; ``None`` for what is no file of it."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    path, size, version = entry.get("path"), entry.get("size"), entry.get("oid")
    large = entry.get("lfs")
    if isinstance(large, dict):
        size, version = large.get("size", size), large.get("oid", version)
    if not isinstance(path, str) or not isinstance(size, int) or not path.startswith(skip):
        return None
    return ObjectInfo(path[len(skip) :], size, str(version or "").removeprefix("sha256:"))

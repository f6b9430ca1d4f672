"""Detects the kind of a source by the files that lie there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stoker.catalog.detect import detect as find_out
from stoker.catalog.tables.marks import TABLE_FORMATS
from stoker.catalog.unindexed.files_location import check_exists, source_of
from stoker.catalog.unindexed.huggingface import DICT_NAME, STATE_NAME, refuse_dict, state_files
from stoker.errors import ConfigError
from stoker.formats.one_file import FILES, IMAGES, SUFFIXES
from stoker.formats.registry import format_name, get_format
from stoker.index.index import INDEX_NAME
from stoker.storage import Store, is_local, join_url, open_store
from stoker.types import StorageOptions

__all__ = ["FILES", "HUGGING_FACE", "IMAGES", "INDEX", "DetectedSource", "Url", "detect"]

Url = str | os.PathLike[str]

INDEX: Final = "index"
"""A dataset with an index.json, of whatever format that says."""
HUGGING_FACE: Final = "huggingface"
"""A directory that ``datasets`` made by ``save_to_disk``."""


@dataclass(frozen=True, slots=True)
class DetectedSource:
    """A source's kind and format.

    Attributes:
        kind: ``"index"``, ``"huggingface"``, ``"images"``, or a format's name.
        given: what to open: the source, or the files of it that count.
    """

    kind: str
    given: Url | Sequence[Url]


def detect(source: Url | Sequence[Url], format: str | None, options: StorageOptions | None) -> DetectedSource:  # noqa: A002
    """Find out what a source is, or see that it is what the caller says.

    Args:
        source: a directory or URL, a file, a pattern, or a list of files.
        format: what the caller says; ``None`` to find out.
        options: of the store.

    Raises:
        ConfigError: it is several things, or nothing that can be told; says what is there.
        ObjectNotFoundError: nothing is there; names files next to it with similar names.
        CorruptDataError: a Hugging Face dataset's own description is damaged.
    """
    name = HUGGING_FACE if format == "hf" else format_name(format)
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        check_exists(one)
    single = isinstance(source, str | os.PathLike)
    store = _directory(source, options) if isinstance(source, str | os.PathLike) else None
    if name is None and store is not None and store.exists(INDEX_NAME):
        return DetectedSource(INDEX, source)
    if name in (None, HUGGING_FACE) and store is not None and isinstance(source, str | os.PathLike):
        found = _hugging_face(store, source)
        if found is not None:
            return found
    if name == HUGGING_FACE:
        raise ConfigError(f"{source}: no {STATE_NAME}, which datasets.save_to_disk writes: give its directory")
    if name is not None:
        if name == INDEX:
            return DetectedSource(INDEX, source)
        if name in TABLE_FORMATS:
            return DetectedSource(name, source)
        if name != IMAGES:
            get_format(name)
        if single and store is not None and name != FILES and name not in SUFFIXES and store.exists(INDEX_NAME):
            return DetectedSource(INDEX, source)
        return DetectedSource(_as_they_are(name), source)
    return DetectedSource(_by_names(source, options), source)


def _directory(source: Url, options: StorageOptions | None) -> Store | None:
    """The source as a directory, if it may be one."""
    if source_of(source).pattern is not None:
        return None
    local = is_local(source)
    if local is not None and local.is_file():
        return None
    return open_store(source, options if local is None else None)


def _hugging_face(store: Store, source: Url) -> DetectedSource | None:
    if store.exists(DICT_NAME):
        refuse_dict(store)
    if not store.exists(STATE_NAME):
        return None
    names = state_files(store)
    if names is None:
        return None
    if not names:
        raise ConfigError(f"{store.url} is a dataset without any file: there is nothing to convert")
    return DetectedSource(HUGGING_FACE, [join_url(source, name) for name in names])


def _by_names(source: Url | Sequence[Url], options: StorageOptions | None) -> str:
    """Detect the source by the names of its files."""
    found = find_out(source, options)
    if found.kind == "shards":
        raise ConfigError(f"{source} holds shards without an index.json: make it anew with `stoker index {source}`")
    return _as_they_are(found.format or INDEX)


def _as_they_are(name: str) -> str:
    """The format that reads images of a format without decoding them; others as they are."""
    return IMAGES if name in ("jpeg", "png") else name

"""Lists the files of a dataset without an index."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from stoker.catalog.splits import chosen_by_readme, refuse_splits
from stoker.catalog.tables.marks import refuse_inside, refuse_table, table_of
from stoker.catalog.unindexed.files_location import FilesLocation, as_named, no_files, no_match
from stoker.catalog.unindexed.huggingface import DICT_NAME, STATE_NAME, saved_files
from stoker.display import counted
from stoker.errors import ConfigError, IndexFileError, ObjectNotFoundError
from stoker.formats.common.checks import check_basename
from stoker.formats.common.compression import typed_name
from stoker.formats.format import Format
from stoker.formats.one_file import BYTES_OF_ALL, IMAGES, OTHER_PICTURES
from stoker.formats.registry import get_format
from stoker.index.index import INDEX_NAME
from stoker.storage import ObjectInfo, Store, is_local
from stoker.storage.transfer import side_by_side
from stoker.storage.unfinished import MARK, counted_files
from stoker.storage.url import is_hidden

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
HEADERS_AT_ONCE: Final = 16
"""Files that are asked for at the same time."""
_LINE_SHARD: Final = re.compile(r"(?P<name>(?:.*/)?shard\.[0-9]{5,10}\.(?:csv|tsv|xsv))(?P<packed>\.gz)?")
_LISTED_DELAYS: Final = (0.1, 0.3, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a dataset.

    Attributes:
        source: where they are, which may turn out to be a single file.
        store: of the source's root.
        files: key, size and version of each, in the order of their keys, or in that of a list. The size is -1 where nobody
            has asked yet.
        beside: the files that belong to each, by its key.
    """

    source: FilesLocation
    store: Store
    files: Sequence[ObjectInfo]
    beside: Mapping[str, tuple[ObjectInfo, ...]]

    def sized(self) -> SourceFiles:
        """The same with the sizes of files that were named and not listed. ObjectNotFoundError if one does not exist."""
        unknown = [
            one for one in (*self.files, *(one for more in self.beside.values() for one in more)) if one.size < 0
        ]
        if not unknown:
            return self
        work = [partial(self.store.head, one.key) for one in unknown]
        infos = side_by_side(work, HEADERS_AT_ONCE, "sizes")
        found = {info.key: info for info in infos}
        return replace(
            self,
            files=[found.get(one.key, one) for one in self.files],
            beside={key: tuple(found.get(one.key, one) for one in more) for key, more in self.beside.items()},
        )


def as_file(source: FilesLocation, open_root: Callable[[str], Store], reader: Format) -> FilesLocation:
    """The location of a single file, where a URL names one: only the store tells it from a directory of that name, or a
    pattern from a name of the same characters.

    StorageError if the store does not answer.
    """
    if source.pattern is not None and is_local(source.root) is None:
        return as_named(source, (item.key for item in open_root(source.root).list())) or source
    head, _, name = source.root.rpartition("/")
    named = source.keys is not None or source.pattern is not None or is_local(source.root) is not None
    if named or head.endswith("/") or not typed_name(name).endswith(reader.file_suffixes):
        return source
    return FilesLocation(head, keys=(name,)) if open_root(head).exists(name) else source


def find_files(
    source: FilesLocation,
    open_root: Callable[[str], Store],
    reader: Format,
    listing: Iterable[ObjectInfo] | None = None,
) -> SourceFiles:
    """The files of a format.

    In directories only names with one of the format's suffixes count. There and by patterns, hidden files are passed over:
    names that begin with ``_`` or ``.``, in any directory below the root, as Spark and others leave them beside the data. So
    are an ``index.json`` at the root, and files of a writer that is not done (:mod:`stoker.storage.unfinished`). In
    directories that ``datasets`` saved, only the files that their ``state.json`` lists count.

    ObjectNotFoundError if there are none; says what is there. IndexFileError if a file's name leaves the root. ConfigError if
    a directory holds several splits (:mod:`stoker.catalog.splits`); says how to choose one. Or files are shards that only
    their index tells how to read. ``listing``: all files below the root, where they are listed already.
    """
    store, suffixes = open_root(source.root), reader.file_suffixes
    if source.keys is not None:
        for key in source.keys:
            _check_name(key, source.root)
        _refuse_unquoted_shards(source.keys, store, reader)
        mains = dict.fromkeys(reader.main_name(key) for key in source.keys)
        return _with_beside(source, store, [ObjectInfo(key, -1) for key in mains], reader)
    if source.pattern is not None and is_local(source.root) is None and listing is None:
        listing = list(store.list())
        if (named := as_named(source, (file.key for file in listing))) is not None:
            return find_files(named, open_root, reader)
    matches = re.compile(source.pattern).fullmatch if source.pattern is not None else None
    if reader.row_groups:
        refuse_inside(source.root, open_root)
    found: list[ObjectInfo] = []
    listed: dict[str, ObjectInfo] = {}
    notes: list[str] = []
    saved: list[str] = []
    others = other_images = 0
    images = images_beside(reader)
    for file in _listing(source.root, store) if listing is None else listing:
        key = file.key
        if reader.row_groups and (table := table_of([key])):
            refuse_table(table, source.root)
        if key.endswith(MARK):
            notes.append(key)
        if key.endswith((DICT_NAME, STATE_NAME)):
            saved.append(key)
        if reader.beside and key.lower().endswith(reader.beside) and not is_hidden(key):
            listed[key] = file
        counts = matches(key) if matches else not suffixes or typed_name(key).endswith(suffixes)
        if is_hidden(key) or not counts or key == INDEX_NAME:
            others += 1
            other_images += not counts and key.lower().endswith(images) and not is_hidden(key)
            continue
        _check_name(key, source.root)
        found.append(file)
    found = counted_files(sorted(found, key=lambda file: file.key), notes, store)
    chosen = chosen_by_readme(source.root, store) if matches is None else None
    if chosen is not None:
        found = [file for file in found if file.key in chosen]
    if found and other_images and matches is None:
        logger.warning(
            "%s: format=%r leaves out %s of other kinds; %s",
            source.root,
            reader.name,
            counted(other_images, "image"),
            BYTES_OF_ALL if reader.name == IMAGES else "format='images' reads JPEG and PNG alike",
        )
    if found:
        _refuse_unquoted_shards((file.key for file in found), store, reader)
        if matches is None:
            found = saved_files(found, saved, store) if reader.name == "arrow" else found
            if chosen is None:
                if reader.beside:
                    every = counted_files([*found, *listed.values()], notes, store)
                    _refuse_left_alone(every, source.root, reader)
                refuse_splits((file.key for file in found), source.root, folders_only=reader.single)
        return _with_beside(source, store, found, reader, listed)
    if source.pattern is None and not others and is_local(source.root) is None:
        # Only a listing tells a file from a directory that is named like one, as Spark names them.
        head, _, name = source.root.rpartition("/")
        if not head.endswith("/") and (not suffixes or typed_name(name).endswith(suffixes)):
            return _with_beside(FilesLocation(head, keys=(name,)), open_root(head), [ObjectInfo(name, -1)], reader)
    if not others:
        raise ObjectNotFoundError(no_files(source.root), url=source.root)
    if source.pattern is not None:
        raise ObjectNotFoundError(
            no_match(source, (file.key for file in _listing(source.root, store))), url=source.root
        )
    raise ObjectNotFoundError(
        f"{source.root}: no files of format {reader.name!r} there: it holds {counted(others, 'file')}, and none that is not "
        f"hidden (beginning with _ or a dot) ends with {', '.join(suffixes) or 'anything'}",
        url=source.root,
    )


def _with_beside(
    source: FilesLocation,
    store: Store,
    files: Sequence[ObjectInfo],
    reader: Format,
    listed: Mapping[str, ObjectInfo] | None = None,
) -> SourceFiles:
    """The files with those that belong to each; a pattern may match the files alone, and not what belongs to them."""
    beside: dict[str, tuple[ObjectInfo, ...]] = {}
    for file in files if reader.beside else ():
        keys = reader.names_beside(file.key)
        beside[file.key] = tuple((listed or {}).get(key) or ObjectInfo(key, -1) for key in keys)
    return SourceFiles(source, store, files, beside)


def _refuse_left_alone(files: Sequence[ObjectInfo], root: str, reader: Format) -> None:
    """See that no file lies there without the one that it belongs to, so that its samples would be missing."""
    known = {file.key for file in files}
    for one in files:
        if (main := reader.main_name(one.key)) not in known:
            raise ObjectNotFoundError(
                f"{root}: {one.key} has no {main}, so that its samples would be missing: copy that file, or, to read the "
                f"others alone, name them by a pattern such as {root}/*{reader.suffixes[0]}",
                url=root,
            )


def images_beside(reader: Format) -> tuple[str, ...]:
    """Suffixes of images that a format of images leaves out; none for other formats."""
    if reader.name == IMAGES:
        return OTHER_PICTURES
    images = get_format(IMAGES).file_suffixes
    own = reader.file_suffixes
    return tuple(set(images) - set(own)) if own and set(own) < set(images) else ()


def _refuse_unquoted_shards(keys: Iterable[str], store: Store, reader: Format) -> None:
    """See that files of separated values are none of stoker's or MosaicML Streaming's shards: these hold no quotes."""
    shard = next((match for key in keys if (match := _LINE_SHARD.fullmatch(key))), None) if reader.quoted else None
    if shard is not None and store.exists(f"{shard['name']}.meta{shard['packed'] or ''}"):
        folder = store.url_of(shard[0]).rpartition("/")[0]
        raise ConfigError(
            f"{store.url_of(shard[0])} is a shard of a dataset with an {INDEX_NAME}, and its values are not quoted as "
            f"those of other {reader.name} files: open {folder} without format=. `stoker index {folder}` rebuilds a lost "
            "index"
        )


def _check_name(key: str, root: str) -> None:
    if problem := check_basename(key):
        raise IndexFileError(f"{root}: a file has the unsafe name {key!r}: {problem}")


def _listing(root: str, store: Store) -> Iterator[ObjectInfo]:
    """All files below the root, of whatever kind."""
    directory = is_local(root)
    if directory is not None and not directory.is_dir():
        raise ObjectNotFoundError(f"{directory}: no such file or directory", url=str(directory))
    return store.list()


def read_listed(store: Store, read: Callable[[], _T]) -> _T:
    """Read a file that was just listed, by ``read``.

    One that an object store does not find is asked for again for some seconds: a listing may be ahead of what can be read.
    ObjectNotFoundError if it is still not there.
    """
    for delay in () if is_local(store.url) is not None else _LISTED_DELAYS:
        try:
            return read()
        except ObjectNotFoundError:
            time.sleep(delay)
    return read()

"""Detects the kind of data at a URL: a dataset with an index, shards whose index is lost, or files without an index.

Errors for a missing index name what is there instead, and how to open it.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Final, Literal

from stoker.catalog.tables.marks import TABLE_FORMATS, refuse_table, table_of
from stoker.catalog.unindexed.files_location import (
    Files,
    as_named,
    check_exists,
    is_pattern,
    no_files,
    no_match,
    source_of,
)
from stoker.catalog.unindexed.huggingface import SAVED_NAMES
from stoker.display import counted, redact_url
from stoker.errors import ConfigError, CorruptDataError, IndexFileError, ObjectNotFoundError, StokerError
from stoker.formats.common.compression import typed_name
from stoker.formats.format import Format
from stoker.formats.one_file import BYTES_OF_ALL, FILES, IMAGES, OTHER_PICTURES
from stoker.formats.registry import format_names, format_of_bytes, get_format, other_formats
from stoker.index.index import INDEX_NAME
from stoker.index.shard_files import ShardFiles, find_shards
from stoker.storage import ObjectInfo, Store, is_local, open_store
from stoker.storage.unfinished import MARK, counted_files
from stoker.storage.url import is_hidden
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)

# Shards, indexes below and labels are looked for among so many names; formats are counted in all.
_PEEK: Final = 5000
_MOST_NAMED: Final = 5
_HEAD: Final = 16
# Files that lie beside data anywhere and hold none.
_COMPANION: Final = re.compile(
    r"(?:readme|licen[sc]e|notice|copying|citation|changelog|checksums?)(?:\..*)?|thumbs\.db|desktop\.ini|.*\.(?:md|rst|md5|sha1|sha256|sha512|crc|log|index|tfindex)",
    re.IGNORECASE,
)
# Texts of images, as Hugging Face's datasets has them next to these.
_IMAGE_METADATA: Final = "metadata.jsonl"
_MEDIA: Final = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".mp4", ".mov", ".mkv", ".webm", ".avi")
_MDS_SHARD: Final = re.compile(r"\.mds(?:\.(?:br|bz2|gz|snappy|zstd))?$")

# What each worker of litdata's optimize leaves, of which an index.json is made at its end.
_PART_INDEX: Final = re.compile(r"[0-9]+(?:-[0-9]+)?\.index\.json")


@dataclass(frozen=True, slots=True)
class Detected:
    """The kind of data that was detected.

    ``kind``: ``index`` for an ``index.json``; ``shards`` for files named as shards are, without an index; ``files`` for files
    of one format that others wrote. ``format``: of ``files``; ``None`` else.
    """

    kind: Literal["index", "shards", "files"]
    format: str | None = None


@cache
def suffixes_of_formats() -> Mapping[str, str]:
    """End of a file's name, in lower case, to the format that reads such files without an index; stoker's own formats.

    Images of one kind have a format of their own, by which files of both are told apart.
    """
    found: dict[str, str] = {}
    for name in format_names():
        if name == IMAGES:
            continue
        for suffix in get_format(name).file_suffixes:
            found.setdefault(suffix, name)
    return found | dict.fromkeys(_MEDIA, FILES)


def _suffixes_of(forms: Iterable[Format]) -> Mapping[str, str]:
    """As :func:`suffixes_of_formats`, of other formats."""
    return {suffix: form.name for form in forms for suffix in form.file_suffixes}


def refuse_shard_files(given: Files) -> None:
    """See that no files of MDS shards are named: these are read by the index that lies beside them."""
    for one in [given] if isinstance(given, str | os.PathLike) else given:
        text = os.fspath(one)
        directory = is_local(text)
        if _MDS_SHARD.search(text) and not (directory is not None and directory.is_dir()):
            source = source_of(text)
            root = os.path.dirname(text) if source.pattern is None else source.root
            raise ConfigError(
                f"{text} names files of an MDS dataset, which is opened by its directory, where its {INDEX_NAME} is: "
                f"{root or '.'}"
            )


def detect(given: Files, storage_options: StorageOptions | None = None) -> Detected:
    """Detect the format of the files at a URL from their names; nothing is opened.

    ObjectNotFoundError if nothing is there. ConfigError for files of several formats, or of none that is known; says what was
    found. ``given``: a directory or URL prefix, a file, a pattern, or a list of files. ``storage_options``: credentials and
    settings of a remote store, by obstore's names.
    """
    if not isinstance(given, str | os.PathLike):
        refuse_shard_files(given)
        listed = [os.fspath(one) for one in given]
        _check_files(listed)
        return Detected("files", _chosen(listed, f"the list of {counted(len(listed), 'file')}"))
    text = os.fspath(given)
    if text.startswith(("http://", "https://")) and open_store(text, storage_options).exists(INDEX_NAME):
        return Detected("index")  # what can not be listed is a file otherwise
    if is_local(text) is not None or is_pattern(text):
        refuse_shard_files(text)
    source = source_of(text)
    if source.pattern is not None and not typed_name(text).endswith(tuple(suffixes_of_formats())):
        store = open_store(source.root, None if is_local(source.root) is not None else storage_options)
        keys = [item.key for item in store.list()]
        if (named := as_named(source, keys)) is not None:
            folder = f"{named.root}/"[len(source.root) + 1 :]
            source, keys = named, [key.removeprefix(folder) for key in keys if key.startswith(folder)]
        if source.pattern is not None:
            matching = [key for key in keys if re.fullmatch(source.pattern, key) and not is_hidden(key)]
            if not matching:
                raise ObjectNotFoundError(no_match(source, keys), url=source.root)
            return Detected("files", _chosen(matching, text))
        if source.keys is not None:
            return Detected("files", _chosen(source.keys, text))
    elif (found := detect_named(text)) is not None:
        return found
    check_exists(text)
    directory = is_local(text)
    store = open_store(text, None if directory is not None else storage_options)
    if store.exists(INDEX_NAME):
        return Detected("index")
    rest = (item for item in store.list() if not item.key.startswith(".stoker/"))
    listing = list(islice(rest, _PEEK))
    if not listing:
        if (alone := detect_object(store.url)) is not None:
            return alone
        refuse_shard_files(text)
        raise ObjectNotFoundError(no_files(store.url), url=store.url)
    below = sorted(item.key for item in listing if item.key.endswith(f"/{INDEX_NAME}"))
    if below:
        raise ConfigError(
            f"{store.url} has no {INDEX_NAME}, but its sub-directories have ({below[0]}{', ...' if below[1:] else ''}): "
            "name one of them, or make one index of them with `stoker index --merge`"
        )
    return detect_listed(listing, rest, text, store)


def _seen(store: Store, listing: Sequence[ObjectInfo]) -> str:
    """A hint for the error where names tell no format, by how the first file begins; empty where that tells none."""
    file = next((item for item in listing if not is_hidden(item.key)), None)
    if file is None or typed_name(file.key).endswith(tuple(suffixes_of_formats())):
        return ""
    name = format_of_bytes(bytes(store.get_range(file.key, 0, min(_HEAD, file.size)))) if file.size else None
    return f". {file.key} begins as a file of format={name!r} does" if name is not None else ""


def detect_named(text: str) -> Detected | None:
    """Detect a file's or a pattern's format by its name; ``None`` where the text is neither.

    ConfigError if the name tells no format.
    """
    source = source_of(text)
    if source.keys is None and source.pattern is None:
        return None
    if table := _metadata_of(text):
        return table
    return Detected("files", _chosen(list(source.keys or (source.given or "",)), text))


def detect_object(url: str) -> Detected | None:
    """Detect a remote object's format by its name, where listing finds nothing; ``None`` where the name does not tell."""
    if is_local(url) is not None or not typed_name(url).endswith(
        (*suffixes_of_formats(), *_suffixes_of(other_formats()))
    ):
        return None
    return _metadata_of(url) or Detected("files", _chosen([url], url))


def _metadata_of(file: str) -> Detected | None:
    """The kind of a table, if a file is one of its log that tells all of a version, such as Iceberg's metadata."""
    table = table_of(["/".join(file.split("/")[-2:])])
    return Detected("files", table.kind) if table is not None and table.kind in TABLE_FORMATS else None


def detect_listed(listing: Sequence[ObjectInfo], rest: Iterable[ObjectInfo], where: str, store: Store) -> Detected:
    """Detect what a directory without an index holds, by its listing.

    ``store``: of the directory; a file of it is looked into where no name tells a format.
    """
    if any(_is_whole(shard) for shard in find_shards(listing).values()):
        return Detected("shards")
    rest = list(rest)
    if table := table_of(item.key for item in chain(listing, rest)):
        if table.folder or table.kind not in TABLE_FORMATS:
            refuse_table(table, store.url)
        return Detected("files", table.kind)
    try:
        # An empty object without an ending is what consoles of stores leave for a folder, or jobs when they are done.
        items = (item for item in chain(listing, rest) if not is_hidden(item.key))
        names = (item.key for item in items if item.size or "." in item.key.rpartition("/")[2])
        return Detected("files", _chosen(names, where))
    except ConfigError as error:
        raise ConfigError(f"{error}{_seen(store, listing)}") from None


def _is_whole(shard: ShardFiles) -> bool:
    """Whether all files of a shard are there; of packed formats the data files alone are files as others have them."""
    try:
        return bool(shard.codec) or bool(shard.sizes)
    except CorruptDataError:
        return False


def _check_files(names: Sequence[str]) -> None:
    """See that a list names files, not datasets."""
    if not names:
        raise ConfigError("the list of files is empty: name at least one")
    folder = next((name for name in names if (place := is_local(name)) is not None and place.is_dir()), None)
    if folder is None and any(os.path.splitext(name.rstrip("/"))[1] for name in names):
        return
    remedy = f"for several datasets write streams=[Stream({redact_url(names[0])!r}), ...]"
    if folder is not None:
        raise ConfigError(f"the list holds {folder}, a directory, and a list is of files of one dataset: {remedy}")
    raise ConfigError(
        f"no name of the list ({redact_url(names[0])}) ends as a file's does, and a list is of files of one dataset: "
        f"{remedy}; for files of such names say which format with format="
    )


def _chosen(names: Iterable[str], where: str) -> str:
    """The format of files with these names."""
    known = suffixes_of_formats()
    forms = [get_format(name) for name in format_names()]
    describing = {suffix for form in forms for suffix in form.describing}
    owners = {end: form.name for form in forms for end in form.beside}
    all_known = False
    data: Counter[str] = Counter()
    described: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    stems: dict[bool, set[str]] = {True: set(), False: set()}  # of data and of what describes it
    count = 0
    for count, name in enumerate(names, 1):
        typed = typed_name(name)
        suffix = next((suffix for suffix in known if typed.endswith(suffix)), None)
        if (end := next((end for end in owners if typed.endswith(end)), "")) and len(end) > len(suffix or ""):
            unknown[end] += 1
            continue
        if suffix is None and not all_known and not _COMPANION.fullmatch(name.rpartition("/")[2]):
            others = other_formats()
            all_known, known = True, {**_suffixes_of(others), **known}
            forms += others
            describing.update(suffix for form in forms for suffix in form.describing)
            owners.update((end, form.name) for form in others for end in form.beside)
            suffix = next((suffix for suffix in known if typed.endswith(suffix)), None)
        if suffix is not None:
            counts = suffix not in describing and name.rpartition("/")[2] != _IMAGE_METADATA
            if name.rpartition("/")[2] not in SAVED_NAMES:
                (data if counts else described)[known[suffix]] += 1
            if count <= _PEEK:
                stems[counts].add(name[: len(typed) - len(suffix)])
        elif not _COMPANION.fullmatch(name.rpartition("/")[2]):
            unknown[os.path.splitext(typed)[1] or "no suffix"] += 1
    # An .idx without a .bin belongs to other data, as DALI and Megatron-Energon leave it beside tars.
    for form in forms:
        if len(data) > 1 and form.beside and not any(unknown[end] for end in form.beside):
            del data[form.name]
    beside = described if data else Counter()
    found = data or described
    # Files that belong to others, as a .bin to its .idx, by their endings.
    strange = Counter({end: number for end, number in unknown.items() if owners.get(end) not in found})
    if not found:
        tokens = "; one array of tokens is read by StreamingParquetLoader(RawSource(path, dtype, row_tokens=seq_len))"
        named = sorted(owners[end] for end in unknown if end in owners)
        owned = f"; files of format={named[0]!r} have such names" if named else ""
        raise ConfigError(
            f"{where}: the names of its {counted(count, 'file')} do not show a format "
            f"({_told(unknown) or 'all are hidden or describe data'}): pass format=, "
            f"such as format='files' to read each file as bytes{owned}{tokens if '.bin' in unknown else ''}"
        )
    chosen = next(iter(found)) if len(found) == 1 else IMAGES if found.keys() == {"jpeg", "png"} else ""
    if strange:
        read = f", such as format={chosen!r} for the first" if chosen else ""
        if strange.keys() & set(OTHER_PICTURES):
            read += f"; {BYTES_OF_ALL}"
        raise ConfigError(
            f"{where} holds {_told(found)} and {_told(strange)}, which no format reads: say with format= which files are "
            f"the dataset{read}"
        )
    if not chosen:
        raise ConfigError(f"{where} holds files of several formats ({_told(found)}): say which with format=")
    if beside and (chosen == FILES or not stems[True].isdisjoint(stems[False])):
        raise ConfigError(
            f"{where} holds {_told(found)} and {_told(beside)} next to them, which may be their labels: say with format= "
            "which files are the dataset. `stoker convert` or a tar of both makes samples of files that belong together"
        )
    if beside:
        logger.warning(
            "%s is read as %s; %s next to them are not read, as they seem to describe the data. format= overrides this",
            where,
            chosen,
            _told(beside),
        )
    return chosen


def _told(counts: Counter[str]) -> str:
    """The number of files of each kind as text, the largest first."""
    return ", ".join(f"{count} of {kind}" for kind, count in counts.most_common(_MOST_NAMED))


def format_instead(url: str | os.PathLike[str], options: StorageOptions | None, error: ObjectNotFoundError) -> str:
    """The format of the files at a URL that has no index.

    ObjectNotFoundError if they are of no one format; says what is there: datasets in folders, shards without their index,
    files that are being written, or files of several formats or of none.
    """
    check_exists(url)
    store = open_store(url, options if is_local(url) is None else None)
    listed = _listing(store)
    listing, rest = listed or ([], iter(()))
    told = _without_files(store, listing)
    if not told:
        try:
            url = store.url.rstrip("/")
            found = detect_named(url) or (detect_listed(listing, rest, url, store) if listing else detect_object(url))
        except ConfigError as unclear:
            told = f": {unclear}" if listing else ""
        else:
            if found is not None and found.format is not None:
                return found.format
            if found is not None:
                told = (
                    f": it holds shards whose index is lost, or that a writer has not finished. `stoker index {store.url}` "
                    "rebuilds the index"
                )
                if all(shard.format == "mds" for shard in find_shards(listing).values()):
                    told += '; format="mds" reads the shards without one'
    if not told and listed and not listing:
        refuse_shard_files(url)
        raise ObjectNotFoundError(no_files(os.fspath(url)), url=store.url) from error
    if not told:
        raise error
    raise ObjectNotFoundError(f"{store.url} has no {INDEX_NAME}{told}", url=store.url) from error


def _listing(store: Store) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]] | None:
    """The first files at a URL, and the others; ``None`` where they can not be listed."""
    rest = store.list()
    try:
        return list(islice(rest, _PEEK)), rest
    except StokerError as error:
        if is_local(store.url) is not None or isinstance(error, IndexFileError):
            raise
        return None


def _without_files(store: Store, listing: Sequence[ObjectInfo]) -> str:
    """A description of a directory or URL that has no index and holds neither files nor shards; empty where it holds them."""
    if any(item.key == MARK for item in listing):
        told = ": its files are being written, or their writer was stopped before its end. A writer with resume=True goes on"
        if find_shards(listing):
            return f"{told}; `stoker index {store.url}` makes a dataset of the shards that are there"
        before = counted_files(listing, [MARK], store)[0].key
        return f"{told}; with format=, the files that were complete before, such as {before}, are read"
    if any(_PART_INDEX.fullmatch(item.key) for item in listing):
        return f": litdata's optimize did not end there: litdata.complete_dataset({store.url!r}) makes its {INDEX_NAME}"
    end = f"/{INDEX_NAME}"
    below = sorted(item.key.removesuffix(end) for item in listing if item.key.endswith(end))
    if not below:
        return ""
    more = f" and {len(below) - _MOST_NAMED} more" if len(below) > _MOST_NAMED else ""
    return (
        f", but folders in it have: {', '.join(below[:_MOST_NAMED])}{more}. Choose one, as by "
        f'split="{below[0]}", open each as a Stream, or make one index of all by merge_index'
    )

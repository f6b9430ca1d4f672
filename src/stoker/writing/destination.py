"""The destination of a writer, and the commit protocol of all output.

A writer begins: what is at the destination is refused, removed or continued. Each file appears whole, by rename or upload.
Before the first of them a mark says that the output is unfinished (:mod:`stoker.storage.unfinished`). At the end comes the
index, where the format has one; files without an index, which a local directory holds in a hidden folder until then, get
their places. Last the mark goes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from stoker.errors import ConfigError, DestinationExistsError, FormatError, ObjectNotFoundError, StokerError
from stoker.formats.common.checks import check_basename
from stoker.index.index import INDEX_NAME, load_index
from stoker.storage import ObjectInfo, RetryPolicy, Store, is_local, open_store
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.staged_file import StagedFile
from stoker.storage.local import remove_unfinished
from stoker.storage.retry import STALL_TIMEOUT
from stoker.storage.transfer import side_by_side
from stoker.storage.types import PutData
from stoker.storage.unfinished import MARK, STAGE, UnfinishedOutput, read_mark
from stoker.types import StorageOptions
from stoker.writing.output_files import FoundFiles, OutputFiles, WrittenFiles, as_json

logger = logging.getLogger(__name__)

_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Begun:
    """The output that a writer continues.

    ``written``: files that are part of the output already, by number. ``extra``: keys of the existing index, other than its
    shards.
    """

    written: list[WrittenFiles] = field(default_factory=list)
    extra: Mapping[str, Any] = field(default_factory=dict)


class Destination:
    """The one or two stores that get every file of a dataset.

    The last store is the one that counts when looking for what is there.
    """

    whole: bool = True
    """Whether what is written is a dataset of its own, which has a file even where it has no samples."""

    appends: bool = True
    """Whether the caller may choose ``append=``, so that errors offer it."""

    def __init__(self, stores: Iterable[Store]) -> None:
        self.stores = tuple(stores)
        self.main = self.stores[-1]
        self._lock = threading.Lock()
        self._mark: UnfinishedOutput | None = None  # to be stored before the first file
        self._before: UnfinishedOutput | None = None  # the mark that was there at the start
        self._stored: UnfinishedOutput | None = None  # the mark that was stored
        self._marked = False  # by a writer before
        self._has_files = False
        self._staged = False

    # -- what writers use ------------------------------------------------------------------------------------------

    def begin(self, files: OutputFiles, *, append: bool = False, resume: bool = False, exist_ok: bool = False) -> Begun:
        """Prepare the stores for files of a writer.

        ``append`` adds to the output that is there, or begins it; ``resume`` continues what a stopped writer of the same
        settings left; ``exist_ok`` removes the output that is there.
        """
        self._staged = not files.indexed
        begun = Begun()
        counted: list[WrittenFiles] = []
        if exist_ok:
            if append or resume:
                raise ConfigError("exist_ok=True replaces what is there; append=True and resume=True keep it: choose")
            self._clear(files)
        elif append or resume:
            begun, counted = self._continued(files, resume)
        else:
            self._refuse_existing(files)
        names = tuple(name for written in counted for name in written.sizes)
        self._before = read_mark(self.main)
        self._mark = UnfinishedOutput(files.settings, names, secrets.token_hex(8))
        return begun

    def put(self, key: str, data: PutData | StagedFile) -> None:
        """Write a file to all stores. The first one is preceded by the mark.

        An error where another writer has begun there meanwhile.
        """
        with self._lock:
            if self._mark is not None:
                if read_mark(self.main) != self._before:
                    raise _another_writer(self.main)
                for store in self.stores:
                    store.put(MARK, self._mark.to_json())
                self._mark, self._stored = None, self._mark
        for store in self.stores:
            if isinstance(data, StagedFile):
                data.store(store, self._stage(store) + key)
            else:
                store.put(self._stage(store) + key, data)
        self._has_files = True

    def stage_file(self, key: str) -> StagedFile:
        """A file to be written piece by piece, and then given to :meth:`put`."""
        return StagedFile(self.main, self._stage(self.main) + key)

    def commit(self, index: bytes | None = None) -> None:
        """Make what was written count.

        Where another writer has written there, too, neither's output counts, which is an error.
        """
        if self._stored is not None:
            self._check_alone(self._stored)
        for store in self.stores:
            if index is not None:
                store.put(INDEX_NAME, index)
            publish(store)
        if self._marked or self._has_files:
            for store in self.stores:
                store.delete(MARK)

    def abort(self) -> None:
        """Leave what was written to a writer that resumes. Where nothing was, nothing stays."""
        if not self._marked and not self._has_files and self._mark is None:
            with contextlib.suppress(StokerError):
                for store in self.stores:
                    store.delete(MARK)

    def _check_alone(self, stored: UnfinishedOutput) -> None:
        for store in self.stores:
            mark = read_mark(store)
            if mark == stored:
                continue
            if mark is not None:  # the other writer, which is not done, is to notice this one
                store.put(MARK, replace(mark, writer=f"{mark.writer}+{stored.writer}").to_json())
            raise _another_writer(store)

    # -- what is there already -------------------------------------------------------------------------------------

    def _refuse_existing(self, files: OutputFiles) -> None:
        for store in self.stores:
            if store.exists(INDEX_NAME):
                added = ", or append=True to add to it" if files.indexed and self.appends else ""
                raise DestinationExistsError(
                    f"{store.url_of(INDEX_NAME)} exists: write elsewhere, or pass exist_ok=True to replace the dataset{added}"
                )
            found = files.find(self._listing(store), store)
            if not found:
                continue
            if files.indexed or store.exists(MARK):
                raise _unfinished(store, files)
            added = ", or append=True to add to them" if self.appends else ""
            raise DestinationExistsError(
                f"{store.url} holds such files: write elsewhere, pass exist_ok=True to replace them{added}"
            )

    def _continued(self, files: OutputFiles, resume: bool) -> tuple[Begun, list[WrittenFiles]]:
        """The files that the output begins with, and those of them that count already."""
        main = self.main
        mark = read_mark(main)
        if not files.indexed and main.exists(INDEX_NAME):
            raise DestinationExistsError(
                f"{main.url_of(INDEX_NAME)} exists, and files that it does not name are not read: write elsewhere, or pass "
                "exist_ok=True to replace the dataset"
            )
        if mark is not None and mark.doomed is not None:
            if not resume:
                raise ConfigError(
                    f"{main.url}: a writer with exist_ok=True was removing what is there when it was stopped: pass "
                    "resume=True or exist_ok=True to start again"
                )
            self._clear(files)
            mark = None
        self._marked = mark is not None
        index = None
        with contextlib.suppress(ObjectNotFoundError):
            index = load_index(main) if files.indexed else None
        if mark is not None and index is None:
            if not resume:
                raise _unfinished(main, files)
            _check_settings(mark, files, main)
        located = {item.key: at for item, at in self._located(main)}
        found = [one for one in files.find(self._listing(main), main) if one.own]
        if index is not None:
            for shard in {id(shard.spec): shard for shard in index.shards}.values():
                files.check_columns(shard, main.url_of(INDEX_NAME))
            counted = [WrittenFiles.of_shard(number, shard) for number, shard in enumerate(index.shards)]
            waiting = [one for one in found if one.number >= len(counted)]
        elif files.indexed:
            if found and not resume:
                raise _unfinished(main, files)
            counted, waiting = [], found
        else:
            there = [one for one in found if one.whole and (mark is None or not set(mark.files).isdisjoint(one.sizes))]
            look = [partial(files.inspect, main, one, located) for one in there]
            counted = side_by_side(look, _THREADS, "inspect")
            waiting = [] if mark is None else [one for one in found if one not in there]
        written = list(counted)
        numbers = itertools.count(written[-1].number + 1 if written else 0)
        following = [one for one, number in zip(waiting, numbers, strict=False) if one.number == number]
        for one in _inspected(files, main, following if resume else [], located):
            if isinstance(one, FormatError):
                logger.info("it is not continued from a damaged file: %s", one)
                break
            written.append(one)
        first = len(counted) if index is not None else 0
        self._keep_only({name: size for one in written for name, size in one.sizes.items()}, files, first)
        return Begun(written, index.extra if index is not None else {}), counted

    def _keep_only(self, written: Mapping[str, int], files: OutputFiles, first: int) -> None:
        """Remove files from number ``first`` on that are not kept, and copy those that are to stores that lack them."""
        sources = {item.key: at for item, at in self._located(self.main)}
        for store in self.stores:
            _remove_partial(store)
            located = self._located(store)
            found = files.find((item for item, _ in located), store)
            doomed = {
                name for one in found if one.own and one.number >= first for name in one.sizes if name not in written
            }
            delete_all(store, [at for item, at in located if item.key in doomed])
            there = {item.key: item.size for item, _ in located}
            for name, size in written.items() if store is not self.main else ():
                if there.get(name) != size:
                    data = self.main.get(sources.get(name, name), max_bytes=size)
                    store.put((self._stage(store) if name not in there else "") + name, data)

    def _clear(self, files: OutputFiles) -> None:
        """Remove the output that is there, so that at no moment old and new files mix.

        Wherever we are killed, the mark tells a writer that resumes that the files which are left are not its own.
        """
        for store in self.stores:
            names: set[str] = set()
            with contextlib.suppress(FormatError):
                mark = read_mark(store)
                names.update(mark.doomed or () if mark is not None else ())
            try:
                names.update(load_index(store).file_entries())
            except ObjectNotFoundError:
                pass
            except FormatError as error:
                logger.warning("replacing a dataset whose index can not be read: %s", error)
            located = self._located(store)
            for one in files.find((item for item, _ in located), store):
                names.update(one.sizes)
            names = {name for name in names if check_basename(name) is None}
            if names:
                store.put(MARK, UnfinishedOutput.replaced(names).to_json())
            store.delete(INDEX_NAME)
            _remove_partial(store)
            staged = [at for item, at in located if item.key in names and at != item.key]
            delete_all(store, [*names, *staged])
            store.delete(MARK)

    def _stage(self, store: Store) -> str:
        """Folder of a store that files lie in until the end."""
        return STAGE if self._staged and is_local(store.url) is not None else ""

    def _located(self, store: Store) -> list[tuple[ObjectInfo, str]]:
        """The objects of a store: each by its final name, and with the key that it has now."""
        stage = self._stage(store)
        return [(replace(item, key=item.key.removeprefix(stage)) if stage else item, item.key) for item in store.list()]

    def _listing(self, store: Store) -> list[ObjectInfo]:
        return [item for item, _ in self._located(store)]


OutPath: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | Destination
"""A directory, a URL, or a ``(directory, URL)`` pair; or a destination of the caller's own."""


def open_destination(
    out: OutPath,
    remote: str | os.PathLike[str] | None = None,
    keep_local: bool = False,
    storage_options: StorageOptions | None = None,
    retry: int = 5,
) -> Destination:
    """Work out where ``out``, ``remote`` and ``keep_local`` say that files should go.

    With a remote and without ``keep_local``, files go to the remote straight from memory.
    """
    if isinstance(out, Destination):
        return out
    if isinstance(out, tuple):
        if len(out) != 2 or remote is not None:
            raise ConfigError("out is a directory, a URL or a (directory, URL) pair; with a pair leave remote out")
        local: str | os.PathLike[str] | None = out[0]
        target: str | os.PathLike[str] | None = out[1]
    elif remote is None and is_local(out) is None:
        local, target = None, out
    else:
        local, target = out, remote
    if local is not None and is_local(local) is None:
        raise ConfigError(f"{os.fspath(local)!r} should be a directory, for the dataset goes to {target!r} as well")
    if keep_local and local is None:
        raise ConfigError("keep_local=True needs a directory to keep the files in: out=(directory, URL)")
    if retry < 0:
        raise ConfigError(f"retry={retry}: minutes in which an upload is tried again, not negative")
    policy = RetryPolicy(retry * STALL_TIMEOUT)
    stores = []
    if local is not None and (keep_local or target is None):
        stores.append(open_store(local, storage_options if target is None else None, retry=policy))
    if target is not None:
        stores.append(open_store(target, storage_options, retry=policy))
    return Destination(stores)


def publish(store: Store) -> None:
    """Move the files of a local directory's hidden folder to their final paths."""
    folder = is_local(store.url)
    if folder is None or not (folder / STAGE).is_dir():
        return
    with file_errors(folder):
        for item in list(store.list(STAGE)):
            final = folder / item.key.removeprefix(STAGE)
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / item.key, final)
        with contextlib.suppress(OSError):
            (folder / STAGE).rmdir()


def delete_all(store: Store, keys: Iterable[str]) -> None:
    """Remove objects, some at a time; those that are not there are passed over."""
    side_by_side([partial(store.delete, key) for key in sorted(keys)], _THREADS, "delete")


def _inspected(
    files: OutputFiles, store: Store, found: list[FoundFiles], located: Mapping[str, str]
) -> list[WrittenFiles | FormatError]:
    def inspect(one: FoundFiles) -> WrittenFiles | FormatError:
        try:
            return files.inspect(store, one, located)
        except FormatError as error:
            return error

    return side_by_side([partial(inspect, one) for one in found], _THREADS, "inspect")


def _unfinished(store: Store, files: OutputFiles) -> ConfigError:
    without = " without an index, as an unfinished writer leaves them" if files.indexed else " of an unfinished writer"
    return ConfigError(
        f"{store.url} holds {files.what}{without}: pass resume=True to continue, or exist_ok=True to replace them"
    )


def _another_writer(store: Store) -> ConfigError:
    return ConfigError(
        f"{store.url}: another writer writes there at the same time, and files of both would be mixed: the output of this "
        "one does not count. Give each writer a directory of its own, and merge their indexes; exist_ok=True starts again"
    )


def _check_settings(mark: UnfinishedOutput, files: OutputFiles, store: Store) -> None:
    theirs = as_json(mark.identity)
    different = [name for name in {**files.settings, **theirs} if files.settings.get(name) != theirs.get(name)]
    if different:
        told = "; ".join(f"{name} was {theirs.get(name)!r}, is {files.settings.get(name)!r}" for name in different)
        raise ConfigError(
            f"{store.url} was begun with other settings ({told[:500]}): resume with the same, or pass exist_ok=True to start "
            "again"
        )


def _remove_partial(store: Store) -> None:
    folder = is_local(store.url)
    if folder is not None:
        remove_unfinished(folder)

"""Writers of datasets that consist of numbered files and have no index: their files are found by listing them."""

from __future__ import annotations

import contextlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from stoker.catalog.unfinished import NOTE, UnfinishedOutput, read_note
from stoker.catalog.unindexed.found_files import is_hidden
from stoker.concurrency.forks import reset_in_children
from stoker.errors import ConfigError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.storage import Store
from stoker.storage.types import PutData
from stoker.writing.destination import OutPath, open_destination
from stoker.writing.progress import ProgressLine
from stoker.writing.upload_pool import StoringWriter, UploadPool
from stoker.writing.writer import WriterOptions, check_size_limit

__all__ = ["FileSetWriter", "size_of"]

_T = TypeVar("_T")
_THREADS: Final = 3
_LOOKS: Final = 8
_REPLACING: Final = {"replacing": True}


class FileSetWriter(StoringWriter):
    """Base of these writers: ``part-00000.parquet``, ``part-00001.parquet``, ...

    Use it in a ``with`` statement. Until its end a note lies beside the files (see :mod:`stoker.catalog.unfinished`), by
    which stoker reads none of them, or only those of before, and a killed writer is gone on from. Programs that know nothing
    of it see the files that are complete.

    Args:
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        identity: what the files are; files of another can not be added to.
        options: see :class:`~stoker.writing.writer.WriterOptions`; ``hashes`` are not taken, as there is no index for them.

    Raises:
        ConfigError: an argument makes no sense, or what is there is in the way; says what to do.
    """

    ends: ClassVar[tuple[str, ...]]
    """What the names of the files of one number end with; the last of them is stored last, and tells of the others."""

    def __init__(
        self, out: OutPath, remote: Any, identity: Mapping[str, Any], options: WriterOptions, compression: str | None
    ) -> None:
        if options.get("hashes"):
            raise ConfigError(f"hashes: {self.ends[-1][1:]} files have no index that these could stand in")
        self._limit = check_size_limit(options.get("size_limit", 1 << 26)) or MAX_OFFSET
        threads = options.get("max_workers") or _THREADS
        if threads < 1:
            raise ConfigError(f"max_workers={threads}: at least 1")
        self._identity = _plain(identity)
        self._settings = {**self._identity, "compression": compression, "size_limit": self._limit}
        self._destination = open_destination(
            out, remote, options.get("keep_local", False), options.get("storage_options"), options.get("retry", 5)
        )
        self._number = 0
        self._samples = 0
        self._prepare(options)
        self._progress = ProgressLine(self._destination.main.url) if options.get("progress_bar") else None
        self._storing = UploadPool(threads, 1)
        reset_in_children(self)

    @property
    def samples_written(self) -> int:
        """Samples in the dataset so far, with those that were there at the start.

        Right after construction with ``resume=True`` it tells how many samples of the source to skip.
        """
        return self._samples

    def finish(self) -> None:
        """Store what is left and wait for all files; from then on they count.

        Raises:
            StorageError: a file could not be stored. Then a new writer can ``resume``.
            ConfigError: the writer is closed already.
        """
        self._check_open()
        try:
            self._end_file(empty=self._number == 0)
            self._storing.finish()
            for store in self._destination.stores:
                store.delete(NOTE)
        except BaseException:
            self.abort()
            raise
        self._close("finished")

    def end_shard(self) -> None:
        """End the file with the last sample that was added: the next one begins another."""
        self._check_open()
        self._end_file(empty=False)

    # -- what formats do -------------------------------------------------------------------------------------------

    @abstractmethod
    def _end_file(self, *, empty: bool) -> None:
        """Store the samples that wait, if there are any; with ``empty``, a file without samples otherwise."""

    @abstractmethod
    def _look(self, store: Store, number: int, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        """Samples and identity of the files of a number, which are all there.

        Raises:
            CorruptDataError, FormatError: they are damaged, or another program's.
        """

    def _put(self, files: Sequence[PutData], samples: int) -> None:
        """Store the files of the next number, in the order of :attr:`ends`."""
        number = self._number
        self._number += 1
        self._storing.submit(partial(self._store, number, files, samples))

    def _store(self, number: int, files: Sequence[PutData], samples: int) -> None:
        for end, data in zip(self.ends, files, strict=True):
            self._destination.put(_name(number, end), data)
        if self._progress is not None:
            self._progress.advance(samples, sum(size_of(data) for data in files))

    # -- what is there already -------------------------------------------------------------------------------------

    def _prepare(self, options: WriterOptions) -> None:
        append, resume = options.get("append", False), options.get("resume", False)
        main = self._destination.main
        counted: list[int] = []
        if options.get("exist_ok", False):
            if append or resume:
                raise ConfigError("exist_ok=True replaces what is there; append=True and resume=True keep it: choose")
            self._clear()
        elif not (append or resume):
            self._refuse_existing()
        elif not self._destination.blank:
            note = read_note(main)
            if note is not None and not resume:
                raise ConfigError(
                    f"{main.url} holds the files of an unfinished writer: pass resume=True to go on, or exist_ok=True to "
                    "replace them"
                )
            if note is not None and note.identity == _REPLACING:
                self._clear()
                note = None
            if note is not None and _plain(note.identity) != _plain(self._settings):
                raise ConfigError(
                    f"{main.url} was begun with other settings: {json.dumps(note.identity)}, but this writer has "
                    f"{json.dumps(self._settings)}: resume with the same, or pass exist_ok=True to start anew"
                )
            counted = self._go_on(note)
        self._note([_name(number, end) for number in counted for end in self.ends])

    def _clear(self) -> None:
        """Remove what is there. Wherever we are killed, whoever resumes knows that what is left is not its own."""
        for store in self._destination.stores:
            numbered = self._numbered(store)
            store.put(NOTE, UnfinishedOutput(_REPLACING, ()).to_json())
            self._delete(store, [name for names in numbered.values() for name in names])

    def _go_on(self, note: UnfinishedOutput | None) -> list[int]:
        """Count what is there; numbers of the files that count already. The rest is gone on from."""
        main = self._destination.main
        there = self._numbered(main)
        whole = [number for number in sorted(there) if len(there[number]) == len(self.ends)]
        counted = [number for number in whole if note is None or _name(number, self.ends[-1]) in note.files]
        kept = list(counted)
        for number in whole if note is not None else ():
            if number == (kept[-1] + 1 if kept else 0):
                kept.append(number)
        with ThreadPoolExecutor(_LOOKS, thread_name_prefix="stoker-look") as pool:
            looks = list(pool.map(lambda number: self._looked(main, number, there[number]), kept))
        for number, (samples, identity) in zip(kept, looks, strict=True):
            if _plain(identity) != self._identity:
                raise ConfigError(
                    f"{main.url_of(_name(number, self.ends[-1]))} has other columns: {json.dumps(_plain(identity))}, but "
                    f"this writer has {json.dumps(self._identity)}"
                )
            self._samples += samples
        self._number = kept[-1] + 1 if kept else 0
        for store in self._destination.stores:
            numbered = self._numbered(store)
            self._delete(store, [name for number in numbered if number not in kept for name in numbered[number]])
            for number in kept if store is not main else ():
                for name, size in there[number].items():
                    if numbered.get(number, {}).get(name) != size:
                        store.put(name, main.get(name, max_bytes=size))
        return counted

    def _looked(self, store: Store, number: int, names: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        return self._look(store, number, {end: names[_name(number, end)] for end in self.ends})

    def _refuse_existing(self) -> None:
        if self._destination.blank:
            return
        for store in self._destination.stores:
            if store.exists(NOTE):
                raise ConfigError(
                    f"{store.url} holds the files of an unfinished writer: pass resume=True to go on, or exist_ok=True to "
                    "replace them"
                )
            if self._numbered(store):
                raise ConfigError(
                    f"{store.url} holds such files: write elsewhere, pass exist_ok=True to replace them, or append=True to "
                    "add to them"
                )

    def _numbered(self, store: Store) -> dict[int, dict[str, int]]:
        """Names and sizes of the files that are there, by number.

        Raises:
            ConfigError: files of this format that no such writer stored, which would be read with the others.
        """
        wanted = re.compile(rf"part-([0-9]{{5,10}})(?:{'|'.join(map(re.escape, self.ends))})")
        found: dict[int, dict[str, int]] = {}
        for item in store.list():
            match = wanted.fullmatch(item.key)
            if match is not None:
                found.setdefault(int(match[1]), {})[item.key] = item.size
            elif item.key.lower().endswith(self.ends) and not is_hidden(item.key):
                raise ConfigError(
                    f"{store.url_of(item.key)} would be read with what is written here: write to a directory of its own"
                )
        return found

    def _note(self, files: Iterable[str]) -> None:
        """Say that from now on only these files count."""
        data = UnfinishedOutput(self._settings, tuple(files)).to_json()
        for store in self._destination.stores:
            store.put(NOTE, data)

    @staticmethod
    def _delete(store: Store, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                store.delete(name)


def _name(number: int, end: str) -> str:
    return f"part-{number:05}{end}"


def size_of(data: PutData) -> int:
    """Bytes of what is stored."""
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return sum(memoryview(piece).nbytes for piece in data)


def _plain(value: _T) -> _T:
    """As JSON gives it back: tuples are lists."""
    plain: _T = json.loads(json.dumps(value))
    return plain

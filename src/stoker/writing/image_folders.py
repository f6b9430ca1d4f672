"""Write images as files, a file a sample and a folder a class, with an index that comes last."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final, Unpack

from stoker.arguments import checked
from stoker.concurrency.forks import reset_in_children
from stoker.errors import ConfigError, EncodingError, MissingPackageError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import MAX_OFFSET, check_basename
from stoker.formats.common.hashing import hash_hex
from stoker.formats.common.records import batch_length, blame
from stoker.formats.common.values import UnfitValueError, describe
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.one_file import LABEL
from stoker.index.index import INDEX_NAME
from stoker.storage import Store
from stoker.writing.destination import OutPath, open_destination
from stoker.writing.progress import ProgressLine
from stoker.writing.upload_pool import StoringWriter, UploadPool
from stoker.writing.writer import WriterOptions, check_hash_names

__all__ = ["ImageWriter", "JPEGWriter", "PNGWriter"]

_IMAGE: Final = "image"
_THREADS: Final = 3
# Images that wait for a thread, for each thread.
_WAITING: Final = 8


class ImageWriter(StoringWriter):
    """Base of the writers of images: ``<label>/000000017.jpeg``, or ``000000017.jpeg`` without labels.

    Use it in a ``with`` statement. The index is written at its end, after every image is stored; after an exception it is not
    written. The folders are those that other programs take for classes.

    Args:
        columns: ``image`` to ``jpeg`` or ``png``, and, if wanted, ``label`` to ``int`` or ``str``.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`~stoker.writing.writer.WriterOptions`, but ``compression`` and ``size_limit``, which images
            have no use for.

    Raises:
        ConfigError: an argument makes no sense, or there is a dataset already.
    """

    format: ClassVar[str]

    @checked
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        if options.get("compression"):
            raise ConfigError("compression: images are compressed already")
        if columns.get(_IMAGE) != self.format or columns.get(LABEL, "str") not in ("int", "str"):
            raise ConfigError(
                f"columns={dict(columns)!r}: expected {{'image': {self.format!r}, 'label': 'int' or 'str'}}"
            )
        if other := set(columns) - {_IMAGE, LABEL}:
            raise ConfigError(
                f"column {min(other)!r}: a file holds an image, and its folder tells the label; nothing else"
            )
        names = sorted(columns)
        self._hashes = check_hash_names(options.get("hashes"))
        self._names = names
        self._settings: dict[str, Any] = {
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "column_sizes": [get_encoding(columns[name]).size for name in names],
            "compression": None,
            "format": self.format,
            "hashes": self._hashes,
            "samples": 1,
            "size_limit": None,
            "version": 2,
            "zip_data": None,
        }
        self._encode = get_encoding(self.format).encode
        self._label = columns.get(LABEL)
        self._destination = open_destination(
            out, remote, options.get("keep_local", False), options.get("storage_options"), options.get("retry", 5)
        )
        threads = options.get("max_workers") or _THREADS
        if threads < 1:
            raise ConfigError(f"max_workers={threads}: at least 1")
        self._extra: Mapping[str, Any] = {}
        self._entries: list[dict[str, Any]] = []
        self._prepare(options)
        self._progress = ProgressLine(self._destination.main.url) if options.get("progress_bar") else None
        self._storing = UploadPool(threads, threads * (_WAITING - 1))
        reset_in_children(self)

    @property
    def samples_written(self) -> int:
        """Samples in the dataset so far, with those that were there at the start."""
        return len(self._entries)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: ``image`` (a PIL image or a file's bytes) and ``label``.

        Raises:
            EncodingError: a value is missing or does not fit. Nothing of the sample is written, and writing may go on.
            ConfigError: the writer is closed.
            StorageError: storing an earlier image failed.
        """
        self._check_open()
        number = len(self._entries)
        if not isinstance(sample, Mapping):
            raise EncodingError(f"sample {number}: expected a mapping of columns, got {type(sample).__name__}")
        for name in self._names:
            if name not in sample:
                raise EncodingError(f"sample {number} has no value for column {name!r}")
        try:
            folder = "" if self._label is None else _folder(sample[LABEL], self._label)
        except UnfitValueError as error:
            raise blame(LABEL, number, error) from error
        try:
            data = self._encode(sample[_IMAGE])
            if len(data) > MAX_OFFSET:
                raise UnfitValueError(f"expected less than 4 GiB, got {len(data)} bytes")
        except MissingPackageError:
            raise
        except Exception as error:
            raise blame(_IMAGE, number, error) from error
        name = f"{folder}{number:09}.{self.format}"
        entry = {**self._settings, "raw_data": {"basename": name, "bytes": len(data), "hashes": {}}}
        self._entries.append(entry)
        self._storing.submit(partial(self._store, name, data, entry["raw_data"]))

    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """Add n samples given as columns: lists or arrays of n values.

        Raises:
            EncodingError: as for :meth:`write`; samples before the one that does not fit are written.
        """
        self._check_open()
        for row in range(batch_length(columns, self._names, len(self._entries))):
            self.write({name: columns[name][row] for name in self._names})

    def finish(self) -> None:
        """Wait for all images, then write the index.

        Raises:
            StorageError: an image or the index could not be stored. Then there is no index, and a new writer can
                ``resume``.
            ConfigError: the writer is closed already.
        """
        self._check_open()
        try:
            self._storing.finish()
            index = {**self._extra, "shards": self._entries, "version": 2}
            self._destination.put(INDEX_NAME, json.dumps(index, sort_keys=True).encode())
        except BaseException:
            self.abort()
            raise
        self._close("finished")

    def _store(self, name: str, data: bytes, entry: dict[str, Any]) -> None:
        entry["hashes"] = {algorithm: hash_hex(algorithm, data) for algorithm in self._hashes}
        self._destination.put(name, data)
        if self._progress is not None:
            self._progress.advance(1, len(data))

    # -- what is there already -------------------------------------------------------------------------------------

    def _prepare(self, options: WriterOptions) -> None:
        append, resume = options.get("append", False), options.get("resume", False)
        destination = self._destination
        if destination.blank:
            return
        if options.get("exist_ok", False):
            if append or resume:
                raise ConfigError("exist_ok=True replaces what is there; append=True and resume=True keep it: choose")
            destination.clear()
            for store in destination.stores:
                self._delete(store, [name for name, _, _ in self._images(store)])
            return
        if not (append or resume):
            destination.refuse_existing()
            self._refuse_images()
            return
        index = destination.existing(self._settings)
        if index is not None:
            self._extra = index.extra
            self._entries = [self._entry_of(shard) for shard in index.shards]
        if resume:
            self._continue()
        elif index is None:
            self._refuse_images()
        self._complete()

    def _entry_of(self, shard: ShardInfo) -> dict[str, Any]:
        file = shard.raw[0]
        raw = {"basename": file.basename, "bytes": file.bytes, "hashes": dict(file.hashes)}
        return {**self._settings, "hashes": list(shard.spec["hashes"]), "raw_data": raw}

    def _continue(self) -> None:
        """Take over the images of a killed writer, numbered without a gap; remove those after one."""
        main = self._destination.main
        first = len(self._entries)
        doomed: list[str] = []
        for name, number, size in self._images(main):
            if number == first:
                hashes = {algorithm: hash_hex(algorithm, main.get(name, max_bytes=size)) for algorithm in self._hashes}
                raw = {"basename": name, "bytes": size, "hashes": hashes}
                self._entries.append({**self._settings, "raw_data": raw})
                first += 1
            elif number >= first:
                doomed.append(name)
        for store in self._destination.stores:
            self._delete(store, doomed)

    def _complete(self) -> None:
        """Copy images from the place that counts to those that lack them."""
        for store in self._destination.stores[:-1]:
            there = {item.key: item.size for item in store.list()}
            for entry in self._entries:
                name = entry["raw_data"]["basename"]
                size = entry["raw_data"]["bytes"]
                if there.get(name) != size:
                    store.put(name, self._destination.main.get(name, max_bytes=size))

    def _refuse_images(self) -> None:
        for store in self._destination.stores:
            if next(iter(self._images(store)), None) is not None:
                raise ConfigError(
                    f"{store.url} holds images without an index, as an unfinished writer leaves them: pass resume=True to "
                    "continue it, or exist_ok=True to replace them"
                )

    def _images(self, store: Store) -> list[tuple[str, int, int]]:
        """Name, number and size of the images that a writer like this has stored, by number."""
        name = re.compile(rf"(?:[^/]+/)?([0-9]{{9,10}})\.{self.format}")
        found = [(item.key, int(match[1]), item.size) for item in store.list() if (match := name.fullmatch(item.key))]
        return sorted(found, key=lambda image: image[1])

    def _delete(self, store: Store, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                store.delete(name)


class JPEGWriter(ImageWriter):
    """Writes JPEG files, a folder a class. Bytes of JPEG files, and images opened from such, are stored as they are."""

    format = "jpeg"


class PNGWriter(ImageWriter):
    """Writes PNG files, a folder a class."""

    format = "png"


def _folder(label: Any, kind: str) -> str:
    """The folder of a label, with its slash."""
    what = "a whole number" if kind == "int" else "text that can be a folder's name"
    if kind == "int" and isinstance(label, bool):
        raise UnfitValueError(f"expected {what}, got {describe(label)}")
    if kind == "int":
        try:
            text = str(label.__index__())
        except AttributeError:
            raise UnfitValueError(f"expected {what}, got {describe(label)}") from None
    elif isinstance(label, str):
        text = label
    else:
        raise UnfitValueError(f"expected {what}, got {describe(label)}")
    if "/" in text or text.startswith((".", "_")) or check_basename(text) is not None:
        raise UnfitValueError(f"expected {what}, got {describe(label)}")
    return f"{text}/"

"""Write images as files, a file a sample and a folder a class, with an index that comes last."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final, Unpack

from stoker.arguments import checked
from stoker.digests import hash_hex
from stoker.errors import ConfigError, MissingPackageError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import MAX_OFFSET, check_basename
from stoker.formats.common.records import batch_length, blame, check_sample
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.mds.encodings.base import UnfitValueError, describe
from stoker.formats.one_file import LABEL
from stoker.writing.base import Writer, WriterOptions, check_hash_names
from stoker.writing.destination import OutPath
from stoker.writing.output_files import ImageFiles

_IMAGE: Final = "image"
# Images that wait for a thread, for each thread.
_WAITING: Final = 8


class ImageWriter(Writer):
    """Base of the writers of images: ``<label>/000000017.jpeg``, or ``000000017.jpeg`` without labels.

    Use it in a ``with`` statement. The index is written at its end, after every image is stored; after an exception it is not
    written. The folders are those that other programs take for classes.

    Args:
        columns: ``image`` to ``jpeg`` or ``png``, and, if wanted, ``label`` to ``int`` or ``str``.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`~stoker.writing.base.WriterOptions`, but ``compression`` and ``size_limit``, which images
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
        super().__init__(out, remote, ImageFiles(self._settings), options, waiting=_WAITING - 1)
        self._entries = [self._entry_of(written.shard) for written in self._begun.written if written.shard is not None]

    @property
    def samples_written(self) -> int:
        return len(self._entries)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: ``image`` (a PIL image or a file's bytes) and ``label``.

        Raises:
            EncodingError: a value is missing or does not fit. Nothing of the sample is written, and the next may follow.
            ConfigError: the writer is closed.
            StorageError: storing an earlier image failed.
        """
        self._check_open()
        number = len(self._entries)
        check_sample(sample, self._names, number)
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
        self._uploads.submit(partial(self._upload, name, data, entry["raw_data"]))

    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """Add n samples given as columns: lists or arrays of n values.

        Raises:
            EncodingError: as for :meth:`write`; samples before the one that does not fit are written.
        """
        self._check_open()
        for row in range(batch_length(columns, self._names, len(self._entries))):
            self.write({name: columns[name][row] for name in self._names})

    def end_shard(self) -> None:
        """Nothing: each image is a file."""
        self._check_open()

    def _end(self) -> None:
        pass  # nothing waits

    def _index(self) -> bytes:
        return json.dumps({**self._begun.extra, "shards": self._entries, "version": 2}, sort_keys=True).encode()

    def _upload(self, name: str, data: bytes, entry: dict[str, Any]) -> None:
        entry["hashes"] = {algorithm: hash_hex(algorithm, data) for algorithm in self._hashes}
        self._destination.put(name, data)
        self._stored(1, len(data))

    def _entry_of(self, shard: ShardInfo) -> dict[str, Any]:
        file = shard.raw[0]
        raw = {"basename": file.basename, "bytes": file.bytes, "hashes": dict(file.hashes)}
        return {**self._settings, "hashes": list(shard.spec["hashes"]), "raw_data": raw}


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

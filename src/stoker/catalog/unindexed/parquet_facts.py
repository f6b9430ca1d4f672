"""Facts of Parquet files, kept in a file, so that the next start reads no footer of a file that is still the same.

Arrays as :func:`numpy.savez` writes them, without pickles, and a JSON text for the rest; behind them a digest, for the
archive's own checksums tell little of an archive whose directory is damaged. The file is there by rename, whole or not at
all; one that was damaged is made anew.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.origin import make_private
from stoker.cache.quota import part_name, release, try_lock
from stoker.formats.parquet.footer.facts import FIELDS, FileFacts
from stoker.formats.parquet.footer.schema import ColumnSchema, FileSchema
from stoker.storage.files import PRIVATE, open_own, read_regular
from stoker.types import Array

__all__ = ["load_facts", "parse_facts", "save_facts"]

logger = logging.getLogger(__name__)

_VERSION: Final = 2
_DIGEST: Final = 16
# Whatever NumPy and zipfile make of archives of others.
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RuntimeError, zipfile.BadZipFile)


def load_facts(directories: Sequence[Path], name: str) -> dict[str, FileFacts]:
    """Key to facts of each file, from the first of the directories that has them; empty where none has."""
    for directory in directories:
        with contextlib.suppress(OSError):
            found = parse_facts(read_regular(directory / PRIVATE / name))
            if found:
                return found
    return {}


def parse_facts(data: bytes) -> dict[str, FileFacts]:
    """Key to facts of each file; empty where the archive is not whole, as its digest tells, or of another version."""
    whole = memoryview(data)[: max(0, len(data) - _DIGEST)]
    if _digest(whole) != data[len(whole) :]:
        return {}
    try:
        with np.load(io.BytesIO(whole), allow_pickle=False) as arrays:
            return _unpack({key: arrays[key] for key in arrays.files})
    except _UNREADABLE as error:
        logger.debug("an index of Parquet files can not be read, and is made anew: %s", error)
        return {}


def _digest(whole: bytes | memoryview) -> bytes:
    return hashlib.blake2b(whole, digest_size=_DIGEST).digest()


def save_facts(directories: Sequence[Path], url: str, name: str, facts: Sequence[FileFacts]) -> None:
    """Keep facts of files below ``url`` in the first of the directories that can be written to; else nowhere."""
    for directory in directories:
        try:
            _save(make_private(directory, url), name, facts)
            return
        except OSError as error:
            logger.debug("can not keep the index of Parquet files in %s: %s", directory, error)


def _save(private: Path, name: str, facts: Sequence[FileFacts]) -> None:
    packed = io.BytesIO()
    np.savez(packed, **_pack(facts))  # type: ignore[arg-type]
    part = private / part_name(name, secrets.token_hex(8))
    descriptor = open_own(part, os.O_EXCL)
    try:
        try_lock(descriptor, fcntl.LOCK_EX)  # so that it is not taken for debris
        with open(descriptor, "wb", closefd=False) as handle:
            handle.write(packed.getbuffer())
            handle.write(_digest(packed.getbuffer()))
        os.rename(part, private / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        release(descriptor)


def _pack(facts: Sequence[FileFacts]) -> dict[str, Array]:
    schemas: dict[FileSchema, int] = {}
    numbers = [schemas.setdefault(one.schema, len(schemas)) for one in facts]
    text = {
        "version": _VERSION,
        "keys": [one.key for one in facts],
        "versions": [one.version for one in facts],
        "schemas": [_schema_text(schema) for schema in schemas],
    }
    return {
        "text": np.frombuffer(json.dumps(text).encode(), dtype=np.uint8),
        "schema": np.array(numbers, dtype=np.int64),
        "size": np.array([one.size for one in facts], dtype=np.int64),
        "groups": np.array([len(one.rows) for one in facts], dtype=np.int64),
        "number": _joined([one.numbers for one in facts]),
        "rows": _joined([one.rows for one in facts]),
        "bytes": _joined([one.bytes for one in facts]),
        "chunks": _joined([one.chunks.ravel() for one in facts]),
        "possible": _joined([one.possible.astype(np.int64) for one in facts]),
    }


def _unpack(arrays: Mapping[str, Array]) -> dict[str, FileFacts]:
    for name, array in arrays.items():  # what is no array, NumPy hands out as bytes
        if not isinstance(array, np.ndarray) or array.dtype != (np.uint8 if name == "text" else np.int64):
            raise ValueError(f"{name!r} is no array of whole numbers")
    text = json.loads(arrays["text"].tobytes())
    if text["version"] != _VERSION:
        return {}
    schemas = [_schema_of(one) for one in text["schemas"]]
    found: dict[str, FileFacts] = {}
    first = chunk = 0
    columns = (arrays["schema"].tolist(), arrays["size"].tolist(), arrays["groups"].tolist())
    for key, version, number, size, groups in zip(text["keys"], text["versions"], *columns, strict=True):
        schema = schemas[number]
        leaves = sum(len(column.paths) for column in schema.columns)
        here, end = slice(first, first + groups), chunk + groups * leaves * FIELDS
        found[key] = FileFacts(
            key,
            size,
            version,
            schema,
            arrays["number"][here],
            arrays["rows"][here],
            arrays["bytes"][here],
            arrays["chunks"][chunk:end].reshape(groups, leaves, FIELDS),
            arrays["possible"][here].astype(np.bool_),
        )
        if len(found[key].possible) != groups:
            raise ValueError("the arrays are too short")
        first, chunk = here.stop, end
    return found


def _schema_text(schema: FileSchema) -> dict[str, Any]:
    return {
        "created_by": schema.created_by,
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "arrow": base64.b64encode(column.arrow).decode(),
                "elements": base64.b64encode(column.elements).decode(),
                "count": column.count,
                "first": column.first,
                "paths": column.paths,
                "kinds": column.kinds,
            }
            for column in schema.columns
        ],
    }


def _schema_of(text: Mapping[str, Any]) -> FileSchema:
    return FileSchema(
        tuple(
            ColumnSchema(
                column["name"],
                column["type"],
                base64.b64decode(column["arrow"]),
                base64.b64decode(column["elements"]),
                column["count"],
                column["first"],
                tuple(tuple(path) for path in column["paths"]),
                tuple(column["kinds"]),
            )
            for column in text["columns"]
        ),
        text["created_by"],
    )


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])

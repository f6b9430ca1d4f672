"""The manifest of a checkpoint, written when all ranks have saved their part, and removed first."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stoker.errors import CorruptDataError, ObjectNotFoundError
from stoker.storage import Store, check_key, is_local

NAME: Final = "checkpoint.json"
_MOST: Final = 1 << 28
_FILE: Final = re.compile(r"(checkpoint-[0-9a-f]{8}-\d{6})/([^/]+)")
_LARGEST: Final = 1 << 44
"""Bytes of a rank's files together: as much as its content has addresses for."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file.

    Attributes:
        name: below the checkpoint's folder.
        bytes: its size.
        rank: who wrote it.
        first_block: of its content.
    """

    name: str
    bytes: int
    rank: int
    first_block: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint.

    Attributes:
        run: that saved it.
        number: in that run.
        saved_at: seconds since 1970.
        seed: of its content.
        ranks: that saved it.
        whole: ranks that a whole checkpoint has.
        files: all of them.
    """

    run: str
    number: int
    saved_at: float
    seed: int
    ranks: int
    whole: int
    files: tuple[SavedFile, ...]

    def of_rank(self, rank: int) -> list[SavedFile]:
        """The files that a rank wrote."""
        return [file for file in self.files if file.rank == rank]


@dataclass(frozen=True, slots=True)
class UnfinishedCheckpoint:
    """A checkpoint that does not count.

    Attributes:
        folder: where its files are.
        files: how many are whole.
        bytes: of them.
    """

    folder: str
    files: int
    bytes: int


def checkpoint_folder(run: str, number: int) -> str:
    """A checkpoint's folder."""
    return f"checkpoint-{run[:8]}-{number:06d}"


def write(store: Store, manifest: Manifest) -> None:
    """Make a checkpoint count."""
    store.put(f"{checkpoint_folder(manifest.run, manifest.number)}/{NAME}", json.dumps(asdict(manifest)).encode())


def read(store: Store, folder: str) -> Manifest:
    """Read a manifest, which anyone may have written.

    Raises:
        CorruptDataError: it makes no sense.
        StorageError: it could not be read.
    """
    key = f"{folder}/{NAME}"
    try:
        given = json.loads(store.get(key, max_bytes=_MOST))
        files = tuple(SavedFile(**one) for one in given.pop("files"))
        made = Manifest(**given, files=files)
        _check(made)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptDataError(f"{store.url_of(key)} is not a manifest of a checkpoint: {error}") from None
    return made


def _check(made: Manifest) -> None:
    numbers: list[Any] = [made.number, made.seed, made.ranks, made.whole]
    for file in made.files:
        check_key(file.name)
        if "/" in file.name:
            raise ValueError(f"a file is named {file.name!r}")
        if not isinstance(file.rank, int) or not 0 <= file.rank < made.ranks:
            raise ValueError(f"{file.name} is of rank {file.rank!r} of {made.ranks!r}")
        if isinstance(file.bytes, int) and isinstance(file.first_block, int) and file.bytes > _LARGEST:
            raise ValueError(f"{file.name} has {file.bytes!r} bytes")
        numbers += [file.bytes, file.first_block]
    if not all(isinstance(one, int) and 0 <= one < 1 << 48 for one in numbers) or made.whole < 1:
        raise ValueError("a number is out of its bounds")


def find(store: Store) -> list[str]:
    """Folders of all checkpoints that count, in the order in which they were saved."""
    saved: list[tuple[float, str]] = []
    for one in store.list():
        match = _FILE.fullmatch(one.key)
        if match is not None and match[2] == NAME:
            with contextlib.suppress(ObjectNotFoundError):  # removed in between, as a run keeps only so many
                saved.append((read(store, match[1]).saved_at, match[1]))
    return [folder for _, folder in sorted(saved)]


def unfinished(store: Store) -> list[UnfinishedCheckpoint]:
    """Checkpoints without a manifest: what runs left that were killed, or those that another run is just saving."""
    sizes: dict[str, list[int]] = {}
    whole: set[str] = set()
    for one in store.list():
        match = _FILE.fullmatch(one.key)
        if match is None:
            continue
        if match[2] == NAME:
            whole.add(match[1])
        else:
            sizes.setdefault(match[1], []).append(one.size)
    return [UnfinishedCheckpoint(name, len(some), sum(some)) for name, some in sizes.items() if name not in whole]


def remove(store: Store, folder: str, names: Sequence[str], *, all_: bool) -> None:
    """Remove files of a checkpoint that no longer counts, or never did.

    Args:
        store: where it is.
        folder: the checkpoint.
        names: files of this rank.
        all_: whether to remove whatever else is in the folder, and the folder.
    """
    if is_local(store.url):
        path = Path(store.url_of(folder))
        for name in names:
            (path / name).unlink(missing_ok=True)
        if all_:
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.rmdir()  # of the last rank to be done
        return
    for name in [one.key for one in store.list(folder)] if all_ else [f"{folder}/{name}" for name in names]:
        store.delete(name)

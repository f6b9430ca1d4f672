"""The image of the benchmark's source in a submission, and its name: the hash ``md5-tree`` of MLPerf Storage."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import stoker
from stoker.errors import FormatError

HASH_FILE: Final = ".code-hash.json"
POINTER: Final = ".mlps-code-image"
POOL_MARK: Final = ".mlps-image-pool"
_ALGORITHM: Final = "md5-tree-{}"
_SKIPPED_FOLDERS: Final = frozenset(
    {".git", "__pycache__", ".pytest_cache", ".venv", "node_modules", "build", "dist", ".tox", "test", "tests"}
)
_SKIPPED_FILES: Final = (HASH_FILE, "*.pyc", "*.pyo", ".DS_Store", "Thumbs.db")
_MOST_BYTES: Final = 1 << 16


def tree_hash(root: Path) -> str:
    """The hash of a tree of source: MD5 over each file's path and content, in the order of the paths' bytes.

    Raises:
        OSError: a file can not be read.
    """
    made = hashlib.md5(usedforsecurity=False)
    for name in sorted(_files(root), key=os.fsencode):
        made.update(os.fsencode(name))
        with (root / name).open("rb") as file:
            while piece := file.read(1 << 20):
                made.update(piece)
    return made.hexdigest()


def _files(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        at_top = Path(folder) == root
        folders[:] = [
            name for name in folders if not name.endswith(".egg-info") and not (at_top and name in _SKIPPED_FOLDERS)
        ]
        for name in names:
            path = Path(folder) / name
            if (
                path.is_file()
                and not path.is_symlink()
                and not any(fnmatch(name, pattern) for pattern in _SKIPPED_FILES)
            ):
                yield path.relative_to(root).as_posix()


def algorithm(edition: str) -> str:
    """An edition's name of the hash.

    The editions differ in the links and files that they leave out. The tree of stoker's source has none of these, so that its
    hash is the same in both.
    """
    return _ALGORITHM.format("v1" if edition == "v2" else "v2")


def write_image(pool: Path, captured_at: str, edition: str) -> str:
    """Copy stoker's own source to a pool of images, unless the pool has it.

    Args:
        pool: the folder of the images, each in ``code-`` and eight digits of its hash.
        captured_at: the moment, for the file of the hash.
        edition: the file of the hash has this edition's name of the hash.

    Returns:
        The hash, in 32 hexadecimal digits.

    Raises:
        OSError: it could not be written.
    """
    source = Path(stoker.__file__).parent
    temporary = pool / f".code-{os.getpid()}"
    try:
        shutil.copytree(
            source, temporary / "stoker", ignore=shutil.ignore_patterns("__pycache__", ".*", "*.pyc", "test", "tests")
        )
        digest = tree_hash(temporary)
        said = {
            "hash": digest,
            "algorithm": algorithm(edition),
            "captured_at": captured_at,
            "mlpstorage_version": f"stoker {stoker.__version__}",
            "git_sha": None,
        }
        (temporary / HASH_FILE).write_text(json.dumps(said, indent=2) + "\n")
        target = pool / f"code-{digest[:8]}"
        if not target.exists():
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def recorded_hash(image: Path) -> str:
    """The hash that an image's file says it has.

    Raises:
        FormatError: there is no such file, or it is not one.
    """
    path = image / HASH_FILE
    if not path.is_file():
        raise FormatError(f"it has no {HASH_FILE}")
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        digest = found["hash"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{HASH_FILE} can not be read: {error}") from None
    if not isinstance(digest, str) or len(digest) != 32 or not set(digest) <= set("0123456789abcdef"):
        raise FormatError(f"{HASH_FILE} has the hash {str(digest)[:80]!r}, no MD5 of 32 lowercase digits")
    return digest

"""Which dataset a cache directory holds copies of, written into it: without that, nobody may remove anything of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Final

from stoker.dataset.room import PART
from stoker.storage.files import open_own, read_regular

__all__ = ["read_origin", "write_origin"]

_NAME: Final = "origin"


def read_origin(private: Path) -> str | None:
    """URL or path that a cache's files come from; ``None`` where nothing tells.

    Args:
        private: the cache's directory ``.stoker``.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(private / _NAME))
        if isinstance(found, dict) and isinstance(found.get("url"), str) and found["url"]:
            return str(found["url"])
    return None


def write_origin(private: Path, url: str) -> None:
    """Note where files come from, whole or not at all; where that can not be written, it is left.

    Args:
        private: the cache's directory ``.stoker``, which is there.
        url: URL or path of the dataset.
    """
    if read_origin(private) == url:
        return
    beside = private / f"{_NAME}.{secrets.token_hex(8)}{PART}"
    with contextlib.suppress(OSError):
        try:
            with open(open_own(beside, os.O_EXCL), "wb") as file:
                file.write(json.dumps({"url": url}).encode())
            os.rename(beside, private / _NAME)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

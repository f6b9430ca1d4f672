"""Keeps the parsed index of a dataset with many shards in a file that all processes of a machine map.

``index.json`` stays the only truth: it is read each time, and a file that was made of other bytes, has another layout, or is
damaged is passed over, and replaced. The layout is that of :mod:`stoker.concurrency.shared.bytes`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import StokerError
from stoker.formats.common.entries import entry_of
from stoker.index.columnar_shards import ColumnarShards, kind_of
from stoker.index.index import Index
from stoker.index.parse_index import parse_entries
from stoker.lazy import cached_property

if TYPE_CHECKING:
    from stoker.concurrency.shared.bytes import SharedBytes

logger = logging.getLogger(__name__)

# The number at its end rises when the arrays change, and when shards that were kept would be refused today.
_MAGIC: Final = b"stokidx\2"
# The index says of these shards not all that there is to say: a listing does.
_LISTED: Final = "litdata"


class SideIndex:
    """The file that keeps a parsed index.

    ``find``: tells the file. It is asked only where there is an index to keep: most are small. ``save``: puts a file of these
    parts there, whole, in place of one that may be there. ``turn``: lets one process of this machine at a time make the file,
    and tells whether another did so meanwhile.
    """

    def __init__(
        self,
        find: Callable[[], Path],
        save: Callable[[Sequence[bytes | memoryview]], object],
        turn: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(False),
    ) -> None:
        self._find = find
        self._save = save
        self._turn = turn

    @cached_property
    def _path(self) -> Path:
        return self._find()

    def load(self, digest: str) -> Index | None:
        """The index that was kept, its arrays mapped.

        ``digest``: of the bytes of the ``index.json``. Gives ``None`` where the file is missing, damaged, of another layout,
        or made of other bytes.
        """
        from stoker.storage.files.mounts import read_shared

        return read_shared(self._path, partial(_read, digest))

    def load_or_make(self, digest: str, make: Callable[[], Index]) -> Index:
        """The index that was kept, or the one that ``make`` gives, which is kept then.

        Of several processes that find none, one makes it and the others wait for it. An index that the one could not keep,
        as one of few shards, or because it was killed, is made by all others at once.
        """
        index = self.load(digest)
        if index is None:
            with self._turn() as other:
                index = self.load(digest)
                if index is None and not other:
                    index = self.keep(make(), digest)
        return self.keep(make(), digest) if index is None else index

    def keep(self, index: Index, digest: str) -> Index:
        """Write the file, unless it can not be written or another process did; the same index, its arrays mapped if so."""
        found = self.load(digest)
        header = None if found is not None else _header(index, digest)
        if header is None:
            return found or index
        assert isinstance(index.shards, ColumnarShards)
        from stoker.concurrency.shared.bytes import pack_arrays

        try:
            self._save(pack_arrays(_MAGIC, header, [index.shards.arrays]))
        except (OSError, StokerError) as error:
            logger.debug("%s can not be written: %s", self._path, error)
            return index
        return self.load(digest) or index


def _header(index: Index, digest: str) -> dict[str, Any] | None:
    """The header; ``None`` where the index can not be made of it again."""
    shards = index.shards
    if not isinstance(shards, ColumnarShards) or any(kind.format == _LISTED for kind in shards.kinds):
        return None
    header = {
        "key": digest,
        "count": len(shards),
        "width": shards.width,
        "firsts": [kind.first for kind in shards.kinds],
        "entries": [entry_of(shard) for shard in index.distinct_shards],
        "extra": dict(index.extra),
        "fingerprint": index.fingerprint,
        "content": index.content,
    }
    made = _shards(json.loads(json.dumps(header)), shards.data, shards.at)
    return header if made.kinds == shards.kinds else None


def _read(digest: str, data: SharedBytes) -> Index:
    """The index in the bytes of a file."""
    from stoker.concurrency.shared.bytes import unpack_arrays

    header, at = unpack_arrays(_MAGIC, data)
    if header["key"] != digest:
        raise ValueError("it is of another index")
    return Index.checked(_shards(header, data, at), header["extra"], header["fingerprint"], header["content"])


def _shards(header: dict[str, Any], data: SharedBytes, at: int) -> ColumnarShards:
    """The shards that a header tells of. The first of each kind is parsed anew: what it needs may not be there today."""
    infos = list(parse_entries(header["entries"][::-1], "the kept index"))
    kinds = [kind_of(info, first) for info, first in zip(infos, header["firsts"], strict=True)]
    shards = ColumnarShards(data, at, header["count"], header["width"], kinds)
    if any(shards[first] != info for info, first in zip(infos, header["firsts"], strict=True)):
        raise ValueError("its arrays are not those of its header")
    return shards

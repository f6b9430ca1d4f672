"""The readers of a pool that are open: which of them stay, and whether the files that they map are still whole."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Collection
from typing import Final

from stoker.errors import CorruptDataError
from stoker.formats.base import ShardReader
from stoker.policy import most_maps
from stoker.reading.opening.load_shard import Loaded
from stoker.storage.files.mapped import MappedFile, check_mapped

logger = logging.getLogger(__name__)

# Seconds for which a mapped file that was found whole is taken to be so.
_TRUSTED: Final = 0.05
# Readers that one opening looks at for some to drop, so that it costs the same however many are open.
_LOOKED_AT: Final = 16
# Uses that are noted until the next opening; earlier ones are forgotten.
_NOTED: Final = 1 << 12


class OpenReaders:
    """Readers by shard number, the least recently used first. Its user holds a lock around each method.

    Without it, a reader may be looked up, and :attr:`used` added to: an ``OrderedDict`` that two threads change at once is
    damaged where Python has no lock of its own.

    Attributes:
        readers: the readers, in the order of their use but for what :attr:`used` tells.
        used: shards that were used since the last opening, in that order.
        due: when the files of each open shard are to be looked at again, by ``time.monotonic``.
        needed: shards that are needed soon, as a collection that may go on changing: these are kept longest.
        held: bytes of open shards that are held in memory although the cache has them.
    """

    def __init__(self) -> None:
        self.readers: OrderedDict[int, ShardReader] = OrderedDict()
        self.used: deque[int] = deque(maxlen=_NOTED)
        self.due: dict[int, float] = {}
        self.needed: Collection[int] = ()
        self.held = 0
        self._held_sizes: dict[int, int] = {}
        self._maps: dict[int, list[MappedFile]] = {}

    def whole(self, shard: int) -> ShardReader | None:
        """The reader of a shard, if it is open and no file that it maps was cut; if one was, the shard is closed."""
        reader = self.readers.get(shard)
        if reader is None:
            return None
        try:
            check_mapped(self._maps.get(shard, ()))
        except CorruptDataError as error:
            logger.warning("%s; opening it again", error)
            self.close(shard)
            return None
        self.due[shard] = time.monotonic() + _TRUSTED
        self.used.append(shard)
        return reader

    def check(self, shard: int) -> None:
        """Check that the files of a shard, if it is open, are whole. CorruptDataError if one was cut."""
        check_mapped(self._maps.get(shard, ()))
        if shard in self.readers:
            self.due[shard] = time.monotonic() + _TRUSTED

    def keep(self, loaded: Loaded) -> ShardReader:
        """Keep the reader of a shard that was loaded; the one that is there, where another thread was faster."""
        shard = loaded.shard
        kept = self.readers.setdefault(shard, loaded.reader)
        if kept is loaded.reader:
            self._maps[shard] = loaded.maps
            self.due[shard] = time.monotonic() + _TRUSTED if loaded.maps else math.inf
            self._held_sizes[shard] = loaded.held
            self.held += loaded.held
        self.used.append(shard)
        return kept

    def keep_unmapped(self, shard: int, reader: ShardReader) -> None:
        """Keep the reader of a shard that is not open, whose bytes are its own: nothing is mapped that could be cut."""
        self.readers[shard] = reader
        self.due[shard] = math.inf
        self.used.append(shard)

    def trim(self, most_open: int, newest: int, opened: int) -> None:
        """Drop readers beyond a number. Those that are needed soon only go where the process can not map more.

        Args:
            most_open: the number.
            newest: a shard that stays.
            opened: how many were opened, which is how many more there may be.
        """
        for _ in range(len(self.used)):
            shard = self.used.popleft()
            if shard in self.readers:
                self.readers.move_to_end(shard)
        for _ in range(max(_LOOKED_AT, 2 * opened)):
            if len(self.readers) <= most_open or len(self.readers) <= len(self.needed) < most_maps():
                return
            number, reader = self.readers.popitem(last=False)
            if number == newest or (number in self.needed and len(self.readers) < most_maps()):
                self.readers[number] = reader
            else:
                self.close(number)

    def holds(self, shard: int) -> bool:
        """Whether a shard is held in memory although the cache has it."""
        return self._held_sizes.get(shard, 0) > 0

    def close(self, shard: int) -> None:
        """Drop the reader of a shard, if it is open. What still uses it can: its file stays mapped until the last does."""
        self.readers.pop(shard, None)
        self._maps.pop(shard, None)
        self.due.pop(shard, None)
        self.held -= self._held_sizes.pop(shard, 0)

    def clear(self) -> None:
        """Drop all readers."""
        for one in (self.readers, self.due, self._maps, self._held_sizes):
            one.clear()
        self.held = 0

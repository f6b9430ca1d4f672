"""Finds samples by the value of a column that is different in each: an index of keys, computed once and kept.

Integers are compared as they are. Text and bytes are compared by their hashes of 128 bits (XXH3; Y. Collet, xxHash), so that
of 10⁹ keys two different ones have the same hash with a probability of 10⁻²¹; while the index is made that would be an error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from stoker.catalog.location import DatasetLocation
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.integers import U64
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.streams.compare import null_mask, without_nulls
from stoker.streams.derived_arrays import ArraySink, derived_array, digest_of
from stoker.streams.scan import scan
from stoker.types import Array, Column, Ids

logger = logging.getLogger(__name__)

_KINDS: Final = {int: "integers", str: "text", bytes: "bytes"}
_LARGEST: Final = int(np.iinfo(np.int64).max)
# Of what is kept.
_FORM: Final = 2
# Positions below it take 4 bytes.
_NARROW: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """Keys as an index compares them.

    Attributes:
        kind: ``"integers"``, ``"text"`` or ``"bytes"``; empty where all are null.
        words: integers, int64, or uint64 where one is above 2⁶³ - 1, or objects where they do not fit in one of these; the
            first half of the hash of others, uint64.
        checks: the second half; ``None`` of integers.
        at: numbers of the keys among the values, without those that are null, which equal no key; int64.
    """

    kind: str
    words: Array
    checks: U64 | None
    at: Ids


def hash_keys(values: Column, where: str) -> HashedKeys:
    """Keys of a column as an index compares them.

    ConfigError for values that are no keys: neither integers, text nor bytes, or not of one type. ``values``: an array of
    shape ``(n,)`` or a list of n values. ``where``: names the column in errors.
    """
    null = null_mask(values)
    at = np.arange(len(values), dtype=np.int64) if null is None else np.flatnonzero(~null)
    there = values if null is None else without_nulls(values, null)
    if not len(there):
        return HashedKeys("", np.zeros(0, np.int64), None, at)
    if isinstance(there, np.ndarray) and there.dtype != object:
        if there.ndim != 1 or there.dtype.kind not in "iu":
            raise ConfigError(_no_keys(where, f"{there.dtype} of shape {there.shape[1:]} a row"))
        large = there.dtype == np.uint64 and int(there.max()) > _LARGEST
        return HashedKeys("integers", there.astype(np.uint64 if large else np.int64), None, at)
    types = {int if issubclass(kind, np.integer) else kind for kind in set(map(type, there))}
    kind = types.pop() if len(types) == 1 else None
    if kind is int:
        return HashedKeys("integers", _integers(list(map(int, there))), None, at)
    if kind not in (str, bytes):
        found = ", ".join(sorted(one.__name__ for one in set(map(type, there))))
        raise ConfigError(_no_keys(where, found))
    encoded = there if kind is bytes else _encoded(there)
    digests = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, encoded)), "<u8").reshape(-1, 2)
    return HashedKeys(_KINDS[kind], digests[:, 0].copy(), digests[:, 1].copy(), at)


def _integers(values: list[int]) -> Array:
    """Integers as int64, or else as uint64, or else as objects."""
    low, high = min(values), max(values)
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.array(values, dtype)
    return np.array(values, object)


def _as_keys(words: Array, dtype: np.dtype[Any]) -> tuple[Array, NDArray[np.bool_] | None]:
    """Integers in the type of an index, and which of them it can hold; ``None``: all."""
    if words.dtype == dtype:
        return words, None
    if words.dtype == object:
        fits = (words >= int(np.iinfo(dtype).min)) & (words <= int(np.iinfo(dtype).max))
        fits = fits.astype(np.bool_)
    else:  # one is int64, the other is uint64: equal bits are equal numbers below 2⁶³
        fits = words <= np.uint64(_LARGEST) if words.dtype == np.uint64 else words >= 0
    return words[fits].astype(dtype), fits


def _differing(keys: Column, asked: Column, where: str) -> NDArray[np.bool_]:
    """Marks keys that are not those that were asked for, whatever types they have."""
    one, other = hash_keys(keys, where), hash_keys(asked, where)
    found = np.ones(len(asked), np.bool_)
    if one.kind == other.kind:
        at, mine, theirs = np.intersect1d(one.at, other.at, assume_unique=True, return_indices=True)
        words, others = one.words[mine], other.words[theirs]
        same = np.asarray(words == others if words.dtype == others.dtype else words.astype(object) == others, np.bool_)
        if one.checks is not None and other.checks is not None:
            same &= one.checks[mine] == other.checks[theirs]
        found[at] = ~same
    return found


def _are_equal(one: Column, other: Column) -> bool:
    """Whether two columns of keys are equal as they are; ``False`` where that takes more than one comparison to tell."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype.kind == other.dtype.kind in "iu" and np.array_equal(one, other)
    mine, theirs = (column.tolist() if isinstance(column, np.ndarray) else column for column in (one, other))
    return bool(mine == theirs)


def _encoded(texts: Any) -> list[bytes]:
    try:
        return list(map(str.encode, texts))
    except UnicodeEncodeError:
        return [text.encode(errors="surrogatepass") for text in texts]


def _no_keys(where: str, found: str) -> str:
    return f"{where} holds {found}: keys are integers, text or bytes, of one type in all samples"


class KeyIndex:
    """The samples of a dataset by the values of a column, which are different in all samples.

    The first one, in any process, reads this column of all samples. What it makes of them is kept next to the dataset's
    index, and mapped by all processes: 8 bytes a key for the value of an integer, none where they are consecutive numbers,
    and 16 for the hash of others; and 4 for the number of the sample (8 from 2³² samples on). Null is no key.

    ``locations``: the streams of the dataset. ``column``: holds the keys. ``options``: how it is read.

    Attributes:
        where: names the dataset and column in errors.
        kind: of the keys: ``"integers"``, ``"text"`` or ``"bytes"``.
        path: the file that is kept.

    ConfigError if two samples have the same key: names both; or values are no keys.
    """

    def __init__(self, locations: Sequence[DatasetLocation], column: str, options: ReadOptions = ReadOptions()) -> None:
        self._locations, self.column, self._options = tuple(locations), column, options
        self.where = f"{', '.join(dict.fromkeys(one.where for one in locations))}: column {column!r}"
        self._open()

    def _open(self) -> None:
        recipe: dict[str, Any] = {"column": self.column, "form": _FORM}
        if len(self._locations) > 1:
            recipe["streams"] = [digest_of(location, "keys", {}) for location in self._locations]
        found = derived_array(self._locations[0], "keys", self.column, recipe, self._make)
        about = json.loads(found.extra())
        self.path = found.path
        self.kind: str = about["kind"]
        self.nbytes = int(found.array.nbytes)
        self._count, self._low, self._dense = about["count"], about["low"], about["dense"]
        words, ends = found.array, 0 if self._dense else self._count
        self._dtype = np.dtype(about["dtype"])
        self._words: Array = words[:ends].view(self._dtype)
        self._checks: U64 | None = None
        if self.kind in ("text", "bytes"):
            self._checks, ends = words[ends : 2 * ends], 2 * ends
        self._positions: Array = words[ends:].view(np.uint32 if about["narrow"] else np.int64)[: self._count]

    def __len__(self) -> int:
        """Number of keys."""
        return int(self._count)

    def find(self, values: Column, where: str) -> Ids:
        """The ids of the samples that have these keys: int64, shape ``(n,)``; -1 where none has.

        ConfigError if they are no keys, or of another type than those of this index. ``values``: an array of shape ``(n,)``
        or a list of n values; null equals no key. ``where``: names their column in errors.
        """
        found = np.full(len(values), -1, dtype=np.int64)
        keys = hash_keys(values, where)
        if not self._count or not len(keys.at):
            return found
        if keys.kind != self.kind:
            raise ConfigError(
                f"{where} holds {keys.kind}, and {self.where} holds {self.kind}: their values are never equal. "
                "Write both with one type, or convert one of them by map()"
            )
        words, at = keys.words, keys.at
        if keys.kind == "integers":
            words, fits = _as_keys(words, self._dtype)
            at = at if fits is None else at[fits]
        if self._dense:
            low, high = (self._dtype.type(value) for value in (self._low, self._low + self._count - 1))
            inside = (words >= low) & (words <= high)
            found[at[inside]] = self._positions[words[inside] - low]
            return found
        return self._search(words, keys.checks, at, found)

    def _search(self, words: Array, checks: U64 | None, numbers: Ids, found: Ids) -> Ids:
        at = np.searchsorted(self._words, words)
        equal = self._words[np.minimum(at, self._count - 1)] == words
        equal &= at < self._count
        if checks is not None:
            self._skip_others(at, equal, words, checks)
        found[numbers[equal]] = self._positions[at[equal]]
        return found

    def _skip_others(self, at: Ids, equal: NDArray[np.bool_], words: Array, checks: U64) -> None:
        """Move on over hashes of which only the first half is equal."""
        assert self._checks is not None
        for number in np.flatnonzero(equal)[self._checks[at[equal]] != checks[equal]].tolist():
            place = int(at[number])
            while place < self._count and self._words[place] == words[number] and self._checks[place] != checks[number]:
                place += 1
            equal[number] = place < self._count and self._words[place] == words[number]
            at[number] = place

    def differs(self, ids: Ids, keys: Column, asked: Column | None) -> int | None:
        """The first sample whose stored key is not the one that it was found by; ``None``: all are.

        The fingerprint of a dataset tells no more than its index does, so a shard that was written over in place is noticed
        only here.

        ``ids``: of samples that :meth:`find` has found, int64, shape ``(n,)``. ``keys``: what is stored of them now.
        ``asked``: the keys that they were found by; ``None``: not known, or in part of another type.
        """
        if asked is not None and _are_equal(keys, asked):
            return None
        # Keys are different in all samples, so where none was asked a sample has its key if the key finds it.
        differ = self.find(keys, self.where) != ids if asked is None else _differing(keys, asked, self.where)
        places = np.flatnonzero(differ)
        return int(places[0]) if len(places) else None

    def key_of(self, number: int) -> int | None:
        """The key by which a sample was found; ``None`` where only its hash is kept."""
        place = int(np.flatnonzero(self._positions == number)[0])
        if self.kind != "integers":
            return None
        return self._low + place if self._dense else int(self._words[place])

    def discard(self) -> bool:
        """Remove the file, so that the next index is made anew; whether it is gone."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        return not os.path.exists(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"locations": self._locations, "column": self.column, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["locations"], state["column"], state["options"])  # type: ignore[misc]

    # -- making ----------------------------------------------------------------------------------------------------

    def _make(self, sink: ArraySink) -> tuple[DTypeLike, bytes]:
        total = sum(location.index.samples for location in self._locations)
        logger.info("reading %s of all %d samples, once, for an index of keys", self.where, total)
        kind, words, checks, ids = self._read(sink)
        sink.beat()
        order = np.argsort(words, kind="stable")
        words, ids = words[order], ids[order]
        if checks is not None:
            checks = checks[order]
            if bool(np.any((words[1:] == words[:-1]) & (checks[1:] != checks[:-1]))):
                order = np.lexsort((checks, words))
                words, checks, ids = words[order], checks[order], ids[order]
        self._check_different(words, checks, ids)
        count = len(words)
        low = int(words[0]) if count and kind == "integers" else 0
        dense = bool(count) and kind == "integers" and int(words[-1]) - low == count - 1
        narrow = total < _NARROW
        if not dense:
            sink.append(np.ascontiguousarray(words).view("<u8"))
        if checks is not None:
            sink.append(checks.astype("<u8", copy=False))
        positions = ids.astype("<u4" if narrow else "<i8")
        if narrow and count % 2:
            positions = np.append(positions, np.zeros(1, "<u4"))
        sink.append(positions.view("<u8"))
        about = {"kind": kind, "dtype": words.dtype.str, "count": count, "low": low, "dense": dense, "narrow": narrow}
        return "<u8", json.dumps(about).encode()

    def _read(self, sink: ArraySink) -> tuple[str, Array, U64 | None, Ids]:
        words: list[Array] = []
        checks: list[Array] = []
        ids: list[Ids] = []
        kind = ""
        for first, values in self._columns():
            keys = hash_keys(values, self.where)
            if keys.kind and kind not in ("", keys.kind):
                raise ConfigError(_no_keys(self.where, f"{kind} and {keys.kind}"))
            kind = kind or keys.kind
            if not keys.kind:
                continue
            words.append(keys.words)
            if keys.checks is not None:
                checks.append(keys.checks)
            ids.append(keys.at + first)
            sink.beat()
        if not words:
            return kind, np.zeros(0, np.int64), None, np.zeros(0, np.int64)
        if kind == "integers":
            words = self._of_one_type(words)
        return kind, np.concatenate(words), np.concatenate(checks) if checks else None, np.concatenate(ids)

    def _of_one_type(self, words: list[Array]) -> list[Array]:
        """Integers of all chunks as int64, or all as uint64. ConfigError if some fit in neither."""
        if all(part.dtype == np.int64 for part in words):
            return words
        wide = [_as_keys(part, np.dtype(np.uint64)) for part in words]
        for part, (_, fits) in zip(words, wide, strict=True):
            if fits is not None and not fits.all():
                raise ConfigError(
                    f"{self.where} holds {part[~fits][0]}, and others of at least 2⁶³: integers as keys are all from -2⁶³ to "
                    "2⁶³ - 1, or all from 0 to 2⁶⁴ - 1. Write them as text on both sides"
                )
        return [part for part, _ in wide]

    def _columns(self) -> Iterator[tuple[int, Column]]:
        offset = 0
        for location in self._locations:
            for first, _, batch in scan(location, [self.column], self._options):
                yield offset + first, batch[self.column]
            offset += location.index.samples

    def _check_different(self, words: Array, checks: U64 | None, ids: Ids) -> None:
        same = words[1:] == words[:-1]
        if checks is not None:
            same &= checks[1:] == checks[:-1]
        if not same.any():
            return
        # The first sample in order whose key an earlier one has.
        places = np.flatnonzero(same) + 1
        place = int(places[np.argmin(ids[places])])
        first, second = (self._sample(int(ids[at])) for at in (place - 1, place))
        key = first[0] if first[0] == second[0] else f"{first[0]!r} and {second[0]!r} have one hash"
        raise ConfigError(
            f"{self.where}: two samples have the key {key!r}: {first[1]} and {second[1]}; {int(same.sum())} samples repeat "
            "an earlier key. Keys must be unique: write each key once, or exclude the others with subset="
        )

    def _sample(self, number: int) -> tuple[Any, str]:
        """The key of a sample, and where it lies."""
        inside = number
        for location in self._locations:
            if inside < location.index.samples:
                break
            inside -= location.index.samples
        starts = np.cumsum([0, *location.index.sizes])
        shard = int(np.searchsorted(starts, inside, side="right")) - 1
        row = inside - int(starts[shard])
        pool = ShardPool(location.index, location.cache, options=self._options)
        try:
            values = read_samples(pool, np.array([shard]), np.array([row]), [self.column])[self.column]
        finally:
            pool.close()
        value = values.tolist()[0] if isinstance(values, np.ndarray) else values[0]
        return value, f"row {row} of {location.cache.describe(location.index.shards[shard])} (sample {number})"

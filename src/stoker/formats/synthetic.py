"""Samples that are made in memory: no file, no store, no decoding. For measuring what all else costs.

A value is a piece of one random block of its dtype, which is made once and stays in the processor's cache; where the piece
begins depends on the seed, the column and the sample's number alone. So samples are the same in any process and any world,
and one costs a copy. With ``distinct=False`` all samples have the same values but their numbers, and arrays of a batch are
one row that is repeated by a stride of 0: not even that copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import check_rows
from stoker.formats.common.container import OpenShard
from stoker.formats.common.file_shards import SpanDetail
from stoker.formats.common.gather import address_of, gather_rows
from stoker.formats.format import Format
from stoker.integers import GOLDEN, finalise_array
from stoker.types import Array, Batch, Buffer, Column, Ids

SETTINGS: Final = ("columns", "distinct", "samples", "seed", "shard_samples")
_BLOCK: Final = 1 << 21
_STEP: Final = 64  # pieces begin at cache lines
_WIDEST: Final = 1 << 30
_NUMBER: Final = "number"


@dataclass(frozen=True, slots=True)
class _Kind:
    """The kind of a column: values of a dtype and shape; ``classes`` of them, or the sample's number, where it is a label."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    classes: int = 0
    number: bool = False
    text: bool = False

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize * math.prod(self.shape)


def synthetic_spec(columns: Any, seed: Any, distinct: Any) -> Mapping[str, Any]:
    """The spec that synthetic shards share. ConfigError if these make no sense.

    ``columns``: column name to what it holds: a dtype (``float32``), ``ndarray:DTYPE:d0,d1``, ``bytes:N`` (N of them),
    ``label:K`` (whole numbers below K), or ``number`` (the sample's own). ``seed``: a whole number that is not negative.
    ``distinct``: whether samples differ.
    """
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(
            'synthetic: give columns, such as {"image": "ndarray:uint8:224,224,3", "label": "label:1000"}'
        )
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"synthetic: seed={seed!r}: must be a whole number that is not negative")
    if not isinstance(distinct, bool):
        raise ConfigError(f"synthetic: distinct={distinct!r}: must be true or false")
    for name, text in columns.items():
        try:
            _kind(str(text))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"synthetic: column {name!r}: {text!r} is not a kind of column ({error}): a dtype, ndarray:DTYPE:d0,d1, "
                "bytes:N, label:K or number"
            ) from None
    return {"columns": {name: str(text) for name, text in columns.items()}, "seed": seed, "distinct": distinct}


def row_bytes(spec: Mapping[str, Any]) -> int:
    """Bytes of a sample."""
    return sum(_kind(text).width for text in spec["columns"].values())


@lru_cache(maxsize=256)
def _kind(text: str) -> _Kind:
    if text == _NUMBER:
        return _Kind(np.dtype(np.int64), (), number=True)
    head, _, rest = text.partition(":")
    if head == "label":
        classes = int(rest)
        if classes < 1:
            raise ValueError("at least one class")
        return _Kind(np.dtype(np.int64), (), classes)
    if head == "bytes":
        kind = _Kind(np.dtype(np.uint8), (int(rest),), text=True)
    elif head == "ndarray":
        name, _, dims = rest.partition(":")
        kind = _Kind(np.dtype(name), tuple(int(one) for one in dims.split(",")) if dims else ())
    else:
        kind = _Kind(np.dtype(text), ())
    if kind.dtype.kind not in "biuf" or not kind.dtype.isnative or min(kind.shape, default=1) < 1:
        raise ValueError("numbers and booleans, of at least one element")
    if kind.width > _WIDEST:
        raise ValueError("more than 1 GiB")
    return kind


@lru_cache(maxsize=64)
def _block(dtype: str, size: int, seed: int) -> Array:
    """Random values: integers of all bits, floats in [0, 1)."""
    kind = np.dtype(dtype)
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, kind.num])))
    count = size // kind.itemsize
    values: Array
    if kind.kind == "f":
        values = rng.random(count, np.float64 if kind.itemsize > 4 else np.float32).astype(kind)
    elif kind.kind == "b":
        values = rng.integers(0, 2, count, np.uint8).view(np.bool_)
    else:
        values = np.frombuffer(rng.bytes(count * kind.itemsize), kind)
    values.flags.writeable = False
    return values


def _mixed(numbers: Ids, salt: int) -> NDArray[np.uint64]:
    """A hash of each number and the salt."""
    mixed = numbers.astype(np.uint64) + np.uint64(salt)
    mixed *= np.uint64(GOLDEN)
    return finalise_array(mixed)


class SyntheticShard(OpenShard):
    """A run of samples that are made when they are read."""

    def __init__(self, info: ShardInfo, _: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        self._spec = info.spec
        self.first: int = info.detail.first if isinstance(info.detail, SpanDetail) else 0

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        check_rows(rows, self.samples)
        return self.make(rows + self.first, columns)

    def make(self, numbers: Ids, columns: Sequence[str] | None) -> Batch:
        """The samples of these numbers."""
        chosen = self.wanted(columns)
        seed, distinct = self._spec["seed"], self._spec["distinct"]
        return {
            name: _values(_kind(self._spec["columns"][name]), numbers, seed, number, distinct, self.options.views)
            for number, name in enumerate(self.columns)
            if name in chosen
        }


def _values(kind: _Kind, numbers: Ids, seed: int, number: int, distinct: bool, views: bool) -> Column:
    if kind.number:
        return numbers
    count = len(numbers)
    salt = (seed * 1_000_003 + number * 7_919 + 1) & ((1 << 64) - 1)
    spots = _mixed(numbers if distinct else np.zeros(1, np.int64), salt)
    if kind.classes:
        labels: Ids = (spots % np.uint64(kind.classes)).astype(np.int64)
        return labels if distinct else np.broadcast_to(labels, count)
    # As many offsets to begin at as the block has space for; a wide value's block is larger.
    block = _block(kind.dtype.str, _BLOCK + -(-kind.width // _STEP) * _STEP, seed)
    begins = (spots % np.uint64(_BLOCK // _STEP)).astype(np.int64) * _STEP
    if kind.text:
        begins = begins if distinct else np.broadcast_to(begins, count)
        data = memoryview(block)  # type: ignore[arg-type]
        values = [data[begin : begin + kind.width] for begin in begins.tolist()]
        return values if views else [bytes(value) for value in values]
    if not distinct:
        at = int(begins[0]) // kind.dtype.itemsize
        row = block[at : at + math.prod(kind.shape)].reshape(kind.shape)
        return np.broadcast_to(row, (count, *kind.shape))
    if not count:
        return np.zeros((0, *kind.shape), kind.dtype)
    taken = gather_rows(address_of(block) + begins, kind.width)
    return taken.view(kind.dtype).reshape(count, *kind.shape)


class SyntheticFormat(Format):
    """Samples made in memory."""

    name = "synthetic"
    shard = "samples made in memory"
    reader = SyntheticShard
    views = "bytes"
    types = {"label": "int64", _NUMBER: "int64"}  # noqa: RUF012
    unlisted = 'synthetic samples are in no index.json: open them with format="synthetic"'

    def read_many(
        self, shards: Sequence[SyntheticShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        if len(shards) == 1:
            return shards[0].read(rows, columns)
        counts = np.array([shard.samples for shard in shards], np.int64)
        firsts = np.array([shard.first for shard in shards], np.int64)
        check_rows(rows, counts[which])
        return shards[0].make(rows + firsts[which], columns)

    def iterate_many(
        self, shards: Sequence[SyntheticShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        return {name: list(column) for name, column in self.read_many(shards, which, rows, columns).items()}

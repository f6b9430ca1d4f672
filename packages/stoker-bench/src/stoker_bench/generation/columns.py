"""One column of a synthetic dataset: :class:`Column`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.units import parse_bytes

NUMBERS: Final = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()  # noqa: SIM905
)
"""NumPy types of numbers."""

_SIZED: Final = ("bytes", "str")
IMAGES: Final = ("jpeg", "png")
"""Types of images."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LARGEST: Final = (1 << 31) - 64


def check_stdev(where: str, mean: int, stdev: int) -> None:
    """See that sizes of this mean may deviate so: those below 1 become 1, which would make the mean another.

    Raises:
        ConfigError: they may not; says ``where`` they are given.
    """
    if not 0 <= stdev <= mean:
        raise ConfigError(f"{where}: sizes of {mean:,} bytes with stdev={stdev:,}: expected 0 to the mean")


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: letters, digits and underscores.
        dtype: a NumPy type of numbers (``float32``), ``bytes``, ``str``, ``jpeg`` or ``png``.
        shape: of one value of numbers, ``()`` for a scalar; height and width at most of an image.
        size: bytes of one value of ``bytes`` or ``str``, on average.
        stdev: standard deviation of that size, at most the size; sizes are at least 1.
        tokens: whether these integers are token ids by Zipf's law.
    """

    name: str
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    size: int = 0
    stdev: int = 0
    tokens: bool = False

    @classmethod
    def parse(cls, text: str) -> Column:
        """A column from text: ``NAME=TYPE[:SHAPE]``, such as ``x=float32:3,224,224``, ``label=int64``, ``blob=bytes:1MB``,
        ``words=str:2KB``, ``ids=tokens:2048``.

        Raises:
            ConfigError: it is not of this form.
        """
        name, _, rest = text.partition("=")
        dtype, _, tail = rest.partition(":")
        if not rest:
            raise ConfigError(f"column {text!r}: expected NAME=TYPE[:SHAPE], such as x=float32:3,224,224")
        if dtype in _SIZED:
            return cls(name, dtype, size=parse_bytes(tail or "100"))
        try:
            shape = tuple(int(part) for part in tail.split(",")) if tail else ()
        except ValueError:
            raise ConfigError(f"column {text!r}: the shape {tail!r} is not integers with commas between") from None
        if dtype == "tokens":
            return cls(name, "uint16", shape, tokens=True)
        return cls(name, dtype, shape)

    @property
    def numeric(self) -> bool:
        """Whether values are numbers, and so of one size."""
        return self.dtype in NUMBERS

    @property
    def width(self) -> int | None:
        """Bytes of each value; ``None`` where they differ."""
        if self.numeric:
            return np.dtype(self.dtype).itemsize * math.prod(self.shape)
        return None if self.stdev or self.dtype in IMAGES else self.size

    def check(self) -> None:
        """Raises :class:`ConfigError` where it makes no sense."""
        where = f"column {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{where}: expected a name of letters, digits and underscores")
        if self.dtype not in NUMBERS and self.dtype not in (*_SIZED, *IMAGES):
            known = ", ".join([*sorted(NUMBERS), *_SIZED, *IMAGES])
            raise ConfigError(f"{where}: unknown type {self.dtype!r}; known: {known}, and tokens")
        if any(type(n) is not int or n < 1 for n in self.shape):
            raise ConfigError(f"{where}: shape {self.shape}: expected integers of at least 1")
        if self.dtype in _SIZED and (self.size < 1 or self.shape):
            raise ConfigError(f"{where}: {self.dtype} of {self.size} bytes: expected a size of at least 1")
        check_stdev(where, self.size, self.stdev)
        if self.dtype in IMAGES and (len(self.shape) != 2 or not all(16 <= n <= 8192 for n in self.shape)):
            raise ConfigError(f"{where}: an image of {self.shape}: expected height and width, 16 to 8192 each")
        if (self.width or self.size + 8 * self.stdev) > _LARGEST:
            raise ConfigError(f"{where}: a value has more than 2 GiB")
        if self.tokens and (np.dtype(self.dtype).kind not in "iu" or np.dtype(self.dtype).itemsize == 1):
            raise ConfigError(f"{where}: token ids in {self.dtype}: expected integers of 16 bits or more")

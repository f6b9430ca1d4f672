"""Subsets of a stream: a part of a hash split, listed ids, all but those, or the samples that fulfil a condition. And steps
of an epoch that a run leaves out.

These are plain values. :mod:`stoker.order.selection` computes the samples that they choose.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from stoker.arguments import checked, must_be
from stoker.errors import ConfigError
from stoker.storage.files.regular import open_regular, read_regular
from stoker.types import Batch, Ids

_CHUNK: Final = 1 << 20
POSITIONS: Final = 1 << 62
"""No epoch has so many."""
_ID: Final = re.compile(r"-?[0-9]{1,18}")

IdSource: TypeAlias = str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]]
"""Ids themselves, or the path of a file of them: ``.npy``, or text with an id a line."""
Mask: TypeAlias = NDArray[np.bool_]


@checked
@dataclass(frozen=True, slots=True)
class HashSplit:
    """The samples whose hash lies in ``[low, high)``, a part of ``[0, 1]``. Adjacent splits of one seed share no sample.

    Attributes:
        low: where the part begins, a fraction.
        high: where it ends. Floats are taken as they are written: 0.1 is a tenth.
        seed: which split; parts of different seeds have nothing to do with each other.

    Raises:
        ConfigError: not ``0 <= low < high <= 1``.
    """

    low: Fraction | float
    high: Fraction | float
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _fraction(getattr(self, name), name))
        if not 0 <= self.low < self.high <= 1:
            raise ConfigError(f"a split needs 0 <= low < high <= 1, got low={self.low} and high={self.high}")

    def as_dict(self) -> dict[str, Any]:
        """The split, JSON-serialisable."""
        return {"split": [str(self.low), str(self.high)], "seed": self.seed}


@checked
def train_validation_split(validation: Fraction | float = 0.1, seed: int = 0) -> tuple[HashSplit, HashSplit]:
    """A training and a validation split, which share no sample and together have all samples.

    Args:
        validation: the fraction of samples in the second part, between 0 and 1.
        seed: which split.

    >>> train_validation_split(0.25)[1].as_dict()
    {'split': ['3/4', '1'], 'seed': 0}
    """
    border = 1 - _fraction(validation, "validation")
    must_be("between 0 and 1", 0 < border < 1, validation=validation)
    return HashSplit(Fraction(0), border, seed), HashSplit(border, Fraction(1), seed)


class _IdList:
    """Ids, sorted; from a file they are read when first needed, and again in another process."""

    _name = ""

    @checked
    def __init__(self, ids: IdSource) -> None:
        if isinstance(ids, str | os.PathLike):
            self._path: str | None = os.path.abspath(os.path.expanduser(os.fspath(ids)))
            self._ids: Ids | None = None
        else:
            self._path = None
            self._ids = _checked(_integers(ids, "ids"), "ids")
        self._digest: str | None = None

    @property
    def ids(self) -> Ids:
        """int64, shape ``(n,)``, rising. Sorted int64 of a ``.npy`` file stays mapped and takes no memory.

        ConfigError if an id comes twice or is negative, or the file is not one of ids.
        """
        if self._ids is None:
            assert self._path is not None
            self._ids = _checked(_read(Path(self._path)), self._path)
        return self._ids

    def as_dict(self) -> dict[str, Any]:
        """The number of ids, and their hash: xxh64 of them as little-endian int64, rising."""
        ids = self.ids
        if self._digest is None:
            state = xxhash.xxh64()
            for start in range(0, len(ids), _CHUNK):
                state.update(ids[start : start + _CHUNK].astype("<i8").tobytes())
            self._digest = state.hexdigest()
        return {self._name: len(ids), "xxh64": self._digest}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _IdList) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.as_dict().values()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ids": None if self._path is not None else self._ids}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r})" if self._path else f"{type(self).__name__}({len(self.ids)} ids)"


class KeepIds(_IdList):
    """Only these samples.

    Args:
        ids: ids in the stream, in any order, each once; or the path of a file of them: ``.npy``, or text with an id a line.

    Raises:
        ConfigError: an id comes twice or is negative, or is no integer.
    """

    _name = "keep"


class SkipIds(_IdList):
    """All samples but these; see :class:`KeepIds`."""

    _name = "skip"


@checked
@dataclass(frozen=True, slots=True)
class SkipSteps:
    """Steps of an epoch that a ``quarantine`` excludes. Samples of earlier steps take their places, or else of later ones.

    >>> SkipSteps(340, 343, epoch=0, global_batch=512).as_dict()
    {'epoch': 0, 'steps': [340, 343], 'global_batch': 512}

    Attributes:
        begin: the first of them, counted from the epoch's beginning.
        end: one past the last.
        epoch: its number.
        global_batch: samples that all ranks together take in such a step. A run that resumes in another world, whose steps
            have other lengths, leaves the same samples out; 1: ``begin`` and ``end`` are positions.

    Raises:
        ConfigError: there are no such steps.
    """

    begin: int
    end: int
    _: KW_ONLY
    epoch: int
    global_batch: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end or self.epoch < 0:
            raise ConfigError(
                f"SkipSteps needs 0 <= begin < end and epoch >= 0, got begin={self.begin}, end={self.end}, epoch={self.epoch}"
            )
        if self.global_batch < 1 or self.end * self.global_batch >= POSITIONS:
            raise ConfigError(
                f"global_batch is the number of samples that all ranks take in a step, got {self.global_batch} for steps up "
                f"to {self.end}"
            )

    def as_dict(self) -> dict[str, Any]:
        """The steps, JSON-serialisable; dumped, a line of a file of ``quarantine=``."""
        return {"epoch": self.epoch, "steps": [self.begin, self.end], "global_batch": self.global_batch}


QuarantineSource: TypeAlias = str | os.PathLike[str] | SkipIds | SkipSteps | Sequence[SkipIds | SkipSteps]
"""The file to which lines are added, or the samples and steps themselves."""


class Condition(ABC):
    """A condition that each sample fulfils or not. ``&``, ``|`` and ``~`` combine conditions."""

    __slots__ = ()

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that it compares, sorted."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable description. Conditions of the same description choose the same samples."""

    @property
    def functions(self) -> tuple[str, ...]:
        """Hashes of the functions in it. States do not hold them, as they differ between versions of Python."""
        return ()

    @abstractmethod
    def evaluate(self, batch: Batch, count: int) -> tuple[Mask, Mask | None]:
        """Masks of ``count`` samples: where it holds, and where that is unknown (``None``: nowhere).

        Both are bool, of shape ``(count,)``. ConfigError if the columns' values are not what it can be asked of.
        """

    def __and__(self, other: Condition) -> Condition:
        return _Several("and", (self, other)) if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: Condition) -> Condition:
        return _Several("or", (self, other)) if isinstance(other, Condition) else NotImplemented

    def __invert__(self) -> Condition:
        return _Not(self)

    def __bool__(self) -> bool:
        # `a and b` would silently evaluate to b.
        raise ConfigError("a condition is neither true nor false by itself: combine conditions with &, | and ~")


@dataclass(frozen=True, slots=True)
class _Several(Condition):
    how: str
    parts: tuple[Condition, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(sorted({column for part in self.parts for column in part.columns}))

    def as_dict(self) -> dict[str, Any]:
        return {self.how: [part.as_dict() for part in self.parts]}

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(code for part in self.parts for code in part.functions)

    def evaluate(self, batch: Batch, count: int) -> tuple[Mask, Mask | None]:
        found = [part.evaluate(batch, count) for part in self.parts]
        combine = np.logical_and if self.how == "and" else np.logical_or
        holds: Mask = combine.reduce([true for true, _ in found])
        if all(unknown is None for _, unknown in found):
            return holds, None
        # The result is unknown where it depends on an unknown operand.
        could: Mask = combine.reduce([true if unknown is None else true | unknown for true, unknown in found])
        return holds, could & ~holds


@dataclass(frozen=True, slots=True)
class _Not(Condition):
    part: Condition

    @property
    def columns(self) -> tuple[str, ...]:
        return self.part.columns

    def as_dict(self) -> dict[str, Any]:
        return {"not": self.part.as_dict()}

    @property
    def functions(self) -> tuple[str, ...]:
        return self.part.functions

    def evaluate(self, batch: Batch, count: int) -> tuple[Mask, Mask | None]:
        holds, unknown = self.part.evaluate(batch, count)
        return ~holds if unknown is None else ~(holds | unknown), unknown


Subset: TypeAlias = HashSplit | KeepIds | SkipIds | Condition


def as_subsets(given: Subset | Iterable[Subset] | None) -> tuple[Subset, ...]:
    """One subset or several, of which a sample must be in all, as a tuple. ConfigError for something else."""
    if given is None:
        return ()
    several = (given,) if isinstance(given, HashSplit | _IdList | Condition) else tuple(given)
    for subset in several:
        if not isinstance(subset, HashSplit | KeepIds | SkipIds | Condition):
            raise ConfigError(
                f"subset={subset!r}: expected HashSplit, KeepIds, SkipIds or Where, or several of them in a list"
            )
    return several


def _fraction(value: Fraction | float, name: str) -> Fraction:
    try:
        return Fraction(value) if isinstance(value, Fraction | int) else Fraction(str(float(value)))
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a fraction of 1, got {value!r}") from None


def _read(path: Path) -> NDArray[Any]:
    try:
        if path.suffix == ".npy":
            os.close(open_regular(path)[0])
            return _integers(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
        lines = read_regular(path).decode().split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can not be read as a list of ids: {error}") from error
    try:
        return np.fromiter(map(int, filter(None, map(str.strip, lines))), np.int64)
    except (ValueError, OverflowError):
        bad = next(k for k, line in enumerate(lines) if line.strip() and not _ID.fullmatch(line.strip()))
        raise ConfigError(f"{path}, line {bad + 1}: expected an id, found {lines[bad][:40]!r}") from None


def _integers(ids: Any, where: str) -> NDArray[Any]:
    array = np.asanyarray(ids)
    if array.size and (array.dtype.kind not in "iu" or array.ndim != 1):
        raise ConfigError(f"{where}: ids are integers in one dimension, found {array.dtype} of shape {array.shape}")
    return array if array.size else np.zeros(0, np.int64)


def _rising(ids: Ids) -> bool:
    """In chunks: the ids may be more than memory holds."""
    return all((np.diff(ids[at : at + _CHUNK + 1]) > 0).all() for at in range(0, len(ids), _CHUNK))


def _checked(array: NDArray[Any], where: str) -> Ids:
    """As int64, rising; the array itself where it is that already."""
    ids: Ids = array if array.dtype == np.int64 else array.astype(np.int64)
    if not _rising(ids):
        ids = np.sort(ids)
        again = np.flatnonzero(np.diff(ids) == 0)
        if again.size:
            raise ConfigError(f"{where}: id {int(ids[again[0]])} is listed twice")
    if ids.size and int(ids[0]) < 0:
        raise ConfigError(f"{where}: id {int(ids[0])} is negative")
    if ids is array and isinstance(array, np.memmap):
        return ids
    ids = ids.copy() if ids is array else ids
    ids.flags.writeable = False
    return ids

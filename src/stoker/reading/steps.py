"""Steps of chains: each is a class, which says what it needs and what it does to a sample, or to columns.

A step of another kind is a subclass of :class:`Step` with ``kind``, ``apply`` and the facts in which it differs from the base
class; ``dataset.apply(step)`` adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from stoker.concurrency import user_code
from stoker.display import with_article
from stoker.errors import ConfigError, TransformError
from stoker.formats.unstacked import Unstacked
from stoker.types import Batch, Ids

Generator: TypeAlias = Literal["numpy", "torch"]
"""The generator of random numbers that a function gets: ``numpy.random.Generator`` or ``torch.Generator``."""

Dropped: TypeAlias = Literal["leave_out", "replace"]
"""Treatment of a sample that a filter drops: its batch is shorter, or another sample comes in its place."""

Missing: TypeAlias = Literal["raise", "leave_out", "none"]
"""Treatment of a sample whose key no sample of the other dataset has: it is bad, is left out, or has ``None`` for columns."""


class LeftOut:
    """Stands for a sample that is left out, where batches are made of a fixed number of places."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> str:
        return self._name


LEFT_OUT: Final = LeftOut("LEFT_OUT")
BAD: Final = LeftOut("BAD")
"""Stands for a bad sample until it is known what becomes of it."""
TO_REPLACE: Final = LeftOut("TO_REPLACE")
"""Stands for a sample that a filter dropped, whose place another will take."""
GONE: Final = LeftOut("GONE")
"""Stands for a sample that was left out before a function of its batch, or of which that function made nothing."""


class SeveralSamples(list[Any]):
    """The samples that were made of one.

    ``dropped``: how many more there were, which a filter left out. ``numbers``: of each among those that there were, for its
    random numbers.
    """

    dropped: int = 0
    numbers: Sequence[int] = ()


class Other(Protocol):
    """Another dataset whose columns come beside those of a dataset; see :mod:`stoker.pipeline.joins`."""

    @property
    def name(self) -> str:
        """Its name, if none is given."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of its columns; ``None`` where functions make them."""

    @property
    def samples(self) -> int:
        """Number of its samples."""

    @property
    def of_epoch(self) -> bool:
        """Whether what its own chain makes of a sample depends on the epoch."""

    @property
    def about(self) -> list[dict[str, Any]]:
        """The entries that identify its data in a state."""

    def prepare(self, column: str) -> None:
        """Have its samples found by the values of a column."""


class SamplePlace(NamedTuple):
    """The place of a sample in an epoch.

    Attributes:
        number: its id in the stream.
        repetition: its position where the epoch may have a sample more than once; else 0.
        position: its position in the epoch, from 0; ``None`` where no step of the chain is ``positioned``.
        item: its number among the samples that were made of one.
    """

    epoch: int
    stream: int
    number: int
    repetition: int
    position: int
    item: int = 0


Generators: TypeAlias = Callable[[SamplePlace, str, Generator], Any]
"""A function from a sample's place, the name of a step and a kind to a generator of random numbers of the sample's own."""


@dataclass(frozen=True)
class Step:
    """One step of a chain. Immutable, picklable and hashable; equal steps do the same.

    >>> class Scale(Step):
    ...     kind = "scale"
    ...     def apply(self, sample):
    ...         return {**sample, "x": 2 * sample["x"]}
    >>> Scale("double").told
    'scale(double)'

    Attributes:
        name: names it in states, messages and for random numbers.
        LEFT_OUT, TO_REPLACE: stand for a sample that is dropped, or whose place another takes.
        kind: its name in errors and states; of stoker's own, the method of a chain that adds it.
        calls: whether it takes samples one by one, by :meth:`apply`; otherwise columns or a sample, by :meth:`change`.
        by_place: whether it is given the place of the sample, too, and generators of random numbers: :meth:`apply_at`.
        together: whether it takes the samples of a chunk together: a stage of its own does it.
        makes_several: whether it makes a list of samples of each.
        drops: whether it may drop a sample, for :data:`LEFT_OUT` or :data:`TO_REPLACE`.
        replaces: whether others come in the places of those that it drops.
        positioned: whether it needs the position of an epoch.
        by_id: whether it needs the id of the stored sample, which rows of a whole batch no longer have.
        draws: whether it draws random numbers, by its generators; they belong to its name.
        takes_batch: whether it takes a whole batch as columns, whose rows need not be samples after it.
        own: whether stoker adds it itself, so that no state tells of it.
    """

    name: str

    LEFT_OUT: ClassVar[LeftOut] = LEFT_OUT
    TO_REPLACE: ClassVar[LeftOut] = TO_REPLACE
    kind: ClassVar[str]
    calls: ClassVar[bool] = True
    by_place: ClassVar[bool] = False
    together: ClassVar[bool] = False
    makes_several: ClassVar[bool] = False
    positioned: ClassVar[bool] = False
    by_id: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    takes_batch: ClassVar[bool] = False
    own: ClassVar[bool] = False
    _keeps_values: ClassVar[bool] = False

    def apply(self, sample: Any) -> Any:
        """Make something of a sample: another, :data:`LEFT_OUT`, or a list of samples where it makes several."""
        if not self.calls:
            return self.change(sample, None)
        raise ConfigError(f"{self.told}: {type(self).__name__} lacks apply(sample), or apply_at() with by_place = True")

    def apply_at(self, sample: Any, place: SamplePlace, generators: Generators) -> Any:  # noqa: ARG002
        """The same, of a sample whose place in the epoch is known."""
        if self.calls:
            return self.apply(sample)
        return self.change(sample, np.int64(place.position) if self.positioned else None)

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:  # noqa: ARG002
        """Columns, or a sample, as it makes them.

        ``positions``: an array of their positions in the epoch, or a number; ``None`` unless it is ``positioned``.
        """
        raise ConfigError(
            f"{self.told}: {type(self).__name__} lacks change(values, positions), which calls = False asks for"
        )

    @user_code.calls_user_code
    def change_batch(self, batch: Batch, positions: Ids, first: Callable[[], object]) -> Batch:
        """Columns as it makes them, all of one length. ``first`` says where the first sample comes from."""
        try:
            made = self.change(batch, positions if self.positioned else None)
        except BaseException as error:
            user_code.pass_exits(error)
            raise TransformError(
                f"{self.told} raised {type(error).__name__}: {error}, for the batch that begins with {first()}"
            ) from error
        wrong = _wrong(made, None if self.takes_batch else len(next(iter(batch.values()), ())))
        if wrong:
            raise TransformError(f"{self.told} returned {wrong}, for the batch that begins with {first()}")
        return made

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Only apply_at() is given a position.
        cls.by_place = cls.by_place or cls.positioned

    def stored(self, names: Mapping[str, str]) -> dict[str, str]:
        """The stored name of each column whose values are stored, after it, given those before."""
        return dict(names) if self._keeps_values else {}

    @property
    def other(self) -> Other | None:
        """Another dataset that it reads; ``None``: none."""
        return None

    @property
    def calls_user_code(self) -> bool:
        """Whether it calls a function of the user, or is one of his; if not, :meth:`change` looks at no values."""
        return True

    def dropped_sample(self, mark: LeftOut) -> LeftOut:
        """The mark of a sample for which :meth:`apply` returned one."""
        if not self.drops:
            raise ConfigError(f"{self.told} returned LEFT_OUT or TO_REPLACE: {type(self).__name__} needs drops = True")
        return TO_REPLACE if self.replaces else LEFT_OUT if mark is TO_REPLACE else mark

    @property
    def drops(self) -> bool:
        return False

    @property
    def replaces(self) -> bool:
        return False

    @property
    def changes_counts(self) -> bool:
        """Whether it may make no sample or several of one, so that a batch has another length."""
        return self.makes_several or (self.drops and not self.replaces)

    @property
    def of_epoch(self) -> bool:
        """Whether what it makes of a sample depends on the epoch."""
        return self.by_place or self.draws

    @property
    def makes_one(self) -> bool:
        """Whether it makes one sample of each, of whatever epoch."""
        return not (self.positioned or self.takes_batch or self.drops or self.makes_several)

    @property
    def told(self) -> str:
        """The step as states name it: the method, and what decides its result."""
        return f"{self.kind}({self.name})"

    def __repr__(self) -> str:
        return f".{self.told}"


def _wrong(batch: Any, rows: int | None) -> str:
    """The fault of columns that a step returned; empty: they have none. ``rows``: how many there must be; ``None``: any."""
    told = "an empty dict" if batch == {} else _named(batch)
    if isinstance(batch, dict) and batch:
        lengths = {
            name: len(column)
            for name, column in batch.items()
            if isinstance(column, list | Unstacked) or (isinstance(column, np.ndarray) and column.ndim)
        }
        if len(set(lengths.values())) > 1:
            return f"columns of different lengths: {lengths}"
        if len(lengths) == len(batch):
            found = next(iter(lengths.values()))
            return "" if rows in (None, found) else f"{found} rows of {rows}, which takes_batch = True is for"
        told = ", ".join(f"{name!r}: {type(column).__name__}" for name, column in batch.items())
    return f"{told}: return a dict of columns, arrays of shape (n, ...) or lists of n values"


def _named(value: object) -> str:
    return "None" if value is None else with_article(type(value).__name__)


# -- functions of samples ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Map(Step):
    """A function of a sample."""

    function: Callable[[Any], Any]
    kind = "map"

    def apply(self, sample: Any) -> Any:
        return self.function(sample)


@dataclass(frozen=True, repr=False)
class Load(Map):
    """The loading of images in a DataLoader's worker, after the last function of a sample."""

    kind = "loading"
    own = _keeps_values = True


@dataclass(frozen=True, repr=False)
class RandomMap(Step):
    """A function of a sample and of random numbers of its own."""

    function: Callable[[Any, Any], Any]
    generator: Generator = "numpy"
    kind = "random_map"
    by_place = draws = True

    def apply_at(self, sample: Any, place: SamplePlace, generators: Generators) -> Any:
        return self.function(sample, generators(place, self.name, self.generator))

    @property
    def told(self) -> str:
        return f"random_map({self.name}{', generator=' + repr('torch') if self.generator == 'torch' else ''})"


@dataclass(frozen=True, repr=False)
class Filter(Step):
    """A function that says of each sample whether it is kept."""

    function: Callable[[Any], Any]
    dropped: Dropped = "leave_out"
    kind = "filter"
    _keeps_values = True

    def apply(self, sample: Any) -> Any:
        kept = self.function(sample)
        # Whatever has neither of these methods counts as true: a generator, a coroutine, a method that was not called.
        if kept is None or not (hasattr(kept, "__bool__") or hasattr(kept, "__len__")):
            raise TypeError(f"the function returned {_named(kept)}: return True to keep the sample, else False")
        return sample if kept else TO_REPLACE if self.replaces else LEFT_OUT

    @property
    def drops(self) -> bool:
        return True

    @property
    def replaces(self) -> bool:
        return self.dropped == "replace"

    @property
    def told(self) -> str:
        return f"filter({self.name}{', dropped=' + repr('replace') if self.replaces else ''})"


@dataclass(frozen=True, repr=False)
class FlatMap(Step):
    """A function that makes any number of samples of each."""

    function: Callable[[Any], Iterable[Any]]
    kind = "flat_map"
    makes_several = True

    def apply(self, sample: Any) -> Any:
        made = self.function(sample)
        if isinstance(made, Mapping | str | bytes) or not isinstance(made, Iterable):
            raise TypeError(f"the function returned {_named(made)}: return a list of samples, or another iterable")
        # Each is a dict of its own: a function may give one several times, and a later step may change it.
        return [one.copy() if type(one) is dict else one for one in made]


@dataclass(frozen=True, repr=False)
class BatchMap(Step):
    """A function of the columns of a whole batch."""

    function: Callable[[Batch], Batch]
    kind = "batch_map"
    calls = False
    takes_batch = True

    def change(self, values: Batch, positions: Any) -> Batch:  # noqa: ARG002
        return self.function(values)


@dataclass(frozen=True, repr=False)
class TokenizeColumn(Step):
    """Makes ids of the texts of a column, for an ``LMStream``. ``limit`` is one more than the largest id."""

    function: Callable[[Sequence[str]], Sequence[Any]]
    column: str
    limit: int
    kind = "tokenize"
    own = together = True


# -- columns -----------------------------------------------------------------------------------------------------------


class _Columns(Step):
    """A change of columns, which a sample has as well."""

    calls = False

    def change_batch(self, batch: Batch, positions: Ids, first: Callable[[], object]) -> Batch:  # noqa: ARG002
        return self.change(batch, positions)

    @property
    def calls_user_code(self) -> bool:
        return False

    def _check(self, values: Any, wanted: Iterable[str]) -> None:
        if not isinstance(values, dict):
            raise ConfigError(
                f"{self.kind}() changes columns, but the step before it returned {type(values).__name__}, not a dict"
            )
        missing = [name for name in wanted if name not in values]
        if missing:
            raise ConfigError(
                f"{self.told}: there is no column {missing[0]!r}; there are {', '.join(map(str, values))}"
            )


@dataclass(frozen=True, repr=False)
class Rename(_Columns):
    """Other names of columns: pairs of old and new name."""

    columns: tuple[tuple[str, str], ...]
    kind = "rename"

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:  # noqa: ARG002
        self._check(values, (old for old, _ in self.columns))
        names = dict(self.columns)
        made = {names.get(name, name): value for name, value in values.items()}
        if len(made) < len(values):
            raise ConfigError(f"{self.told} gives two columns the same name; there are {', '.join(map(str, values))}")
        return made

    def stored(self, names: Mapping[str, str]) -> dict[str, str]:
        new = dict(self.columns)
        return {new.get(name, name): stored for name, stored in names.items()}

    @property
    def told(self) -> str:
        return f"rename({dict(self.columns)!r})"


@dataclass(frozen=True, repr=False)
class Select(_Columns):
    """These columns alone, in this order."""

    columns: tuple[str, ...]
    kind = "select"

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:  # noqa: ARG002
        self._check(values, self.columns)
        return {name: values[name] for name in self.columns}

    def stored(self, names: Mapping[str, str]) -> dict[str, str]:
        return {name: names[name] for name in self.columns if name in names}

    @property
    def told(self) -> str:
        return f"select({list(self.columns)!r})"


@dataclass(frozen=True, repr=False)
class Enumerate(_Columns):
    """A further column: the position of the sample in the epoch."""

    column: str
    kind = "enumerate"
    by_place = positioned = _keeps_values = True

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:
        column = self.column
        if not isinstance(values, dict) or column in values:
            what = "has a column of this name" if isinstance(values, dict) else "is not a dict"
            raise ConfigError(
                f"enumerate({column!r}): the sample {what}: give another name, or call enumerate() at another place in the "
                "chain"
            )
        return {**values, column: positions.copy() if isinstance(positions, np.ndarray) else positions}

    @property
    def told(self) -> str:
        return f"enumerate({self.column!r})"


@dataclass(frozen=True, repr=False)
class Project(_Columns):
    """All changes of columns that a chain begins with: pairs of name and stored name, which is ``None`` for a position."""

    columns: tuple[tuple[str, str | None], ...]
    kind = "project"
    own = True

    @property
    def by_place(self) -> bool:  # type: ignore[override]
        return self.positioned

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:
        if not isinstance(positions, np.ndarray):
            return {name: positions if stored is None else values[stored] for name, stored in self.columns}
        return {name: positions.copy() if stored is None else values[stored] for name, stored in self.columns}

    def stored(self, names: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002
        return {name: stored for name, stored in self.columns if stored is not None}

    @property
    def positioned(self) -> bool:  # type: ignore[override]
        return any(stored is None for _, stored in self.columns)


# -- other datasets ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Beside(Step):
    """The columns of another dataset beside those of a dataset.

    Attributes:
        dataset: the other dataset.
        prefix: begins the names of its columns.
        on: the names of the key column here and there; empty where samples of one id belong together.
        missing: what becomes of a sample whose key is not there.
    """

    dataset: Other
    prefix: str = ""
    on: tuple[str, str] = ("", "")
    missing: Missing = "raise"
    together = _keeps_values = True

    @property
    def other(self) -> Other:
        return self.dataset

    @property
    def calls_user_code(self) -> bool:
        return False

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "join" if self.on[0] else "zip"

    @property
    def by_id(self) -> bool:  # type: ignore[override]
        return not self.on[0]

    @property
    def drops(self) -> bool:
        return self.missing == "leave_out"

    @property
    def of_epoch(self) -> bool:
        return self.dataset.of_epoch

    @property
    def told(self) -> str:
        here, there = self.on
        on = "" if not here else f", on={(here if here == there else self.on)!r}"
        more = f", prefix={self.prefix!r}" if self.prefix else ""
        more += f", missing={self.missing!r}" if self.missing != "raise" else ""
        return f"{self.kind}({self.name!r}{on}{more})"


def same_name(step: Step, name: str) -> ConfigError:
    """The error of a zip or join that would make two columns of one name."""
    return ConfigError(
        f"{step.told}: both have a column {name!r}: give prefix=..., rename() one of them, or select() what is needed"
    )


KINDS: Final = frozenset(
    (*(one.kind for one in (Map, Load, RandomMap, Filter, FlatMap, BatchMap, TokenizeColumn)), "zip", "join")
) | {one.kind for one in (Rename, Select, Enumerate, Project)}
"""The kinds of stoker's own steps."""


def check_own(step: Step) -> None:
    """Check what a step of another package says of itself.

    ConfigError if it has no kind, or that of another step; it drops rows of columns; or it has values that are not fields.
    """
    if type(step).__module__.startswith("stoker."):
        return
    name, kind = type(step).__name__, getattr(step, "kind", None)
    if not isinstance(kind, str) or kind in KINDS:
        raise ConfigError(
            f"{name} needs a kind of its own, by which states and errors call it, such as kind = 'cap'; it has {kind!r}"
        )
    if not step.calls and (step.drops or step.makes_several):
        raise ConfigError(
            f"{step.told}: {name} has calls = False, so it changes columns and keeps their rows: to drop samples, or to make "
            "several of one, give it apply(sample)"
        )
    hidden = [one for one in vars(step).keys() - {field.name for field in fields(step)} if not one.startswith("_")]
    if hidden:
        raise ConfigError(
            f"{name} has {min(hidden)!r}, which is not a field, so that steps with other values of it would count as equal: "
            "make the class a dataclass, @dataclass(frozen=True), without an __init__ of its own"
        )

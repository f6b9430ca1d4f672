"""Steps of chains: what each says, and how it changes columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from stoker.errors import ConfigError

Generator: TypeAlias = Literal["numpy", "torch"]
"""The generator of random numbers that a function gets: ``numpy.random.Generator`` or ``torch.Generator``."""

Dropped: TypeAlias = Literal["leave_out", "replace"]
"""Treatment of a sample that a filter drops: its batch is shorter, or another sample comes in its place."""

StepKind: TypeAlias = Literal[
    "map",
    "random_map",
    "filter",
    "flat_map",
    "batch_map",
    "rename",
    "select",
    "enumerate",
    "zip",
    "join",
    "project",
    "present",
    "loading",
    "tokenize",
]
"""The method of a chain that adds a step. Four are stoker's own: ``"project"`` stands for the changes of columns that a
chain begins with, ``"present"`` leaves out samples that a join at the beginning found nothing for, ``"loading"`` loads
images in a DataLoader's worker, and ``"tokenize"`` makes ids of the texts of a column, for an ``LMStream``."""

Missing: TypeAlias = Literal["raise", "leave_out", "none"]
"""Treatment of a sample whose key no sample of the other dataset has: it is bad, is left out, or has ``None`` for columns."""

_OF_SAMPLE: Final = ("map", "random_map", "filter", "flat_map", "zip", "join", "loading", "tokenize")
BESIDE: Final = ("zip", "join")
PLAIN: Final = ("map", "rename", "select", "project")
OF_OTHER: Final = (*PLAIN, *BESIDE, "random_map")
"""Steps that the chain of another dataset may have, of which a zip or join takes single samples."""


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
    def draws(self) -> bool:
        """Whether its own chain draws random numbers."""

    @property
    def about(self) -> list[dict[str, Any]]:
        """The entries that identify its data in a state."""

    def prepare(self, column: str) -> None:
        """Have its samples found by the values of a column."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a chain.

    Attributes:
        kind: what it does.
        name: of its function or its other dataset. Random numbers depend on it.
        function: of a sample; of ``random_map``, of a sample and a generator; of ``batch_map``, of columns; of ``tokenize``,
            of texts.
        generator: the kind of generator that the function gets; ``None``: none.
        dropped: of ``filter``: what becomes of a sample for which the function says no.
        columns: of ``rename``: pairs of old and new name; of ``select``, names; of ``enumerate``, the new column; of
            ``tokenize``, that of the texts, and one more than the largest id; of
            ``project``, pairs of name and stored name, which is ``None`` for a sample's position.
        other: of ``zip`` and ``join``: the other dataset.
        on: of ``join``: the names of the key column here and there.
        missing: of ``join``: what becomes of a sample whose key is not there.
        prefix: of ``zip`` and ``join``: begins the names of the other's columns.
    """

    kind: StepKind
    name: str
    function: Callable[..., Any] | None = None
    generator: Generator | None = None
    dropped: Dropped = "leave_out"
    columns: tuple[Any, ...] = ()
    other: Other | None = None
    on: tuple[str, str] = ("", "")
    missing: Missing = "raise"
    prefix: str = ""

    @property
    def calls(self) -> bool:
        """Whether it needs samples one by one: it calls a function of each, or follows one that does."""
        return self.kind in _OF_SAMPLE

    @property
    def changes_counts(self) -> bool:
        """Whether it may make no sample or several of one, so that a batch has another length."""
        if self.kind == "filter":
            return self.dropped == "leave_out"
        return self.kind in ("flat_map", "present") or (self.kind == "join" and self.missing == "leave_out")

    @property
    def of_epoch(self) -> bool:
        """Whether it takes another dataset whose own chain draws random numbers, which are those of an epoch."""
        return self.other is not None and self.other.draws

    @property
    def told(self) -> str:
        """The step as states name it: the method, and what decides its result."""
        return repr(self).removeprefix(".")

    def __repr__(self) -> str:
        if self.kind == "rename":
            return f".rename({dict(self.columns)!r})"
        if self.kind == "select":
            return f".select({list(self.columns)!r})"
        if self.kind == "enumerate":
            return f".enumerate({self.columns[0]!r})"
        if self.kind in BESIDE:
            on = "" if self.kind == "zip" else f", on={(self.on[0] if self.on[0] == self.on[1] else self.on)!r}"
            more = f", prefix={self.prefix!r}" if self.prefix else ""
            more += f", missing={self.missing!r}" if self.missing != "raise" else ""
            return f".{self.kind}({self.name!r}{on}{more})"
        more = ", generator='torch'" if self.generator == "torch" else ""
        more += ", dropped='replace'" if self.kind == "filter" and self.dropped == "replace" else ""
        return f".{self.kind}({self.name}{more})"


def change_columns(step: Step, values: dict[str, Any]) -> dict[str, Any]:
    """A sample or a batch after a ``rename`` or ``select``.

    ``step``: one of these, or a ``project`` that has no position. ConfigError if a column is not there, or two would have one
    name.
    """
    if not isinstance(values, dict):
        raise ConfigError(
            f"{step.kind}() changes columns, but the step before it returned {type(values).__name__}, not a dict"
        )
    if step.kind == "project":
        return {name: values[stored] for name, stored in step.columns}
    wanted = step.columns if step.kind == "select" else tuple(old for old, _ in step.columns)
    missing = [name for name in wanted if name not in values]
    if missing:
        raise ConfigError(f"{step.told}: there is no column {missing[0]!r}; there are {', '.join(map(str, values))}")
    if step.kind == "select":
        return {name: values[name] for name in wanted}
    names = dict(step.columns)
    made = {names.get(name, name): value for name, value in values.items()}
    if len(made) < len(values):
        raise ConfigError(f"{step.told} gives two columns the same name; there are {', '.join(map(str, values))}")
    return made


def add_column(step: Step, values: dict[str, Any], positions: Any) -> dict[str, Any]:
    """A sample or a batch after an ``enumerate``. ConfigError if there is a column of this name."""
    (column,) = step.columns
    if not isinstance(values, dict) or column in values:
        what = "has a column of this name" if isinstance(values, dict) else "is not a dict"
        raise ConfigError(
            f"enumerate({column!r}): the sample {what}: give another name, or call enumerate() at another place in the chain"
        )
    return {**values, column: positions}


@dataclass(frozen=True, slots=True)
class LeadingJoin:
    """A zip or join that comes before all functions of a chain, so that its samples are known from those that are stored.

    Attributes:
        step: of the chain.
        key: where the key is stored: 0 or the number of such a join, from 1, and the column there; ``None`` of a zip.
        known: whether the columns of the other dataset are known, so that they are read with the stored ones. Otherwise the
            step itself is among those that make samples.
    """

    step: Step
    key: tuple[int, str] | None
    known: bool


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a chain needs of those that are stored, and its steps from there on.

    Attributes:
        read: names of the columns of the dataset itself.
        joins: zips and joins that it begins with.
        layout: with joins, the columns that are read: name, 0 or the number of the join, from 1, and the name there.
        steps: those that are left.
    """

    read: frozenset[str]
    joins: tuple[LeadingJoin, ...]
    layout: tuple[tuple[str, int, str], ...]
    steps: tuple[Step, ...]


def project(steps: Sequence[Step], columns: Sequence[str], samples: int) -> Projection:
    """The columns that a chain needs of those that would be read without it, and its steps with these columns alone.

    Changes of columns that it begins with become one step, which needs none of those that they drop. ConfigError if such a
    change names a column that is not there, or makes two of one name; or a zip is with a dataset of another length.
    ``columns``: that would be read without it. ``samples``: of the dataset.
    """
    for one in steps:
        if one.kind == "zip" and one.other is not None and one.other.samples != samples:
            raise ConfigError(
                f"{one.told}: this dataset has {samples} samples, and {one.name!r} has {one.other.samples}: zip() needs "
                "the same number. Where a column tells which samples belong together, use join(on=...)"
            )
    # Name to where it is stored; the position is stored nowhere.
    stored: dict[str, Any] = {name: (0, name) for name in columns}
    joins: list[LeadingJoin] = []
    count = 0
    for count, step in enumerate((*steps, None)):  # noqa: B007 - is used behind
        if step is None or step.function is not None:
            break
        if step.kind in BESIDE:
            stored, join = _beside(step, stored, len(joins) + 1)
            joins.append(join)
            if not join.known:
                break
        elif step.kind == "enumerate":
            stored = add_column(step, stored, None)
        else:
            stored = change_columns(step, stored)
    if not count and not joins:
        return Projection(frozenset(columns), (), (), tuple(steps))
    read = frozenset(place[1] for place in stored.values() if place is not None and not place[0])
    if not joins:
        names = tuple((name, None if place is None else place[1]) for name, place in stored.items())
        return Projection(read, (), (), (Step("project", "project", columns=names), *steps[count:]))
    layout = tuple((name, *place) for name, place in stored.items() if place is not None)
    made: list[Step] = []
    if any(join.known and join.step.changes_counts for join in joins):
        made.append(Step("present", "present"))
    if None in stored.values():
        names = tuple((name, None if place is None else name) for name, place in stored.items())
        made.append(Step("project", "project", columns=names))
    return Projection(read, tuple(joins), layout, (*made, *steps[count:]))


def _beside(step: Step, stored: Mapping[str, Any], number: int) -> tuple[dict[str, Any], LeadingJoin]:
    """Columns with those of a zip or join, and where its key is."""
    assert step.other is not None
    key = None
    if step.kind == "join":
        if step.on[0] not in stored:
            raise ConfigError(
                f"{step.told}: there is no column {step.on[0]!r}; there are {', '.join(stored)}. on= takes two names where "
                "the column has another name in the other dataset"
            )
        key = stored[step.on[0]]
        if key is None:
            raise ConfigError(
                f"{step.told}: {step.on[0]!r} is a position of the epoch, which is not stored with samples: zip() joins "
                "by sample"
            )
    names = step.other.columns
    if names is None:
        return dict(stored), LeadingJoin(step, key, known=False)
    made = dict(stored)
    for name in names:
        if name != step.on[1]:
            if step.prefix + name in made:
                raise same_name(step, step.prefix + name)
            made[step.prefix + name] = (number, name)
    return made, LeadingJoin(step, key, known=True)


def same_name(step: Step, name: str) -> ConfigError:
    """The error of a zip or join that would make two columns of one name."""
    return ConfigError(
        f"{step.told}: both have a column {name!r}: give prefix=..., rename() one of them, or select() what is needed"
    )


def split_steps(steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps up to the last that calls a function of a sample, and those after it, which whole columns take."""
    last = max((number for number, step in enumerate(steps, 1) if step.calls), default=0)
    return tuple(steps[:last]), tuple(steps[last:])


def stored_names(steps: Sequence[Step], columns: Sequence[str]) -> dict[str, str]:
    """The stored name of each column whose values are as they are stored; none where a function makes samples."""
    names = {name: name for name in columns}
    for step in steps:
        if step.kind == "project":
            names = {name: stored for name, stored in step.columns if stored is not None}
        elif step.kind == "rename":
            new = dict(step.columns)
            names = {new.get(name, name): stored for name, stored in names.items()}
        elif step.kind == "select":
            names = {name: names[name] for name in step.columns if name in names}
        elif step.kind not in ("filter", "enumerate", "present", "zip", "join", "loading"):
            return {}
    return names

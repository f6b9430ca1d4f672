"""Chains: steps that make samples, one after the other: functions of a sample or of a batch, and changes of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.types import Batch

Generator: TypeAlias = Literal["numpy", "torch"]
"""The generator of random numbers that a function gets: ``numpy.random.Generator`` or ``torch.Generator``."""

Dropped: TypeAlias = Literal["leave_out", "replace"]
"""Treatment of a sample that a filter drops: its batch is shorter, or another sample comes in its place."""

StepKind: TypeAlias = Literal[
    "map", "random_map", "filter", "flat_map", "batch_map", "rename", "select", "enumerate", "project", "loading"
]
"""The method of a chain that adds a step. Two are stoker's own: ``"project"`` stands for the changes of columns that a chain
begins with, and ``"loading"`` loads images in a DataLoader's worker."""

_OF_SAMPLE: Final = ("map", "random_map", "filter", "flat_map", "loading")
_PLAIN: Final = ("map", "rename", "select", "project")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a chain.

    Attributes:
        kind: what it does.
        name: tells it from the others of its chain.
        function: of a sample; of ``random_map``, of a sample and a generator; of ``batch_map``, of columns.
        generator: the kind of generator that the function gets; ``None``: none.
        dropped: of ``filter``: what becomes of a sample for which the function says no.
        columns: of ``rename``: pairs of old and new name; of ``select``, names; of ``enumerate``, the new column; of
            ``project``, pairs of name and stored name, which is ``None`` for a sample's position.
    """

    kind: StepKind
    name: str
    function: Callable[..., Any] | None = None
    generator: Generator | None = None
    dropped: Dropped = "leave_out"
    columns: tuple[Any, ...] = ()

    @property
    def calls(self) -> bool:
        """Whether it calls a function of a sample."""
        return self.kind in _OF_SAMPLE

    @property
    def changes_counts(self) -> bool:
        """Whether it may make no sample or several of one, so that a batch has another length."""
        return self.kind == "flat_map" or (self.kind == "filter" and self.dropped == "leave_out")

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
        more = ", generator='torch'" if self.generator == "torch" else ""
        more += ", dropped='replace'" if self.kind == "filter" and self.dropped == "replace" else ""
        return f".{self.kind}({self.name}{more})"


class Chain:
    """Steps that make samples, one after the other. A value: each method gives a new one.

    ``transform=`` of a dataset takes it, and ``dataset.map(f)`` adds to that of the dataset. Functions of a sample come
    before :meth:`batch_map`, after which a batch is whole.

    >>> chain = Chain().map(str.strip).random_map(lambda text, rng: text * rng.integers(1, 3), name="repeat")
    >>> chain, chain.names
    (Chain().map(str.strip).random_map(repeat), ('str.strip', 'repeat'))

    Args:
        steps: its steps.

    Raises:
        ConfigError: two functions have the same name, or steps can not follow each other in this order.
    """

    __slots__ = ("steps",)

    @checked
    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)
        named = [step.name for step in self.steps if step.function is not None]
        if len(set(named)) < len(named):
            raise ConfigError(
                f"{self!r} has two steps of one name, and the name tells steps apart: give name= another one"
            )
        whole = flat = False
        for step in self.steps:
            if whole and (step.calls or step.kind == "enumerate"):
                raise ConfigError(
                    f"{self!r}: batch_map() makes whole batches, whose rows need not be samples: call {step.kind}() before it"
                )
            if flat and step.kind == "filter" and step.dropped == "replace":
                raise ConfigError(
                    f"{self!r}: flat_map() makes several samples or none of one, so that nothing has a place that another "
                    "could take: use dropped='leave_out' after it"
                )
            whole, flat = whole or step.kind == "batch_map", flat or step.kind == "flat_map"

    @checked
    def map(self, function: Callable[[Any], Any], name: str | None = None) -> Chain:
        """This chain, and then a function of what it gives.

        Args:
            function: of a sample.
            name: of the step; default, the function's.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(Step("map", _name_of(function, name), function))

    @checked
    def random_map(
        self, function: Callable[[Any, Any], Any], name: str | None = None, *, generator: Generator = "numpy"
    ) -> Chain:
        """This chain, and then a function of what it gives and of a generator of random numbers.

        The numbers are those of the dataset's ``shuffle_seed``, the epoch, the stream, the sample's id in it and the step's
        name, whatever world, workers and threads read it, and after any resume. Where an epoch has a sample more than once,
        they are also those of its position; after :meth:`flat_map`, of the number of the sample among those of its origin.

        Args:
            function: of a sample and a ``numpy.random.Generator``, or a ``torch.Generator``, which is its own.
            name: of the step; default, the function's. Another name is another sequence of numbers.
            generator: ``"numpy"`` or ``"torch"``.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(Step("random_map", _name_of(function, name), function, generator))

    @checked
    def filter(
        self, function: Callable[[Any], Any], name: str | None = None, *, dropped: Dropped = "leave_out"
    ) -> Chain:
        """This chain, without the samples for which a function says no.

        Batch n is made of those that it would have without the filter, all ranks take as many steps, and any run resumes
        exactly.

        Args:
            function: of a sample, to whether it is kept.
            name: of the step; default, the function's.
            dropped: ``"leave_out"``: batches are shorter. ``"replace"``: the place goes to another sample of the epoch: the
                first that is kept among those before it in the order, at distances of 1, 2, 3, 4, 6, ..., then of 1 to 1,000,
                or else after it. Batches are full.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(Step("filter", _name_of(function, name), function, dropped=dropped))

    @checked
    def flat_map(self, function: Callable[[Any], Iterable[Any]], name: str | None = None) -> Chain:
        """This chain, and then a function that makes any number of samples of one.

        Batch n is made of all that comes of the samples which it would have without: its length varies, and all ranks take
        as many steps.

        Args:
            function: of a sample, to a list or another iterable of samples, which may be empty.
            name: of the step; default, the function's.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(Step("flat_map", _name_of(function, name), function))

    @checked
    def batch_map(self, function: Callable[[Batch], Batch], name: str | None = None) -> Chain:
        """This chain, and then a function of whole batches, called once for each that has samples.

        Only what delivers batches takes such a chain: ``batches()``, ``StreamingDataLoader``, ``stoker.jax.batches``.

        Args:
            function: of a dict from column name to array of shape ``(n, ...)`` or list of n values, to another such dict, in
                which n may differ.
            name: of the step; default, the function's.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(Step("batch_map", _name_of(function, name), function))

    @checked
    def rename(self, columns: Mapping[str, str]) -> Chain:
        """This chain, with other names of columns.

        >>> Chain().rename({"image": "x", "label": "y"})
        Chain().rename({'image': 'x', 'label': 'y'})

        Args:
            columns: from old names to new ones; other columns keep theirs.

        Raises:
            ConfigError: two columns would have one name.
        """
        if len(set(columns.values())) < len(columns):
            raise ConfigError(f"rename({dict(columns)!r}) gives two columns one name")
        return self._and(Step("rename", "rename", columns=tuple(columns.items())))

    @checked
    def select(self, columns: Sequence[str]) -> Chain:
        """This chain, with these columns alone, in this order. Columns that no step before it needs are not even decoded.

        Args:
            columns: their names.

        Raises:
            ConfigError: there are none, or one comes twice.
        """
        if not len(columns) or len(set(columns)) < len(columns):
            raise ConfigError(f"select({list(columns)!r}): give at least one column, and each once")
        return self._and(Step("select", "select", columns=tuple(columns)))

    @checked
    def enumerate(self, column: str = "position") -> Chain:
        """This chain, with a further column: the position of the sample in the epoch, from 0, as ``numpy.int64``.

        It is the same on any world and after any resume. Samples that :meth:`flat_map` makes of one have its position.

        Args:
            column: its name.
        """
        return self._and(Step("enumerate", "enumerate", columns=(column,)))

    def _and(self, step: Step) -> Chain:
        return Chain((*self.steps, step))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its steps."""
        return tuple(step.name for step in self.steps)

    @property
    def draws(self) -> bool:
        """Whether any step draws random numbers."""
        return any(step.kind == "random_map" for step in self.steps)

    def has(self, *kinds: StepKind) -> bool:
        """Whether there is a step of one of these kinds."""
        return any(step.kind in kinds for step in self.steps)

    def __call__(self, sample: Any) -> Any:
        """A sample as the chain makes it.

        Raises:
            ConfigError: it needs more than the sample: random numbers, a position, a batch; or may not make one of one.
        """
        unfit = self.unfit
        if unfit:
            raise ConfigError(f"{self!r}: {unfit} needs a dataset: give the chain to one as transform=")
        for step in self.steps:
            sample = step.function(sample) if step.function is not None else change_columns(step, sample)
        return sample

    @property
    def unfit(self) -> str:
        """The first step that makes of a sample alone not one sample, by its method; empty where there is none."""
        return next((f"{step.kind}()" for step in self.steps if step.kind not in _PLAIN), "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Chain(){''.join(map(repr, self.steps))}"


def change_columns(step: Step, values: dict[str, Any]) -> dict[str, Any]:
    """A sample or a batch after ``rename`` or ``select``.

    Args:
        step: one of them.
        values: by column name.

    Raises:
        ConfigError: a column is not there, or two would have one name.
    """
    if not isinstance(values, dict):
        raise ConfigError(
            f"{step.kind}() changes columns, and the step before it gave no dict, but {type(values).__name__}"
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
        raise ConfigError(f"{step.told} gives two columns one name; there are {', '.join(map(str, values))}")
    return made


def add_column(step: Step, values: dict[str, Any], positions: Any) -> dict[str, Any]:
    """A sample or a batch after ``enumerate``.

    Args:
        step: it.
        values: by column name.
        positions: of the samples.

    Raises:
        ConfigError: there is a column of this name.
    """
    (column,) = step.columns
    if not isinstance(values, dict) or column in values:
        what = "has a column of this name" if isinstance(values, dict) else "is no dict"
        raise ConfigError(f"enumerate({column!r}): the sample {what}: give another name, or call it elsewhere")
    return {**values, column: positions}


def project(steps: Sequence[Step], columns: Sequence[str]) -> tuple[set[str], tuple[Step, ...]]:
    """The columns that a chain needs of those that would be read without it, and its steps with these columns alone.

    Changes of columns that it begins with become one step, which needs none of those that they drop.

    Args:
        steps: of the chain.
        columns: that would be read without it.

    Raises:
        ConfigError: such a change names a column that is not there, or makes two of one name.
    """
    stored: dict[str, Any] = {name: name for name in columns}
    count = 0
    for count, step in enumerate((*steps, None)):  # noqa: B007 - is used behind
        if step is None or step.function is not None:
            break
        stored = add_column(step, stored, None) if step.kind == "enumerate" else change_columns(step, stored)
    if not count:
        return set(columns), tuple(steps)
    return set(stored.values()), (Step("project", "project", columns=tuple(stored.items())), *steps[count:])


def split_steps(steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps up to the last that calls a function of a sample, and those after it, which whole columns take."""
    last = max((number for number, step in enumerate(steps, 1) if step.calls), default=0)
    return tuple(steps[:last]), tuple(steps[last:])


def stored_names(steps: Sequence[Step], columns: Sequence[str]) -> dict[str, str]:
    """The stored name of each column whose values are as they are stored; none where a function makes samples.

    Args:
        steps: of samples.
        columns: that are read.
    """
    names = {name: name for name in columns}
    for step in steps:
        if step.kind == "project":
            names = {name: stored for name, stored in step.columns if stored is not None}
        elif step.kind == "rename":
            new = dict(step.columns)
            names = {new.get(name, name): stored for name, stored in names.items()}
        elif step.kind == "select":
            names = {name: names[name] for name in step.columns if name in names}
        elif step.kind not in ("filter", "enumerate", "loading"):
            return {}
    return names


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    return str(name or getattr(function, "__qualname__", type(function).__qualname__))


def as_chain(transform: Any) -> Chain:
    """The chain of what ``transform=`` takes: itself, of a function alone, or empty."""
    if isinstance(transform, Chain):
        return transform
    return Chain() if transform is None else Chain().map(transform, "transform")

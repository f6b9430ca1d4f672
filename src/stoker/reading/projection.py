"""The columns that a chain needs of those that are stored, and of other datasets, before its first function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.errors import ConfigError
from stoker.reading.steps import Beside, Project, Step, same_name


@dataclass(frozen=True, slots=True)
class LeadingJoin:
    """A zip or join that comes before all functions of a chain, so that its samples are known from those that are stored.

    Attributes:
        key: where the key is stored: 0 or the number of such a join, from 1, and the column there; ``None`` of a zip.
        known: whether the columns of the other dataset are known, so that they are read with the stored ones. Otherwise the
            step itself is among those that make samples.
    """

    step: Beside
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
        if isinstance(one, Beside) and not one.on[0] and one.other.samples != samples:
            raise ConfigError(
                f"{one.told}: this dataset has {samples} samples, and {one.name!r} has {one.other.samples}: zip() needs "
                "the same number. Where a column tells which samples belong together, use join(on=...)"
            )
    # Name to where it is stored; the position is stored nowhere.
    stored: dict[str, Any] = {name: (0, name) for name in columns}
    joins: list[LeadingJoin] = []
    count = 0
    for count, step in enumerate((*steps, None)):  # noqa: B007 - is used behind
        if step is None or step.calls_user_code:
            break
        if isinstance(step, Beside):
            stored, join = _beside(step, stored, len(joins) + 1)
            joins.append(join)
            if not join.known:
                break
        else:
            stored = step.change(stored, None)
    if not count and not joins:
        return Projection(frozenset(columns), (), (), tuple(steps))
    read = frozenset(place[1] for place in stored.values() if place is not None and not place[0])
    if not joins:
        names = tuple((name, None if place is None else place[1]) for name, place in stored.items())
        return Projection(read, (), (), (Project("project", names), *steps[count:]))
    layout = tuple((name, *place) for name, place in stored.items() if place is not None)
    made: list[Step] = []
    if None in stored.values():
        names = tuple((name, None if place is None else name) for name, place in stored.items())
        made.append(Project("project", names))
    return Projection(read, tuple(joins), layout, (*made, *steps[count:]))


def _beside(step: Beside, stored: Mapping[str, Any], number: int) -> tuple[dict[str, Any], LeadingJoin]:
    """Columns with those of a zip or join, and where its key is."""
    key = None
    if step.on[0]:
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


def split_steps(steps: Sequence[Step], *, of_samples: bool = False) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps up to the last that takes samples one by one, and those after it, which whole columns take.

    With ``of_samples`` all steps take samples that do not need a batch.
    """
    if of_samples:
        last = next((number for number, step in enumerate(steps) if step.takes_batch), len(steps))
    else:
        last = max((number for number, step in enumerate(steps, 1) if step.calls), default=0)
    return tuple(steps[:last]), tuple(steps[last:])


def batch_parts(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps, cut where one that takes samples follows one that takes a whole batch."""
    parts, begin, whole = list[tuple[Step, ...]](), 0, False
    for number, step in enumerate(steps):
        if whole and step.calls:
            parts.append(tuple(steps[begin:number]))
            begin, whole = number, False
        whole = whole or step.takes_batch
    return [*parts, tuple(steps[begin:])]


def stored_names(steps: Sequence[Step], columns: Sequence[str]) -> dict[str, str]:
    """The stored name of each column whose values are as they are stored; none where a function makes samples."""
    names = {name: name for name in columns}
    for step in steps:
        names = step.stored(names)
    return names

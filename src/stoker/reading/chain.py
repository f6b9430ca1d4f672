"""Chains: steps that make samples, one after the other: functions of a sample or of a batch, and changes of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from stoker.arguments import checked
from stoker.concurrency.user_code import runs_steps
from stoker.errors import ConfigError
from stoker.reading.step_methods import StepMethods
from stoker.reading.steps import Step, check_own


class Chain(StepMethods):
    """A sequence of steps that are applied to each sample. Immutable: each method returns a new chain.

    Pass it as ``transform=`` of a dataset; ``dataset.map(f)`` adds a step to the chain of the dataset.

    >>> chain = Chain().map(str.strip).random_map(lambda text, rng: text * rng.integers(1, 3), name="repeat")
    >>> chain, chain.names
    (Chain().map(str.strip).random_map(repeat), ('str.strip', 'repeat'))

    Args:
        steps: its steps.

    Raises:
        ConfigError: two steps that draw random numbers, or two other datasets, have one name, or steps can not follow each
            other in this order, or one of your own contradicts itself.
    """

    __slots__ = ("steps",)

    @checked
    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)
        whole = flat = ""
        for step in self.steps:
            check_own(step)
            if whole and (step.positioned or step.by_id):
                raise ConfigError(
                    f"{self!r}: {whole} makes whole batches, whose rows need not be samples: call {step.kind}() before it"
                )
            whole = whole or (f"{step.kind}()" if step.takes_batch else "")
            flat = flat or (f"{step.kind}()" if step.makes_several else "") or whole
            if flat and step.replaces:
                raise ConfigError(
                    f"{self!r}: {flat} makes any number of samples of {'a batch' if flat == whole else 'one'}, and a "
                    "replacement takes the place of one sample: use dropped='leave_out' after it"
                )
        # Random numbers are drawn by the name of their step; states name other datasets by theirs.
        for what in (
            [step.name for step in self.steps if step.draws],
            [step.name for step in self.steps if step.other is not None],
        ):
            twice = next((name for number, name in enumerate(what) if name in what[:number]), None)
            if twice is not None:
                raise ConfigError(
                    f"{self!r} has two steps of the name {twice!r}, and steps are told apart by name: give one of them "
                    "another name, such as name='second'"
                )

    def _and(self, step: Step) -> Self:
        return type(self)((*self.steps, step))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its steps."""
        return tuple(step.name for step in self.steps)

    @property
    def of_epoch(self) -> bool:
        """Whether what it makes of a sample depends on the epoch, such as by random numbers."""
        return any(step.of_epoch for step in self.steps)

    @property
    def takes_batch(self) -> str:
        """The first step that takes whole batches, by its method; empty where there is none."""
        return self._first(lambda step: step.takes_batch)

    @property
    def makes_several(self) -> str:
        """The first step that makes several samples of one, by its method; empty where there is none."""
        return self._first(lambda step: step.makes_several)

    @runs_steps
    def __call__(self, sample: Any) -> Any:
        """A sample as the chain makes it.

        Raises:
            ConfigError: it needs more than the sample: random numbers, a position, a batch; or may not make one of one.
        """
        unfit = self.unfit
        if unfit:
            raise ConfigError(f"{self!r}: {unfit} needs a dataset: give the chain to one as transform=")
        for step in self.steps:
            sample = step.apply(sample)
        return sample

    @property
    def unfit(self) -> str:
        """The first step that makes of a sample alone not one sample, by its method; empty where there is none."""
        return self._first(lambda step: step.of_epoch or not step.makes_one or step.other is not None)

    def _first(self, wanted: Callable[[Step], bool]) -> str:
        return next((f"{step.kind}()" for step in self.steps if wanted(step)), "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return "".join(("Chain()", *(f".{step.told}" for step in self.steps)))


def as_chain(transform: Any) -> Chain:
    """The chain of what ``transform=`` takes: itself, of a function alone, or empty."""
    if isinstance(transform, Chain):
        return transform
    return Chain() if transform is None else Chain().map(transform, "transform")

"""Chains: steps that make samples, one after the other: functions of a sample or of a batch, and changes of columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from stoker.arguments import checked
from stoker.arguments.other_libraries import METHODS, OTHER_OF_MAP, SHUFFLE, OtherLibraries
from stoker.concurrency.user_code import runs_steps
from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.reading.chain_steps import BESIDE, PLAIN, Dropped, Generator, Missing, Other, Step, StepKind, change_columns
from stoker.types import Batch


class Chain(OtherLibraries):
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

    instead_of_sum = "Chain([*first.steps, *second.steps]) has the steps of both"

    @checked
    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)
        whole = flat = False
        for step in self.steps:
            if whole and (step.calls or step.kind == "enumerate"):  # a zip and a join, too
                raise ConfigError(
                    f"{self!r}: batch_map() makes whole batches, whose rows need not be samples: call {step.kind}() before it"
                )
            if flat and step.kind == "filter" and step.dropped == "replace":
                raise ConfigError(
                    f"{self!r}: flat_map() makes several samples or none of one, so that nothing has a place that another "
                    "could take: use dropped='leave_out' after it"
                )
            whole, flat = whole or step.kind == "batch_map", flat or step.kind == "flat_map"
        named = [step.name for step in self.steps if step.function is not None or step.other is not None]
        if len(set(named)) < len(named):
            raise ConfigError(
                f"{self!r} has two steps of one name, and the name tells steps apart: give name= another one"
            )

    @checked(**OTHER_OF_MAP)
    def map(self, function: Callable[[Any], Any], name: str | None = None) -> Chain:
        """This chain, and then a function of what it gives.

        Args:
            function: of a sample.
            name: of the step; default, the function's.

        Raises:
            ConfigError: another step has this name, or the function takes random numbers, too.
        """
        return self._and(Step("map", _fitting_name(function, name, "map"), function))

    @checked(**OTHER_OF_MAP)
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
            ConfigError: another step has this name, or the function takes a sample alone.
        """
        return self._and(Step("random_map", _fitting_name(function, name, "random_map"), function, generator))

    @checked(**OTHER_OF_MAP)
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

    @checked(**OTHER_OF_MAP)
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

    @checked(**OTHER_OF_MAP)
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

    @checked
    def zip(self, other: Any, *, name: str | None = None, prefix: str = "") -> Chain:
        """This chain, and then the columns of another dataset: those of sample i beside those of sample i.

        Args:
            other: a :class:`~stoker.StreamingDataset` of equally many samples. Samples are numbered as they are stored: its
                order does not matter. What its own chain makes of a sample comes.
            name: of the step; default, that of the other dataset's stream. States name it.
            prefix: begins the names of its columns here.

        Raises:
            ConfigError: the other dataset can not give a sample for each of its own, or another step has this name; and where
                a dataset gets this chain, the lengths differ, or two columns have one name.
        """
        made = _other(other, "zip", name)
        return self._and(Step("zip", name or made.name, other=made, prefix=prefix))

    @checked
    def join(
        self,
        other: Any,
        on: str | Sequence[str],
        *,
        missing: Missing = "raise",
        name: str | None = None,
        prefix: str = "",
    ) -> Chain:
        """This chain, and then the columns of that sample of another dataset which has the same key.

        Keys are integers, text or bytes, and different in all samples of the other dataset, whose order does not matter.
        The first join reads its column of keys once; see :class:`~stoker.streams.key_index.KeyIndex`.

        Args:
            other: a :class:`~stoker.StreamingDataset`. What its own chain makes of a sample comes.
            on: the column of keys; or two names, that here and that of the other dataset, where it is a stored column, by its
                name after ``rename``. It comes once, as it is here.
            missing: what becomes of a sample whose key the other has not, or whose key is null: ``"raise"``: it is a bad
                sample, see ``on_bad_sample``. ``"leave_out"``: it is left out, as by ``filter``. ``"none"``: the columns of
                the other are ``None``, and lists in a batch that has such a sample.
            name: of the step; default, that of the other dataset's stream. States name it.
            prefix: begins the names of its columns here.

        Raises:
            ConfigError: two samples of the other dataset have one key; keys of other types; the other dataset can not give a
                sample for each of its own; or another step has this name; and where a dataset gets this chain, there is no
                such column, or two have one name.
        """
        names = (on, on) if isinstance(on, str) else tuple(on)
        if len(names) != 2:
            raise ConfigError(
                f"join(on={on!r}): give the name of the column of keys, or two: that here, and that there"
            )
        made = _other(other, "join", name)
        made.prepare(names[1])
        return self._and(Step("join", name or made.name, other=made, on=names, missing=missing, prefix=prefix))

    def meant_by(self, name: str) -> str:
        """See :meth:`~stoker.arguments.other_libraries.OtherLibraries.meant_by`."""
        found = SHUFFLE if name == "shuffle" else METHODS.get(name, "")
        return found.replace("the constructor", "the constructor of the StreamingDataset that takes the chain")

    def _and(self, step: Step) -> Chain:
        return Chain((*self.steps, step))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its steps."""
        return tuple(step.name for step in self.steps)

    @property
    def draws(self) -> bool:
        """Whether any step draws random numbers."""
        return any(step.kind == "random_map" or step.of_epoch for step in self.steps)

    def has(self, *kinds: StepKind) -> bool:
        """Whether there is a step of one of these kinds."""
        return any(step.kind in kinds for step in self.steps)

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
            sample = step.function(sample) if step.function is not None else change_columns(step, sample)
        return sample

    @property
    def unfit(self) -> str:
        """The first step that makes of a sample alone not one sample, by its method; empty where there is none."""
        return next((f"{step.kind}()" for step in self.steps if step.kind not in PLAIN), "")

    @property
    def unplaced(self) -> str:
        """The first step that needs an epoch or a position, or may not make one sample of one, by its method."""
        kinds = (*PLAIN, *BESIDE)
        return next((f"{s.kind}()" for s in self.steps if s.kind not in kinds or s.changes_counts or s.of_epoch), "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Chain(){''.join(map(repr, self.steps))}"


def _other(given: Any, method: str, name: str | None) -> Other:
    make = getattr(given, "as_other", None)
    if make is None:
        raise ConfigError(f"{method}() takes a StreamingDataset, got {with_article(type(given).__name__)}")
    if name is not None and not name:
        raise ConfigError(f"{method}(name=''): give a name, or leave it out")
    made: Other = make(method)
    return made


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    return str(name or getattr(function, "__qualname__", type(function).__qualname__))


def _fitting_name(function: Callable[..., Any], name: str | None, method: Literal["map", "random_map"]) -> str:
    """The name of a function that takes a sample alone, or with random numbers, as the method calls it.

    Raises:
        ConfigError: it takes what the other method gives.
    """
    made = _name_of(function, name)
    fits = _fits(function)
    if method == "map" and fits == {2}:
        raise ConfigError(f"map({made}): the function takes random numbers beside the sample: use random_map()")
    if method == "random_map" and fits == {1}:
        raise ConfigError(f"random_map({made}): the function takes the sample alone, and no random numbers: use map()")
    return made


def takes_random(function: Callable[..., Any]) -> bool:
    """Whether a function takes random numbers beside the sample, so that it is one of :meth:`Chain.random_map`."""
    return _fits(function) == {2}


def _fits(function: Callable[..., Any]) -> set[int]:
    """Whether a function can be called with one argument, with two, or both; both where it does not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of code in C
        return {1, 2}
    return {count for count in (1, 2) if _takes(signature, count)}


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def as_chain(transform: Any) -> Chain:
    """The chain of what ``transform=`` takes: itself, of a function alone, or empty."""
    if isinstance(transform, Chain):
        return transform
    return Chain() if transform is None else Chain().map(transform, "transform")

"""``map(f)``, ``filter(f)`` and others: the same chain, or the same dataset, with a further step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.reading.steps import (
    BatchMap,
    Beside,
    Dropped,
    Enumerate,
    Filter,
    FlatMap,
    Generator,
    Map,
    Missing,
    Other,
    RandomMap,
    Rename,
    Select,
    Step,
)
from stoker.types import Batch


class OtherSource:
    """Base of what :meth:`StepMethods.zip` and :meth:`StepMethods.join` take: a dataset."""

    known_as: ClassVar[str] = "StreamingDataset"
    """The class that messages name, of arguments that take any with these methods."""

    def as_other(self, method: str) -> Other:
        """This dataset as a zip or join of another one reads it.

        Args:
            method: ``"zip"`` or ``"join"``, for messages.

        Raises:
            ConfigError: it does not give one sample for each of its own.
        """
        raise NotImplementedError


class StepMethods:
    """Methods that add a step to what makes samples: to a :class:`~stoker.reading.chain.Chain`, or to that of a dataset.

    Each gives another chain or another dataset, which shares the open shards with this one. Those of a dataset raise a
    ``ConfigError`` if it is in the middle of an epoch, or if the step does not fit those before it.
    """

    __slots__ = ()

    def _and(self, step: Step) -> Self:
        """This chain or dataset with a further step."""
        raise NotImplementedError

    @checked(step="a subclass of Step, or its methods: map(), filter(), ...")
    def apply(self, step: Step) -> Self:
        """This chain or dataset with a further step, of a kind of your own.

        Args:
            step: a :class:`~stoker.reading.steps.Step`; see docs/chains.md.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: it has no kind, or that of another step; it drops rows of columns; it has values that are not fields;
                another that draws random numbers has its name; or this is a dataset in the middle of an epoch.
        """
        return self._and(step)

    @checked
    def map(self, function: Callable[[Any], Any], name: str | None = None) -> Self:
        """This chain or dataset with a further function of its samples.

        Args:
            function: of a sample.
            name: of the step; default, the function's.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: another step has this name, the function takes random numbers, too, or this is a dataset in the
                middle of an epoch.
        """
        return self._and(Map(_fitting_name(function, name, "map"), function))

    @checked
    def random_map(
        self, function: Callable[[Any, Any], Any], name: str | None = None, *, generator: Generator = "numpy"
    ) -> Self:
        """This chain or dataset with a further function of its samples and of random numbers, which belong to the sample.

        The numbers are those of the dataset's ``shuffle_seed``, the epoch, the stream, the sample's id in it and the step's
        name, whatever world, workers and threads read it, and after any resume. Where an epoch has a sample more than once,
        they are also those of its position; after :meth:`flat_map`, of the number of the sample among those of its origin.

        Args:
            function: of a sample and a ``numpy.random.Generator``, or a ``torch.Generator``, which is its own.
            name: of the step; default, the function's. Another name is another sequence of numbers.
            generator: ``"numpy"`` or ``"torch"``.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: another step has this name, the function takes a sample alone, or this is a dataset in the middle of
                an epoch.
        """
        return self._and(RandomMap(_fitting_name(function, name, "random_map"), function, generator))

    @checked
    def filter(
        self, function: Callable[[Any], Any], name: str | None = None, *, dropped: Dropped = "leave_out"
    ) -> Self:
        """This chain or dataset without the samples for which a function says no.

        Batch n is made of those that it would have without the filter; ranks take as many steps as without it, which is what
        ``len`` of a dataset says; any run resumes exactly.

        Args:
            function: of a sample, to whether it is kept.
            name: of the step; default, the function's.
            dropped: ``"leave_out"``: batches are shorter. ``"replace"``: the place goes to another sample of the epoch: the
                first that is kept among those before it in the order, at distances of 1, 2, 3, 4, 6, ..., then of 1 to 1,000,
                or else after it. Batches are full.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: another step has this name, or this is a dataset in the middle of an epoch.
        """
        return self._and(Filter(_name_of(function, name), function, dropped))

    @checked
    def flat_map(self, function: Callable[[Any], Iterable[Any]], name: str | None = None) -> Self:
        """This chain or dataset with any number of samples, which a function makes of each.

        Batch n is made of all that comes of the samples which it would have without: its length varies, and all ranks take
        as many steps.

        Args:
            function: of a sample, to a list or another iterable of samples, which may be empty.
            name: of the step; default, the function's.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: another step has this name, or this is a dataset in the middle of an epoch.
        """
        return self._and(FlatMap(_name_of(function, name), function))

    @checked
    def batch_map(self, function: Callable[[Batch], Batch], name: str | None = None) -> Self:
        """This chain or dataset with a function of whole batches.

        It is called once for each batch that is delivered and has samples, with what the steps before it make of these, and
        before arrays become tensors. Steps after it have the rows that it returned as samples: row i has the random numbers
        of sample i of the batch, and further rows those of its last sample, as after :meth:`flat_map`.

        Only what delivers batches takes such a chain: ``batches()``, ``StreamingDataLoader``, which then reads whole
        columns, ``stoker.jax.batches``, a ``StreamingShardLoader`` of batches.

        Args:
            function: of a dict from column name to array of shape ``(n, ...)`` or list of n values, to another such dict, in
                which n may differ.
            name: of the step; default, the function's.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: another step has this name, or this is a dataset in the middle of an epoch.
        """
        return self._and(BatchMap(_name_of(function, name), function))

    @checked
    def rename(self, columns: Mapping[str, str]) -> Self:
        """This chain or dataset with other names of columns.

        >>> images.rename({"image": "x", "label": "y"})        # doctest: +SKIP

        Args:
            columns: from old names to new ones; other columns keep theirs.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: two columns would have one name, or this is a dataset that has no such column, or in the middle of an
                epoch.
        """
        if "" in columns.values():
            raise ConfigError(f"rename({dict(columns)!r}): a column's name must not be empty")
        if len(set(columns.values())) < len(columns):
            raise ConfigError(f"rename({dict(columns)!r}) gives two columns the same name")
        return self._and(Rename("rename", tuple(columns.items())))

    @checked(columns="samples are chosen by subset=KeepIds(ids) of the constructor")
    def select(self, columns: Sequence[str]) -> Self:
        """This chain or dataset with these columns alone, in this order.

        Args:
            columns: their names. Others are not decoded, unless a function before this step may need them.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: there are none, one comes twice, or this is a dataset that has no such column, or in the middle of an
                epoch.
        """
        if not len(columns) or len(set(columns)) < len(columns):
            raise ConfigError(f"select({list(columns)!r}): give at least one column, and each once")
        return self._and(Select("select", tuple(columns)))

    @checked
    def enumerate(self, column: str = "position") -> Self:
        """This chain or dataset with a further column: the position of the sample in the epoch, from 0, as ``numpy.int64``.

        It is the same on any world and after any resume; with ``batching_method="per_stream"`` on any with the same global
        batch, with ``"device_per_stream"`` on any with the same ``batch_size``. Samples that :meth:`flat_map` makes of one
        have its position.

        Args:
            column: its name.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this is a dataset that has such a column, or in the middle of an epoch.
        """
        if not column:
            raise ConfigError("enumerate(''): a column's name must not be empty")
        return self._and(Enumerate("enumerate", column))

    @checked
    def zip(self, other: OtherSource, *, name: str | None = None, prefix: str = "") -> Self:
        """This chain or dataset with the columns of another dataset: those of its sample i beside those of sample i here.

        The order, its steps, ids and random numbers stay those of this dataset.

        >>> images.zip(embeddings).batches()                   # doctest: +SKIP

        Args:
            other: a :class:`~stoker.StreamingDataset` of as many samples, numbered as they are stored: how it shuffles does
                not matter, and what was iterated of it neither. What its chain makes of a sample comes, and its columns= and
                select() hold.
            name: what states and messages call it; default, the name of its stream.
            prefix: begins the names of its columns here.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: the other has subset=, filter() or another step that does not give one sample for each, or a subclass
                makes its samples; another step has this name; this is a dataset in the middle of an epoch; and by a dataset,
                also one that gets this chain: the lengths differ, or two columns have one name.
        """
        made = _other(other, "zip", name)
        return self._and(Beside(name or made.name, made, prefix))

    @checked
    def join(
        self,
        other: OtherSource,
        on: str | Sequence[str],
        *,
        missing: Missing = "raise",
        name: str | None = None,
        prefix: str = "",
    ) -> Self:
        """This chain or dataset with the columns of that sample of another dataset which has the same key.

        The order, its steps, ids and random numbers stay those of this dataset. Keys are integers, text or bytes, and
        different in all samples of the other dataset. The first join reads its column of keys once; see
        :class:`~stoker.streams.key_index.KeyIndex`.

        >>> images.join(captions, on="id", missing="leave_out")   # doctest: +SKIP

        Args:
            other: a dataset; see :meth:`zip`.
            on: the column of keys; or two names, that here and that of the other dataset, where it is a stored column, by its
                name after ``rename``. It comes once, as it is here.
            missing: what becomes of a sample whose key the other has not, or whose key is null: ``"raise"``: it is a bad
                sample, see ``on_bad_sample``. ``"leave_out"``: it is left out, as by :meth:`filter`. ``"none"``: the columns
                of the other are ``None``, and lists in a batch that has such a sample.
            name: what states and messages call it; default, the name of its stream.
            prefix: begins the names of its columns here.

        Returns:
            Another chain, or another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: two samples of the other dataset have one key: names both; keys of other types; there is no such
                column; and as for :meth:`zip`.
        """
        names = (on, on) if isinstance(on, str) else tuple(on)
        if len(names) != 2:
            raise ConfigError(
                f"join(on={on!r}): give the name of the key column, or two names: in this dataset, and in the other"
            )
        made = _other(other, "join", name)
        made.prepare(names[1])
        return self._and(Beside(name or made.name, made, prefix, names, missing))


def _other(given: OtherSource, method: str, name: str | None) -> Other:
    if name is not None and not name:
        raise ConfigError(f"{method}(name=''): give a name, or leave it out")
    return given.as_other(method)


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    if name == "":
        raise ConfigError("name='': give a name, or leave it out")
    own = name or getattr(function, "step_name", None) or getattr(function, "__qualname__", None)
    return str(own or type(function).__qualname__)


def _fitting_name(function: Callable[..., Any], name: str | None, method: Literal["map", "random_map"]) -> str:
    """The name of a function that takes a sample alone, or with random numbers, as the method calls it.

    ConfigError if it takes what the other method gives.
    """
    made = _name_of(function, name)
    fits = _fits(function)
    if method == "map" and fits == {2}:
        raise ConfigError(f"map({made}): the function takes random numbers beside the sample: use random_map()")
    if method == "random_map" and fits == {1}:
        raise ConfigError(f"random_map({made}): the function takes only the sample, and no random numbers: use map()")
    return made


def takes_random(function: Callable[..., Any]) -> bool:
    """Whether a function takes random numbers beside the sample, so that it is one of :meth:`~StepMethods.random_map`."""
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

"""An open dataset, and the base of the classes that read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Never, Self, TypeVar, overload

from stoker.errors import ConfigError
from stoker.lazy import cached_property
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.streams.agreement import disagreement
from stoker.streams.streams import Streams

_T = TypeVar("_T")

SAMPLE_METHODS: Final = ("__getitem__", "get_item", "__iter__")
"""Methods by which a subclass decides what a sample is."""


@dataclass
class OpenDataset:
    """An open dataset: what all parts of its class read.

    Attributes:
        streams: the opened streams, with the index of all shards.
        reader: reads them in order and by id, and keeps the epoch.
        ranks: finds this process's rank.
        table: where the samples of each shard begin.
        given: arguments of the constructor, as they were given.
        at_hand: samples that iteration has read, for a subclass's method that is about to ask for them, by id.
        length_told: the number that ``len()`` said, until a sample by id was read.
    """

    streams: Streams
    reader: EpochReader
    ranks: DataRankFinder
    table: ShardTable
    given: Mapping[str, Any]
    at_hand: dict[int, Any] = field(init=False, default_factory=dict)
    length_told: int | None = field(init=False, default=None)

    @cached_property
    def starts(self) -> list[int]:
        """Id of each shard's first sample, in a list, in which a single id is found sooner than in an array."""
        starts: list[int] = self.table.starts.tolist()
        return starts

    @property
    def order(self) -> dict[str, Any]:
        """The settings that decide which sample comes when, by name, as states hold them."""
        settings: dict[str, Any] = self.reader.sample_order.as_dict()["order"]
        return settings

    @cached_property
    def disagreement(self) -> str:
        """Why columns of all shards can not be read together; see :func:`~stoker.streams.agreement.disagreement`."""
        return disagreement(self.streams, self.reader.settings.columns)

    def check_agreement(self, reader: str) -> None:
        """See that all shards have the same columns, which ``reader`` reads.

        Raises:
            ConfigError: they do not.
        """
        if self.disagreement:
            raise ConfigError(
                f"{reader} reads whole columns, and {self.disagreement}; or iterate over samples, each of which has its own"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "at_hand": {}}


class DatasetBase:
    """Base of the parts of a dataset's class, which read the same open dataset."""

    _opened: OpenDataset

    @property
    def epoch_reader(self) -> EpochReader:
        """The reader of the open streams, for stoker's other loaders."""
        return self._opened.reader

    @property
    def open_streams(self) -> Streams:
        """The open streams, for stoker's other loaders."""
        return self._opened.streams

    @property
    def size(self) -> int:
        """Number of samples in the dataset, all streams together, subsets not considered."""
        return self._opened.table.total

    def overrides(self, *names: str) -> tuple[str, ...]:
        """Those of the methods ``names`` that the class of this object has from a subclass that is not stoker's."""
        kind = type(self)
        own = next(one for one in kind.__mro__ if one.__module__.startswith("stoker."))
        return tuple(name for name in names if getattr(kind, name) is not getattr(own, name))


class Told(property, Generic[_T]):
    """An attribute that tells of an open dataset, and can not be set.

    Args:
        doc: what it tells.
        ask: asks the open dataset; default: for the constructor's argument of this name, as it was given.
    """

    def __init__(self, doc: str, ask: Callable[[OpenDataset], _T] | None = None) -> None:
        super().__init__(lambda dataset: (ask or self._given)(dataset._opened))
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _given(self, opened: OpenDataset) -> _T:
        value: _T = opened.given[self._name]
        return value

    if TYPE_CHECKING:

        @overload
        def __get__(self, one: None, owner: type, /) -> Self: ...
        @overload
        def __get__(self, one: object, owner: type | None = None, /) -> _T: ...
        def __get__(self, one: object, owner: type | None = None, /) -> Self | _T: ...

        def __set__(self, one: object, value: Never) -> None: ...


class BatchSize:
    """An attribute ``batch_size``, which no longer changes when something was made that counts batches of it."""

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else owner.__dict__.get("batch_size")

    def __set__(self, owner: Any, size: int | None) -> None:
        user = owner.__dict__.get("_batches_for")
        if user is not None and size != owner.__dict__.get("batch_size"):
            raise ConfigError(
                f"{type(owner).__name__}.batch_size={size!r}: the order of batches, and the states of {user}, rest on "
                f"batch_size={owner.batch_size}. Give batch_size= when you make it"
            )
        owner.__dict__["batch_size"] = size

    @staticmethod
    def fix(owner: Any, user: str) -> None:
        """Let the attribute change no more, as ``user`` counts on it."""
        if isinstance(getattr(type(owner), "batch_size", None), BatchSize):
            owner.__dict__["_batches_for"] = user

    @staticmethod
    def user(owner: Any) -> str:
        """The name of what counts batches of this object; empty if nothing does."""
        return str(owner.__dict__.get("_batches_for", ""))


def whole_batches_by(settings: EpochReaderSettings) -> str:
    """The remedy where a setting makes batches shorter or longer, for messages."""
    instead = settings.instead_of_leaving_out.removesuffix(", ")
    return f"use {instead}" if instead else "leave it out"

"""The protocol of all loaders, stoker's own and others'."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self, TypeVar, runtime_checkable

from stoker.arguments import checked
from stoker.cluster import World
from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.lazy import told
from stoker.loaders.pickled import PickledByVersion
from stoker.order.global_batches import WorkerRemainder

if TYPE_CHECKING:
    from stoker.pipeline.stats.stats import StreamStats
    from stoker.pipeline.stats.trace import Trace

__all__ = ["CloseOnExit", "Loader"]

_Item_co = TypeVar("_Item_co", covariant=True)


@runtime_checkable
class Loader(Protocol[_Item_co]):
    """The protocol of all loaders: iterate over a rank's part of an epoch, save and load states, give statistics, close.

    ``StreamingDataset``, ``StreamingDataLoader``, ``StreamingShardLoader``, ``StreamingParquetLoader`` and ``LMStream`` are
    loaders. ``isinstance`` sees whether an object has these methods; :class:`stoker.testing.LoaderTests` tests what they do.
    """

    @property
    def world(self) -> World:
        """This process's rank and world."""
        ...

    @property
    def remainder(self) -> WorkerRemainder:
        """Treatment of ranks whose parts of an epoch end apart: ``"pad"``, ``"drop"``, ``"uneven"`` or ``"join"``."""
        ...

    def __iter__(self) -> Iterator[_Item_co]:
        """This rank's items of the next epoch, or of the rest of one that was resumed."""
        ...

    def __len__(self) -> int:
        """Number of items that this rank gets in a whole epoch.

        Raises:
            TypeError: only iterating tells.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """The state of the run after the items that were delivered, to resume from; JSON-serialisable.

        Raises:
            StateError: this object does not know what was delivered.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume where ``state`` was taken.

        An iteration that is running, with ``for`` or ``iter``, is not of that state: it ends with a
        :class:`~stoker.errors.StateError` when it is asked for its next item.

        Raises:
            StateError: it belongs to other data or other settings, or this world can not resume it; says what differs.
        """
        ...

    def stats(self) -> StreamStats:
        """Statistics of loading; cheap, at any time, from any thread."""
        ...

    def close(self) -> None:
        """Stop reading ahead and release all files. May be called again."""
        ...

    def __enter__(self) -> Self:
        """The loader itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close the loader."""
        ...


class CloseOnExit(PickledByVersion):
    """A base of stoker's loaders: ``close()`` is called at the end of a ``with`` block, and what they do can be traced."""

    instead_of_index: ClassVar[str] = (
        "iterate over it; the StreamingDataset that it reads has samples by id, dataset[i]"
    )
    """The remedy that the error of ``loader[i]`` names."""

    if not TYPE_CHECKING:
        # torch's datasets have both, which fail with words of torch's; Subset and random_split come here, too.
        def __getitem__(self, _: object) -> NoReturn:
            raise ConfigError(
                f"{with_article(type(self).__name__)} has nothing by number, as {type(self).__name__}[i]: "
                f"{self.instead_of_index}"
            )

        def __reversed__(self) -> NoReturn:
            raise ConfigError(f"{with_article(type(self).__name__)} is read forwards: {self.instead_of_index}")

        # Of torch's datasets it makes a ChainDataset, of which nothing knows the state.
        def __add__(self, _: object) -> NoReturn:
            raise ConfigError(
                f"{with_article(type(self).__name__)} can not be added to another with +: streams=[Stream(...), ...] of one "
                "StreamingDataset mixes several sources; a StreamingParquetLoader takes the files of all in a list"
            )

    @property
    def world(self) -> World:
        """This process's rank and world."""
        raise NotImplementedError

    @checked
    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """A trace of all that stoker does in this process while its ``with`` block runs; see :class:`~stoker.Trace`.

        >>> with dataset.trace("trace.json") as trace:  # doctest: +SKIP
        ...     for batch in dataset.batches():
        ...         train(batch)

        Args:
            path: of the file that is written at the end, for https://ui.perfetto.dev; each rank writes its own.
        """
        from stoker.pipeline.stats.trace import Trace

        return Trace(path, world=told(self, "world"))

    def close(self) -> None:
        """Release what is open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

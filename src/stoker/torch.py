"""``StreamingDataLoader``: torch's DataLoader over a dataset of stoker's, with a state that counts what was yielded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.errors import ConfigError, MissingPackageError, StateError
from stoker.loader import StartingPoint
from stoker.loader.collate import as_tensors, collate
from stoker.streaming import StreamingDataset
from stoker.tokens.batch import LMBatch
from stoker.tokens.loader import StreamingParquetLoader
from stoker.types import Batch

try:
    from torch.utils.data import DataLoader, IterableDataset
except ModuleNotFoundError as error:
    raise MissingPackageError(f"StreamingDataLoader needs torch ({error}): pip install 'stoker[torch]'") from error

__all__ = ["StreamingDataLoader", "as_tensors", "collate"]


class StreamingDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that can stop and go on in mid-epoch, on the same or another cluster.

    ``state_dict`` and ``load_state_dict`` follow torchdata's protocol, so trainers that save a ``StatefulDataLoader`` save
    this. The state counts batches that were yielded, not those that workers have prepared.

    Over a :class:`~stoker.tokens.loader.StreamingParquetLoader` it yields the batches that the loader makes
    (:class:`~stoker.tokens.batch.LMBatch`), or what ``collate_fn`` makes of each:
    ``collate_fn=lambda batch: batch.torch("input_ids", "labels")``. Each worker decodes all that the rank reads, so
    the loader's own ``decode_threads`` are the better way to more speed.

    Args:
        dataset: what to read.
        batch_size: samples, or rows, a batch on this rank. Default: the dataset's. If both are given they must agree.
        columnar: batches are read as whole columns: a dict of tensors (of lists for columns that are no arrays), with no
            per-sample step and no ``collate_fn``. Much faster for small samples. Not for a ``StreamingParquetLoader``,
            whose batches are arrays already.
        **options: DataLoader's other arguments (``num_workers``, ``pin_memory``, ...). ``collate_fn`` is :func:`collate`
            unless given.

    Raises:
        ConfigError: arguments that contradict each other, or have no meaning for what is read.
    """

    def __init__(
        self,
        dataset: StreamingDataset | StreamingParquetLoader,
        batch_size: int | None = None,
        *,
        columnar: bool = False,
        **options: Any,
    ) -> None:
        for name in ("shuffle", "sampler", "batch_sampler"):
            if options.get(name):
                raise ConfigError(
                    f"{name}= has no meaning here: the order is the dataset's, see StreamingDataset(shuffle=)"
                )
        if batch_size is None:
            batch_size = dataset.batch_size if dataset.batch_size is not None else 1
        if dataset.batch_size is None:
            dataset.batch_size = batch_size
        if dataset.batch_size != batch_size:
            raise ConfigError(
                f"batch_size={batch_size} here and {dataset.batch_size} in the dataset: the order of batches rests on both "
                "being the same"
            )
        self._stream = dataset
        self._start: StartingPoint | None = None
        self._yielded = 0
        if isinstance(dataset, StreamingParquetLoader):
            if columnar or options.get("drop_last"):
                raise ConfigError(
                    "columnar= and drop_last= have no meaning here: batches are arrays already, and how many there are is "
                    "the loader's, see StreamingParquetLoader(remainder=)"
                )
            options.setdefault("collate_fn", _as_it_is)
            super().__init__(dataset, batch_size=None, **options)
        elif columnar:
            if options.get("collate_fn") is not None:
                raise ConfigError("columnar=True reads whole columns, so there is nothing for collate_fn to collate")
            options["collate_fn"] = as_tensors
            super().__init__(_Columns(dataset), batch_size=None, **options)
        else:
            options.setdefault("collate_fn", collate)
            super().__init__(dataset, batch_size=batch_size, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._start, self._yielded = self._stream.upcoming(), 0
        for batch in super().__iter__():
            self._yielded += 1
            yield batch
        self._start = None

    def __len__(self) -> int:
        if isinstance(self._stream, StreamingParquetLoader):
            return len(self._stream)
        size = self._stream.batch_size or 1
        return (len(self._stream) + (0 if self.drop_last else size - 1)) // size

    def state_dict(self) -> dict[str, Any]:
        """Where training is, by the batches that this loader has yielded."""
        if self._start is None:
            return self._stream.state_dict()
        return self._stream.state_after(self._start, self._yielded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, with the next iteration.

        Raises:
            StateError: it belongs to another dataset, or to other order settings, or was taken inside a batch.
        """
        if isinstance(state, Mapping) and state.get("partial"):
            raise StateError(
                "this state was taken inside a batch, by iterating over samples: a loader can only go on between batches"
            )
        self._stream.load_state_dict(state)
        self._start = None


def _as_it_is(batch: LMBatch) -> LMBatch:
    return batch


class _Columns(IterableDataset[Batch]):
    """A dataset's batches as the items of a DataLoader that does not batch."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Batch]:
        return self._dataset.batches()

"""Applies chains: to samples of an epoch, each with its random numbers, and to whole columns.

Random numbers are made by Philox, a generator that counts (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): its key is a hash of the seed, the epoch, the stream and the step's name, and it begins to count at the sample's id. So
there is nothing to save, and which process or thread draws them, in which order, does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import xxhash

from stoker.concurrency.user_code import calls_user_code, pass_exits, runs_steps
from stoker.display import with_article
from stoker.errors import TransformError
from stoker.reading.chain_steps import Step, add_column, change_columns
from stoker.types import Batch, Ids, Transform

_SEED_BITS: Final = (1 << 63) - 1

_Maker: TypeAlias = Callable[[int, int, int], Any]
"""A function from a sample's id, its position where that counts, and its number among the samples made of one."""


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


class SeveralSamples(list[Any]):
    """The samples that ``flat_map`` made of one.

    Attributes:
        dropped: how many more there were, which a filter left out.
        numbers: of each among those that there were, for its random numbers.
    """

    dropped: int = 0
    numbers: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SampleIdentity:
    """The run and the streams that random numbers of samples belong to.

    Attributes:
        streams: names of the streams; that of a stream alone is empty, as what it is called does not matter.
        first_shards: number of the first shard of each stream.
        repeats: whether an epoch may have a sample more than once.
    """

    seed: int = 0
    streams: tuple[str, ...] = ("",)
    first_shards: tuple[int, ...] = (0,)
    repeats: bool = False


class EpochChain:
    """Applies a chain to the samples of an epoch, each with random numbers of its own.

    ``steps``: of the chain, none of them of batches. ``identity``: what random numbers belong to. ``later``: whether other
    steps come before, which may have left samples out or made several of one.
    """

    def __init__(self, steps: Sequence[Step], identity: SampleIdentity, epoch: int, *, later: bool = False) -> None:
        self._steps = tuple(steps)
        self._identity, self._epoch = identity, epoch
        self._flat = later or any(step.kind == "flat_map" for step in steps)
        self._of_stream: dict[int, list[tuple[Step, _Maker | None]]] = {}

    def transform(self, streams: Ids, ids: Ids, places: Ids, positions: Ids) -> Transform:
        """A function that makes samples of the chain, called once for each of these, in this order.

        It gives :data:`LEFT_OUT` or :data:`TO_REPLACE` for a sample that a filter drops, and :class:`SeveralSamples` where
        the chain has a ``flat_map``.

        Args:
            streams: number of the stream of each sample, int64, shape ``(n,)``.
            ids: of the samples in their streams.
            places: positions in the epoch where it has samples more than once; else zeros.
            positions: positions in the epoch.
        """
        samples = zip(streams.tolist(), ids.tolist(), places.tolist(), positions.tolist(), strict=True)

        @runs_steps
        def make(sample: Any) -> Any:
            stream, number, place, position = next(samples)
            steps = self._steps_of(stream)
            if self._flat:
                return _several(sample, steps, number, place, position)
            for step, maker in steps:
                if maker is not None:
                    sample = step.function(sample, maker(number, place, 0))  # type: ignore[misc]
                elif step.kind == "filter":
                    if not _is_kept(step, sample):
                        return TO_REPLACE if step.dropped == "replace" else LEFT_OUT
                elif step.kind == "present":
                    if sample is LEFT_OUT:
                        return LEFT_OUT
                else:
                    sample = _made(step, sample, position)
            return sample

        return make

    def _steps_of(self, stream: int) -> list[tuple[Step, _Maker | None]]:
        """The steps, and what makes the generator of each."""
        found = self._of_stream.get(stream)
        if found is None:
            made = [(step, None if step.generator is None else self._maker(stream, step)) for step in self._steps]
            found = self._of_stream[stream] = made
        return found

    def _maker(self, stream: int, step: Step) -> _Maker:
        told = repr((self._identity.seed, self._epoch, self._identity.streams[stream], step.name))
        digest = xxhash.xxh3_128_digest(told.encode(errors="surrogatepass"))
        if step.generator == "torch":
            return lambda number, place, item: _torch_generator(digest, number, place, item)
        key = np.frombuffer(digest, np.uint64)
        from stoker.reading.sample_seed import SampleSeed  # a run without random numbers needs no NumPy's generators

        generator, philox = np.random.Generator, np.random.Philox

        def numpy_generator(number: int, place: int, item: int) -> np.random.Generator:
            counter = np.array([0, item, place, number], np.uint64)
            seed: Any = SampleSeed(key, counter)  # NumPy's annotations lack such ones
            return generator(philox(seed, counter=counter))

        return numpy_generator


def _torch_generator(digest: bytes, number: int, place: int, item: int) -> Any:
    import torch

    told = digest + number.to_bytes(8, "little") + place.to_bytes(8, "little")
    if item:
        told += item.to_bytes(8, "little")
    return torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(told) & _SEED_BITS)


def _made(step: Step, sample: Any, position: int) -> Any:
    """A sample after a step that makes one of one and draws no random numbers."""
    if step.function is not None:
        return step.function(sample)
    if step.kind == "project":
        return {name: np.int64(position) if stored is None else sample[stored] for name, stored in step.columns}
    return add_column(step, sample, np.int64(position)) if step.kind == "enumerate" else change_columns(step, sample)


def _is_kept(step: Step, sample: Any) -> bool:
    assert step.function is not None
    kept = step.function(sample)
    # Whatever has neither of these methods counts as true: a generator, a coroutine, a method that was not called.
    if kept is None or not (hasattr(kept, "__bool__") or hasattr(kept, "__len__")):
        raise TypeError(f"the function returned {_named(kept)}: return True to keep the sample, else False")
    return bool(kept)


@runs_steps
def _several(sample: Any, steps: Sequence[tuple[Step, _Maker | None]], number: int, place: int, position: int) -> Any:
    """The samples that a chain with a ``flat_map`` makes of one. Samples keep their numbers when others are filtered out."""
    if isinstance(sample, LeftOut):
        return sample
    flat, dropped = isinstance(sample, SeveralSamples), 0
    items: list[tuple[int, Any]] = [(0, sample)]
    if isinstance(sample, SeveralSamples):
        items, dropped = list(zip(sample.numbers, sample, strict=True)), sample.dropped
    expands = flat or any(step.kind == "flat_map" for step, _ in steps)
    for step, maker in steps:
        if maker is not None:
            items = [(item, step.function(one, maker(number, place, item))) for item, one in items]  # type: ignore[misc]
        elif step.kind == "filter":
            kept = [(item, one) for item, one in items if _is_kept(step, one)]
            if not flat and not kept:
                return TO_REPLACE if step.dropped == "replace" else LEFT_OUT
            dropped += len(items) - len(kept)
            items = kept
        elif step.kind == "present":
            pass  # which are left out is told above
        elif step.kind == "flat_map":
            flat = True
            several: list[Any] = []
            for _, one in items:
                # Each is a dict of its own: a function may give one several times, and a later step may change it.
                several.extend(made.copy() if type(made) is dict else made for made in _samples_of(step, one))
            items = list(enumerate(several))
        else:
            items = [(item, _made(step, one, position)) for item, one in items]
    if not expands:
        return items[0][1]
    made_of_one = SeveralSamples(one for _, one in items)
    made_of_one.dropped, made_of_one.numbers = dropped, [item for item, _ in items]
    return made_of_one


def _samples_of(step: Step, sample: Any) -> Iterable[Any]:
    assert step.function is not None
    made = step.function(sample)
    if isinstance(made, Mapping | str | bytes) or not isinstance(made, Iterable):
        raise TypeError(f"the function returned {_named(made)}: return a list of samples, or another iterable")
    return made


def _named(value: object) -> str:
    return "None" if value is None else with_article(type(value).__name__)


@calls_user_code
def change_batch(steps: Sequence[Step], batch: Batch, positions: Ids, first: Callable[[], object]) -> Batch:
    """Columns as the last steps of a chain make them, which call no function of a sample.

    TransformError if a function raised an error, or gave no columns of one length, ConfigError if a column is not there, or
    comes twice.

    Args:
        steps: the last ones.
        batch: of n samples, n ≥ 1; with ``batch_map`` among the steps, a single batch.
        positions: of the samples in the epoch, int64, shape ``(n,)``.
        first: says where the first sample comes from.
    """
    for step in steps:
        if step.kind == "present":  # those that are left out are not among these
            continue
        if step.kind == "enumerate":
            batch = add_column(step, batch, positions.copy())
        elif step.kind == "project":
            batch = {name: positions.copy() if stored is None else batch[stored] for name, stored in step.columns}
        elif step.function is None:
            batch = change_columns(step, batch)
        else:
            try:
                batch = step.function(batch)
            except BaseException as error:
                pass_exits(error)
                raise TransformError(
                    f"batch_map({step.name}) raised {type(error).__name__}: {error}, for the batch that begins with {first()}"
                ) from error
            _check_batch(step, batch, first)
    return batch


def _has_rows(column: object) -> bool:
    return isinstance(column, np.ndarray) and column.ndim > 0


def _check_batch(step: Step, batch: Any, first: Callable[[], object]) -> None:
    lengths = (
        {name: len(column) for name, column in batch.items() if isinstance(column, list) or _has_rows(column)}
        if isinstance(batch, dict)
        else {}
    )
    if not lengths or len(lengths) < len(batch):
        what = (
            "an empty dict"
            if batch == {}
            else _named(batch)
            if not isinstance(batch, dict)
            else f"{', '.join(f'{name!r}: {type(column).__name__}' for name, column in batch.items())}"
        )
        raise TransformError(
            f"batch_map({step.name}) returned {what}, for the batch that begins with {first()}: return a dict of columns, "
            "arrays of shape (n, ...) or lists of n values"
        )
    if len(set(lengths.values())) > 1:
        raise TransformError(
            f"batch_map({step.name}) returned columns of different lengths, for the batch that begins with {first()}: "
            f"{lengths}"
        )

"""Applies chains: to samples of an epoch, each with its random numbers, and to whole columns.

Random numbers are made by Philox, a generator that counts (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): its key is a hash of the seed, the epoch, the stream and the step's name, and it begins to count at the sample's id. So
there is nothing to save, and which process or thread draws them, in which order, does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np
import xxhash

from stoker.concurrency.user_code import runs_steps
from stoker.errors import ConfigError
from stoker.reading.steps import Generator, Generators, LeftOut, SamplePlace, SeveralSamples, Step
from stoker.types import Batch, Ids, Transform

_SEED_BITS: Final = (1 << 63) - 1
_NOWHERE: Final = SamplePlace(0, 0, 0, 0, 0)


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

    ``steps``: of the chain, each of single samples. ``identity``: what random numbers belong to. ``later``: whether other
    steps come before, which may have made several samples of one.
    """

    def __init__(self, steps: Sequence[Step], identity: SampleIdentity, epoch: int, *, later: bool = False) -> None:
        self._steps = tuple(steps)
        self._identity, self._epoch = identity, epoch
        self._flat = later or any(step.makes_several for step in steps)
        self._makers: dict[tuple[int, str, Generator], Callable[[SamplePlace], Any]] = {}

    def transform(self, streams: Ids, ids: Ids, repetitions: Ids, positions: Ids) -> Transform:
        """A function that makes samples of the chain, called once for each of these, in this order.

        It gives a :class:`~stoker.reading.steps.LeftOut` for a sample that is dropped, and
        :class:`~stoker.reading.steps.SeveralSamples` where the chain makes several of one.

        ``streams``: number of the stream of each sample, int64, shape ``(n,)``. ``ids``: of the samples in their streams.
        ``repetitions``: positions in the epoch where it has samples more than once; else zeros. ``positions``: positions in
        the epoch.
        """
        steps, generators = self._steps, self._generator
        # Without a step that asks for them, positions are not known everywhere.
        known = positions.tolist() if any(step.positioned for step in steps) else repeat(None)
        of_samples = (streams.tolist(), ids.tolist(), repetitions.tolist(), known)
        places = map(SamplePlace, repeat(self._epoch), *of_samples)
        if self._flat:
            return lambda sample: _several(sample, steps, next(places), generators)
        bound: list[tuple[Step, Callable[..., Any], Generators | None]] = [
            (step, step.apply_at, _allowed(step, generators)) if step.by_place else (step, step.apply, None)
            for step in steps
        ]
        if not any(step.by_place for step in steps):
            places = repeat(_NOWHERE)  # type: ignore[assignment]

        @runs_steps
        def make(sample: Any) -> Any:
            place = next(places)
            for step, apply, drawn in bound:
                sample = apply(sample) if drawn is None else apply(sample, place, drawn)
                if type(sample) is LeftOut:
                    return step.dropped_sample(sample)
            return sample

        return make

    def _generator(self, place: SamplePlace, name: str, kind: Generator) -> Any:
        """A generator of random numbers of a sample's own, for the step of a name."""
        key = place.stream, name, kind
        maker = self._makers.get(key)
        if maker is None:
            maker = self._makers[key] = self._maker(*key)
        return maker(place)

    def _maker(self, stream: int, name: str, kind: Generator) -> Callable[[SamplePlace], Any]:
        told = repr((self._identity.seed, self._epoch, self._identity.streams[stream], name))
        digest = xxhash.xxh3_128_digest(told.encode(errors="surrogatepass"))
        if kind == "torch":
            return partial(_torch_generator, digest)
        key = np.frombuffer(digest, np.uint64)
        from stoker.reading.sample_seed import SampleSeed  # a run without random numbers needs no NumPy's generators

        generator, philox = np.random.Generator, np.random.Philox

        def numpy_generator(place: SamplePlace) -> np.random.Generator:
            counter = np.array([0, place.item, place.repetition, place.number], np.uint64)
            seed: Any = SampleSeed(key, counter)  # NumPy's annotations lack such ones
            return generator(philox(seed, counter=counter))

        return numpy_generator


def _allowed(step: Step, generators: Generators) -> Generators:
    """The generators, of a step that draws; another's numbers would not be told apart by name."""
    return generators if step.draws else partial(_refuse_generators, step)


def _refuse_generators(step: Step, *_: object) -> Any:
    raise ConfigError(f"{step.told} asks for a generator of random numbers: {type(step).__name__} needs draws = True")


def _torch_generator(digest: bytes, place: SamplePlace) -> Any:
    import torch

    told = digest + place.number.to_bytes(8, "little") + place.repetition.to_bytes(8, "little")
    if place.item:
        told += place.item.to_bytes(8, "little")
    return torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(told) & _SEED_BITS)


@runs_steps
def _several(sample: Any, steps: Sequence[Step], place: SamplePlace, generators: Generators) -> Any:
    """The result of a chain for a sample, which may be several samples. These keep their numbers when others are dropped."""
    flat, dropped = isinstance(sample, SeveralSamples), 0
    items: list[tuple[int, Any]] = [(0, sample)]
    if isinstance(sample, SeveralSamples):
        items, dropped = list(zip(sample.numbers, sample, strict=True)), sample.dropped
    for step in steps:
        if step.by_place:
            drawn = _allowed(step, generators)
            made = [(item, step.apply_at(one, place._replace(item=item), drawn)) for item, one in items]
        else:
            made = [(item, step.apply(one)) for item, one in items]
        if step.makes_several:
            flat = True
            made = list(enumerate(one for _, some in made for one in ((some,) if type(some) is LeftOut else some)))
        items = [(item, one) for item, one in made if type(one) is not LeftOut]
        if len(items) < len(made):
            mark = step.dropped_sample(next(one for _, one in made if type(one) is LeftOut))
            if not flat:
                return mark
        dropped += len(made) - len(items)
    if not flat:
        return items[0][1]
    made_of_one = SeveralSamples(one for _, one in items)
    made_of_one.dropped, made_of_one.numbers = dropped, [item for item, _ in items]
    return made_of_one


def change_batch(steps: Sequence[Step], batch: Batch, positions: Ids, first: Callable[[], object]) -> Batch:
    """Columns as the last steps of a chain make them, which take no single samples.

    TransformError if a function raised an error, or gave no columns of one length, ConfigError if a column is not there, or
    comes twice.

    ``steps``: the last ones. ``batch``: of n samples, n ≥ 1; where a step takes whole batches, a single one. ``positions``:
    of the samples in the epoch, int64, shape ``(n,)``. ``first``: says where the first sample comes from.
    """
    for step in steps:
        batch = step.change_batch(batch, positions, first)
    return batch

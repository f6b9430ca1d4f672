"""Chains: functions of samples, one after the other, of which some draw random numbers that belong to the sample.

Random numbers are made by Philox, a generator that counts (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): its key is a hash of the seed, the epoch, the stream and the step's name, and it begins to count at the sample's id. So
there is nothing to save, and which process or thread draws them, in which order, does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import xxhash

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.types import Ids, Transform

Generator: TypeAlias = Literal["numpy", "torch"]
"""The generator of random numbers that a function gets: ``numpy.random.Generator`` or ``torch.Generator``."""

_SEED_BITS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Step:
    """A function of a chain.

    Attributes:
        function: of a sample; with ``generator``, of a sample and a generator of random numbers.
        name: tells it from the others of its chain.
        generator: the kind of generator that it gets; ``None``: none.
    """

    function: Callable[..., Any]
    name: str
    generator: Generator | None = None

    def __repr__(self) -> str:
        called = "map" if self.generator is None else "random_map"
        more = ", generator='torch'" if self.generator == "torch" else ""
        return f".{called}({self.name}{more})"


class Chain:
    """Functions of a sample, one after the other. A value: each method gives a new one.

    ``transform=`` of a dataset takes it, and ``dataset.map(f)`` adds to that of the dataset.

    >>> chain = Chain().map(str.strip).random_map(lambda text, rng: text * rng.integers(1, 3), name="repeat")
    >>> chain, chain.names
    (Chain().map(str.strip).random_map(repeat), ('str.strip', 'repeat'))

    Args:
        steps: its functions.

    Raises:
        ConfigError: two have the same name.
    """

    __slots__ = ("steps",)

    @checked
    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)
        if len(set(self.names)) < len(self.steps):
            raise ConfigError(
                f"{self!r} has two steps of one name, and the name tells steps apart: give name= another one"
            )

    @checked
    def map(self, function: Callable[[Any], Any], name: str | None = None) -> Chain:
        """This chain, and then a function of what it gives.

        Args:
            function: of a sample.
            name: of the step; default, the function's.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(function, name, None)

    @checked
    def random_map(
        self, function: Callable[[Any, Any], Any], name: str | None = None, *, generator: Generator = "numpy"
    ) -> Chain:
        """This chain, and then a function of what it gives and of a generator of random numbers.

        The numbers are those of the dataset's ``shuffle_seed``, the epoch, the stream, the sample's id in it and the step's
        name, whatever world, workers and threads read it, and after any resume. Where an epoch has a sample more than once,
        they are also those of its position.

        Args:
            function: of a sample and a ``numpy.random.Generator``, or a ``torch.Generator``, which is its own.
            name: of the step; default, the function's. Another name is another sequence of numbers.
            generator: ``"numpy"`` or ``"torch"``.

        Raises:
            ConfigError: another step has this name.
        """
        return self._and(function, name, generator)

    def _and(self, function: Callable[..., Any], name: str | None, generator: Generator | None) -> Chain:
        chosen = str(name or getattr(function, "__qualname__", type(function).__qualname__))
        return Chain((*self.steps, Step(function, chosen, generator)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its steps."""
        return tuple(step.name for step in self.steps)

    @property
    def draws(self) -> bool:
        """Whether any step draws random numbers."""
        return any(step.generator is not None for step in self.steps)

    def __call__(self, sample: Any) -> Any:
        """A sample as the chain makes it.

        Raises:
            ConfigError: a step draws random numbers, which belong to a sample of a dataset.
        """
        if self.draws:
            raise ConfigError(
                f"{self!r} draws random numbers that belong to a sample of a dataset: give it to one as transform="
            )
        for step in self.steps:
            sample = step.function(sample)
        return sample

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Chain(){''.join(map(repr, self.steps))}"


@dataclass(frozen=True, slots=True)
class SampleIdentity:
    """The run and the streams that random numbers of samples belong to.

    Attributes:
        seed: of the run.
        streams: names of the streams; that of a stream alone is empty, as what it is called does not matter.
        first_shards: number of the first shard of each stream.
        repeats: whether an epoch may have a sample more than once.
    """

    seed: int = 0
    streams: tuple[str, ...] = ("",)
    first_shards: tuple[int, ...] = (0,)
    repeats: bool = False


class SampleKeys:
    """The random numbers of the samples of an epoch.

    Args:
        chain: its steps draw them.
        identity: what they belong to.
        epoch: its number.
    """

    def __init__(self, chain: Chain, identity: SampleIdentity, epoch: int) -> None:
        self._steps = chain.steps
        self._identity, self._epoch = identity, epoch
        self._of_stream: dict[int, list[tuple[Callable[..., Any], Callable[[int, int], Any] | None]]] = {}

    def transform(self, streams: Ids, ids: Ids, places: Ids) -> Transform:
        """A function that makes samples of the chain, called once for each of these, in this order.

        Args:
            streams: number of the stream of each sample, int64, shape ``(n,)``.
            ids: of the samples in their streams.
            places: positions in the epoch where it has samples more than once; else zeros.
        """
        samples = zip(streams.tolist(), ids.tolist(), places.tolist(), strict=True)

        def make(sample: Any) -> Any:
            stream, number, place = next(samples)
            for function, generator in self._steps_of(stream):
                sample = function(sample) if generator is None else function(sample, generator(number, place))
            return sample

        return make

    def _steps_of(self, stream: int) -> list[tuple[Callable[..., Any], Callable[[int, int], Any] | None]]:
        """The functions of the steps, and what makes the generator of each."""
        found = self._of_stream.get(stream)
        if found is None:
            made = [
                (step.function, None if step.generator is None else self._maker(stream, step)) for step in self._steps
            ]
            found = self._of_stream[stream] = made
        return found

    def _maker(self, stream: int, step: Step) -> Callable[[int, int], Any]:
        told = repr((self._identity.seed, self._epoch, self._identity.streams[stream], step.name))
        digest = xxhash.xxh3_128_digest(told.encode(errors="surrogatepass"))
        if step.generator == "torch":
            return lambda number, place: _torch_generator(digest, number, place)
        key = np.frombuffer(digest, np.uint64)

        def numpy_generator(number: int, place: int) -> np.random.Generator:
            return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, place, number], np.uint64)))

        return numpy_generator


def _torch_generator(digest: bytes, number: int, place: int) -> Any:
    import torch

    told = digest + number.to_bytes(8, "little") + place.to_bytes(8, "little")
    return torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(told) & _SEED_BITS)

"""The seed of the generator that draws a sample's random numbers; see :mod:`stoker.reading.apply_chain`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from stoker.types import Array


class SampleSeed(ISpawnableSeedSequence):
    """The seed of a sample's generator: Philox takes it for the key that it is.

    ``Philox(key=...)`` asks the system for entropy, which takes three times as long as all the rest, and of which ``spawn``
    makes its generators: other ones in each run. ``key``: of Philox, uint64, shape ``(2,)``. ``counter``: at which the
    sample's numbers begin, uint64, shape ``(4,)``.
    """

    __slots__ = ("_counter", "_key", "_sequence")

    def __init__(self, key: Array, counter: Array) -> None:
        self._key, self._counter = key, counter
        self._sequence: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Array:
        """See NumPy's ``SeedSequence``."""
        if n_words == 2 and dtype is np.uint64:
            return self._key
        found: Array = self._seeds().generate_state(n_words, dtype)
        return found

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:  # type: ignore[override]
        """See NumPy's ``SeedSequence``: seeds of other generators, the same of a sample in each run."""
        return self._seeds().spawn(n_children)

    def _seeds(self) -> np.random.SeedSequence:
        if self._sequence is None:
            self._sequence = np.random.SeedSequence([*self._key.tolist(), *self._counter.tolist()])
        return self._sequence

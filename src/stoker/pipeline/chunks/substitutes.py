"""Other samples of an epoch that come in the places of bad and filtered ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from stoker.errors import ConfigError, SampleError
from stoker.lazy import cached_property
from stoker.order.sample_order import Run, check_spanned, spans_of
from stoker.reading.replacement import Replacements, none_is_good
from stoker.reading.steps import LeftOut, SeveralSamples

Located: TypeAlias = tuple[int, int, int]
"""The position, shard and row of a sample."""


class Substitutes:
    """Finds samples of an epoch that come in the places of bad and filtered ones.

    ConfigError if bad samples are replaced, and the plan does not say where other samples are. ``run``: the positions of the
    epoch, and where their samples lie; ``None`` where no sample replaces another. ``for_bad``: whether bad samples are
    replaced, not only filtered ones. ``strict``: whether an error of a sample that is tried is raised.
    """

    def __init__(self, run: Run | None, *, for_bad: bool, strict: bool) -> None:
        self._run, self._strict = run, strict
        self._setting = "on_bad_sample='replace'" if for_bad else "filter(dropped='replace')"
        if for_bad:
            assert run is not None
            check_spanned(run.plan, self._setting)  # an error is raised here, not when a sample is bad

    @cached_property
    def _replacements(self) -> Replacements:
        """Made where a sample is bad or filtered: most epochs have none."""
        assert self._run is not None
        return Replacements(spans_of(self._run.plan, self._setting), strict=self._strict)

    def find(
        self, position: int, error: SampleError | None, read: Callable[[int, int, int], Any]
    ) -> tuple[Any, Located]:
        """Another sample in the place of a bad or filtered one, as ``read`` gives it, and where it is.

        Args:
            position: of that one.
            error: why it is bad; ``None``: it is filtered.
            read: reads the sample at a position, shard and row.

        Raises:
            TransformError, DecodeError: every sample that was tried is bad or filtered, too.
            ConfigError: as said, where the one to replace is filtered.
        """

        tried: Located = (0, 0, 0)

        def read_at(candidate: int) -> Any:
            nonlocal tried
            assert self._run is not None
            shards, rows = self._run.order.locate(np.array([candidate], np.int64))
            tried = candidate, int(shards[0]), int(rows[0])
            return read(*tried)

        replacements = self._replacements
        found = replacements.find(position, read_at, _has_samples)
        if found is not None:
            return found[0], tried
        if error is None:
            raise ConfigError(
                f"filter(dropped='replace'): of {replacements.tried} samples that were tried in the place of one, none "
                "is kept: use dropped='leave_out', or choose samples by their columns, subset=Where(...)"
            )
        raise none_is_good(error)


def _has_samples(made: Any) -> bool:
    """Whether a filter kept any of the samples that a chain made. ``flat_map`` may make none: no filter left them out."""
    if isinstance(made, SeveralSamples):
        return bool(made) or not made.dropped
    return not isinstance(made, LeftOut)

"""Other samples of an epoch for the places of bad ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from stoker.errors import DecodeError, TransformError
from stoker.order.left_out import candidates
from stoker.order.sample_order import Spans
from stoker.reading.bad_samples import is_of_sample

_REMEMBERED: Final = 1 << 16


class Replacements:
    """Finds samples that may come in the places of others, near them in the order; remembers those that may not.

    What is found depends on the epoch alone: it is the same in any world and after any resume. ``spans``: where the epoch's
    samples are, see :class:`~stoker.order.sample_order.Spans`. ``strict``: whether an error of a sample that is tried is
    raised.

    ``tried``: positions that were tried by the last call.
    """

    def __init__(self, spans: Spans, *, strict: bool = False) -> None:
        self._spans, self._strict = spans, strict
        # Positions near which another was looked for, and whose samples could not take its place.
        self._unfit: set[int] = set()
        self.tried = 0

    def find(
        self, position: int, read: Callable[[int], Any], fits: Callable[[Any], bool] = lambda _: True
    ) -> tuple[Any, int] | None:
        """The first good sample among the :func:`~stoker.order.left_out.candidates`, and its position.

        ``position``: of the sample that is to be replaced. ``read``: reads the sample at a position; raises a ``SampleError``
        where it is bad, too. ``fits``: whether what was read may take the place. Gives ``None`` where none of those that were
        tried is good.
        """
        unfit = self._unfit
        if len(unfit) > _REMEMBERED:
            unfit.clear()
        self.tried = 0
        for candidate in candidates(position, self._spans):
            self.tried += 1
            if candidate in unfit:
                continue
            try:
                made = read(candidate)
            except (DecodeError, TransformError) as error:
                if self._strict or not is_of_sample(error):
                    raise
            else:
                if fits(made):
                    return made, candidate
            unfit.add(candidate)
        return None


def none_is_good(error: Exception) -> Exception:
    """The error of a bad sample for which no other was found."""
    error.add_note("no sample that was tried in its place is good")
    return error

"""Samples that were read together, of which some are bad or filtered; and images, whose errors come when they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stoker.errors import SampleError
from stoker.formats.mds.encodings.images import last_left, loaded
from stoker.types import Ids


class ImageNotLoadedError(Exception):
    """An image of a sample does not load.

    Attributes:
        error: the reason.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def with_loaded_images(samples: Iterator[Any], before: object) -> Iterator[Any]:
    """Samples with their images loaded, each when it is asked for.

    Args:
        samples: the samples.
        before: what stood for the image that was left to load last before any of them was made. As long as it does, they are
            given as they are.

    Raises:
        ImageNotLoadedError: one can not be.
    """
    for sample in samples:
        if last_left() is before:
            yield sample
            continue
        try:
            loaded(sample)
        except Exception as error:
            raise ImageNotLoadedError(error) from error
        yield sample


class GoodSamples(NamedTuple):
    """Samples that were read together, of which some are bad or filtered, or replaced.

    Attributes:
        values: columns of those that are left, or what is made of each, one by one: a sample,
            :data:`~stoker.reading.apply_chain.LEFT_OUT` or :class:`~stoker.reading.apply_chain.SeveralSamples`.
        kept: for each row of the columns, or each that is not left out, its number among those that were asked for; rising.
        positions: the position of the sample that is in the place of each that was asked for.
        bad: number of each bad one, rising, and its error.
    """

    values: Any
    kept: Ids
    positions: Ids
    bad: list[tuple[int, SampleError]]

"""Stages of chunks: what they do where the parts that they stand on fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stoker.errors import DecodeError, SampleError
from stoker.pipeline.stages.stage import make_each
from stoker.reading.steps import BAD


def fail(number: int, error: Exception) -> SampleError:
    return DecodeError(f"sample {number}: {error}")


@pytest.mark.parametrize("given", [0, 2])
def test_a_reader_that_ends_early_is_an_error_of_each_sample_that_it_owes(given: int) -> None:
    def begin(first: int) -> Iterator[Any]:
        return iter(range(first, given))

    made, bad = make_each(4, begin, fail)
    assert made == [*range(given), *[BAD] * (4 - given)]
    assert sorted(bad) == list(range(given, 4))
    assert all("too few samples" in str(error) for error in bad.values())


def test_what_came_before_an_error_is_kept() -> None:
    def begin(first: int) -> Iterator[Any]:
        for number in range(first, 5):
            if number in (1, 4):
                raise ValueError("a bad one")
            yield number

    made, bad = make_each(5, begin, fail)
    assert made == [0, BAD, 2, 3, BAD]
    assert list(bad) == [1, 4]

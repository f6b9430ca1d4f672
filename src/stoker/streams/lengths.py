"""The lengths of all samples, by which batches are made: given by the user, or read of columns once and kept."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.catalog.location import DatasetLocation
from stoker.concurrency.user_code import pass_exits
from stoker.errors import ConfigError, TransformError
from stoker.formats.base import ReadOptions
from stoker.order.by_length import Lengths
from stoker.storage.files.regular import open_regular
from stoker.streams.conditions import hash_function
from stoker.streams.derived_arrays import ArraySink, derived_array
from stoker.streams.scan import check_column, scan
from stoker.streams.streams import Streams
from stoker.types import Column

logger = logging.getLogger(__name__)

_MOST: Final = 1 << 24
"""Lengths are counted in a table."""


def sample_lengths(streams: Streams, given: Lengths, options: ReadOptions = ReadOptions()) -> NDArray[np.integer[Any]]:
    """The length of each sample by its id, of all streams one after the other.

    A column is read once, in bounded memory but for 4 bytes a sample; later, in any process, a file is mapped that is kept
    beside the dataset's index. ConfigError for lengths that are no integers from 0 to 2**24 - 1, or not of all samples.
    """
    if given.needs:
        found = [_of_columns(location, given, options) for location in streams.locations]
        return found[0] if len(found) == 1 else np.concatenate(found)
    source, where = given.lengths, "lengths"
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
        try:
            os.close(open_regular(source)[0])
            source = np.load(where, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where} can not be read as a file of lengths: {error}") from error
    return _checked(np.asarray(source), where, streams.index.samples)


def _of_columns(location: DatasetLocation, given: Lengths, options: ReadOptions) -> NDArray[np.integer[Any]]:
    needs, function = given.needs, given.lengths if callable(given.lengths) else None
    for column in needs:
        check_column(location, column)

    def make(sink: ArraySink) -> tuple[DTypeLike, bytes]:
        samples = location.index.samples
        logger.info("reading %s of all %d samples of %s, once, for lengths", ", ".join(needs), samples, location.where)
        # Samples that can not be read, whose length is not known, are an error where a batch has them.
        lengths = np.zeros(samples, np.uint32)
        for first, count, batch in scan(location, needs, options, []):
            where = f"{location.where}, samples {first} to {first + count - 1}"
            if function is None:
                found = _of_values(batch[needs[0]], f"{where}: column {needs[0]!r}")
            else:
                try:
                    found = np.asarray(function(*(batch[column] for column in needs)))
                except BaseException as error:
                    pass_exits(error)
                    raise TransformError(f"{where}: lengths raised {type(error).__name__}: {error}") from error
                where += ": what the function of lengths gave"
            lengths[first : first + count] = _checked(found, where, count)
            sink.beat()
        sink.append(lengths.astype("<u4", copy=False))
        return "<u4", b""

    recipe = {"columns": needs, "function": None if function is None else hash_function(function)}
    array: NDArray[np.uint32] = derived_array(location, "lengths", "+".join(needs), recipe, make).array
    return array


def _of_values(values: Column, where: str) -> NDArray[Any]:
    """The integers of a column, or the lengths of its texts, bytes, lists or arrays."""
    if isinstance(values, np.ndarray):
        return values if values.ndim == 1 else np.full(len(values), values.shape[1])
    try:
        return np.array([one if isinstance(one, int) else len(one) for one in values], np.int64)
    except (TypeError, OverflowError):
        raise ConfigError(
            f"{where} has a value that is no length and has none: name a column of integers, texts, bytes or lists without "
            "nulls, or give a function, Lengths(function, columns=...)"
        ) from None


def _checked(lengths: NDArray[Any], where: str, count: int) -> NDArray[np.integer[Any]]:
    """Integers that are lengths of so many samples. ConfigError if they are not."""
    if lengths.shape != (count,) or (count and lengths.dtype.kind not in "iu"):
        raise ConfigError(
            f"{where}: lengths of {count} samples are {count} integers, found {lengths.dtype} of shape {lengths.shape}"
        )
    if count and not 0 <= int(lengths.min()) <= int(lengths.max()) < _MOST:
        raise ConfigError(
            f"{where}: lengths are from 0 to {_MOST - 1}, found {lengths.min()} to {lengths.max()}: count in larger units"
        )
    return lengths if count else np.zeros(0, np.int64)

"""The ``datasets`` package around a dataset: which epoch it reads, and what it does that would lose samples without a word.

Its ``IterableDataset`` over a generator that reads a dataset does not tell the dataset anything. But when it asks for
samples, its methods are on the call stack. Where it shuffles or interleaves it reads in threads, on whose stacks are only the
innermost of them: of the epoch and of what divides among ranks they tell nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.cluster.call_stack import callers, in_other_thread, module_of
from stoker.cluster.outer_division import OuterDivision
from stoker.concurrency.user_code import in_user_code
from stoker.errors import ConfigError

_DATASETS: Final = "datasets.iterable_dataset"
_BUILDER: Final = "datasets.builder"
_ACCELERATE: Final = "accelerate.data_loader"
# What seeds a generator that was given no seed has 128 bits; no seed that a user writes has.
_DRAWN: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class NamedEpoch:
    """The epoch in which an ``IterableDataset`` of the package reads.

    ``number``: as ``set_epoch`` named it; 0 where nobody did; ``None``: the package reads in a thread, and it is not known.
    ``resumes``: whether it leaves out what came before a state of this epoch that it has loaded.
    """

    number: int | None
    resumes: bool


def named_epoch(division: OuterDivision | None, ranks: int) -> NamedEpoch | None:
    """The epoch of the ``IterableDataset`` that asks for samples now; ``None``: there is none.

    ConfigError if what the package does beneath this would lose samples. ``division``: the wrapper that divides, if one does.
    ``ranks``: number of ranks among which the dataset divides where no wrapper does.
    """
    if _DATASETS not in sys.modules or in_user_code():
        return None
    found: Any = None
    resumes = reads = False
    for frame in callers():
        module = module_of(frame)
        one: Any = frame.f_locals.get("self")
        if module == _BUILDER and ranks > 1:
            raise ConfigError(
                "Dataset.from_generator keeps what is read here, which is this rank's part of the samples, and trainers "
                "would divide that once more: give the dataset world=World(), with which each rank reads all; or use "
                "IterableDataset.from_generator"
            )
        if division is None and ranks > 1:
            _check_shards(module, one)
        if module == _DATASETS and _is_iterable_dataset(one):
            if division is not None and not division.sends:
                _check_seeds(getattr(one, "_ex_iterable", None), division)
            if found is None or one.epoch:
                found = one
        if module == _DATASETS:
            reads = True
            resumes = resumes or bool(frame.f_locals.get("shard_example_idx_start"))
    if found is None and reads and in_other_thread():
        return NamedEpoch(None, resumes)
    if found is None:
        return None
    state = getattr(found, "_starting_state_dict", None) or {}
    return NamedEpoch(int(found.epoch), resumes=state.get("epoch") == found.epoch)


def _is_iterable_dataset(one: Any) -> bool:
    kind = getattr(sys.modules.get(_DATASETS), "IterableDataset", None)
    return kind is not None and issubclass(type(one), kind)


def _check_shards(module: str, one: Any) -> None:
    """See that ranks have not been given other sources, each of which divides its samples among all ranks.

    ``IterableDataset.shard`` leaves no trace: after it the ones that the other ranks have are gone. ConfigError if they may
    have been.
    """
    if module == _ACCELERATE and _is_iterable_dataset(getattr(one, "dataset", None)):
        raise ConfigError(
            "accelerate deals out the sources of a datasets.IterableDataset to ranks (by its shard method) where they are "
            "as many as the ranks, or more, and each source divides its samples among all ranks once more: samples would "
            "be lost. Leave dispatch_batches=False out, or add split_batches=True; or make one source, "
            "StreamingDataset(streams=[...]); or give each source world=World(), with which it is read as a whole"
        )
    values = getattr(one, "kwargs", None) if module == _DATASETS else None
    lists = [value for value in values.values() if type(value) is list] if isinstance(values, dict) else []
    if any(str(type(each).__module__).startswith("stoker.") for value in lists for each in value):
        raise ConfigError(
            "the datasets package takes a list in gen_kwargs for sources that it may deal out to ranks (shard), and each "
            "of these datasets divides its samples among all ranks once more: give a tuple, or one "
            "StreamingDataset(streams=[...]); or give each world=World(), with which it is read as a whole"
        )


def _check_seeds(root: Any, division: OuterDivision) -> None:
    """See that all ranks bring samples into one order, before each keeps its slice.

    ConfigError if each draws an order of its own.
    """
    for one in _chain(root):
        generator = getattr(one, "generator", None)
        seeds = getattr(getattr(generator, "bit_generator", None), "seed_seq", None)
        entropy = getattr(seeds, "entropy", None)
        if isinstance(entropy, int | np.integer) and entropy >= _DRAWN:
            raise ConfigError(
                f"{division.wrapper} keeps a slice of each global batch on each rank, and shuffle() or "
                "interleave_datasets(probabilities=...) of the datasets package has no seed, so that each rank draws an "
                "order of its own: samples would be lost, and others come twice. Give it a seed="
            )


def _chain(root: Any) -> Iterator[Any]:
    """The steps of an ``IterableDataset``, the last one first."""
    todo = [root]
    while todo:
        one = todo.pop()
        if one is None:
            continue
        yield one
        todo += [getattr(one, "ex_iterable", None), *(getattr(one, "ex_iterables", None) or ())]

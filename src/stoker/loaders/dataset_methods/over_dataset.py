"""Remedies of loaders over a dataset for methods of the dataset, which programs look for on the loader."""

from __future__ import annotations

from typing import ClassVar

from stoker.arguments.other_libraries import METHODS, SHUFFLE, STATES, OtherLibraries
from stoker.loaders.dataset_methods.attributes import DatasetAttributes
from stoker.loaders.dataset_methods.by_id import SamplesById
from stoker.loaders.dataset_methods.states import DatasetStates
from stoker.reading.step_methods import StepMethods

__all__ = ["OverDataset", "remedy_of_dataset"]


def remedy_of_dataset(name: str) -> str:
    """The remedy for a name that is of a dataset, or of another library's; empty where it is neither.

    >>> remedy_of_dataset("map_batches"), remedy_of_dataset("shuffle")
    ('use batch_map()', 'give shuffle=True, shuffle_seed= to the constructor')
    """
    if name in METHODS or name == "shuffle":
        return METHODS.get(name, SHUFFLE)
    if callable(vars(StepMethods).get(name)):
        return f"use {name}()"
    own = name == "batches" or any(name in vars(kind) for kind in (SamplesById, DatasetAttributes, DatasetStates))
    return f"dataset.{name}" if own else ""


class OverDataset(OtherLibraries):
    """Base of what is made over a dataset: methods of the dataset are called there, before this is made."""

    __slots__ = ()

    instead_of_sum: ClassVar[str] = "make one over a StreamingDataset(streams=[Stream(...), ...]) of all"

    def meant_by(self, name: str) -> str:
        """See :meth:`~stoker.arguments.other_libraries.OtherLibraries.meant_by`."""
        if name in STATES:
            return STATES[name]
        found = remedy_of_dataset(name)
        return found and f"it is of the StreamingDataset that the {type(self).__name__} is made of: {found}"

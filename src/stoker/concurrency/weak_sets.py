"""The objects of weak sets and dictionaries, while other threads add to them and let go of others."""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

_T = TypeVar("_T")


def alive(objects: weakref.WeakSet[_T] | weakref.WeakValueDictionary[Any, _T]) -> list[_T]:
    """The objects of a weak set, or the values of a weak dictionary, that are there.

    Their own iterators raise a ``RuntimeError`` where another thread adds one meanwhile: they take many steps. The list of
    references is made in one, with Python's lock and without it.
    """
    references = objects.valuerefs() if isinstance(objects, weakref.WeakValueDictionary) else list(objects.data)  # type: ignore[attr-defined]
    return [one for reference in references if (one := reference()) is not None]

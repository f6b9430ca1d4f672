"""Pickled loaders: they are for other processes of the same program, and say so where another version loads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

from stoker.errors import StateError
from stoker.version import __version__

__all__ = ["PickledByVersion"]


class PickledByVersion:
    """Base of a loader: its pickle names the version first, before anything that another version may lack."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        make, given, *state = reduced
        return (_made, (_Written(__version__), make, *given), *state)


class _Written:
    """The version that wrote a pickle, which is compared when it is read: in a tuple, before what comes after it."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __reduce__(self) -> tuple[Any, ...]:
        return _checked, (self.version,)


# The two names below are in pickles: they stay here, so that later versions can say what is wrong.
def _checked(version: str) -> _Written:
    if version != __version__:
        raise StateError(
            f"this pickle of a loader was written by stoker {version}, and this is stoker {__version__}: pickles are for "
            "other processes of the same program. Keep a run as loader.state_dict(), make the loader again, and give the "
            "state to its load_state_dict()"
        )
    return _Written(version)


def _made(_: _Written, make: Callable[..., Any], *given: Any) -> Any:
    return make(*given)

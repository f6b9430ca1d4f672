"""Classes of streams by name, for ``StreamingDataset(stream_name=, stream_config=)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from stoker.arguments import must_know
from stoker.errors import ConfigError
from stoker.streams.streams import Stream

_S = TypeVar("_S", bound=type[Stream])


class StreamRegistry:
    """Subclasses of :class:`~stoker.streams.streams.Stream` by name. ``"stream"`` is ``Stream`` itself.

    >>> @streams_registry.register("noted")
    ... class NotedStream(Stream):
    ...     def __init__(self, *, note: str = "", **options):
    ...         super().__init__(**options)
    ...         self.note = note
    >>> streams_registry.get("noted") is NotedStream
    True
    """

    def __init__(self) -> None:
        self._classes: dict[str, type[Stream]] = {"stream": Stream}

    @overload
    def register(self, name: str) -> Callable[[_S], _S]: ...
    @overload
    def register(self, name: str, *, func: type[Stream]) -> type[Stream]: ...
    def register(self, name: str, *, func: Any = None) -> Any:
        """Give a class a name, in place of one that had it; a decorator, or with ``func=`` the class at once.

        ConfigError if it is no subclass of ``Stream``.
        """
        if func is None:
            return lambda found: self.register(name, func=found)
        if not (isinstance(func, type) and issubclass(func, Stream)):
            raise ConfigError(f"streams_registry: {name!r} must be a subclass of stoker.Stream, got {func!r}")
        self._classes[name] = func
        return func

    def get(self, name: str) -> type[Stream]:
        """The class of a name. ConfigError if there is none."""
        must_know("stream_name", [name], self._classes)
        return self._classes[name]


streams_registry = StreamRegistry()
"""Of this process; DataLoader workers that are spawned get the streams themselves."""


def make_stream(name: str, config: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> Stream:
    """The stream of a dataset that has one.

    ConfigError if an argument is in both, or makes no sense. ``name``: of its class. ``config``: arguments of the class.
    ``arguments``: those of the dataset; what is ``None`` is not given.
    """
    given = {key: value for key, value in arguments.items() if value is not None}
    both = given.keys() & (config or {}).keys()
    if both:
        raise ConfigError(f"{min(both)}= is in stream_config= and an argument of the dataset: give it once")
    return streams_registry.get(name)(**given, **(config or {}))

"""Names that are imported, attributes that are computed and parts of other packages that are found when asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from stoker.errors import ConfigError, MissingPackageError, StokerError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

INSTALL_BENCH: Final = "pip install . ./packages/stoker-bench, in a clone of stoker's repository"
"""How to install the package stoker-bench, in errors: it is in no index of packages yet."""

_T = TypeVar("_T")

if TYPE_CHECKING:
    shadowed = property
else:

    class shadowed:  # noqa: N801 - as property
        """A property that subclasses may have another value under the name of, of an instance or of the class.

        What needs it all the same asks by :func:`told`.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __get__(self, one: object | None, owner: type | None = None) -> Any:
            return self if one is None else self.compute(one)


def told(one: object, name: str) -> Any:
    """A :class:`shadowed` property of an object, whatever shadows it; or any other attribute of it."""
    for kind in type(one).__mro__:
        found = vars(kind).get(name)
        if type(found) is shadowed and not TYPE_CHECKING:
            return found.compute(one)
    return getattr(one, name)


class cached_property(Generic[_T]):  # noqa: N801 - as the one of functools
    """As :class:`functools.cached_property`, without the lock that it has for all objects of a class up to Python 3.11.

    A thread of a parent that held it would be waited for in a forked child for ever. Threads that ask at once may compute the
    value several times; the first that is there stays.
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, one: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, one: object, owner: type | None = None) -> _T: ...

    def __get__(self, one: object | None, owner: type | None = None) -> Self | _T:
        if one is None:
            return self
        value: _T = one.__dict__.setdefault(self._name, self._compute(one))
        return value


def named_object(text: str, said: str) -> Any:
    """The object that ``MODULE:NAME`` names, of a module that Python can import, or else one of the current directory.

    ConfigError if it can not. ``said``: what stands before the text where it was given, such as ``transform=``.
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        module, _, name = text.rpartition(".")
        meant = f"{module}:{name}" if module and name else "module:function"
        raise ConfigError(f"{said}{text} is not MODULE:NAME: write {said}{meant}")
    try:
        here = os.getcwd()  # as `python -m` has it; a script of pip's has not
        if here not in sys.path:
            # Last: a folder there may have the name of a package that is imported later.
            sys.path.append(here)
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise ConfigError(f"{said}{text} can not be imported as MODULE:NAME: {error}") from error
    return found


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are in other modules."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def lazy_package(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """``__all__`` and ``__getattr__`` of a package. ``modules``: the names that each of its modules has, apart by spaces."""
    found = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}
    return sorted(found), lazy_names(package, found)


def no_attribute(message: str) -> Exception:
    """The error for a name that a package does not have, raised by its ``__getattr__``; says where to find it.

    ``hasattr`` needs an AttributeError. Of that, ``from package import name`` would drop the message.
    """
    asks = sys._getframe(2).f_code
    if asks.co_name == "_handle_fromlist" and asks.co_filename.startswith("<frozen importlib"):
        return MissingPackageError(message)
    return AttributeError(message)


def plugins(group: str, own: Container[str] = ()) -> dict[str, EntryPoint]:
    """Entry points of a group by their names. Names of ``own`` are stoker's, and not theirs to take.

    Two packages that have one name for different things are an error.
    """
    from importlib.metadata import entry_points  # takes long

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value and entry.name not in own:
            raise ConfigError(
                f"two packages name {entry.name!r} in {group!r}: {package_of(other)} and {package_of(entry)}: uninstall one"
            )
    return {name: entry for name, entry in found.items() if name not in own}


def load_plugin(entry: EntryPoint, what: str, error: type[StokerError] = ConfigError) -> Any:
    """Load the object that an entry point names; ``what`` it is goes into the error, such as ``"the writer of 'x'"``."""
    try:
        return entry.load()
    except Exception as raised:  # noqa: BLE001 - another package's code
        reason = f"{raised!r}"
    raise error(f"{what}, {entry.value} of {package_of(entry)}, can not be loaded: {reason}")


def package_of(entry: EntryPoint) -> str:
    """The package that names an entry point, with its version."""
    return "another package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"

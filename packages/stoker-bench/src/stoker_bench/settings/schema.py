"""Settings from a tree of values, each of which knows where it was given, to frozen dataclasses; strictly.

A key that no dataclass has, a value of another type and settings that contradict each other are errors that say where.
The dataclasses are the only description there is: the commented file of ``stoker bench init`` is written from them, too.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, TypeVar

from stoker.display import nearest
from stoker.errors import ConfigError
from stoker.units import parse_bytes, parse_count

T = TypeVar("T")
Parser = Callable[["Node", str], Any]
"""From a node and its path to the value; raises :class:`ConfigError`."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and where it was given.

    Attributes:
        value: ``None``, a bool, an int, a float, a string, a list of nodes, or a dict from string to node.
        where: such as ``"unet3d.yaml, line 12"`` or ``"the argument reader.batch_size=4"``.
    """

    value: Any
    where: str

    @property
    def plain(self) -> Any:
        """The value without its origins."""
        if isinstance(self.value, dict):
            return {name: node.plain for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain for node in self.value]
        return self.value


class ContradictionError(ConfigError):
    """Settings that exclude each other. ``keys`` are their paths below the dataclass that found it."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def setting(
    default: Any,
    doc: str,
    *,
    least: float | None = None,
    unit: Literal["bytes", "count"] | None = None,
    parse: Parser | None = None,
    secret: bool = False,
) -> Any:
    """A field of a section, with what a commented file says of it.

    Args:
        default: its value where nothing is given; a section's class for a section.
        doc: one line.
        least: the bound below which a number is an error; see :class:`Section`.
        unit: ``"bytes"`` also takes ``"64MB"``, ``"count"`` also ``"10k"``.
        parse: how a value is read that has no plain type.
        secret: it may hold credentials, so ``repr`` leaves it out.
    """
    metadata = {"doc": doc, "least": least, "unit": unit, "parse": parse}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class Section:
    """Base of a section of settings: checks the bounds that :func:`setting` gives.

    Raises:
        ConfigError: a number is below its bound.
    """

    def __post_init__(self) -> None:
        for one in fields(self):
            least, value = one.metadata.get("least"), getattr(self, one.name)
            if least is not None and isinstance(value, int | float) and value < least:
                raise ConfigError(f"{one.name} must be at least {least}, got {value}")


def tree_of(value: Any, where: str) -> Node:
    """Plain dicts, lists and scalars as nodes, all of one origin."""
    if isinstance(value, Mapping):
        return Node({str(name): tree_of(inner, where) for name, inner in value.items()}, where)
    if isinstance(value, list | tuple):
        return Node([tree_of(inner, where) for inner in value], where)
    return Node(value, where)


def at_path(path: str, node: Node) -> Node:
    """A tree that has one node, at a dotted path."""
    for name in reversed(path.split(".")):
        node = Node({name: node}, node.where)
    return node


def merge(below: Node, above: Node) -> Node:
    """Two trees as one: what ``above`` says holds, section by section."""
    if isinstance(below.value, dict) and isinstance(above.value, dict):
        both = dict(below.value)
        for name, node in above.value.items():
            both[name] = merge(both[name], node) if name in both else node
        return Node(both, above.where)
    return above


def flat(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every value by its dotted path; lists count as one."""
    if isinstance(node.value, dict):
        for name, inner in node.value.items():
            yield from flat(inner, f"{path}.{name}" if path else name)
    else:
        yield path, node


def build(cls: type[T], node: Node, path: str = "") -> T:
    """A dataclass of what was given; defaults for the rest.

    Raises:
        ConfigError: an unknown key, a wrong type, a value that makes no sense, or a contradiction; says where.
    """
    if node.value is None:
        node = Node({}, node.where)
    if not isinstance(node.value, dict):
        raise ConfigError(f"{node.where}: {path or 'a workload'} is a section of settings, got {node.plain!r}")
    known = {one.name: one for one in fields(cls)}  # type: ignore[arg-type]
    hints = _hints(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, inner in node.value.items():
        full = f"{path}.{name}" if path else name
        if name not in known:
            raise ConfigError(
                f"{inner.where}: {full} is not a setting{nearest(name, known) or '.'} {path or 'a workload'} has "
                f"{', '.join(sorted(known))}"
            )
        metadata = known[name].metadata
        if metadata.get("parse") is not None:
            values[name] = metadata["parse"](inner, full)
        else:
            values[name] = _value(hints[name], inner, full, metadata.get("unit"))
    missing = [
        one.name
        for one in known.values()
        if one.default is MISSING and one.default_factory is MISSING and one.name not in values
    ]
    if missing:
        raise ConfigError(f"{node.where}: {path or 'the workload'} lacks {', '.join(missing)}")
    try:
        return cls(**values)
    except ContradictionError as error:
        origins = {key: _find(node, key) for key in error.keys}
        said = "; ".join(f"{f'{path}.{key}' if path else key}: {where}" for key, where in origins.items() if where)
        raise ConfigError(f"{error}" + (f" ({said})" if said else "")) from None
    except ConfigError as error:
        # The setting that the error names first, and not the one that was given last.
        named = next((word for word in re.findall(r"\w+", str(error)) if word in node.value), None)
        where = node.where if named is None else node.value[named].where
        raise ConfigError(f"{where}: {path + ': ' if path else ''}{error}") from None


def _find(node: Node, path: str) -> str | None:
    for name in path.split("."):
        if not isinstance(node.value, dict) or name not in node.value:
            return None
        node = node.value[name]
    return node.where


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


_WORDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _value(hint: Any, node: Node, path: str, unit: str | None) -> Any:
    origin, value = typing.get_origin(hint), node.value
    if origin in (typing.Union, types.UnionType):
        choices = typing.get_args(hint)
        if value is None and type(None) in choices:
            return None
        rest = [one for one in choices if one is not type(None)]
        for one in rest[:-1]:
            try:
                return _value(one, node, path, unit)
            except ConfigError:
                continue
        return _value(rest[-1], node, path, unit)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed or isinstance(value, bool):
            said = "" if not isinstance(value, bool) else " (YAML reads a bare on, off, yes and no as true and false)"
            names = ", ".join(map(str, allowed))
            close = nearest(str(value), map(str, allowed))
            raise ConfigError(f"{node.where}: {path} must be one of {names}, got {value!r}{said}{close}")
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, node, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{node.where}: {path} must be a list, got {node.plain!r}")
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, one, f"{path}[{at}]", unit) for at, one in enumerate(value))
    if hint is Any or origin in (dict, Mapping, typing.get_origin(Mapping[str, Any])):
        if hint is not Any and not isinstance(value, dict):
            raise ConfigError(f"{node.where}: {path} must be a mapping, got {node.plain!r}")
        return node.plain
    return _scalar(hint, node, path, unit)


def _scalar(hint: Any, node: Node, path: str, unit: str | None) -> Any:
    value = node.value
    if unit is not None and hint is int and not isinstance(value, bool) and value is not None:
        try:
            if isinstance(value, float) and not value.is_integer():
                raise ConfigError(f"{value!r} is not a whole number")
            return (parse_bytes if unit == "bytes" else parse_count)(value)
        except ConfigError as error:
            raise ConfigError(f"{node.where}: {path}: {error}") from None
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # as DLIO has it in its files: epochs: 5.0
    if hint is float and not isinstance(value, bool):
        if isinstance(value, int | float):
            number = float(value)
        else:
            try:  # YAML 1.1 takes 1e-3 for a text
                number = float(value) if isinstance(value, str) else math.nan
            except ValueError:
                number = math.nan
        if math.isfinite(number):
            return number
    if hint is str and isinstance(value, str):
        return value
    raise ConfigError(f"{node.where}: {path} must be {_WORDS.get(hint, str(hint))}, got {node.plain!r}")

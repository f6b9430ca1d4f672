"""YAML with line numbers, read strictly, and workload files written with comments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from stoker.errors import ConfigError
from stoker_bench.settings.schema import Node, tree_of

_MOST_BYTES: Final = 1 << 18
_DEEPEST: Final = 32
_LONGEST: Final = 4096


def read_yaml(path: str | os.PathLike[str]) -> Node:
    """The tree of a YAML file.

    Raises:
        ConfigError: it can not be read, is no YAML, holds a key twice, tags, aliases or more than 256 KiB, or nests more
            than 32 levels; says the line.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: can not be read: {error.strerror or error}") from None
    return parse_yaml(data, os.fspath(path))


def parse_yaml(data: bytes | str, name: str) -> Node:
    """The tree of a YAML text; ``name`` goes before the lines. See :func:`read_yaml`."""
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{name}: more than {_MOST_BYTES} bytes, which no workload has")
    loader = None
    try:
        loader = yaml.SafeLoader(data)  # not in the try's body alone: it checks the encoding at once
        depth = 0
        for event in yaml.parse(data, yaml.SafeLoader):
            # Before anything is made of it: what is nested, and numbers like 1:1:1, take the square of their length.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST or len(getattr(event, "value", "")) > _LONGEST:
                told = "nested too deeply" if depth > _DEEPEST else f"a value of more than {_LONGEST} characters"
                raise ConfigError(f"{name}, line {event.start_mark.line + 1}: {told}")
            anchor = getattr(event, "anchor", None)
            if anchor is not None:
                raise ConfigError(
                    f"{name}, line {event.start_mark.line + 1}: anchors and aliases are not read: write it out"
                )
        root = loader.get_single_node()
        if root is None:
            return Node({}, name)
        return _convert(yaml, loader, root, name, 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{name}{line}: not YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()


def _convert(yaml: Any, loader: Any, node: Any, name: str, depth: int) -> Node:
    where = f"{name}, line {node.start_mark.line + 1}"
    if depth > _DEEPEST:
        raise ConfigError(f"{where}: nested too deeply")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Node] = {}
        for key, inner in node.value:
            at = f"{name}, line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{at}: a key must be a name")
            text = str(key.value)
            if text in found:
                raise ConfigError(f"{at}: {text!r} is given twice; first at {found[text].where}")
            value = _convert(yaml, loader, inner, name, depth + 1)
            found[text] = Node(value.value, at)
        return Node(found, where)
    if isinstance(node, yaml.SequenceNode):
        return Node([_convert(yaml, loader, inner, name, depth + 1) for inner in node.value], where)
    try:
        value = loader.construct_object(node, deep=True)
    except ValueError as error:  # such as 2026-13-45, which looks like a date
        raise ConfigError(f"{where}: {node.value!r}: {error}") from None
    if value is None or isinstance(value, bool | int | float | str):
        return Node(value, where)
    return Node(str(node.value), where)  # a date and the like: as it is written


def parse_scalar(text: str, where: str) -> Node:
    """One value as YAML has it, of an argument or a variable: ``4``, ``true``, ``[a, b]``, ``{mean: 1}``, a text."""
    if text.strip() == "":
        return Node(text, where)
    try:
        node = parse_yaml(text, where)
    except ConfigError:
        return Node(text, where)  # such as a URL with odd characters
    return tree_of(node.plain, where)


def write_scalar(value: Any) -> str:
    """A value as one line of YAML that reads back as the same."""
    if isinstance(value, tuple):
        value = list(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def commented(section: Any, plain: Any, indent: str = "") -> str:
    """A dataclass as YAML with every setting's meaning above it.

    Args:
        section: the dataclass object.
        plain: its values as :func:`~stoker_bench.settings.workload.as_plain` gives them, so that they read back.
        indent: put before every line.
    """
    lines: list[str] = []
    for one in fields(section):
        value = getattr(section, one.name)
        lines.append(f"{indent}# {one.metadata.get('doc', '')}")
        if is_dataclass(value) and isinstance(plain[one.name], dict) and not one.metadata.get("parse"):
            lines.append(f"{indent}{one.name}:")
            lines.append(commented(value, plain[one.name], indent + "  "))
        elif isinstance(plain[one.name], Sequence) and plain[one.name] and isinstance(plain[one.name][0], dict):
            lines.append(f"{indent}{one.name}:")
            lines += [f"{indent}  - {write_scalar(item)}" for item in plain[one.name]]
        else:
            lines.append(f"{indent}{one.name}: {write_scalar(plain[one.name])}")
        if not indent and is_dataclass(value):
            lines.append("")
    return "\n".join(lines).rstrip("\n")

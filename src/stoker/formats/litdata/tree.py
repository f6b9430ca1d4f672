"""The shape of litdata's samples: nested dicts, lists and tuples, whose leaves are stored one after the other."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from stoker.formats.litdata.values import word_of

__all__ = ["SampleTree", "sample_tree"]

NESTED: Final = "nested"
"""Word for the type of a column whose values are dicts, lists or tuples of leaves."""
ALONE: Final = "data"
"""Column of a sample that is a value by itself."""

Build = Callable[[Iterator[Any]], Any]
_WORDS: Final = {"str": "str", "int": "int", "float": "float", "bool": "bool", "bytes": "bytes"}
_DEEPEST: Final = 100


@dataclass(frozen=True, slots=True)
class Branch:
    """A column: a leaf, or what is built of several.

    Attributes:
        first: number of its first leaf.
        end: number after its last.
        build: makes the value of its leaves; ``None`` for a leaf itself.
    """

    first: int
    end: int
    build: Build | None


@dataclass(frozen=True, slots=True)
class SampleTree:
    """The columns of samples, and which leaves each is made of.

    Attributes:
        leaves: litdata's words for the types of the leaves.
        branches: by column; those that only some chunks have are not among them.
        kinds: words for the types of all columns.
    """

    leaves: tuple[str, ...]
    branches: Mapping[str, Branch]
    kinds: Mapping[str, str]


@lru_cache(maxsize=64)
def sample_tree(leaves: tuple[str, ...], spec: str | None, types: str) -> SampleTree:
    """Read the shape of samples.

    A dict's keys are the columns; those of a list or tuple are ``0``, ``1``, ...; a value by itself is ``data``.

    Args:
        leaves: ``data_format`` of litdata's index.
        spec: ``data_spec``: the tree, as JSON text; ``None`` for a single leaf.
        types: ``types``, as JSON text.

    Raises:
        ValueError: it is not valid; says why.
    """
    try:
        root = {"type": None, "children_spec": []} if spec is None else json.loads(spec)[1]
        names, children = _parts(root)
        if names is None:
            names, children = [ALONE], [root]
        branches: dict[str, Branch] = {}
        first = 0
        for name, child in zip(names, children, strict=True):
            build = None if child["type"] is None else _build(child, _DEEPEST)
            end = first + _count(child)
            branches[str(name)] = Branch(first, end, build)
            first = end
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"'data_spec' is not a tree of litdata's: {error!r}") from None
    if first != len(leaves) or len(branches) != len(names) or not names:
        raise ValueError(f"'data_spec' has {first} leaves under {len(names)} names, data_format {len(leaves)}")
    kinds = {name: NESTED if branch.build else word_of(leaves[branch.first]) for name, branch in branches.items()}
    return SampleTree(leaves, branches, _declared(kinds, json.loads(types)))


def _declared(kinds: Mapping[str, str], types: Any) -> Mapping[str, str]:
    """The kinds of columns, with those that only rows as Arrow have: ``types`` tells the columns of all chunks."""
    if not isinstance(types, dict) or "type" in types or "kind" in types:
        return kinds
    found = dict(kinds)
    for name, told in types.items():
        word = told if isinstance(told, str) else told.get("type") if isinstance(told, dict) else None
        if name not in kinds:
            found[name] = _WORDS.get(str(word), NESTED)
    return found


def _parts(node: Mapping[str, Any]) -> tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]]]:
    """Names of a node's children, and the children; ``None`` for names of what is no dict, list or tuple of columns."""
    kind, children = node["type"], node["children_spec"]
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(node["context"])
        return keys, children
    if kind == "collections.defaultdict":
        return node["context"]["dict_context"], children
    if kind in ("builtins.list", "builtins.tuple", "collections.deque"):
        return range(len(children)), children
    return None, children


def _count(node: Mapping[str, Any]) -> int:
    """Number of a node's leaves."""
    return 1 if node["type"] is None else sum(map(_count, node["children_spec"]))


def _build(node: Mapping[str, Any], deeper: int) -> Build:
    """A function that takes the leaves of a node, in order, and makes its value."""
    if not deeper:
        raise ValueError(f"more than {_DEEPEST} levels")
    if node["type"] is None:
        return next
    names, children = _parts(node)
    if names is None:
        raise ValueError(f"nodes of {node['type']} are not read")
    builds = [_build(child, deeper - 1) for child in children]
    kind = node["type"]
    if kind in ("builtins.dict", "collections.defaultdict", "collections.OrderedDict"):
        made = OrderedDict if kind == "collections.OrderedDict" else dict
        pairs = list(zip(names, builds, strict=True))
        return lambda leaves: made((name, build(leaves)) for name, build in pairs)
    sequence: Callable[[Any], Any] = {"builtins.list": list, "builtins.tuple": tuple}.get(kind, deque)
    return lambda leaves: sequence([build(leaves) for build in builds])

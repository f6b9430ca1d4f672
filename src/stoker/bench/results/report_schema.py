"""Whether a document is of the shape of a JSON Schema: of the few words that ``results.schema.json`` is written in.

The page and the comparison read files that others made. What is of this shape needs no further questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker.errors import ConfigError, FormatError

__all__ = ["check_shape"]

_DEEPEST: Final = 64
_KNOWN: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "oneOf", "anyOf", "$ref"),
        *("minimum", "maximum", "$defs", "$schema", "title", "description", "minItems", "maxItems"),
    }
)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}


def check_shape(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Check a document, as ``json.loads`` gives it.

    Args:
        value: the document.
        schema: what it should be; ``$ref`` is looked up in its ``$defs``.
        where: its name, for the error.

    Raises:
        FormatError: it is of another shape; says where in it. Numbers that are not finite are of no shape.
        ConfigError: the schema has a word that is not known here.
    """
    said = _wrong(value, schema, schema, "", 0)
    if said is not None:
        raise FormatError(f"{where}: not what stoker bench writes: {said}")


def _wrong(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int) -> str | None:
    """What is wrong, in words; ``None`` where nothing is."""
    unknown = set(schema) - _KNOWN
    if unknown:
        raise ConfigError(f"the schema has the word {min(unknown)!r}, which is not known here")
    at = path or "the document"
    if depth > _DEEPEST:
        return f"{at} is nested more than {_DEEPEST} times"
    if "$ref" in schema:
        return _wrong(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path, depth + 1)
    for word in ("oneOf", "anyOf"):
        if word in schema:
            found = [_wrong(value, one, root, path, depth + 1) for one in schema[word]]
            if None not in found:
                return found[-1]
    types = schema.get("type")
    if types is not None and not any(_is(value, one) for one in ([types] if isinstance(types, str) else types)):
        return f"{at} must be {types if isinstance(types, str) else ' or '.join(types)}, is {_short(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{at} is {value}"
    if "const" in schema and value != schema["const"]:
        return f"{at} must be {schema['const']!r}, is {_short(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} must be one of {schema['enum']}, is {_short(value)}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf):
        return f"{at} is {value}, out of range"
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            return f"{at} has {len(value)} items"
        return _first_wrong_item(value, schema, root, path, depth)
    if isinstance(value, dict):
        return _first_wrong_member(value, schema, root, path, depth)
    return None


def _first_wrong_item(
    value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int
) -> str | None:
    each = schema.get("items")
    if not isinstance(each, Mapping):
        return None
    for k, one in enumerate(value):
        said = _wrong(one, each, root, f"{path}[{k}]", depth + 1)
        if said is not None:
            return said
    return None


def _first_wrong_member(
    value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int
) -> str | None:
    known = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{path or 'the document'} has no {missing[0]!r}"
    others = schema.get("additionalProperties", True)
    for name, one in value.items():
        inner = known.get(name, others)
        if inner is False:
            return f"{path or 'the document'} has {_short(name)}, which nobody knows"
        if isinstance(inner, Mapping):
            said = _wrong(one, inner, root, f"{path}.{name}" if path else name, depth + 1)
            if said is not None:
                return said
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""The description of the system that was measured, for a report: a text, or a YAML file of names and values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from stoker.errors import ConfigError
from stoker_bench.settings.yaml import read_yaml

SystemText: TypeAlias = str | list[tuple[str, Any]]
"""A text, or names and values."""
_MOST_BYTES: Final = 1 << 20
_YAML: Final = (".yaml", ".yml")


def read_system_text(path: Path) -> SystemText:
    """A description for a page.

    Args:
        path: a text, or with the ending ``.yaml`` or ``.yml`` a mapping, such as the system description of MLPerf Storage.

    Returns:
        A text as it is; of a mapping its values with the dotted path of each.

    Raises:
        ConfigError: it can not be read, has more than 1 MiB, is no UTF-8, or is no YAML mapping.
    """
    if path.suffix.lower() in _YAML:
        found = read_yaml(path).plain
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: names and values are expected, such as 'storage: 8 NVMe drives'")
        return list(_flat("", found))
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path} has more than {_MOST_BYTES} bytes: give a description of one page")
        return data.decode()
    except OSError as error:
        raise ConfigError(f"{path} can not be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from None


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves with their dotted paths; parts of a list are counted from 0, and lists of plain values are one leaf."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for at, inner in enumerate(value):
            yield from _flat(f"{name}.{at}", inner)
    else:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else value

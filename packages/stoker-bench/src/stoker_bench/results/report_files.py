"""Results that runs left behind: found below directories, read and checked, as files that anybody may have made."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from stoker.errors import ConfigError, FormatError
from stoker_bench.results.edited import as_measured
from stoker_bench.results.results import RESULTS, schema

_MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's results.

    Attributes:
        folder: where they are.
        name: to tell it from others: the end of the folder's path that no other has.
        result: ``results.json``, checked against its schema.
    """

    folder: Path
    name: str
    result: Mapping[str, Any]

    @property
    def workload(self) -> Mapping[str, Any]:
        """The settings."""
        found: Mapping[str, Any] = self.result["plan"]["workload"]
        return found

    def setting(self, path: str) -> Any:
        """A setting by its dotted path; ``None`` where the file, which may be of another version, has none."""
        value: Any = self.workload
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def number(self, path: str, default: float) -> float:
        """A setting that is a number."""
        value = self.setting(path)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def text(self, path: str) -> str:
        """A setting as text."""
        value = self.setting(path)
        return "" if value is None else str(value)


def find_runs(folders: Sequence[str | os.PathLike[str]]) -> list[RunFiles]:
    """Read all results in directories: each has a ``results.json``, or directories that have one.

    Raises:
        ConfigError: there is none.
        FormatError: one is not what a run writes.
    """
    found: list[Path] = []
    for one in folders:
        folder = Path(one).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a directory: give those that --results named")
        inside = (
            [folder] if (folder / RESULTS).is_file() else sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
        )
        if not inside:
            raise ConfigError(f"{folder} holds no results: there is no {RESULTS} in it, nor in directories in it")
        found += [path for path in inside if path.resolve() not in {other.resolve() for other in found}]
    names = _names(found)
    return [RunFiles(folder, name, read_run(folder)) for folder, name in zip(found, names, strict=True)]


def read_run(folder: Path) -> dict[str, Any]:
    """``results.json`` of a directory; one that was changed after its run is invalid, see :mod:`stoker_bench.results.edited`.

    Raises:
        FormatError: it is not what a run writes, or has more than 256 MiB.
    """
    path = folder / RESULTS
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise FormatError(f"{path} has {size} bytes, more than results have: {_MOST_BYTES}")
        found = json.loads(path.read_bytes(), parse_constant=_finite, parse_float=_finite)
    except OSError as error:
        raise FormatError(f"{path} can not be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {str(error)[:200]}") from None
    _check_shape(found, str(path))
    return as_measured(found, folder)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def _check_shape(found: Any, where: str) -> None:
    """Check a document against the schema, so that what reads it needs no further questions."""
    validator = _validator()
    from jsonschema.exceptions import best_match

    try:
        wrong = best_match(validator.iter_errors(found))
    except RecursionError:
        raise FormatError(f"{where}: not what stoker bench writes: it is nested too deeply") from None
    if wrong is not None:
        said = wrong.message if len(wrong.message) <= 200 else f"{wrong.message[:200]}..."
        raise FormatError(f"{where}: not what stoker bench writes: {wrong.json_path}: {said}")


@cache
def _validator() -> Any:
    import jsonschema  # takes long

    # For JSON Schema 1.0 is an integer, which Python does not take for an index or a count.
    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=types)(schema())


def _names(folders: Sequence[Path]) -> list[str]:
    """Of each as many of the last parts of its path as tell it from all others."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]

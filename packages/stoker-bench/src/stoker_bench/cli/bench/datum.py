"""Numbers of results on a page, as they are in the file and in words, and names of epochs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from markupsafe import Markup

from stoker_bench.results.report_files import RunFiles

NOTHING: Final = "-"
"""For what was not measured."""


def datum(k: int, run: RunFiles, path: str, words: Callable[[Any], str]) -> str:
    """A ``<data>`` element whose ``value`` is the number as it is in ``results.json``.

    Args:
        k: number of the run on the page, counted from 0.
        run: the run.
        path: where in the file, with dots.
        words: what is shown.
    """
    value = value_at(run.result, path)
    if value is None:
        return NOTHING
    element = Markup('<data value="{}" data-run="{}" data-path="{}">{}</data>')
    return element.format(json.dumps(value), k, path, words(value))


def value_at(result: Mapping[str, Any], path: str) -> Any:
    """The value at a path with dots, or ``None``."""
    value: Any = result
    for name in path.split("."):
        if value is None:
            break
        value = value[int(name)] if isinstance(value, list) else value.get(name)
    return value


def epoch_name(result: Mapping[str, Any], epoch: Mapping[str, Any]) -> str:
    """The name of an epoch: ``2``, or ``0.2`` where the training is repeated; ``eval 2`` of an evaluation.

    Args:
        result: ``results.json``, whose settings may be of another version.
        epoch: one of its epochs.
    """
    train = result["plan"]["workload"].get("train")
    repeats = train.get("repeats") if isinstance(train, Mapping) else None
    several = (isinstance(repeats, int) and repeats > 1) or epoch["repeat"] > 0
    number = f"{epoch['repeat']}.{epoch['epoch']}" if several else str(epoch["epoch"])
    return number if epoch["kind"] == "train" else f"eval {number}"

"""Whether runs may be compared, and what differs beside their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stoker.errors import ConfigError
from stoker_bench.results.report_files import RunFiles

_SAME: Final = (
    *("compute.kind", "compute.seconds", "compute.device", "compute.hidden"),
    *("dataset.files", "dataset.samples_per_file", "dataset.record_bytes", "dataset.record_bytes_stdev"),
    *("dataset.resize_bytes", "dataset.columns"),
    *("reader.batch_size", "reader.decode", "reader.checksums", "reader.shuffle", "reader.last_batch"),
    *("storage.cache", "train.steps", "train.barrier", "metric.exclude_start", "metric.exclude_end"),
)
"""Settings that make a workload what it is. Others, such as the loader, are what is compared."""
_SAME_CHECKPOINTS: Final = ("model", "checkpoint.fsync", "checkpoint.ranks")
"""Settings that are compared, too, where checkpoints were saved or loaded."""


def apart(a: Sequence[RunFiles], b: Sequence[RunFiles], force: bool) -> list[str]:
    """The differences of the workloads, in sentences.

    Raises:
        ConfigError: something does, and ``force`` was not given.
    """
    first = a[0]
    found: dict[str, str] = {}
    saved = any(run.result["checkpoint"] is not None for run in [*a, *b])
    for run in [*a[1:], *b]:
        for path in (*_SAME, *(_SAME_CHECKPOINTS if saved else ())):
            if run.setting(path) != first.setting(path):
                found.setdefault(path, f"{path} is {_text(first.setting(path))} and {_text(run.setting(path))}")
        ranks = first.result["world"]["ranks"], run.result["world"]["ranks"]
        if ranks[0] != ranks[1]:
            found.setdefault("ranks", f"there are {ranks[0]} and {ranks[1]} accelerators")
    if found and not force:
        raise ConfigError(
            f"these are not runs of one workload: {'; '.join(found.values())}. --force compares them all the same"
        )
    return [f"Workloads differ: {said}." for said in found.values()]


def warnings(runs: Sequence[RunFiles], force: bool) -> list[str]:
    """The runs that did not end, or broke a rule, in sentences.

    Raises:
        ConfigError: one did not end, and ``force`` was not given.
    """
    said: list[str] = []
    broken: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        if not run.result["complete"]:
            if not force:
                raise ConfigError(
                    f"{run.folder} did not finish ({run.result['failure'] or 'ranks are missing'}): "
                    "--force compares what there is"
                )
            said.append(f"{run.name} did not finish.")
        rules = sorted({finding["rule"] for finding in run.result["findings"] if finding["invalid"]} - {"complete"})
        if rules:
            broken.setdefault(tuple(rules), []).append(run.name)
    for rules_of, names in broken.items():
        what = "a rule" if len(rules_of) == 1 else "rules"
        said.append(
            f"{', '.join(dict.fromkeys(names))} broke {what} ({', '.join(rules_of)}): do not rely on these numbers."
        )
    return said


def differing_conditions(a: Sequence[RunFiles], b: Sequence[RunFiles]) -> dict[str, tuple[str, str]]:
    """Settings, versions and machines that are not alike: what, to both sides' values."""
    sides = [[dict(_circumstances(run)) for run in side] for side in (a, b)]
    names = dict.fromkeys(name for side in sides for run in side for name in run)
    found = {}
    for name in names:
        left, right = (" | ".join(dict.fromkeys(run.get(name, "not there") for run in side)) for side in sides)
        if left != right:
            found[name] = (left, right)
    return found


def _circumstances(run: RunFiles) -> Iterator[tuple[str, str]]:
    result = run.result
    for path, value in _flat(run.workload):
        if path not in {"storage.url", "stages"}:
            yield f"settings {path}", _text(value)
    yield "data", result["storage"]["url"]
    yield "file system or store", result["storage"]["kind"]
    yield "accelerators", str(result["world"]["ranks"])
    yield "hosts", " ".join(result["world"]["hosts"])
    yield "launcher", result["world"]["launcher"]
    environment = result["environment"]
    for name in ("system", "processor", "processors", "processors_usable", "memory_bytes"):
        yield f"environment {name}", _text(environment[name])
    for name, version in environment["versions"].items():
        yield f"version {name}", version
    for epoch in result["epochs"]:
        if epoch["loader"] is not None:
            for name in ("decoded", "parallel", "order"):
                yield f"loader {name}", epoch["loader"][name]
            for name, version in epoch["loader"]["versions"].items():
                yield f"version {name}", version
            break


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

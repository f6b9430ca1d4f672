"""The numbers in the rules of MLPerf Storage, by edition: workloads, utilization, runs, ranks.

They are those of mlcommons/storage: Rules.md and the submission checker of 2026 for v3, and the submission guidelines of
June 2025 with ``mlpstorage`` 2.0 for v2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from stoker.bench.settings.workload import Workload
from stoker.errors import ConfigError

MlperfDivision = Literal["closed", "open"]


@dataclass(frozen=True, slots=True)
class Edition:
    """A round of MLPerf Storage.

    Attributes:
        name: ``v2`` or ``v3``.
        utilization: least accelerator utilization of each training workload, 0 to 1.
        accelerators: memory in GB of each accelerator that is simulated.
        runs: how many training runs make a result, least and most. One of the most is a warm-up that is not reported.
        subsets: models of whose checkpoints 8 ranks may save a part, in the closed division.
    """

    name: str
    utilization: Mapping[str, float]
    accelerators: Mapping[str, int]
    runs: tuple[int, int]
    subsets: frozenset[str]


EDITIONS: Final[Mapping[str, Edition]] = {
    one.name: one
    for one in (
        Edition(
            "v2",
            {"unet3d": 0.90, "resnet50": 0.90, "cosmoflow": 0.70},
            {"a100": 80, "h100": 80},
            (5, 6),
            frozenset({"llama3-8b", "llama3-70b", "llama3-405b", "llama3-1t"}),
        ),
        Edition(
            "v3",
            {"unet3d": 0.90, "retinanet": 0.85},
            {"b200": 180, "mi355": 288},
            (6, 6),
            frozenset({"llama3-8b"}),
        ),
    )
}
RANKS: Final[Mapping[str, int]] = {"llama3-8b": 8, "llama3-70b": 64, "llama3-405b": 512, "llama3-1t": 1024}
"""Ranks that save the whole checkpoint of a model: tensor x pipeline x data parallelism."""
GROUPS: Final[Mapping[str, int]] = {"llama3-8b": 1, "llama3-70b": 8, "llama3-405b": 256, "llama3-1t": 512}
"""Tensor x pipeline parallelism; in the open division ranks are a multiple of it."""
SUBSET_RANKS: Final = 8
CHECKPOINTS: Final = 10
"""Checkpoints that are written, and read."""
LEAST_PER_HOST: Final = 5
"""Accelerators of a host that saves checkpoints, in the closed division: more than 4."""


def named_rules(name: str) -> tuple[Edition, MlperfDivision]:
    """The edition and the division of a name of ``metric.rules``.

    Raises:
        ConfigError: it names no rules of MLPerf Storage.
    """
    found = re.fullmatch(r"mlperf(-v2)?(-open)?", name)
    if found is None:
        raise ConfigError(f"{name!r} names no rules of MLPerf Storage: mlperf, mlperf-open, mlperf-v2, mlperf-v2-open")
    return EDITIONS["v2" if found[1] else "v3"], "open" if found[2] else "closed"


def checkpoint_model(name: str) -> str | None:
    """MLPerf's name of a model whose checkpoints are saved, such as ``llama3-8b``; ``None`` where it has none."""
    found = re.fullmatch(r"llama3?[-_. ]?(8b|70b|405b|1t)(?:[-_]checkpoint)?", name.lower())
    return None if found is None else f"llama3-{found[1]}"


def published(workload: Workload, edition: Edition) -> tuple[str, Workload] | None:
    """The published workload that a workload is, with its name; ``None`` where the edition has no such.

    Where the workload names no accelerator, as DLIO's files do not, its time of computation tells which it is.
    """
    from stoker.bench.settings.sources import read_workload, shipped

    model = checkpoint_model(workload.name)
    wanted = (
        [f"{model.replace('llama3', 'llama')}-checkpoint"]
        if model is not None
        else [f"{workload.name}-{accelerator}" for accelerator in edition.accelerators]
        if workload.name in edition.utilization
        else []
    )
    found = [(name, read_workload(name, environ={}, dotenv=None).workload) for name in wanted if name in shipped()]
    if model is not None:
        return found[0] if found else None
    for name, one in found:
        if workload.accelerator == one.accelerator:
            return name, one
        if workload.accelerator == "none" and workload.compute.seconds == one.compute.seconds:
            return name, one
    return None

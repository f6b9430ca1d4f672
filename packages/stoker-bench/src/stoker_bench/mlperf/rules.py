"""The rules of MLPerf Storage: numbers by edition, settings that may be changed, and the data set that they demand.

They are those of mlcommons/storage: Rules.md and the submission checker of 2026 for v3, and the submission guidelines of
June 2025 with ``mlpstorage`` 2.0 for v2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.errors import ConfigError
from stoker_bench.settings.dlio_keys import KEYS
from stoker_bench.settings.sources import read_workload, shipped
from stoker_bench.settings.workload import Workload, as_plain

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


_TRAINING: Final = ("compute", "dataset", "reader", "train", "metric")
_CHECKPOINTING: Final = ("model", "checkpoint")
_OURS: Final = frozenset(
    {
        *("train.repeats", "train.seed", "reader.decode", "reader.bind", "reader.options", "reader.batch_size_eval"),
        "reader.checksums",
        *(
            "dataset.files_eval",
            "dataset.dlio",
            "metric.rules",
            "metric.calibrate",
            "metric.calibrate_bytes",
            "model.data",
        ),
        *("checkpoint.url", "checkpoint.options", "checkpoint.keep", "checkpoint.verify", "checkpoint.shift"),
        *("checkpoint.writes", "checkpoint.reads"),
    }
)
"""Settings that change no workload: how often it runs, where it writes, what else is measured. ``writes`` and ``reads`` have
a rule of their own."""
_CLOSED: Final = frozenset({"dataset.files", "dataset.subfolders", "reader.threads", "reader.prefetch"})
_OPEN: Final = frozenset({"dataset.format", "dataset.samples_per_file", "reader.loader"})
_LOADERS: Final = ("stoker", "torch")
"""Loaders that take the place of DLIO's in the closed division."""
_MOST_PREFETCH: Final = 2


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A setting that differs from the published workload.

    Attributes:
        path: the dotted setting.
        seen, wanted: its value, and the published one.
        allowed: the division from which on it may be changed; ``None`` for none.
    """

    path: str
    seen: Any
    wanted: Any
    allowed: MlperfDivision | None

    def breaks(self, division: MlperfDivision) -> bool:
        """Whether the rules of a division do not allow this change."""
        return self.allowed is None or (self.allowed == "open" and division == "closed")


def changes(workload: Workload, original: Workload) -> list[ParameterChange]:
    """The settings of a workload that differ from the published one, of the parts that its stages use."""
    sections = (_TRAINING if "train" in workload.stages else ()) + (
        _CHECKPOINTING if "checkpoint" in workload.stages else ()
    )
    mine, theirs = (
        {path: value for name in sections for path, value in _flat(as_plain(getattr(one, name)), name)}
        for one in (workload, original)
    )
    found = [
        ParameterChange(path, value, theirs[path], _allowed(path, value))
        for path, value in mine.items()
        if path in theirs and value != theirs[path] and path not in _OURS
    ]
    if workload.storage.client == "direct" and "train" in workload.stages and workload.name != "unet3d":
        found.append(ParameterChange("storage.client", "direct", "auto", None))
    return found


def _allowed(path: str, value: Any) -> MlperfDivision | None:
    if path == "reader.loader" and value in _LOADERS:
        return "closed"
    if path == "reader.prefetch" and value > _MOST_PREFETCH:
        return None
    return "closed" if path in _CLOSED else "open" if path in _OPEN else None


def dlio_name(path: str) -> str:
    """DLIO's name of a setting; the setting's own where DLIO has none."""
    return next((name for name, key in KEYS.items() if key.ours == path), path)


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and path.count(".") < 1:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}")
    else:
        yield path, value


STEPS: Final = 500
"""Steps of an epoch, at least."""
MEMORIES: Final = 5
"""Times the memory of all hosts, at least."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The data set that the rules demand.

    Attributes:
        accelerators, hosts: for which.
        host_memory_bytes: of each host.
        samples_for_steps: ``500 x batch size x accelerators``.
        samples_for_memory: ``5 x hosts x memory / bytes of a sample``, rounded up.
        samples: the larger one.
        files: that hold them, rounded up.
        bytes: of so many files, by the nominal size of a sample.
        decides: which of the two it was, ``steps`` or ``memory``.
        enough: whether the workload's own data set has so many samples.
    """

    accelerators: int
    hosts: int
    host_memory_bytes: int
    samples_for_steps: int
    samples_for_memory: int
    samples: int
    files: int
    bytes: int
    decides: str
    enough: bool


def demanded(workload: Workload, accelerators: int, hosts: int, host_memory_bytes: int) -> Demand:
    """Compute the data set that the rules demand of a workload.

    Args:
        workload: of which the batch size, the size of a sample and the samples of a file count.
        accelerators: of all hosts.
        hosts: at least 1.
        host_memory_bytes: of each host.

    Raises:
        ConfigError: a number is below 1, or the workload trains nothing.
    """
    for name, value in (("accelerators", accelerators), ("hosts", hosts), ("host memory", host_memory_bytes)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if {"generate", "train"}.isdisjoint(workload.stages):
        raise ConfigError(
            f"{workload.name} trains nothing (stages: {', '.join(workload.stages)}), and the rules demand a data set of "
            "trainings alone"
        )
    dataset = workload.dataset
    for_steps = STEPS * workload.reader.batch_size * accelerators
    for_memory = -(-MEMORIES * hosts * host_memory_bytes // dataset.sample_bytes)
    samples = max(for_steps, for_memory)
    files = -(-samples // dataset.samples_per_file)
    return Demand(
        accelerators,
        hosts,
        host_memory_bytes,
        for_steps,
        for_memory,
        samples,
        files,
        files * dataset.samples_per_file * dataset.sample_bytes,
        "steps" if for_steps >= for_memory else "memory",
        dataset.files * dataset.samples_per_file >= samples,
    )

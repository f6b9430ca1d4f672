"""The size that a data set needs for a result to count, by the rules of MLPerf Storage.

That is section 3.1 of mlcommons/storage's Rules.md: so many samples that an epoch has 500 steps, and so many bytes that they
are 5 times the memory of all hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.bench.settings.workload import Workload
from stoker.errors import ConfigError

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

"""The extent of a run, by its settings alone: files, bytes, steps, and the time that accelerators compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from stoker.display import counted
from stoker.errors import ConfigError
from stoker_bench.settings.workload import Workload


@dataclass(frozen=True, slots=True)
class RunExtent:
    """The extent of a run.

    Attributes:
        files, samples, bytes: of the data set, with the files of evaluation; ``bytes`` by the nominal size of a sample.
        steps: of each accelerator in an epoch.
        read_bytes: that all accelerators read in all epochs, by the nominal size of what they use of a sample.
        seconds: that an accelerator computes in all epochs: the run takes at least as long.
    """

    files: int
    samples: int
    bytes: int
    steps: int
    read_bytes: int
    seconds: float


def extent(workload: Workload, accelerators: int) -> RunExtent:
    """Compute the extent of a run on so many accelerators.

    Example:
        >>> from stoker_bench.settings.sources import read_workload
        >>> found = extent(read_workload("unet3d-h100", environ={}, dotenv=None).workload, 4)
        >>> found.files, found.steps, round(found.seconds, 2)
        (168, 6, 9.69)
    """
    dataset, train = workload.dataset, workload.train
    files = dataset.files + dataset.files_eval
    samples = files * dataset.samples_per_file
    steps = epoch_steps(workload, accelerators) if "train" in workload.stages else 0
    rounds = train.epochs * train.repeats
    batches = steps * rounds * accelerators
    return RunExtent(
        files,
        samples,
        samples * dataset.sample_bytes,
        steps,
        batches * workload.reader.batch_size * dataset.used_bytes,
        steps * rounds * workload.compute.seconds.expected,
    )


def epoch_steps(workload: Workload, accelerators: int) -> int:
    """Steps of each accelerator in an epoch of training; of the one that has the most, where the last batch is kept."""
    dataset, train = workload.dataset, workload.train
    samples = dataset.files * dataset.samples_per_file
    if workload.reader.last_batch == "keep":
        samples += workload.reader.batch_size * accelerators - 1
    steps = workload.steps_of(samples, accelerators)
    return steps if train.steps is None else min(steps, train.steps)


def counted_steps(workload: Workload, accelerators: int) -> int:
    """Steps of the longest block of an epoch that count; 0 or less where none does."""
    steps, metric = epoch_steps(workload, accelerators), workload.metric
    return min(steps, workload.block_steps or steps) - metric.exclude_start - metric.exclude_end


def training_checkpoints(workload: Workload, accelerators: int) -> int:
    """Checkpoints that are saved in training, of all epochs and repeats."""
    checkpoint, train = workload.checkpoint, workload.train
    if "train" not in workload.stages or "checkpoint" not in workload.stages:
        return 0
    if checkpoint.every_steps is not None:
        made = train.epochs * (epoch_steps(workload, accelerators) // checkpoint.every_steps)
    else:
        made = max(0, (train.epochs - checkpoint.after_epoch) // checkpoint.every_epochs + 1)
    return made * train.repeats


def check_batches(workload: Workload, samples: int, accelerators: int) -> None:
    """See that samples give each rank a full batch, where batches that are not full are left out.

    Raises:
        ConfigError: they do not.
    """
    if workload.reader.last_batch == "drop" and not workload.steps_of(samples, accelerators):
        raise ConfigError(
            f"no step: {counted(samples, 'sample')} make no batch of {workload.reader.batch_size} (reader.batch_size) for "
            f"each of {counted(accelerators, 'accelerator')}: take a smaller batch, fewer accelerators or more files "
            "(dataset.files)"
        )


_STEPS: Final = 4
"""Steps of a block of a scaled run at least, where the workload has as many: one to warm up, and some that count."""
SMOKE_BYTES: Final = 1 << 30
"""Bytes of the data set of a smoke test at most, unless its least steps need more."""
SMOKE_SECONDS: Final = 60
"""Seconds that accelerators compute in a smoke test at most, unless its least steps take longer."""
_LEAST_SECONDS: Final = 10.0
"""Seconds of the stage ``kv_cache`` of a scaled run at least."""


def scaled(workload: Workload, part: float, accelerators: int, *, smoke: bool = False) -> dict[str, Any]:
    """Settings of a small run of a workload: fewer files, epochs and checkpoints, and a smaller model in these.

    Samples, batches, and the time of a step stay.

    Args:
        workload: the whole.
        part: of its files, above 0 and up to 1.
        accelerators: of the run.
        smoke: keep below :data:`SMOKE_BYTES` and :data:`SMOKE_SECONDS`, too.

    Returns:
        Dotted paths of settings, and their values.
    """
    dataset, model, train = workload.dataset, workload.model, workload.train
    least_steps = max(_STEPS, workload.metric.exclude_start + workload.metric.exclude_end + 1)
    least = -(-least_steps * workload.reader.batch_size * accelerators // dataset.samples_per_file)
    files = round(dataset.files * part)
    if smoke:
        files = min(files, SMOKE_BYTES // (dataset.samples_per_file * dataset.sample_bytes))
    files = min(dataset.files, max(least, files))
    made: dict[str, Any] = {"metric.smoke": True, "dataset.files": files, "train.epochs": 1, "train.repeats": 1}
    steps = workload.steps_of(files * dataset.samples_per_file, accelerators)
    if train.steps is not None:
        steps = min(steps, max(least_steps, round(train.steps * part)))
        made["train.steps"] = max(1, steps)
    each = workload.compute.seconds.expected
    if smoke and steps > least_steps and steps * each > SMOKE_SECONDS:
        made["train.steps"] = max(least_steps, int(SMOKE_SECONDS / each))
    if workload.block_steps is not None:
        made["checkpoint.every_steps"] = min(workload.block_steps, max(least_steps, made.get("train.steps", steps)))
    if dataset.files_eval:
        least = -(-workload.reader.batch_size_eval * accelerators // dataset.samples_per_file)
        made["dataset.files_eval"] = min(dataset.files_eval, max(least, round(dataset.files_eval * part)))
        made["evaluation.after_epoch"] = 1
    if "checkpoint" in workload.stages:
        checkpoint = workload.checkpoint
        made |= {"checkpoint.writes": min(1, checkpoint.writes), "checkpoint.reads": min(1, checkpoint.reads)}
        made |= {"checkpoint.after_epoch": 1, "model.size_bytes": round(model.size_bytes * part)}
        made["model.layers"] = min(model.layers, max(model.pipeline, round(model.layers * part)))
        made["model.vocab_size"] = max(1, round(model.vocab_size * part))
    if "kv_cache" in workload.stages:
        cache = workload.kv_cache
        made |= {"kv_cache.users": min(cache.users, max(4, round(cache.users * part))), "kv_cache.repeats": 1}
        made["kv_cache.seconds"] = min(cache.seconds, max(_LEAST_SECONDS, cache.seconds * part))
        made["kv_cache.requests"] = cache.requests and max(10, round(cache.requests * part))
    if "vectors" in workload.stages:
        vectors = workload.vectors
        made |= {"vectors.count": min(vectors.count, max(5000, round(vectors.count * part))), "vectors.repeats": 1}
        made["vectors.queries"] = min(vectors.queries, max(100, round(vectors.queries * part)))
    return made

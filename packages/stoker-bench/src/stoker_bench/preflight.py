"""Checks before a run: what its settings, packages and free space tell, before anything is started, generated or read."""

from __future__ import annotations

from typing import Final

from stoker.cluster import World
from stoker.display import counted
from stoker.errors import ConfigError
from stoker.storage import is_local, open_store
from stoker_bench.checkpoint.layout import checkpoint_layout
from stoker_bench.checkpoint.saver import check_checkpoint_space, open_checkpoint_store
from stoker_bench.generation.files import EXACT
from stoker_bench.kv_cache.stage import check_capacity, check_kv_cache
from stoker_bench.loaders import LoaderJob, check_client, find_loader, get_loader, reads_files
from stoker_bench.loaders.base import Split
from stoker_bench.loaders.decode import suffixes
from stoker_bench.loaders.listing import find_files
from stoker_bench.measure.generation import check_space, check_spec, spec_of
from stoker_bench.measure.page_cache import existing_path, file_system
from stoker_bench.mlperf.verdict import foreseen_findings
from stoker_bench.ranks.plan import NO_DATA, RunPlan
from stoker_bench.settings.extent import check_batches, counted_steps, epoch_steps, training_checkpoints
from stoker_bench.settings.workload import Workload
from stoker_bench.vectors.stage import check_vectors, check_vectors_space

_MOST_RANKS: Final = 1024
"""Ranks whose users are drawn to find the longest context."""


def check_settings(workload: Workload, ranks: int) -> None:
    """See whether a run of these settings can measure what its stages are for, whatever the storage is.

    Args:
        workload: all settings.
        ranks: accelerators of the run.

    Raises:
        ConfigError: it can not: a name that is unknown, no batch, no step that counts, no evaluation or checkpoint that would
            ever come, a budget that the first entries exceed. Names the setting, and both numbers.
        StokerError: the format's or loader's own refusal.
    """
    stages, loader = workload.stages, find_loader(workload.reader.loader)
    if "generate" in stages:
        spec_of(workload)
    if "train" in stages:
        if workload.reader.loader != "synthetic":
            suffixes(workload.dataset.format)
        check = getattr(loader, "check", None)
        if check is not None:
            check(workload, ranks)
        _check_training(workload, ranks)
        _check_evaluation(workload, ranks)
        _check_calibration(workload, ranks)
    if "checkpoint" in stages:
        checkpoint_layout(workload.model, ranks, all_write=workload.checkpoint.ranks == "all")
        _check_checkpoints(workload, ranks)
    if "kv_cache" in stages and workload.kv_cache.capacity_bytes:
        check_capacity(workload, range(min(ranks, _MOST_RANKS)), workload.kv_cache.capacity_bytes)


def check_packages(plan: RunPlan) -> None:
    """See that this process can do what is asked for, with what is installed here.

    Raises:
        ConfigError: the store, client or format refuses it.
        MissingPackageError: a package is missing; says how to get it.
    """
    workload, url = plan.workload, plan.url
    get_loader(workload.reader.loader)
    check_client(workload, None if url == NO_DATA else url)
    if url != NO_DATA:
        open_store(url, workload.storage.store_options(url))  # which refuses what makes no sense
    if "checkpoint" in workload.stages:
        open_checkpoint_store(plan)
    if "generate" in workload.stages:
        check_spec(workload)
    if "vectors" in workload.stages:
        check_vectors(url)


def check_data(plan: RunPlan) -> None:
    """See that the files that are read are there, unless the run makes them, before it leaves anything of its own.

    Raises:
        ObjectNotFoundError: there are fewer than the workload says; says how to make them.
        StorageError: the storage can not be read.
    """
    workload = plan.workload
    stages = workload.stages
    if "train" not in stages or "generate" in stages or not reads_files(workload.reader.loader):
        return
    splits: tuple[Split, ...] = ("train", "valid") if "evaluate" in stages else ("train",)
    for split in splits:
        find_files(LoaderJob(workload, split, plan.url, World(), 0, 1))


def check_room(plan: RunPlan, world: World) -> None:
    """See that what is to be written has room, where this process sees its directory, and memory.

    Args:
        plan: the run.
        world: the first rank of this host.

    Raises:
        StorageFullError: it has not; says how much is needed, and how much is free.
        ConfigError: the KV cache's budgets do not fit this host.
    """
    workload = plan.workload
    if "generate" in workload.stages and world.rank == 0:
        check_space(workload, plan.url)
    if "checkpoint" in workload.stages:
        check_checkpoint_space(plan, world)
    if "kv_cache" in workload.stages:
        check_kv_cache(plan, world)
    if "vectors" in workload.stages:
        check_vectors_space(workload.vectors, plan.url)


def foreseen(workload: Workload, url: str | None) -> list[str]:
    """Reasons for which a run's result will be invalid, which it may have all the same: to try things out.

    Args:
        workload: all settings.
        url: of the data, where it is not ``storage.url``.
    """
    stages, data, found = workload.stages, url or workload.storage.url, list(foreseen_findings(workload))
    checkpoint = workload.checkpoint
    saved = checkpoint.url or data
    if "train" in stages and workload.reader.loader == "synthetic":
        found.append("the loader synthetic reads nothing: the result is the harness's own cost")
    if "checkpoint" in stages and checkpoint.writes and not checkpoint.fsync and saved and is_local(saved):
        found.append("checkpoint.fsync is false: saving may end in memory")
    if "kv_cache" in stages and not workload.kv_cache.fsync and data and is_local(data):
        found.append("kv_cache.fsync is false: an entry that counts as written may be in memory alone")
    places = {data if {"train", "kv_cache"} & {*stages} else None, saved if "checkpoint" in stages else None}
    for place in sorted(one for one in places if one is not None):
        folder = is_local(place)
        kind, memory = ("", False) if folder is None else file_system(existing_path(folder))
        if memory:
            found.append(f"{place} is in memory ({kind}): no storage is measured")
    return found


def _check_training(workload: Workload, ranks: int) -> None:
    dataset, train, metric = workload.dataset, workload.train, workload.metric
    samples = dataset.files * dataset.samples_per_file
    check_batches(workload, samples, ranks)
    steps, left_out = epoch_steps(workload, ranks), metric.exclude_start + metric.exclude_end
    if counted_steps(workload, ranks) > 0:
        return
    per_block = workload.block_steps
    if per_block is not None and per_block < steps:
        have = f"a block has {counted(per_block, 'step')} (checkpoint.every_steps)"
    elif steps == train.steps:
        have = f"train.steps {steps} leaves no step to measure"
    else:
        have = (
            f"an epoch has {counted(steps, 'step')}, of {counted(samples, 'sample')} in batches of "
            f"{workload.reader.batch_size} for {counted(ranks, 'accelerator')}"
        )
    raise ConfigError(
        f"no step counts: {have}, and {left_out} do not count (metric.exclude_start {metric.exclude_start} + "
        f"metric.exclude_end {metric.exclude_end}): leave out fewer, or take more steps"
    )


def _check_evaluation(workload: Workload, ranks: int) -> None:
    if "evaluate" not in workload.stages:
        return
    dataset, after, epochs = workload.dataset, workload.evaluation.after_epoch, workload.train.epochs
    if after > epochs:
        raise ConfigError(
            f"nothing is evaluated: the first evaluation comes after epoch {after} (evaluation.after_epoch), of {epochs} "
            "(train.epochs)"
        )
    samples, batch = dataset.files_eval * dataset.samples_per_file, workload.reader.batch_size_eval
    if workload.reader.last_batch == "drop" and samples < batch * ranks:
        raise ConfigError(
            f"nothing is evaluated: {counted(samples, 'sample')} make no batch of {batch} (reader.batch_size_eval) for each "
            f"of {counted(ranks, 'accelerator')}: take a smaller batch, fewer accelerators or more files "
            "(dataset.files_eval)"
        )


def _check_checkpoints(workload: Workload, ranks: int) -> None:
    """See that a checkpoint is ever saved or loaded."""
    checkpoint, epochs = workload.checkpoint, workload.train.epochs
    if checkpoint.writes or checkpoint.reads or training_checkpoints(workload, ranks):
        return
    if "train" not in workload.stages:
        raise ConfigError("nothing to do: without training, checkpoint.writes or checkpoint.reads say how many")
    if checkpoint.every_steps is not None:
        steps = counted(epoch_steps(workload, ranks), "step")
        why = f"after {checkpoint.every_steps} steps (checkpoint.every_steps), and an epoch has {steps}"
    else:
        why = f"after epoch {checkpoint.after_epoch} (checkpoint.after_epoch), of {epochs} (train.epochs)"
    raise ConfigError(
        f"no checkpoint is saved: the first comes {why}; checkpoint.writes and checkpoint.reads, of those apart from "
        "training, are 0"
    )


def _check_calibration(workload: Workload, ranks: int) -> None:
    """See that the copy in memory has as many steps as are left out, where it is known how large a file is."""
    dataset, metric = workload.dataset, workload.metric
    known = dataset.format in EXACT and dataset.compression == "none" and not dataset.record_bytes_stdev
    if not metric.calibrate or not known:
        return
    each = dataset.samples_per_file * dataset.sample_bytes
    files = min(dataset.files, metric.calibrate_bytes // each)
    samples, left_out = files * dataset.samples_per_file, metric.exclude_start + metric.exclude_end
    steps = workload.steps_of(samples, ranks)
    if steps <= left_out:
        needed = -(-(left_out + 1) * workload.reader.batch_size * ranks // dataset.samples_per_file)
        raise ConfigError(
            f"the calibration has no step that counts: metric.calibrate_bytes {metric.calibrate_bytes:,} are "
            f"{counted(files, 'file')} and {counted(steps, 'step')}, and {left_out} do not count (metric.exclude_start + "
            f"metric.exclude_end): {needed} files need {needed * each:,} bytes"
        )

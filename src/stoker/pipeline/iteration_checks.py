"""Checks of an iteration that begins, and what is told of it: a trainer's wrapper may stand around the dataset."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from stoker.cluster.outer_division import REMEDY, OuterDivision, skipped_batches
from stoker.errors import ConfigError
from stoker.order.global_batches import BatchPlan, DevicePlan
from stoker.order.sample_order import EpochPosition, Plan, Run, SampleOrder
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.transforms import EpochReaderSettings, Override
from stoker.reading.chain import as_chain
from stoker.reading.steps import Step

logger = logging.getLogger(__name__)


def check_as_begun(rank_finder: DataRankFinder, division: OuterDivision | None, ranks: int, batch_size: int) -> None:
    """See that no wrapper has come around an iteration that began without one, and no other ranks beside it.

    ConfigError if one has, and would divide samples that the dataset has divided; or there are other ranks, which read the
    same samples.
    """
    if division is not None:
        return
    if (now := rank_finder.division()) is not None:
        raise ConfigError(
            f"this iteration began, and gave its first sample, before {now.wrapper} was around it: the dataset has "
            f"divided its samples among the ranks, and {now.wrapper} divides once more. Begin the iteration where the "
            "loader asks for samples, such as in __iter__ of an iterable between"
        )
    joined = rank_finder.data_rank(batch_size).world_size
    if joined > ranks:
        raise ConfigError(
            f"this iteration began as that of 1 rank of {ranks}, and this process has become 1 of {joined} since, so "
            "that samples would come more than once: begin iterations after init_process_group"
        )


def check_sample_steps(
    settings: EpochReaderSettings, override: Override | None, *, alone: bool, keeps_places: bool
) -> None:
    """See that samples can be delivered one by one with these settings.

    Args:
        settings: with the steps of the transform.
        override: a method of a subclass that makes samples.
        alone: whether all samples are delivered by this process.
        keeps_places: whether something stands for each sample that is left out.

    Raises:
        ConfigError: a step makes batches; a subclass makes one sample of one, and a step does not; or batches are made
            elsewhere of the samples, which would then hold samples of the batch that follows, and ranks would take more or
            fewer steps.
    """
    if any(step.takes_batch for step in settings.steps):
        raise ConfigError(
            "batch_map() needs batches, and these are single samples: iterate over batches() or a StreamingDataLoader"
        )
    if override is not None:
        check_override(settings)
    if settings.leaves_out and not (keeps_places or alone):
        raise ConfigError(
            f"{settings.leaves_out} leaves ranks and workers with different numbers of samples, while batches are made "
            f"outside of stoker: use {settings.instead_of_leaving_out}a StreamingDataLoader without a wrapper, or batches()"
        )


def check_override(settings: EpochReaderSettings) -> None:
    """See that a method of a subclass gets one sample for each id. ConfigError if a step gives none or several."""
    if any(step.drops or step.makes_several for step in settings.all_steps):
        raise ConfigError(
            "filter(), flat_map() and join(missing='leave_out') give no sample or several of one id, and a subclass that "
            "overrides __getitem__ gives one for each: let map() do what it does"
        )


def check_by_id(settings: EpochReaderSettings) -> None:
    """See that samples can be read by id with these settings.

    ConfigError if a step needs a batch or a position, or may not make one sample of one.
    """
    unfit = next((step for step in settings.all_steps if not step.makes_one), None)
    if unfit is not None:
        # Its first steps were made one, which nobody wrote.
        unfit = next((step for step in as_chain(settings.transform).steps if not step.makes_one), unfit)
        raise ConfigError(
            f"{settings.transform!r}: samples by id come one for one, without an epoch, and {unfit.told} needs an epoch "
            "or a batch, or changes how many there are: iterate, or use read(ids), which gives stored columns"
        )


def check_positions(steps: Sequence[Step], run: Run) -> None:
    """See that ``enumerate`` has positions that are the same in any world, where batches of one stream are as large.

    ConfigError if the order has none.
    """
    if not any(step.positioned for step in steps):
        return
    if type(run.plan) not in (BatchPlan, DevicePlan):
        raise ConfigError(
            "enumerate() needs positions that are the same on any cluster, which this order does not have: use it without "
            "partition_algo=, with batching_method='random' or 'per_stream', and a shuffle_algo of stoker's own"
        )


def check_skipped(point: EpochPosition, plan: Plan, division: OuterDivision | None) -> None:
    """See that accelerate leaves out nothing but what training has had of this epoch.

    ConfigError if a state is left out once more, or there is less than accelerate leaves out.
    """
    skipped = skipped_batches()
    if skipped and point.position:
        raise ConfigError(
            f"accelerate leaves out {skipped} batches, and the dataset resumes from a state at position {point.position} "
            f"of epoch {point.epoch}, which leaves them out already: do one of the two. transformers.Trainer skips none "
            "with ignore_data_skip=True"
        )
    steps = 0 if division is None else -(-plan.samples // (division.batch_size or plan.batch_size))
    if division is None or not skipped > steps > 0:
        return
    said = (
        f"accelerate leaves out {skipped} batches, and epoch {point.epoch} has {steps}. transformers.Trainer counts so "
        "where it does not know the length of an epoch, and then trains on the next one from its beginning: call "
        "dataset.set_epoch(...) with the epoch to resume in, then "
        "dataset.load_state_dict(dataset.state_dict(num_samples=...)) with the samples of it that all ranks had, and set "
        "ignore_data_skip=True"
    )
    if division.direct:
        raise ConfigError(said)
    logger.warning("%s. (An iterable between may make more batches of them.)", said)


def check_division(sample_order: SampleOrder, division: OuterDivision) -> None:
    """See that the order leaves it to a wrapper which rank gets which samples of a global batch.

    ConfigError if it does not.
    """
    order = sample_order.as_dict()["order"]
    partition = order.get("partition")
    if isinstance(partition, Mapping) and partition.get("name") != "elastic":
        said = f"partition_algo={partition.get('name')!r}"
    elif order.get("batching_method") == "device_per_stream":
        said = "batching_method='device_per_stream'"
    elif "batch_by" in order:
        said = "batch_by="
    else:
        return
    raise ConfigError(
        f"{said} says which rank gets which samples, and {division.wrapper} divides them itself: {REMEDY}"
    )


def warn_wrapper_dispatches(division: OuterDivision) -> None:
    """Log that one rank reads for all."""
    logger.warning(
        "%s of accelerate: rank 0 reads for all %d ranks, and sends them their samples. dispatch_batches=False "
        "lets each rank read its own",
        division.wrapper,
        division.ranks,
    )


def warn_wrapper_pads(epoch: int, division: OuterDivision, samples: int) -> None:
    """Log that a wrapper repeats samples."""
    logger.warning(
        "epoch %d: %s of accelerate repeats %d samples to fill its last batch, as in all epochs like this "
        '(drop_last=True of the loader, or remainder="drop" of the dataset, repeats none)',
        epoch,
        division.wrapper,
        samples,
    )


def tell_of_counting() -> None:
    """Log that an epoch that the ``datasets`` package may have been told is not known here."""
    logger.warning(
        "the datasets package reads in a thread here, as for shuffle() and interleave_datasets(), and which epoch "
        "set_epoch(epoch) of its IterableDataset named is not seen: the StreamingDataset counts epochs itself, unless its "
        "own set_epoch(epoch) is called, too"
    )


def tell_of_skipping(point: EpochPosition) -> None:
    """Log that batches may be left out twice: by the state that is resumed, and by a loader that is not seen."""
    logger.warning(
        "a state at position %d of epoch %d is resumed in a thread, where accelerate's skip_first_batches is not seen: "
        "do not call it, as the state leaves out what came before",
        point.position,
        point.epoch,
    )


def tell_of_padding(epoch: int, plan: Plan, sample_order: SampleOrder) -> None:
    """Log that the order repeats samples."""
    native = "like" not in sample_order.as_dict()["order"]  # mosaicml orders always repeat some
    logger.warning(
        "epoch %d: %d samples are repeated, so that all %d ranks take the same number of steps, as in all epochs like this%s",
        epoch,
        plan.padding,
        plan.world_size,
        ' (remainder="uneven" or "drop" avoids this)'
        if native
        else ", and all canonical nodes, as in mosaicml-streaming (fewer num_canonical_nodes= repeat fewer)",
    )

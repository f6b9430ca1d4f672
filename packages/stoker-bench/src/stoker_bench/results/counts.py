"""The rules of counts and sizes: the data set is the one that the workload describes, and all of it was delivered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker_bench.generation.files import EXACT
from stoker_bench.loaders.base import SplitListing
from stoker_bench.loaders.listing import too_few
from stoker_bench.settings.workload import Workload
from stoker_bench.settings.workload_data import DatasetSettings

_SIZES: Final = 0.1
"""Part by which samples may be smaller or larger than the workload says."""
SPREAD: Final = 5
"""Standard deviations by which the mean size of files whose sizes vary may differ from the nominal one."""
_FRAME: Final = 16 << 10
"""Bytes of a file that may be no sample: headers and indexes."""
_FRAME_SAMPLE: Final = 1 << 10
"""Bytes that may come with each sample: names, labels, checksums, and padding."""
ENCODED: Final = frozenset({"jpeg", "png"})
"""Formats whose files have the size that the content makes."""
_ENCODED_SIZES: Final = 2
"""The factor by which these may be smaller or larger in the mean: DLIO's JPEG files have 0.56 of the bytes that it is asked
for, its PNG files as many, those generated here 0.8 to 1.7 times as many."""


def count_findings(result: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    """Name, whether the run is invalid, and reason of each."""
    dataset = workload.dataset
    for split, files in (("train", dataset.files), ("valid", dataset.files_eval)):
        listed = result["listing"].get(split)
        if listed is None:
            continue
        found = SplitListing(**{name: value for name, value in listed.items() if name != "files_per_second"})
        said = too_few(found, files, dataset.samples_per_file)
        if said is not None:
            yield "files", True, f"{split} has {said}"
        yield from _sizes(found, split, dataset)
    yield from _delivered(result, workload)


def _sizes(found: SplitListing, split: str, dataset: DatasetSettings) -> Iterator[tuple[str, bool, str]]:
    """Whether files have the size of their samples."""
    if not found.used or (dataset.format in ENCODED and dataset.settings.get("dims")):
        return  # pixels of images do not tell the bytes of their files
    samples = dataset.samples_per_file if found.samples is None else found.samples / found.used
    nominal = samples * dataset.sample_bytes
    spread = SPREAD * dataset.record_bytes_stdev * samples / math.sqrt(found.used)
    mean = found.bytes / found.used
    # Compressed files are smaller; columns may be encoded, and text takes more characters than bytes.
    least = 1 - _SIZES if dataset.format in EXACT else 1 / _ENCODED_SIZES
    most = 1 + _SIZES if dataset.format in EXACT else _ENCODED_SIZES if dataset.format in ENCODED else math.inf
    if dataset.compression == "none" and mean < least * nominal - spread:
        differ = "less"
    elif mean > most * nominal + spread + _FRAME + samples * _FRAME_SAMPLE:
        differ = "more"
    else:
        return
    said = f"{mean / samples:,.0f} bytes of its file in the mean, {differ} than the {dataset.sample_bytes:,}"
    yield "sizes", True, f"a sample of {split} has {said} that the workload says"


def _delivered(result: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    """Whether all samples came, once, but for batches that are not full."""
    if workload.reader.loader == "synthetic":
        return
    dataset, ranks, batch = workload.dataset, result["world"]["ranks"], workload.reader.batch_size
    whole = dataset.files * dataset.samples_per_file
    remark: str | None = None
    for epoch in result["epochs"]:
        if epoch["kind"] != "train" or not epoch["complete"]:
            continue
        wanted, loader = whole, epoch["loader"] or {}
        if workload.train.steps is not None:
            wanted = min(whole, workload.train.steps * batch * ranks)
        left = wanted - int(epoch["samples"] or 0)
        # Those that do not divide among ranks, and a last batch of each that is not full.
        most = ranks - 1 + ranks * (batch - 1) * int(loader.get("last_batches", 1))
        verb = "was" if left == 1 else "were"
        of = f"{abs(left)} of the {wanted} samples of epoch {epoch['epoch']} {verb} not delivered"
        if left > most:
            yield (
                "last batch",
                True,
                f"{of}, more than the {most} of batches that are not full",
            )
            return
        if left < 0:
            yield (
                "last batch",
                True,
                f"{-left} samples came twice in an epoch, or the data set has more than it should",
            )
            return
        if left > 0 and remark is None:
            remark = of
    if remark is not None:
        yield "last batch", False, remark

"""Bytes that epochs read from storage, against those of their samples: from the device, the page cache, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.display import bytes_text
from stoker_bench.measure.page_cache import FROM_DEVICE, TELLING_BYTES, cached_in_pages
from stoker_bench.results.counts import ENCODED, SPREAD
from stoker_bench.settings.workload import Workload

_AGAIN: Final = 1.5
"""Multiple of its samples' bytes that an epoch may fetch without a remark."""
_AHEAD: Final = 0.1
"""Part of the bytes of counted steps that may have been read before them without a remark."""
_MOST_AHEAD: Final = 0.25
"""Part of them with which the steps' times are the storage's no more."""
_PAGE: Final = 4096
"""Bytes that Linux reads of a file at least, and allocates for one, on most file systems."""
_MEMORIES: Final = 5
"""Least size of a data set for caching not to matter, in multiples of a host's memory; a rule of MLPerf Storage."""


def bytes_findings(result: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    """Yields the findings of the rules of the page cache and of whole samples: rule, whether it is broken, reason.

    Args:
        result: ``results.json``, as far as it is made.
        workload: what was run.
    """
    storage = result["storage"]
    epochs = [epoch for epoch in result["epochs"] if epoch["kind"] == "train"]
    if not epochs or workload.reader.loader == "synthetic":
        return
    if storage["in_memory"]:
        yield "page cache", True, f"{storage['url']} is in memory ({storage['kind']}): no storage was measured"
    elif storage["local"]:
        yield from _from_device(result, epochs, workload)
        yield from _again(result, epochs, workload)
        yield from _ahead(result, epochs, workload)
    else:
        yield "page cache", False, "what the object store itself had in memory is not known here"
        yield from _over_network(result, epochs, workload)
        yield from _again(result, epochs, workload)
        yield from _ahead(result, epochs, workload)


def _from_device(
    result: Mapping[str, Any], epochs: list[Mapping[str, Any]], workload: Workload
) -> Iterator[tuple[str, bool, str]]:
    for epoch in epochs:
        device, needed = epoch["device_bytes"], needed_bytes(result, epoch, workload)
        if device is None:
            yield from _uncounted(result, epoch, needed, workload)
            return
        if needed is None or needed < TELLING_BYTES:
            few = f"{bytes_text(needed or 0)} an epoch are too few to tell from what else the processes read"
            yield _not_known(result, workload, few)
            return
        if device < FROM_DEVICE * needed:
            yield from _missing(epoch, device, needed, workload)
            return
    if cached_in_pages(kind := result["storage"]["kind"]):
        yield "page cache", False, f"what the servers of {kind} had in memory is not known"


def _not_known(result: Mapping[str, Any], workload: Workload, why: str) -> tuple[str, bool, str]:
    """Caching does not matter where a data set is much larger than a host's memory; else nobody knows."""
    listing = result["listing"].get("train")
    size = workload.dataset.bytes if listing is None else listing["bytes"]
    memory = min((rank["memory_bytes"] for rank in result["ranks"]), default=0)
    small = size < _MEMORIES * memory
    than = f"{'less than' if small else 'at least'} {_MEMORIES} times the memory of a host ({bytes_text(memory)})"
    return (
        "page cache",
        small,
        f"what came from memory is not known: {why}; the data set has {bytes_text(size)}, {than}",
    )


def _uncounted(
    result: Mapping[str, Any], epoch: Mapping[str, Any], needed: float | None, workload: Workload
) -> Iterator[tuple[str, bool, str]]:
    """Of a file system of which the kernel does not count what came from the device, or over the network."""
    kind, state, called = result["storage"]["kind"], epoch["cache"], epoch["read_bytes"]
    resident = None if state is None else state["resident"]
    if resident is not None and resident > 1 - FROM_DEVICE:
        how = "" if workload.storage.cache == "drop" else " (storage.cache is keep)"
        yield "page cache", True, f"{resident:.0%} of the files were in the page cache when {_name(epoch)} began{how}"
    elif resident is not None and cached_in_pages(kind):
        reason = (
            f"this host's page cache had {resident:.0%} of the files when {_name(epoch)} began; what the servers of {kind} "
            "had in memory is not known, nor how much came over the network"
        )
        yield "page cache", False, reason
    else:
        yield _not_known(result, workload, f"the kernel does not count what is read of {kind}")
    if needed and (called is None or called < FROM_DEVICE * needed):
        reason = (
            f"whether samples were read whole is not known: {(called or 0) / needed:.0%} of their bytes came by read calls, "
            f"and of {kind} the kernel does not count what is read of mapped files"
        )
        yield "whole samples", False, reason


def _missing(
    epoch: Mapping[str, Any], device: float, needed: float, workload: Workload
) -> Iterator[tuple[str, bool, str]]:
    """Tells the page cache from not reading, for bytes that did not come from the device."""
    cached = missing = needed - device
    # What came by read calls was read. What is mapped may not have been touched: the page cache had no more than it had.
    called, state = epoch["read_bytes"], epoch["cache"]
    if state is not None and state["resident"] is not None and (called is None or called < FROM_DEVICE * needed):
        cached = min(missing, state["resident"] * state["bytes"])
    where, never = _name(epoch), missing - cached
    # Each may be little where both together are too much: the larger one is named then.
    least = min((1 - FROM_DEVICE) * needed, max(never, cached))
    if never >= least:
        reason = (
            f"{never / needed:.0%} of the bytes of the samples of {where} were never read, neither from the device nor from "
            "the page cache: the loader reads a part of each sample (or another process read the files meanwhile: stop it)"
        )
        yield "whole samples", True, reason
    if cached >= least:
        how = "" if workload.storage.cache == "drop" else " (storage.cache is keep)"
        reason = (
            f"{cached / needed:.0%} of the bytes of {where} did not come from the device but from the page cache{how}"
        )
        yield "page cache", True, reason


def _over_network(
    result: Mapping[str, Any], epochs: list[Mapping[str, Any]], workload: Workload
) -> Iterator[tuple[str, bool, str]]:
    for epoch in epochs:
        fetched, needed = epoch["fetched_bytes"], needed_bytes(result, epoch, workload)
        if fetched is None:
            told = f"the loader {workload.reader.loader} does not say how much it fetched"
            yield "whole samples", False, f"{told}, so that it is not known whether samples were read whole"
            return
        if needed is not None and fetched < FROM_DEVICE * needed:
            reason = (
                f"{1 - fetched / needed:.0%} of the bytes of the samples of {_name(epoch)} were not fetched in it: the "
                "loader reads a part of each sample, or had them from before"
            )
            yield "whole samples", True, reason
            return


def _again(
    result: Mapping[str, Any], epochs: list[Mapping[str, Any]], workload: Workload
) -> Iterator[tuple[str, bool, str]]:
    for epoch in epochs:
        needed = needed_bytes(result, epoch, workload)
        if not needed:
            continue
        fetched, stored = epoch["fetched_bytes"] or 0, epoch["storage_bytes"] or 0
        most = max(fetched, stored) if needed >= TELLING_BYTES else fetched
        if most > _AGAIN * needed:
            reason = (
                f"{most / needed:.3g} times the bytes of the samples of {_name(epoch)} were fetched: "
                f"{_why_more(result['listing'][epoch['kind']], most, needed, by_device=stored > fetched)}; MB/s from storage "
                f"count {stored / needed:.3g} times the bytes"
            )
            yield "fetched again", False, reason
            return


def _ahead(
    result: Mapping[str, Any], epochs: list[Mapping[str, Any]], workload: Workload
) -> Iterator[tuple[str, bool, str]]:
    """Of short epochs: steps that live on what was read before the first of them counts."""
    for epoch in epochs:
        needed, read = needed_bytes(result, epoch, workload), epoch["counted_read_bytes"]
        if not needed or needed < TELLING_BYTES or (epoch["storage_bytes"] or 0) < FROM_DEVICE * needed:
            continue  # what was not read at all is another rule's
        if read is None:
            reason = (
                f"{_name(epoch)} was too short to tell when its bytes came, during steps or before: train on more steps"
            )
            yield "read ahead", True, reason
            return
        counted = sum(block["samples"] for rank in epoch["ranks"] for block in rank["blocks"])
        given = needed * counted / epoch["samples"]
        if given > 0 and given - read > _AHEAD * given:
            most = given - read > _MOST_AHEAD * given
            reason = (
                f"{1 - read / given:.0%} of the bytes of the counted steps of {_name(epoch)} were read before these, ahead "
                f"or by opening the data: utilization and samples/s {'are' if most else 'may be'} more than this storage "
                "keeps up. Train on more steps, leave out more of the first ones (metric.exclude_start), or read less ahead "
                "(reader.prefetch)"
            )
            yield "read ahead", most, reason
            return


def _why_more(listing: Mapping[str, Any], most: float, needed: float, *, by_device: bool) -> str:
    """The reason why an epoch got more than the bytes of its samples."""
    each = listing["bytes"] / max(1, listing["used"])
    if by_device and most <= _AGAIN * needed * -(-each // _PAGE) * _PAGE / max(1.0, each):
        return f"a device gives whole blocks of {_PAGE} bytes, and the mean file has {each:,.0f}"
    again = "the loader fetches files, or parts of them, more than once"
    if most <= _AGAIN * listing["bytes"]:
        return f"the loader reads ahead samples before which the epoch ends, or {again.removeprefix('the loader ')}"
    return again


def needed_bytes(result: Mapping[str, Any], epoch: Mapping[str, Any], workload: Workload) -> float | None:
    """Bytes that an epoch must read at least; ``None`` where sizes of files are not known.

    These are its samples' part of the files, of which columns that are not read have their nominal part. Where the files hold
    more than the samples, such as headers and columns that compress less than others, the samples' bytes are enough: those
    that the steps were given, and at least the nominal ones, as a loader may hand over less than a sample.
    """
    dataset, samples = workload.dataset, epoch["samples"] or 0
    listing = result["listing"].get(epoch["kind"])
    if listing is None:
        return None
    there = listing["samples"] or listing["used"] * dataset.samples_per_file
    part = min(1.0, samples / max(1, there))
    # Where sizes vary, and some samples are left out, those that were read may be the smaller ones.
    spread = SPREAD * dataset.record_bytes_stdev * samples * math.sqrt((1 - part) / max(1.0, part * listing["used"]))
    of_files = part * listing["bytes"] * dataset.used_bytes / dataset.sample_bytes
    if not dataset.resize_bytes and dataset.format not in ENCODED:
        of_files = min(of_files, max(samples * dataset.used_bytes, epoch["bytes"] or 0))
    return float(max(0.0, of_files - spread))


def _name(epoch: Mapping[str, Any]) -> str:
    return f"epoch {epoch['epoch']}" + (f" of repeat {epoch['repeat']}" if epoch["repeat"] else "")

"""The stage ``generate``: a workload's data set as a specification of :mod:`stoker.generate`, and its making."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from stoker.bench.workload import Workload
from stoker.errors import ConfigError, StorageTimeoutError
from stoker.storage import open_store

if TYPE_CHECKING:
    from stoker.generate import DatasetSpec

__all__ = ["make_data", "spec_of"]

_OWN: Final = frozenset({"dims", "dtype", "content", "vocabulary", "page_bytes", "hdf5_chunks", "image_quality"})
_MORE: Final = frozenset({"compressibility", "duplication"})


def spec_of(workload: Workload) -> DatasetSpec:
    """The specification of all files, of training and evaluation.

    Raises:
        ConfigError: the data set can not be generated; says why.
    """
    from stoker.generate import Column, DatasetSpec

    dataset = workload.dataset
    settings: dict[str, Any] = dict(dataset.settings)
    if "chunks" in settings:
        settings["hdf5_chunks"] = int((settings.pop("chunks") or [0])[0])
    if settings.pop("datasets", 1) != 1 or settings.pop("max_shape", None):
        raise ConfigError("dataset.settings: generated HDF5 files have one dataset a column, of a fixed shape")
    unknown = set(settings) - _OWN - _MORE
    if unknown:
        raise ConfigError(
            f"dataset.settings.{min(unknown)} is not understood; known: {', '.join(sorted(_OWN | _MORE))}"
        )
    if "dims" in settings:
        settings["dims"] = tuple(settings["dims"])
    given: dict[str, Any] = {}
    if dataset.columns:
        kinds = {"string": "str"}
        given["columns"] = tuple(
            Column(one.name, kinds.get(one.dtype, one.dtype), size=one.shape[0])
            if one.dtype in {"string", "bytes"}
            else Column(one.name, one.dtype, one.shape)
            for one in dataset.columns
        )
    elif dataset.format not in {"jpeg", "png"} and "dims" not in settings and settings.get("content") != "images":
        given["record_bytes"] = dataset.record_bytes
        given["stdev"] = dataset.record_bytes_stdev
    elif dataset.format in {"jpeg", "png"} and "dims" not in settings:
        # Noise does not compress: a JPEG of natural content has about a tenth of its pixels' bytes, a PNG about half.
        side = int((dataset.record_bytes / (0.3 if dataset.format == "jpeg" else 1.5)) ** 0.5)
        settings["dims"] = (max(16, side), max(16, side))
    return DatasetSpec(
        format=dataset.format,
        files=dataset.files,
        valid_files=dataset.files_eval,
        samples_per_file=dataset.samples_per_file,
        compression=None if dataset.compression == "none" else dataset.compression,
        subfolders=dataset.subfolders,
        prefix=dataset.prefix,
        seed=dataset.seed,
        row_group_size=dataset.row_group_rows or None,
        **given,
        **settings,
    )


def make_data(workload: Workload, url: str) -> dict[str, Any]:
    """Generate what is not there yet, and wait until a listing shows all of it; for JSON.

    Raises:
        StorageTimeoutError: the store does not list what was written, after ``storage.settle_seconds``.
        StokerError: see :func:`stoker.generate.generate`.
    """
    from stoker.generate import generate

    spec = spec_of(workload)
    begun = time.monotonic()
    # With files of evaluation, the generator makes both folders itself.
    place = url if workload.dataset.files_eval else f"{url.rstrip('/')}/train"
    report = generate(spec, place, storage_options=workload.storage.options or None)
    seconds = time.monotonic() - begun
    waited = _settle(workload, url)
    return {
        "files": report.files,
        "samples": report.samples,
        "bytes": report.bytes,
        "seconds": seconds,
        "made": report.made,
        "kept": report.kept,
        "settle_seconds": waited,
    }


def _settle(workload: Workload, url: str) -> float:
    dataset, limit = workload.dataset, workload.storage.settle_seconds
    if not limit:
        return 0.0
    begun = time.monotonic()
    store = open_store(url, workload.storage.options or None)
    wanted = {"train": dataset.files, "valid": dataset.files_eval}
    while True:
        found = {name: sum(1 for _ in store.list(name)) if count else 0 for name, count in wanted.items()}
        waited = time.monotonic() - begun
        if all(found[name] >= count for name, count in wanted.items()):
            return waited
        if waited > limit:
            raise StorageTimeoutError(
                f"{url}: {limit:g} s after generating, {found} files are listed of {wanted}: raise storage.settle_seconds",
                url=url,
            )
        time.sleep(min(1.0, limit / 10))

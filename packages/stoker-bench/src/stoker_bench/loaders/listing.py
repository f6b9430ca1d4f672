"""The files of a split as its storage lists them: how many there are, and their sizes, against what the workload says."""

from __future__ import annotations

import itertools
import time
from typing import Final

from stoker.errors import ObjectNotFoundError
from stoker.formats.registry import format_name, get_format
from stoker.index.index import INDEX_NAME, load_index
from stoker.storage import ObjectInfo, Store, open_store
from stoker_bench.loaders.base import LoaderJob, SplitListing
from stoker_bench.loaders.decode import suffixes
from stoker_bench.settings.extent import check_batches
from stoker_bench.settings.workload import Workload

_LOOKED_AT: Final = 10_000
"""Files that are looked for before a run: more would take long, and the run lists them again to measure that."""


def find_files(job: LoaderJob) -> None:
    """See before a run, by a look that does not take long, that a split has what the workload says.

    Raises:
        ObjectNotFoundError: as :func:`check_listing`.
        StorageError: the storage can not be read.
    """
    store, ends = _store(job), suffixes(job.workload.dataset.format)
    if store.exists(INDEX_NAME):
        index = load_index(store)
        check_listing(job, SplitListing(len(index), len(index), index.samples, 0, 0, 0, 0.0))
        return
    most = min(job.files, _LOOKED_AT)
    found = sum(1 for _ in itertools.islice((one for one in store.list() if _is_data(one.key, ends)), most))
    if found < most:
        check_listing(job, SplitListing(found, found, None, 0, 0, 0, 0.0))


def list_split(job: LoaderJob) -> SplitListing:
    """List a split; that there are too few files is no error here."""
    store = _store(job)
    begun = time.monotonic()
    listed = {one.key: one for one in store.list()}
    seconds = time.monotonic() - begun
    used = found = _of_format(job, listed)
    samples = None
    if INDEX_NAME in listed:
        index = load_index(store)
        used = found = [listed[name] for name in sorted(index.file_entries()) if name in listed]
        samples = index.samples
    else:
        used = found[: job.files]
    # Of Megatron's and DLIO's data sets a number is several files, of which one without samples has the format's suffix.
    form = get_format(format_name(job.workload.dataset.format))
    whole = [[one, *(listed[key] for key in form.names_beside(one.key) if key in listed)] for one in used]
    sizes = [sum(one.size for one in files) for files in whole]
    return SplitListing(
        len(found), len(used), samples, sum(sizes), min(sizes, default=0), max(sizes, default=0), seconds
    )


def check_listing(job: LoaderJob, found: SplitListing) -> None:
    """See that a split has what the workload says.

    Raises:
        ObjectNotFoundError: it has fewer files, or the index has fewer samples.
    """
    said = too_few(found, job.files, job.workload.dataset.samples_per_file)
    if said is not None:
        setting = "dataset.files" if job.split == "train" else "dataset.files_eval"
        other = f"set {setting} to what is there" if found.files else f"give by --data what has them in {job.split}/"
        raise ObjectNotFoundError(
            f"{job.split_url} has {said}: generate them first (--stages generate), or {other}",
            url=job.split_url,
        )


def check_split(workload: Workload, found: SplitListing, ranks: int) -> None:
    """See that the training files that are there give each rank a full batch, where others are left out.

    Raises:
        ConfigError: they do not.
    """
    dataset = workload.dataset
    if too_few(found, dataset.files, dataset.samples_per_file) is None:  # else loaders say how many there should be
        check_batches(
            workload, found.used * dataset.samples_per_file if found.samples is None else found.samples, ranks
        )


def too_few(found: SplitListing, files: int, samples_per_file: int) -> str | None:
    """The shortage of a split, such as ``"16 of the workload's 700 files"``; ``None`` where there is enough."""
    if found.samples is not None:
        wanted = files * samples_per_file
        return f"{found.samples} of the workload's {wanted} samples" if found.samples < wanted else None
    return f"{found.files} of the workload's {files} files" if found.files < files else None


def used_files(job: LoaderJob) -> list[ObjectInfo]:
    """The files that are read, where there is no index."""
    return _of_format(job, {one.key: one for one in _store(job).list()})[: job.files]


def data_files(job: LoaderJob) -> list[str]:
    """Names of the split's files, sorted, below ``job.split_url``: as many as the workload says, as DLIO takes them.

    Raises:
        ObjectNotFoundError: there are fewer.
    """
    found = _of_format(job, {one.key: one for one in _store(job).list()})
    used = found[: job.files]
    check_listing(job, SplitListing(len(found), len(used), None, 0, 0, 0, 0.0))
    return [one.key for one in used]


def _store(job: LoaderJob) -> Store:
    return open_store(job.split_url, job.workload.storage.store_options(job.split_url, job.world.rank))


def _of_format(job: LoaderJob, listed: dict[str, ObjectInfo]) -> list[ObjectInfo]:
    """In the order of their names; folders do not count, as in DLIO."""
    ends = suffixes(job.workload.dataset.format)
    return [
        listed[path] for path in sorted(listed, key=lambda one: (one.rpartition("/")[2], one)) if _is_data(path, ends)
    ]


def _is_data(path: str, ends: tuple[str, ...]) -> bool:
    # Names that begin so are the generator's own notes, and what other programs leave.
    return not path.rpartition("/")[2].startswith(("_", ".")) and (not ends or path.lower().endswith(ends))

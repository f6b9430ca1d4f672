"""Each sample's bytes come from storage, whatever of them is handed over."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stoker.bench.loaders import LoaderJob, get_loader
from stoker.bench.loaders.decode import read_whole
from stoker.bench.measure.generation import make_data
from stoker.bench.measure.page_cache import drop, resident_pages
from stoker.bench.settings.sources import read_workload
from stoker.cluster import World
from stoker.storage.files import map_file

SIZE, FILES = 24_000_000, 2


def resident(folder: Path) -> float:
    """The part of files' pages that is in the page cache."""
    held = pages = 0
    for path in (one for one in folder.rglob("*") if one.is_file() and one.stat().st_size > SIZE // 100):
        descriptor = os.open(path, os.O_RDWR)
        try:
            found = resident_pages(descriptor, path.stat().st_size)
        finally:
            os.close(descriptor)
        assert found is not None
        held, pages = held + found[0], pages + found[1]
    return held / pages


def dropped(folder: Path) -> None:
    """Empty the page cache of a folder, where there is one to empty."""
    left = drop(folder).resident
    if left is None or left > 0.01:
        pytest.skip("the files of this file system do not leave the page cache")


KINDS = ("npz", "npy", "hdf5", "tfrecord", "mds", "parquet", "tar", "undecoded")


@pytest.mark.parametrize("loader", ["stoker", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_cut_to_a_size_are_read_whole(kind: str, loader: str, tmp_path: Path) -> None:
    if loader == "torch" and kind in {"mds", "tar"}:
        pytest.skip("a format that this loader does not read")
    each = 3 if kind in {"tfrecord", "mds", "parquet", "tar"} else 1
    settings = (
        *(f"dataset.format={kind.replace('undecoded', 'npy')}", f"reader.decode={kind != 'undecoded'}"),
        *(f"dataset.files={FILES}", f"dataset.record_bytes={SIZE // each}", f"dataset.samples_per_file={each}"),
        *("dataset.resize_bytes=1000", "reader.shuffle=false", f"reader.loader={loader}"),
        *(("storage.client=mmap",) if loader == "torch" else ()),
    )
    workload = read_workload(None, settings, environ={}, dotenv=None).workload
    make_data(workload, str(tmp_path))
    dropped(tmp_path)
    opened = get_loader(loader).open(LoaderJob(workload, "train", str(tmp_path), World(), 0, 1))
    try:
        batches = list(opened.epoch(0))
        assert [(batch.samples, batch.bytes) for batch in batches] == [(1, 1000)] * FILES * each
        assert resident(tmp_path / "train") > 0.99
    finally:
        opened.close()


def test_values_in_any_nesting_are_touched_to_their_last_byte(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(bytes(SIZE))
    dropped(tmp_path)
    maps = [map_file(path) for path in paths]
    columns = np.frombuffer(maps[2], np.float32).reshape(-1, 1000).T  # no two neighbours of a row are in one page
    read_whole({"a": [maps[0], (memoryview(maps[1]),)], "b": columns, "c": [1, "x", b"", np.zeros(0), None]})
    assert resident(tmp_path) == 1

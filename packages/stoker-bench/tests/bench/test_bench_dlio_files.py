"""Files of several samples, as DLIO's generators lay them out: each sample comes once, whichever loader reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stoker import StreamingDataset
from stoker.cluster import World
from stoker_bench.loaders import LoaderJob, get_loader
from stoker_bench.loaders.decode import samples_axis
from stoker_bench.measure.generation import make_data
from stoker_bench.settings.sources import read_workload

FILES, SAMPLES, SIDE = 3, 5, 7
DLIO = f"""\
framework: pytorch
dataset:
  format: {{format}}
  num_files_train: {FILES}
  num_samples_per_file: {SAMPLES}
  record_length_bytes: {SIDE * SIDE}
  record_length_bytes_resize: {SIDE * SIDE}
reader: {{{{data_loader: pytorch, batch_size: 3, read_threads: 1, sample_shuffle: seed}}}}
train: {{{{epochs: 1, computation_time: 0}}}}
"""


def written(kind: str, folder: Path) -> list[bytes]:
    """DLIO's files; all samples."""
    folder.mkdir(parents=True)
    samples = np.random.default_rng(1).integers(0, 255, (FILES, SAMPLES, SIDE, SIDE)).astype(np.uint8)
    for number, each in enumerate(samples):
        path = folder / f"img_{number}_of_{FILES}.{kind}"
        if kind == "npz":
            np.savez(path, x=np.moveaxis(each, 0, -1), y=[0] * SAMPLES)
        else:
            h5py = pytest.importorskip("h5py")
            with h5py.File(path, "w") as file:
                file.create_dataset("records", data=each)
                file.create_dataset("labels", data=[0] * SAMPLES)
    return [one.tobytes() for one in samples.reshape(-1, SIDE * SIDE)]


@pytest.mark.parametrize("loader", ["stoker", "torch"])
@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_each_sample_of_dlio_s_files_comes_once(kind: str, loader: str, tmp_path: Path) -> None:
    samples = written(kind, tmp_path / "data" / "train")
    (tmp_path / "dlio.yaml").write_text(DLIO.format(format=kind))
    settings = [f"reader.loader={loader}", "reader.threads=0"]
    workload = read_workload(str(tmp_path / "dlio.yaml"), settings, environ={}, dotenv=None).workload
    job = LoaderJob(workload, "train", str(tmp_path / "data"), World(), 0, 3, str(tmp_path / "scratch"))
    opened = get_loader(loader).open(job)
    try:
        batches = list(opened.epoch(0))
    finally:
        opened.close()
    assert [batch.samples for batch in batches] == [3] * 5
    found = []
    for batch in batches:
        array = np.asarray(batch.data["data"] if isinstance(batch.data, dict) else batch.data)
        found += [row.tobytes() for row in array.reshape(3, -1)]
    assert sorted(found) == sorted(samples)
    assert found != samples  # shuffled


@pytest.mark.parametrize(
    ("shape", "samples", "axis"),
    [
        *(((4, 9, 2), 4, 0), ((9, 2, 4), 4, -1), ((4, 2, 4), 4, 0), ((2, 9), 4, 0)),
        *(((1, 9, 2), 1, 0), ((9, 9, 1), 1, -1), ((9, 9), 1, None)),
    ],
)
def test_the_first_axis_that_counts_the_samples_does(
    shape: tuple[int, ...], samples: int, axis: int | None, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape))
    labels: Any = {"y": [0] * samples} if len(shape) > 2 else {}
    np.savez(tmp_path / "a.npz", x=np.zeros(shape), **labels)
    for name in ("a.npy", "a.npz"):
        assert samples_axis((tmp_path / name).read_bytes(), samples) == axis


@pytest.mark.parametrize("loader", ["stoker", "torch"])
@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_dlio_s_files_of_one_sample_are_one_sample_each(kind: str, loader: str, tmp_path: Path) -> None:
    """Of the shape ``(side, side, 1)``, as its generators write them."""
    (tmp_path / "data/train").mkdir(parents=True)
    made = []
    for number in range(8):
        x = np.random.default_rng(number).integers(0, 255, (63, 63, 1), np.uint8)
        path = tmp_path / f"data/train/img_{number}_of_8.{kind}"
        np.savez(path, x=x, y=[0]) if kind == "npz" else np.save(path, x)
        made.append(x.tobytes())
    settings = (
        *(f"dataset.format={kind}", "dataset.files=8", "dataset.record_bytes=3969", "reader.threads=0"),
        *(f"reader.loader={loader}", "reader.batch_size=2"),
    )
    workload = read_workload(None, settings, environ={}, dotenv=None).workload
    job = LoaderJob(workload, "train", str(tmp_path / "data"), World(), 0, 2, str(tmp_path / "scratch"))
    opened = get_loader(loader).open(job)
    try:
        batches = list(opened.epoch(0))
    finally:
        opened.close()
    found = [
        row.tobytes()
        for one in batches
        for row in np.asarray(
            one.data["x"]
            if kind == "npz"
            else next(iter(one.data.values()))
            if isinstance(one.data, dict)
            else one.data
        )
    ]
    assert sorted(found) == sorted(made)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_dlio_reads_what_is_generated_for_its_workloads(compression: str, tmp_path: Path) -> None:
    """Its readers want an array ``x``, ``valid/``, and in Parquet the offset of a dictionary; values are the same."""
    made: dict[bool, Any] = {}
    for dlio in (True, False):
        for kind in ("npz", "parquet"):
            settings = (
                f"dataset.format={kind}",
                "dataset.files=2",
                "dataset.samples_per_file=5",
                f"dataset.dlio={dlio}",
            )
            more = (f"dataset.compression={compression}",) if kind == "parquet" else ()
            workload = read_workload(
                None, [*settings, "dataset.record_bytes=3000", *more], environ={}, dotenv=None
            ).workload
            make_data(workload, str(tmp_path / f"{dlio}-{kind}"))
        assert (tmp_path / f"{dlio}-npz/valid").is_dir() is dlio
        with np.load(next((tmp_path / f"{dlio}-npz/train").glob("*.npz"))) as arrays:
            assert arrays.files == ["x" if dlio else "data"]
        file = pq.ParquetFile(min((tmp_path / f"{dlio}-parquet/train").glob("*.parquet")))
        column = file.metadata.row_group(0).column(0)
        assert (column.dictionary_page_offset is not None) is dlio
        assert not dlio or column.dictionary_page_offset < column.data_page_offset
        made[dlio] = file.read(), list(StreamingDataset(local=tmp_path / f"{dlio}-parquet/train", batch_size=2))
    assert made[True][0].equals(made[False][0])
    assert [one["data"].tobytes() for one in made[True][1]] == [one["data"].tobytes() for one in made[False][1]]
    (tmp_path / "dlio.yaml").write_text(DLIO.format(format="npz"))
    assert read_workload(str(tmp_path / "dlio.yaml"), environ={}, dotenv=None).workload.dataset.dlio

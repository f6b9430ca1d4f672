"""DLIO's and MLPerf Storage's workload files run unchanged; what has no effect is said."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ConfigError
from stoker_bench.settings.dlio_keys import KEYS
from stoker_bench.settings.duration import Duration
from stoker_bench.settings.sources import Resolved, read_workload
from stoker_bench.settings.workload import ColumnSpec, Workload

UNET3D = """
model:
  name: unet3d
  type: cnn
  model_size: 499153191

framework: pytorch

workflow:
  generate_data: False
  train: True
  checkpoint: True

dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
  record_length_bytes_resize: 2097152

reader:
  data_loader: pytorch
  batch_size: 7
  read_threads: 4
  file_shuffle: seed
  sample_shuffle: seed

train:
  epochs: 5
  computation_time: 0.323

checkpoint:
  checkpoint_folder: checkpoints/unet3d
  checkpoint_after_epoch: 5
  epochs_between_checkpoints: 2
  fsync: True

metric:
  au: 0.90
"""

PARQUET = """
model:
  name: dlrm
framework: pytorch
workflow: {generate_data: True, train: True, evaluation: False}
dataset:
  data_folder: data/dlrm
  format: parquet
  num_files_train: 4
  num_samples_per_file: 64
  record_length: 16
  compression: none
  parquet:
    row_group_size: 16
    read_mode: row_group
    columns:
      - {name: a, dtype: float16, read: false}
      - {name: b, dtype: float32, size: 3}
reader: {data_loader: pytorch, batch_size: 8, file_shuffle: off}
train: {computation_time: {type: normal, mean: 0.1, stdev: 0.01}, total_training_steps: 5}
"""


def read(tmp_path: Path, text: str, *arguments: str) -> Resolved:
    (tmp_path / "dlio.yaml").write_text(text)
    return read_workload(tmp_path / "dlio.yaml", arguments, environ={}, dotenv=None)


def test_unet3d_maps_key_by_key(tmp_path: Path) -> None:
    found = read(tmp_path, UNET3D)
    got = found.workload
    assert got.name == "unet3d"
    assert got.stages == ("train", "checkpoint")
    assert got.dataset.files == 168
    assert (got.dataset.record_bytes, got.dataset.record_bytes_stdev, got.dataset.resize_bytes) == (
        146600628,
        68341808,
        2097152,
    )
    assert (got.reader.batch_size, got.reader.threads, got.reader.shuffle, got.reader.loader) == (7, 4, True, "stoker")
    assert (got.train.epochs, got.train.barrier, got.compute.seconds) == (5, True, Duration(mean=0.323))
    assert (got.checkpoint.after_epoch, got.checkpoint.every_epochs, got.checkpoint.fsync) == (5, 2, True)
    assert got.storage.url == "data/unet3d"
    assert got.metric.au == 0.9


def test_the_shipped_workload_and_dlio_s_file_are_the_same_work(tmp_path: Path) -> None:
    ours = read_workload("unet3d-h100", environ={}, dotenv=None).workload
    theirs = read(tmp_path, UNET3D).workload
    assert replace(ours.dataset, dlio=True) == theirs.dataset
    assert (ours.train, ours.compute, ours.metric) == (theirs.train, theirs.compute, theirs.metric)


def test_a_sample_s_size_under_the_name_of_dlio_2_is_its_size(tmp_path: Path) -> None:
    """As in DLIO 2.0.0, where 35 of 74 published files come from; under the later name it holds over this one."""
    old = UNET3D.replace("record_length_bytes", "record_length")
    assert "record_length_bytes" not in old
    found = read(tmp_path, old)
    assert found.workload.dataset == read(tmp_path, UNET3D).workload.dataset
    assert any("DLIO 2.0.0's name of record_length_bytes_resize" in note for note in found.notes.changes)
    both = UNET3D.replace("  record_length_bytes:", "  record_length: 4096\n  record_length_bytes:")
    assert both != UNET3D
    found = read(tmp_path, both)
    assert found.workload.dataset.record_bytes == 146600628
    assert any("dataset.record_length is not used: dataset.record_length_bytes" in note for note in found.notes.ignored)
    found = read(tmp_path, old, "++workload.dataset.record_length=1000", "++workload.dataset.record_length_stdev=0")
    assert (found.workload.dataset.record_bytes, found.workload.dataset.record_bytes_stdev) == (1000, 0)
    with_columns = read(tmp_path, PARQUET).workload.dataset
    assert (with_columns.record_bytes, with_columns.sample_bytes) == (16, 14)


def test_what_dlio_ignores_is_said_with_its_line(tmp_path: Path) -> None:
    notes: tuple[str, ...] | list[str] = [*read(tmp_path, UNET3D).notes.changes, *read(tmp_path, UNET3D).notes.ignored]
    assert any("line 5: model.model_size: DLIO ignores it" in note for note in notes)
    assert any("checkpoint.fsync" in note and "no writer looks at" in note for note in notes)
    notes = read(tmp_path, UNET3D + "\nfoo:\n  bar: 1\n").notes.ignored
    assert any("foo.bar is not a key of DLIO's, which ignores it" in note for note in notes)
    notes = read(tmp_path, UNET3D.replace("read_threads", "read_thread")).notes.ignored
    assert any(
        "reader.read_thread is not a key of DLIO's" in n and "did you mean 'reader.read_threads'" in n for n in notes
    )


def test_overrides_in_hydra_s_style_are_dlio_s_keys_and_hold_over_the_file(tmp_path: Path) -> None:
    arguments = (
        "++workload.reader.batch_size=2",
        "+workload.workflow.generate_data=True",
        "workload.dataset.num_files_train=3",
    )
    got = read(tmp_path, UNET3D, *arguments, "train.epochs=9").workload
    assert (got.reader.batch_size, got.dataset.files, got.train.epochs) == (2, 3, 9)
    assert got.stages == ("generate", "train", "checkpoint")
    assert any("reader.batch_sice" in n for n in read(tmp_path, UNET3D, "++workload.reader.batch_sice=2").notes.ignored)


def test_columns_that_are_not_to_be_read_are_not_read(tmp_path: Path) -> None:
    got = read(tmp_path, PARQUET).workload
    assert got.dataset.columns == (ColumnSpec("a", "float16", (), False), ColumnSpec("b", "float32", (3,), True))
    assert got.dataset.read_columns == ("b",)
    assert got.dataset.row_group_rows == 16
    assert got.compute.seconds == Duration("normal", mean=0.1, stdev=0.01)
    assert got.train.steps == 5
    assert got.stages == ("generate", "train")


def test_a_bare_off_turns_the_shuffle_off(tmp_path: Path) -> None:
    assert not read(tmp_path, PARQUET).workload.reader.shuffle
    assert not read(tmp_path, PARQUET.replace(", file_shuffle: off", "")).workload.reader.shuffle  # DLIO's default
    assert read(tmp_path, PARQUET.replace("file_shuffle: off", "sample_shuffle: random")).workload.reader.shuffle


def test_object_storage_becomes_one_url_and_typed_options(tmp_path: Path) -> None:
    text = PARQUET + (
        "storage:\n  storage_type: s3\n  storage_root: bucket\n  storage_options:\n"
        "    access_key_id: a\n    secret_access_key: b\n    endpoint_url: http://h:9\n    s3_force_path_style: False\n"
    )
    got = read(tmp_path, text).workload.storage
    assert got.url == "s3://bucket/data/dlrm"
    assert got.options == {
        "access_key_id": "a",
        "secret_access_key": "b",
        "endpoint": "http://h:9",
        "virtual_hosted_style_request": True,
    }
    whole = PARQUET.replace("data/dlrm", "s3://other/data") + "storage: {storage_type: s3, storage_root: other}\n"
    assert read(tmp_path, whole).workload.storage.url == "s3://other/data"


def test_a_value_that_makes_no_sense_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 10: workflow.generate_data must be true or false"):
        read(tmp_path, UNET3D.replace("generate_data: False", "generate_data: maybe"))
    with pytest.raises(ConfigError, match=r"line 2\d: reader.batch_size must be a whole number"):
        read(tmp_path, UNET3D.replace("batch_size: 7", "batch_size: seven"))


def _paths(section: Any, path: str = "") -> set[str]:
    found = set()
    for one in fields(section):
        full = f"{path}.{one.name}" if path else one.name
        value = getattr(section, one.name)
        found.add(full)
        if is_dataclass(value):
            found |= _paths(value, full)
    return found


def test_every_key_is_a_setting_that_exists_or_says_why_not() -> None:
    known = _paths(Workload())
    for name, key in KEYS.items():
        assert key.ours in known if key.ours is not None else key.said, name


def markdown_table() -> str:
    """:data:`KEYS` as the table of docs/bench/dlio_keys.md."""
    rows = ["| DLIO's key | here | |", "|---|---|---|"]
    for name, key in KEYS.items():
        ours = f"`{key.ours}`" if key.ours else ("ignored by DLIO, too" if key.ignored else "has no effect")
        rows.append(f"| `{name}` | {ours} | {key.said} |")
    return "\n".join(rows)


def test_the_documented_table_is_the_one_in_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bench" / "dlio_keys.md").read_text()
    assert markdown_table() in text

"""Promise: DLIO's ``indexed_binary`` is generated in the layout that DLIO reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker import StreamingDataset
from stoker_bench import DatasetSpec, generate, read_workload


def test_generated_files_are_read_as_dlio_reads_them(tmp_path: Path) -> None:
    spec = DatasetSpec(format="indexed_binary", files=2, samples_per_file=3, record_bytes=40)
    assert generate(spec, tmp_path).complete
    expected = []
    for path in sorted(tmp_path.glob("*.indexed_binary")):
        data = np.fromfile(path, np.uint8)
        offsets, sizes = (np.fromfile(f"{path}.{end}.idx", np.int64) for end in ("off", "sz"))
        expected += [data[begin : begin + size].tobytes() for begin, size in zip(offsets, sizes, strict=True)]
    assert len(set(expected)) == 6
    assert [sample["data"] for sample in StreamingDataset(remote=tmp_path)] == expected


@pytest.mark.parametrize("name", ["indexed_binary", "mmap_indexed_binary"])
def test_dlio_s_names_mean_its_layout(name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        f"dataset: {{format: {name}, num_files_train: 2, num_samples_per_file: 7, record_length_bytes: 16}}\n"
    )
    assert read_workload(str(path), (), environ={}, dotenv=None).workload.dataset.format == "indexed_binary"

"""pyarrow's first conversion to NumPy, which threads that begin with it at once wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from patience import PATIENCE

_READ = """
import sys
from stoker import ReadOptions, StreamingDataset
dataset = StreamingDataset(sys.argv[1], batch_size=4, read=ReadOptions(read_threads=4)).map(dict)
lists = [value for batch in dataset.batches() for value in batch["x"]]
assert [list(value) for value in lists] == [[number] * (number % 3) for number in range(4000)]
"""


@pytest.mark.processes
def test_threads_of_a_fresh_process_begin_with_lists_of_parquet_at_once(tmp_path: Path) -> None:
    lists = [[number] * (number % 3) for number in range(4000)]
    pq.write_table(
        pa.table({"x": pa.array(lists, pa.list_(pa.int32()))}), tmp_path / "x.parquet", 10, compression="none"
    )
    done = subprocess.run([sys.executable, "-c", _READ, tmp_path], timeout=PATIENCE, check=False)
    assert done.returncode == 0

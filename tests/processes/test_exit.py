"""A process that ends in the middle of an iteration ends in silence: no finaliser prints a traceback."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support import environ, make_dataset

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

# What is suspended when the interpreter ends: an expression that gives an iterator, over `folder`.
_SUSPENDED = {
    "samples": "iter(StreamingDataset(local=folder, shuffle=True))",
    "threads": "iter(StreamingDataset(local=folder, transform=dict, read=ReadOptions(read_threads=4)))",
    "batches": "StreamingDataset(local=folder, read=ReadOptions(read_threads=2)).batches(8)",
    "cached": "iter(StreamingDataset(remote=folder, local=cache, cache_limit='1mb'))",
    "memory": "StreamingDataset(remote=folder, cache='memory').batches(8)",
    "loader": "iter(StreamingDataLoader(StreamingDataset(local=folder, batch_size=8)))",
    "workers": "iter(StreamingDataLoader(StreamingDataset(local=folder, batch_size=8), num_workers=2))",
    "persistent": (
        "iter(StreamingDataLoader(StreamingDataset(local=folder, batch_size=8), num_workers=2, persistent_workers=True))"
    ),
    "torch": "iter(DataLoader(StreamingDataset(local=folder, batch_size=8), batch_size=8, num_workers=2))",
    "lockstep": "iter(StreamingShardLoader(StreamingDataset(local=folder), StreamingConfig(prefetch_buffer_size=16)))",
    "leased": (
        "iter(StreamingShardLoader(StreamingDataset(local=folder), StreamingConfig(1, 0, Adaptive(), "
        "coordinator=f'sqlite:///{cache}/{next(number)}.db')))"
    ),
    "parquet": "iter(StreamingParquetLoader(tokens, batch_size=4, seq_len=16, read=ReadOptions(read_threads=2)))",
    "stream": (
        "iter(LMStream(StreamingDataset(tokens, format='parquet', batch_size=8, read=ReadOptions(read_threads=2)), "
        "'tokens', 4, 16))"
    ),
}
_WRITER = "MDSWriter(columns={'id': 'int'}, out=cache + '/new')"

_BEGIN = """
import sys
from itertools import count
from torch.utils.data import DataLoader
from stoker import *
from stoker.loaders.shard_loader import Adaptive, StreamingConfig

folder, tokens, cache = sys.argv[1:]
number = count()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder / "mds", 300, size_limit=2000)
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    (folder / "tokens").mkdir()
    rows = pa.array([list(range(20))] * 300, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": rows}), folder / "tokens" / "part.parquet", row_group_size=50)
    return folder


def run(script: str, data: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    cache.mkdir(exist_ok=True)
    command = [sys.executable, "-X", "dev", "-c", _BEGIN + textwrap.dedent(script)]
    arguments = [str(data / "mds"), str(data / "tokens"), str(cache)]
    return subprocess.run(
        [*command, *arguments], env=environ(), capture_output=True, text=True, timeout=100, check=False
    )


# One is held by the module, one by a cycle, and one by the frame of a function that exits.
_HELD = """
held = {begin}
next(held)

class Trainer: pass

trainer = Trainer()
trainer.self, trainer.iterator = trainer, {begin}
next(trainer.iterator)

def work():
    iterator = {begin}
    next(iterator)
    raise SystemExit(0)

work()
"""


@pytest.mark.parametrize("what", _SUSPENDED)
def test_an_interpreter_that_ends_with_suspended_iterators_prints_nothing(
    data: Path, tmp_path: Path, what: str
) -> None:
    done = run(_HELD.format(begin=_SUSPENDED[what]), data, tmp_path / "cache")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_an_interpreter_that_ends_with_an_open_writer_prints_nothing(data: Path, tmp_path: Path, end: str) -> None:
    done = run(f"writer = {_WRITER}\nwriter.write({{'id': 1}})\n{end}", data, tmp_path / "cache")
    assert (done.returncode, done.stderr) == (0, "")

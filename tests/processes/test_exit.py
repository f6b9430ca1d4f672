"""A process that ends in the middle of an iteration ends in silence: no finaliser prints a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from support import environ, make_dataset

pytestmark = [pytest.mark.processes]

# What is suspended when the interpreter ends: an expression that gives an iterator, over `folder`.
_SUSPENDED = {
    "samples": "iter(StreamingDataset(local=folder, shuffle=True))",
    "threads": "iter(StreamingDataset(local=folder, transform=dict, read=ReadOptions(read_threads=4)))",
    "batches": "StreamingDataset(local=folder, read=ReadOptions(read_threads=2)).batches(8)",
    "cached": "iter(StreamingDataset(remote=folder, local=cache, cache_limit='1mb'))",
    "memory": "StreamingDataset(remote=folder, read=ReadOptions(cache='memory')).batches(8)",
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

# An interpreter imports stoker, another one torch as well; each forks a child for each of its cases. A child runs the script
# in its main module, then comes to the end of the program, and its interpreter ends as any other does.
_PROGRAM = """
import json, os, sys, warnings
from itertools import count
from stoker import LMStream, MDSWriter, ReadOptions, StreamingDataset, StreamingParquetLoader, StreamingShardLoader
from stoker.loaders.shard_loader import Adaptive, StreamingConfig

if sys.argv[1] == "torch":
    from torch.utils.data import DataLoader
    from stoker import StreamingDataLoader

# Python 3.12 and later warn where torch forks workers.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
number = count()
for line in sys.stdin:
    script, folder, tokens, cache = json.loads(line)
    said, end = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(end, stream)
        os.closerange(3, max(said, end) + 1)
        exec(script)
        break
    os.close(end)
    with open(said) as pipe:
        text = pipe.read()  # until the last of the child's own children has ended
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text]), flush=True)
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


@pytest.fixture(scope="module")
def interpreters() -> Iterator[dict[bool, subprocess.Popen[str]]]:
    """Whether torch is imported, and the interpreter that forks."""
    with ExitStack() as stack:
        started = {}
        for torch in (False, True):
            command = [sys.executable, "-X", "dev", "-c", _PROGRAM, "torch" if torch else "alone"]
            process = subprocess.Popen(command, env=environ(), stdin=PIPE, stdout=PIPE, text=True)
            started[torch] = stack.enter_context(process)
        yield started


@pytest.fixture
def run(interpreters: dict[bool, subprocess.Popen[str]], data: Path, tmp_path: Path) -> Callable[[str], list[Any]]:
    """Runs a script to the end of its interpreter: the exit status, and all that it and its workers wrote."""

    def run(script: str) -> list[Any]:
        (tmp_path / "cache").mkdir()
        interpreter = interpreters["DataLoader(" in script]
        assert interpreter.stdin is not None
        assert interpreter.stdout is not None
        job = [script, *map(str, (data / "mds", data / "tokens", tmp_path / "cache"))]
        interpreter.stdin.write(json.dumps(job) + "\n")
        interpreter.stdin.flush()
        status_and_output: list[Any] = json.loads(interpreter.stdout.readline())
        return status_and_output

    return run


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
    run: Callable[[str], list[Any]], what: str
) -> None:
    assert run(_HELD.format(begin=_SUSPENDED[what])) == [0, ""]


@pytest.mark.parametrize("what", _SUSPENDED)
def test_so_it_does_where_another_module_keeps_the_main_one(run: Callable[[str], list[Any]], what: str) -> None:
    """Python takes that apart after the modules that were imported later."""
    held = f"json.main = sys.modules['__main__']\nheld = {_SUSPENDED[what]}\nnext(held)"
    assert run(held) == [0, ""]


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_an_interpreter_that_ends_with_an_open_writer_prints_nothing(run: Callable[[str], list[Any]], end: str) -> None:
    assert run(f"writer = {_WRITER}\nwriter.write({{'id': 1}})\n{end}") == [0, ""]


def test_what_an_interpreter_prints_as_it_ends_is_seen(run: Callable[[str], list[Any]]) -> None:
    status, said = run("class Loud:\n    def __del__(self):\n        raise ValueError('at the end')\nheld = Loud()")
    assert status == 0
    assert "ValueError: at the end" in said

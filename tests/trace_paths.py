"""Traces the paths that ``docs/architecture.md`` draws: ``python tests/trace_paths.py`` prints their functions, file by file.

A path is every function of the package that is on the call stack when one of its *ends* is called: where a position becomes a
shard and a row, where a file is fetched, mapped or stored, where bytes become values or values bytes. The stacks of threads
count too. Comprehensions and lambdas do not.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stoker
from stoker import MDSWriter, ShardConfig, StreamingDataset, StreamingParquetLoader

__all__ = ["PATHS", "Functions"]

Functions = set[tuple[str, str]]
"""Files, relative to the package, and qualified names of functions in them."""

_PACKAGE: Final = f"{Path(stoker.__file__).parent}/"
_TOKENS: Final = np.zeros((1000, 64), np.uint16)


@contextmanager
def _traced(ends: set[str], found: Functions) -> Iterator[None]:
    """Collects the functions that are on the stack whenever one of ``ends`` is called, in this thread or a new one."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_qualname not in ends or not frame.f_code.co_filename.startswith(_PACKAGE):
            return
        caller: FrameType | None = frame
        while caller is not None:
            code = caller.f_code
            if code.co_filename.startswith(_PACKAGE) and not code.co_name.startswith("<"):
                found.add((code.co_filename.removeprefix(_PACKAGE), code.co_qualname))
            caller = caller.f_back

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def sample(folder: Path) -> Functions:
    """From ``StreamingDataset.batches()`` to the bytes of a sample, with an empty cache on disk."""
    with MDSWriter({"tokens": "ndarray:uint16:64"}, folder / "data", size_limit="16kb") as out:
        out.write_batch({"tokens": _TOKENS})
    dataset = StreamingDataset(remote=folder / "data", local=folder / "cache", shuffle=True, batch_size=32)
    batches, found = dataset.batches(), Functions()
    with _traced(
        {"ShuffledStream.locate", "LocalStore.download", "MappedFile.__new__", "FixedArray.decode_fixed"}, found
    ):
        next(batches)
    dataset.close()
    return found


def written_batch(folder: Path) -> Functions:
    """From ``MDSWriter.write_batch()`` to the store, the index included."""
    found = Functions()
    with (
        _traced({"FixedArray.encode_column", "ShardUploader.submit", "LocalStore.put"}, found),
        MDSWriter({"tokens": "ndarray:uint16:64"}, folder / "data", size_limit="16kb") as out,
    ):
        out.write_batch({"tokens": _TOKENS})
    return found


def token_batch(folder: Path) -> Functions:
    """From iterating a ``StreamingParquetLoader`` to a batch of tokens."""
    documents = [[k] * (k % 40 + 1) for k in range(1, 400)]
    table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.uint32()))})
    pq.write_table(table, folder / "0.parquet", row_group_size=200)
    loader = StreamingParquetLoader(folder, ShardConfig(0, 1, seed=42), batch_size=8, seq_len=128, eos_id=0, pad_id=0)
    batches, found = iter(loader), Functions()
    with _traced({"TokenOrder.locate", "DiskCache._map", "decode_lists", "batch_arrays"}, found):
        next(batches)
    loader.close()
    return found


PATHS: Final[dict[str, Callable[[Path], Functions]]] = {
    "sample": sample,
    "written batch": written_batch,
    "token batch": token_batch,
}


def main() -> None:
    """Print each path."""
    for name, path in PATHS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = path(Path(folder))
        files = sorted({file for file, _ in found})
        print(f"{name}: {len(found)} functions in {len(files)} files")
        for file in files:
            print(f"  {file}: {', '.join(sorted(function for one, function in found if one == file))}")


if __name__ == "__main__":
    main()

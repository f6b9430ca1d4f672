"""Traces the paths that ``docs/architecture.md`` draws; ``python tests/trace_paths.py`` draws them anew, there.

A path is every function of the package that is on the call stack when one of its *ends* is called: where a position becomes a
shard and a row, where a file is fetched, mapped or stored, where bytes become values or values bytes, where a thread gets
work.
The stacks of threads count too. Comprehensions and lambdas do not.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stoker
from stoker import MDSWriter, ShardConfig, StreamingDataset, StreamingParquetLoader

__all__ = ["PATHS", "CallPath", "drawing"]

_PACKAGE: Final = f"{Path(stoker.__file__).parent}/"
PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
_TOKENS: Final = np.zeros((1000, 64), np.uint16)


@dataclass
class CallPath:
    """Functions that were on the stack, and which file called which.

    Attributes:
        entry: function that the user calls.
        functions: of each file, relative to the package, the functions by name with their line.
        calls: pairs of files, of which the first calls the second.
    """

    entry: Callable[..., Any]
    functions: dict[str, dict[str, int]] = field(default_factory=dict)
    calls: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def traced(self, ends: set[str]) -> Iterator[None]:
        """Adds what is on the stack whenever one of ``ends`` is called, in this thread or in one that begins now."""
        main = threading.get_ident()
        entry: CodeType = inspect.unwrap(self.entry).__code__

        def profile(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event != "call" or code.co_qualname not in ends or not code.co_filename.startswith(_PACKAGE):
                return
            stack = [frame.f_code]
            while frame.f_back is not None:
                frame = frame.f_back
                stack.append(frame.f_code)
            begin = [entry] if threading.get_ident() == main else []
            self._add([*begin, *reversed([one for one in stack if one.co_filename.startswith(_PACKAGE)])])

        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _add(self, stack: list[CodeType]) -> None:
        kept = [code for code in stack if not code.co_name.startswith("<")]
        for code in kept:
            names = self.functions.setdefault(code.co_filename.removeprefix(_PACKAGE), {})
            names[code.co_qualname] = code.co_firstlineno
        files = [code.co_filename.removeprefix(_PACKAGE) for code in kept]
        self.calls.update((one, other) for one, other in pairwise(files) if one != other)

    @property
    def count(self) -> str:
        """How many functions and files there are."""
        return f"{sum(len(names) for names in self.functions.values())} functions in {len(self.functions)} files"

    def mermaid(self) -> str:
        """The drawing: a node for each file, with its functions; an arrow where one calls another."""
        files = sorted(self.functions)
        lines = ["flowchart TD"]
        for number, file in enumerate(files):
            names = sorted(self.functions[file], key=self.functions[file].__getitem__)
            lines.append(f'    f{number}["{file}<br/>{" · ".join(names)}"]'.replace(".<locals>", ""))
        arrows = []
        for number, file in enumerate(files):
            called = sorted(files.index(other) for caller, other in self.calls if caller == file)
            if called:
                arrows.append(f"f{number} --> {' & '.join(f'f{other}' for other in called)}")
        return "\n".join([*lines, f"    {'; '.join(arrows)}"])


def sample(folder: Path) -> CallPath:
    """From ``StreamingDataset.batches()`` to the bytes of a sample, with an empty cache on disk."""
    # Small shards take a shorter path: they are held as they were fetched.
    with MDSWriter({"tokens": "ndarray:uint16:64"}, folder / "data", size_limit="400kb") as out:
        out.write_batch({"tokens": np.tile(_TOKENS, (10, 1))})
    dataset = StreamingDataset(remote=folder / "data", local=folder / "cache", shuffle=True, batch_size=32)
    path, batches = CallPath(StreamingDataset.batches), dataset.batches()
    reading = {"LocalStore.download", "MappedFile.__new__", "FixedArray.decode_fixed"}
    with path.traced({"ShuffledStream.locate", "Threads.submit", *reading}):
        next(batches)
    dataset.close()
    return path


def written_batch(folder: Path) -> CallPath:
    """From ``MDSWriter.write_batch()`` to the store, the index included."""
    path = CallPath(MDSWriter.write_batch)
    with (
        path.traced({"FixedArray.encode_column", "UploadPool.submit", "LocalStore.put"}),
        MDSWriter({"tokens": "ndarray:uint16:64"}, folder / "data", size_limit="16kb") as out,
    ):
        out.write_batch({"tokens": _TOKENS})
    return path


def token_batch(folder: Path) -> CallPath:
    """From iterating a ``StreamingParquetLoader`` to a batch of tokens."""
    # Small row groups take a shorter path: they are read, not mapped.
    documents = [np.arange(k, 40 * k, dtype=np.uint32) for k in range(1, 400)]
    table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.uint32()))})
    pq.write_table(table, folder / "0.parquet", row_group_size=200)
    loader = StreamingParquetLoader(folder, ShardConfig(0, 1, seed=42), batch_size=8, seq_len=128, eos_id=0, pad_id=0)
    path, batches = CallPath(StreamingParquetLoader.__iter__), iter(loader)
    with path.traced({"TokenOrder.locate", "Threads.submit", "DiskCache._map", "decode_lists", "batch_arrays"}):
        next(batches)
    loader.close()
    return path


PATHS: Final[dict[str, Callable[[Path], CallPath]]] = {
    "sample": sample,
    "written batch": written_batch,
    "token batch": token_batch,
}


def drawing(name: str, path: CallPath) -> str:
    """The part of the page that is about a path."""
    return f"<!-- {name} -->\n{path.count}:\n\n```mermaid\n{path.mermaid()}\n```\n"


def main() -> None:
    """Draw each path anew, and print how long it is."""
    text = PAGE.read_text()
    for name, trace in PATHS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = trace(Path(folder))
        print(f"{name}: {path.count}")
        begin = text.index(f"<!-- {name} -->")
        end = text.index("\n```\n", begin) + len("\n```\n")
        text = text[:begin] + drawing(name, path) + text[end:]
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

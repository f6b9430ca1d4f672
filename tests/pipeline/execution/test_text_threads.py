"""Batches of text are parsed by threads ahead of their consumer, where there are processors for them: the same batches."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import MDSWriter, ReadOptions, StreamingDataset, World
from stoker.errors import CorruptDataError
from stoker.pipeline.execution import executor
from stoker.types import Batch

ROWS = 6000


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FEW_LINES", 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


def line(number: int) -> str:
    return json.dumps({"id": number, "x": number / 7, "text": f"text {number} é"})


def write(folder: Path, rows: int = ROWS) -> Path:
    (folder / "data.jsonl").write_text("".join(f"{line(number)}\n" for number in range(rows)))
    (folder / "data.csv").write_text("id,text\n" + "".join(f"{number},text {number} é\n" for number in range(rows)))
    return folder


def readers() -> int:
    return sum(thread.name == "stoker-read" for thread in threading.enumerate())


def told(batch: Batch) -> dict[str, Any]:
    return {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in batch.items()}


@pytest.mark.parametrize("name", ["data.jsonl", "data.csv"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_threads_parse_the_same_batches(tmp_path: Path, name: str, shuffle: bool) -> None:
    write(tmp_path)

    def batches(threads: int | None) -> Iterator[Batch]:
        read = ReadOptions(read_threads=threads)
        dataset = StreamingDataset(tmp_path / name, shuffle=shuffle, batch_size=64, read=read)
        for number, batch in enumerate(dataset.batches()):
            if number > 20:
                assert bool(readers()) is (threads is None)
            yield batch
        dataset.close()

    alone = list(map(told, batches(0)))
    assert list(map(told, batches(None))) == alone
    assert sum(len(batch["id"]) for batch in alone) == ROWS


def test_a_bad_line_is_an_error_in_its_place(tmp_path: Path) -> None:
    lines = [line(number) for number in range(ROWS)]
    lines[4500] = '{"id": 4500, "x": "no number", "text": ""}'
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    found = []
    for threads in (0, None):
        # How many batches come before an error depends on the steps of reading, which the tuner cuts.
        read = ReadOptions(read_threads=threads, tune="off")
        dataset = StreamingDataset(tmp_path / "data.jsonl", batch_size=64, read=read)
        batches = dataset.batches()
        ids: list[list[int]] = []
        with pytest.raises(CorruptDataError, match="4500") as error:
            ids.extend(told(batch)["id"] for batch in batches)
        found.append((str(error.value), ids))
        dataset.close()
    assert found[0] == found[1]
    # Threads end after a moment, also of an iteration that raised an error.
    for thread in threading.enumerate():
        if thread.name == "stoker-read":
            thread.join(PATIENCE)
    assert readers() == 0


def threads_of(dataset: StreamingDataset, rows: int) -> int:
    batches = dataset.batches()
    taken = 0
    while taken < rows - 64:
        taken += len(next(batches)["id"])
    found = readers()
    batches.close()  # type: ignore[attr-defined]
    dataset.close()
    return found


def test_there_are_as_many_threads_as_processors_of_this_process(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "few").mkdir()
    write(tmp_path / "few", 900)
    with MDSWriter({"id": "int"}, tmp_path / "mds") as writer:
        writer.write_batch({"id": np.arange(ROWS)})
    source = tmp_path / "data.jsonl"
    assert threads_of(StreamingDataset(source, batch_size=64), ROWS) == 3
    assert threads_of(StreamingDataset(source, batch_size=64, read=ReadOptions(read_threads=1)), ROWS) == 1
    shared = World(0, 2, local_world_size=2)
    assert threads_of(StreamingDataset(source, batch_size=64, world=shared), ROWS // 2) == 0
    assert threads_of(StreamingDataset(tmp_path / "few" / "data.jsonl", batch_size=64), 900) == 0
    assert threads_of(StreamingDataset(tmp_path / "mds", batch_size=64), ROWS) == 0

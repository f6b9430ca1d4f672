"""Ranks that do not read the same, or read the same part, are an error in the first batch; nobody waits for it. Those that
are out of step are warned.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from patience import PATIENCE
from support import make_dataset, start_script

EXPECTED = {
    "same": "",
    "seed": "ranks 0 and 1 do not read the same in epoch 0: seed is 1 and 2. All ranks",
    "order": "shuffle is 'block' and 'global'",
    "batch size": "batch_size is 4 and 8",
    "data": "the data differs",
    "same rank": "processes 0, 1 of 2 all read as data rank 0 of 2 in epoch 0",
    "each alone": "",
    "replicated": "",
    "not compared": "",
    "peeks": "as its iteration 2, rank 0 begins epoch 1 at position 0, after 1 batches of the one before, and rank 1 epoch 1 "
    "at position 0, after 4.",
    "state": "as its iteration 1, rank 0 begins epoch 1 at position 0, after 0 batches of the one before, and rank 1 ",
    "peeks, not compared": "",
}


@pytest.mark.processes
def test_ranks_that_differ_are_an_error_in_the_first_batch(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 32)
    make_dataset(tmp_path / "other", 48)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = Path(__file__).with_name("compared_rank.py")
    ranks = [
        start_script(
            script,
            tmp_path / "data",
            tmp_path / "other",
            RANK=str(rank),
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = [[json.loads(line) for line in out.splitlines() if line.startswith("[")] for out, _ in said]
    assert [len(one) for one in found] == [2 * len(EXPECTED)] * 2, said
    assert {text for _, _, text in found[0]} == {""}, found[0]
    for name, workers, text in found[1]:
        assert EXPECTED[name] in text, (name, workers, text)
        assert bool(EXPECTED[name]) == bool(text), (name, workers, text)

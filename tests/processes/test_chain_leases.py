"""Leased work with a chain that filters and makes several samples of one: a worker is killed in the midst of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from chain_worker import chained

from patience import PATIENCE
from support import start_script, write_columns

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SAMPLES = 400


@pytest.mark.parametrize("batched", [False, True])
def test_all_is_committed_once_when_a_worker_is_killed(tmp_path: Path, *, batched: bool) -> None:
    remote = write_columns(tmp_path / "data", {"id": np.arange(SAMPLES)}, size_limit=500)
    told = {"remote": str(remote), "engine": f"sqlite://{tmp_path / 'leases.db'}", "batched": batched}
    dies = 7 if batched else 23
    started = [
        start_script(
            Path(__file__).with_name("chain_worker.py"),
            json.dumps(
                told | {"rank": rank, "out": str(tmp_path / f"{rank}.out"), "die": die, "awaited": str(awaited)}
            ),
        )
        for rank, die, awaited in [(0, 0, tmp_path / "killed"), (1, dies, tmp_path / "0.out")]
    ]
    _, why = started[1].communicate(timeout=PATIENCE)
    (tmp_path / "killed").write_text("now finish")
    said, wrong = started[0].communicate(timeout=PATIENCE)
    assert started[1].returncode < 0, why or "it was to be killed"
    assert started[0].returncode == 0, wrong
    entries = sorted(json.loads(said))
    assert [entry[0] for entry in entries] == [0, *(entry[1] for entry in entries[:-1])], (
        "each position is committed once"
    )
    assert entries[-1][1] == SAMPLES
    here, killed = (Counter((tmp_path / f"{rank}.out").read_text().splitlines()) for rank in range(2))
    dataset = chained(str(remote), batched=batched)
    dataset.batch_size = 5
    plain = Counter(
        f"{number} {turn} {noise}"
        for batch in dataset.batches()
        for number, turn, noise in zip(batch["id"], batch["turn"], batch["noise"], strict=True)
    )
    if batched:  # numbers of several samples of one are counted anew in the batch that a function has
        assert {line.rsplit(" ", 1)[0] for line in here | killed} == {line.rsplit(" ", 1)[0] for line in plain}
        return
    assert set(here) | set(killed) == set(plain), "with the random numbers that the dataset has"
    assert max(here.values()) == 1, "one worker has nothing twice"
    again = {int(line.split()[0]) for line in here & killed}
    owners = {int(line.split()[0]) for line in killed}
    assert again <= owners

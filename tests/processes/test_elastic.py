"""torchrun replaces a killed rank: training goes on from the group's last checkpoint; only what came after it comes twice."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from elastic_rank import BATCH, DIES_AT, EVERY

from stoker import StreamingDataset
from support import check_batch, make_dataset, run_script

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("no_debris")]

HERE = Path(__file__).parent
RANKS = 2
STEPS = 30


def test_a_killed_rank_is_replaced_and_only_what_came_after_the_checkpoint_comes_twice(tmp_path: Path) -> None:
    samples = STEPS * RANKS * BATCH + 5  # the last 5 are no whole batch, and dropped
    make_dataset(tmp_path / "data", samples, hashes=["xxh64"])
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=1"]
    command = [*launcher, f"--log-dir={tmp_path}/logs", HERE / "elastic_rank.py"]
    command += [tmp_path / "data", tmp_path / "cache", tmp_path]
    # Without this, torchrun's agent keeps one store for all attempts, and ranks that begin again may find in it the addresses
    # of those that died (pytorch/pytorch#135712): gloo then waits, or is refused, in every further attempt.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    run_script(command, OMP_NUM_THREADS="1", **own_store)

    undisturbed = StreamingDataset(local=tmp_path / "data", shuffle=True, batch_size=RANKS * BATCH, remainder="drop")
    expected = [check_batch(batch) for batch in undisturbed.batches()]
    assert len(expected) == STEPS

    def steps(life: int) -> dict[int, list[int]]:
        """For each step, what all ranks had."""
        parts = [(tmp_path / f"steps{life}.{rank}").read_text().splitlines() for rank in range(RANKS)]
        found = [dict(map(json.loads, part)) for part in parts]
        return {
            step: list(chain.from_iterable(part[step] for part in found)) for step in found[0].keys() & found[1].keys()
        }

    first, second = steps(0), steps(1)
    saved_at = DIES_AT // EVERY * EVERY
    assert sorted(first) == list(range(1, DIES_AT + 1))
    assert sorted(second) == list(range(saved_at + 1, STEPS + 1))
    for found in (first, second):
        assert all(batch == expected[step - 1] for step, batch in found.items())
    twice = set(chain.from_iterable(first.values())) & set(chain.from_iterable(second.values()))
    assert twice == set(chain.from_iterable(expected[saved_at:DIES_AT]))

    # The model went back with the samples, so it is what it would have been without a failure.
    out = json.loads((tmp_path / "out.json").read_text())
    assert out == {"model": sum(chain.from_iterable(expected)), "step": STEPS, "life": 1}

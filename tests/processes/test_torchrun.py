"""Real ranks under torchrun: disjoint, complete, in step, stopped on two and resumed on three."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from stoker import StreamingDataset
from support import check_batch, make_dataset, run_script

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.usefixtures("no_debris"),
]

HERE = Path(__file__).parent
GLOBAL = 12
STOP_AFTER = 9
SAMPLES = 20 * GLOBAL + 6  # 2 and 3 ranks can share the last batch


def torchrun(ranks: int, data: Path, folder: Path, out: str) -> dict[str, Any]:
    """Run ``gloo_rank.py`` on so many ranks; all of them share one cache."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--log-dir={folder}/logs"]
    command = [*launcher, HERE / "gloo_rank.py"]
    run_script([*command, data, folder / f"cache{ranks}", folder / "state.json", folder / out], OMP_NUM_THREADS="1")
    found: dict[str, Any] = json.loads((folder / out).read_text())
    assert found["ranks"] == ranks
    return found


def test_two_ranks_stop_and_three_continue(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_dataset(data, SAMPLES, size_limit=1500, compression="zstd", hashes=["xxh64"])
    alone = StreamingDataset(local=data, shuffle=True, batch_size=GLOBAL)
    epochs = [[check_batch(batch) for batch in alone.batches()] for _ in range(3)]

    for ranks in (2, 3):
        found = torchrun(ranks, data, tmp_path, f"out{ranks}.json")
        parts = found["by samples"]
        assert sorted(chain.from_iterable(parts)) == list(range(SAMPLES))
        assert len({len(part) for part in parts}) == 1
        share = GLOBAL // ranks
        steps = [
            list(chain.from_iterable(part[step : step + share] for part in parts))
            for step in range(0, SAMPLES // ranks, share)
        ]
        assert steps == epochs[0]
        assert found["by loader"] == epochs[1]
        if ranks == 2:
            assert found["begun"] == epochs[2][:STOP_AFTER]
        else:
            assert found["resumed"] == epochs[2][STOP_AFTER:]

"""Finding the world: each launcher's variables, and nothing where they only seem to speak of this process."""

from __future__ import annotations

import pytest

from stoker.cluster import World
from stoker.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (5, 8, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 1)),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            (3, 4, 2),
        ),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "6",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_STEP_TASKS_PER_NODE": "4,3",
                "SLURM_NODEID": "1",
            },
            (6, 7, 3),
        ),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "6",
                "SLURM_STEP_NUM_TASKS": "16",
                "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
                "SLURM_NODEID": "1",
            },
            (6, 16, 8),
        ),
        # A batch script sees the allocation's variables but is one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1, 1)),
        # torchrun under Slurm: the inner launcher counts.
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"},
            (0, 2, 1),
        ),
    ],
)
def test_launchers(environ: dict[str, str], expected: tuple[int, int, int]) -> None:
    world = World.detect(environ)
    assert (world.rank, world.world_size, world.local_world_size) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "1"}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 is not in a world of 2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be an integer, got 'x'"),
    ],
)
def test_half_a_world_is_an_error(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World.detect(environ)


def test_an_initialised_process_group_counts_more_than_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    import torch.distributed as dist

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert World.detect().world_size == 1
        assert World.detect().source == "torch.distributed"
    finally:
        dist.destroy_process_group()
    assert World.detect().world_size == 3

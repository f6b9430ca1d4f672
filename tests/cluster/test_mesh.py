"""Ranks that read the same samples: groups of neighbours, and meshes with dimensions beside data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cluster import Mesh, World
from stoker.errors import ConfigError
from support import run_script

HERE = Path(__file__).parent

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def named(sizes: list[int]) -> dict[str, int]:
    return dict(zip("abcd", sizes, strict=False))


@dataclass
class TorchMesh:
    """What a ``torch.distributed.DeviceMesh`` shows of itself."""

    mesh: Any
    mesh_dim_names: tuple[str, ...] | None


def torch_mesh(ranks: Any, *names: str) -> TorchMesh:
    return TorchMesh(SimpleNamespace(tolist=np.asarray(ranks).tolist), names or None)


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 16))
def test_groups_of_consecutive_ranks_are_one_reader(replication: int, groups: int, local: int) -> None:
    size = replication * groups
    local = min(local, size)
    worlds = [World(rank, size, local, "torchrun") for rank in range(size)]
    reduced = [world.replicate(replication) for world in worlds]
    assert [world.rank for world in reduced] == [rank for rank in range(groups) for _ in range(replication)]
    assert {world.world_size for world in reduced} == {groups}
    assert {world.source for world in reduced} == {"torchrun"}
    for rank, world in enumerate(reduced):
        on_node = {r // replication for r in range(size) if r // local == rank // local}
        assert world.local_world_size == len(on_node)


@pytest.mark.parametrize("replication", [0, -1, 3, 16])
def test_a_replication_that_does_not_divide_the_world_is_an_error(replication: int) -> None:
    with pytest.raises(ConfigError, match=rf"8 ranks \(Slurm\) cannot be divided into groups of {replication}"):
        World(0, 8, 4, "Slurm").replicate(replication)


@given(shapes, st.data())
def test_ranks_share_samples_exactly_where_their_data_coordinates_agree(sizes: list[int], data: st.DataObject) -> None:
    shape = named(sizes)
    chosen = data.draw(st.lists(st.sampled_from(sorted(shape)), min_size=1, unique=True))
    mesh = Mesh(shape, chosen)
    total = int(np.prod(sizes))
    local = data.draw(st.integers(1, total))
    # Literally: coordinates of a rank by repeated division, the last dimension first.
    numbers = []
    for rank in range(total):
        rest, coordinate = rank, {}
        for name, size in reversed(shape.items()):
            rest, coordinate[name] = divmod(rest, size)
        number = 0
        for name, size in shape.items():
            if name in chosen:
                number = number * size + coordinate[name]
        numbers.append(number)
    for rank in range(total):
        world = mesh.data_world(World(rank, total, local, "Open MPI"))
        on_node = {numbers[r] for r in range(total) if r // local == rank // local}
        assert (world.rank, world.world_size) == (numbers[rank], mesh.data_size)
        assert (world.local_world_size, world.source) == (len(on_node), "Open MPI")


def test_the_usual_mesh() -> None:
    mesh = Mesh({"pp": 2, "dp": 4, "tp": 2})
    assert [mesh.data_world(World(rank, 16, 8)).rank for rank in range(16)] == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert mesh.data_world(World(5, 16, 8)) == World(2, 4, 4)
    assert mesh.shape == {"pp": 2, "dp": 4, "tp": 2}


def test_replication_is_the_mesh_whose_last_dimension_reads_the_same() -> None:
    for rank in range(24):
        world = World(rank, 24, 8)
        assert Mesh({"dp": 6, "tp": 4}).data_world(world) == world.replicate(4)


def test_a_device_mesh_need_not_be_row_major() -> None:
    ranks = np.array([[3, 1, 0], [5, 2, 4]])
    mesh = Mesh.of(torch_mesh(ranks, "tp", "dp"))
    for rank in range(6):
        column = int(np.argwhere(ranks == rank)[0][1])
        assert mesh.data_world(World(rank, 6, 6)) == World(column, 3, 3)


def test_a_sub_mesh_serves_the_ranks_that_it_has() -> None:
    sub = Mesh.of(torch_mesh([1, 3, 5, 7], "dp"))
    assert sub.data_world(World(5, 8, 4)) == World(2, 4, 2)
    with pytest.raises(ConfigError, match="rank 4 is not in the device mesh over ranks 1, 3, 5, 7"):
        sub.data_world(World(4, 8, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh({}), "at least one dimension"),
        (lambda: Mesh({"dp": 0}), r"'dp'\] must be at least 1, got 0"),
        (lambda: Mesh({"dp": True}), r"'dp'\] must be an integer, got True"),
        (lambda: Mesh({"fsdp": 4}), r"data=\['dp'\] must name dimensions .* it has fsdp"),
        (lambda: Mesh({"dp": 4}, []), "must name dimensions"),
        (lambda: Mesh({"dp": 4}, ["dp", "dp"]), "each once"),
        (lambda: Mesh.of(torch_mesh([0, 1])), "mesh_dim_names="),
        (lambda: Mesh({"dp": 4, "tp": 2}).data_world(World(0, 4)), "dp=4 x tp=2 has 8 ranks, the world has 4"),
        (lambda: Mesh.of(torch_mesh([0, 0], "dp")).data_world(World(0, 2)), "more than once"),
    ],
)
def test_what_is_no_mesh_is_an_error(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.processes
@pytest.mark.usefixtures("no_debris")
def test_torchs_own_meshes_on_four_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", f"--log-dir={tmp_path}/logs"]
    run_script([*launcher, HERE / "mesh_rank.py", out], OMP_NUM_THREADS="1")
    assert run_script(["-c", f"print(open({str(out)!r}).read())"]) == [
        {
            "dp inside": [[0, 2, 2], [1, 2, 2], [0, 2, 2], [1, 2, 2]],
            "dp outside": [[0, 2, 2], [0, 2, 2], [1, 2, 2], [1, 2, 2]],
            "sub mesh": [[0, 2, 2], [0, 2, 2], [1, 2, 2], [1, 2, 2]],
            "both": [[rank, 4, 4] for rank in range(4)],
        }
    ]

"""Ranks on Ray: an actor of each, dealt out evenly over as many nodes of the cluster as can have the same number.

The process that starts them, which is in the cluster but is no rank, is where they meet; Ray only starts them and says how
they ended. What a rank writes comes back with its call, so that nodes need not share the directory of the results.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stoker.cluster import World
from stoker.display import counted, error_text
from stoker.errors import ConfigError, import_option
from stoker_bench.ranks.control.client import Link
from stoker_bench.ranks.launch import Launch
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.ranks.rank_main import run_member
from stoker_bench.settings.workload import Workload

_LOOK_SECONDS: Final = 0.2
_END_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Left:
    """The files and the error that a rank leaves.

    Attributes:
        error: why it failed; empty if it did not.
        files: what it wrote below the results, by path.
    """

    error: str
    files: Mapping[str, bytes]


def possible_ranks(most: int, workload: Workload) -> list[int]:
    """Numbers of ranks, up to ``most``, that the Ray cluster can have; see :class:`RayRanks`."""
    return RayRanks(1, workload, Path()).possible(most)


def deal(ranks: int, slots: Mapping[str, int]) -> list[str]:
    """The node of each rank, those of a node one after the other: the same number on each, on as many nodes as that allows.

    Args:
        ranks: how many.
        slots: how many each node can have.

    Raises:
        ConfigError: the nodes have no room for so many.
    """
    widest = sorted(slots, key=lambda node: (-slots[node], node))
    for count in range(min(ranks, len(widest)), 0, -1):
        if ranks % count == 0 and slots[widest[count - 1]] >= ranks // count:
            return [node for node in widest[:count] for _ in range(ranks // count)]
    nodes = ", ".join(str(slots[node]) for node in widest[:16])
    raise ConfigError(
        f"{counted(ranks, 'rank')} can not be placed on the Ray cluster, whose nodes have room for "
        f"{nodes or 'none'} (a processor each, or a GPU where compute.device is one): all nodes get the "
        "same number. Give another number of accelerators, or let nodes declare more processors (ray start --num-cpus)"
    )


class RayRanks(Launch):
    """Actors on the Ray cluster that this process is in, or that ``RAY_ADDRESS`` or a running node of this host leads to.

    Args:
        ranks: how many.
        workload: says whether a rank needs a GPU.
        results: where what ranks leave is put.
    """

    name, host = "Ray", ""

    def __init__(self, ranks: int, workload: Workload, results: Path) -> None:
        self._ranks, self._results = ranks, results
        compute = workload.compute
        self._needs = "GPU" if compute.kind == "torch" and compute.device.startswith("cuda") else "CPU"
        self._ray: Any = None
        self._connected = False
        self._nodes: list[str] = []
        self._actors: list[Any] = []
        self._calls: list[Any] = []
        self._ended: list[str | None] = []

    def prepare(self) -> None:
        """See :class:`~stoker_bench.ranks.launch.Launch`.

        Raises:
            MissingPackageError: Ray is not installed.
            ConfigError: no cluster answers, or it has no room.
        """
        self._connect()
        try:
            self._nodes = deal(self._ranks, self._slots())
        except ConfigError:
            self._leave()
            raise

    def _connect(self) -> None:
        ray = self._ray = import_option("ray", "--launcher ray needs Ray", "stoker[ray]")
        if not ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS") or "auto"
            if address.startswith("ray://"):
                raise ConfigError(
                    f"RAY_ADDRESS is {address}, from where ranks could not reach this process: start it in the cluster, as "
                    "by ray job submit"
                )
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"no Ray cluster is found at {address!r} ({str(error).splitlines()[0]}): start this on one of its nodes, "
                    "or by ray job submit"
                ) from None
            self._connected = True

    def _slots(self) -> dict[str, int]:
        """The number of ranks that each node can have."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return {node["NodeID"]: int(node["Resources"].get(self._needs, 0)) for node in alive}

    def possible(self, most: int) -> list[int]:
        """Numbers of ranks, up to ``most``, that the cluster can have.

        Raises:
            MissingPackageError, ConfigError: as for :meth:`prepare`; or there is room for none.
        """
        self._connect()
        try:
            slots = self._slots()
            found = []
            for ranks in range(1, most + 1):
                with contextlib.suppress(ConfigError):
                    found.append(len(deal(ranks, slots)))
            return found or [len(deal(1, slots))]
        finally:
            self._leave()

    def start(self, plan: RunPlan, port: int, token: str) -> None:
        ray = self._ray
        on_node = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        meeting = ray.util.get_node_ip_address(), port, token
        each = self._ranks // len(set(self._nodes))
        # An actor can be killed at any moment; Ray 2.60 ends the process that cancels a task as this begins or ends.
        of_rank = ray.remote(_Rank)
        for rank, node in enumerate(self._nodes):
            actor = of_rank.options(
                num_cpus=1,
                num_gpus=1 if self._needs == "GPU" else 0,
                scheduling_strategy=on_node(node, soft=False),
            ).remote()
            run = actor.run.options(name=f"stoker bench rank {rank}")
            self._calls.append(run.remote(plan, World(rank, self._ranks, each, self.name), meeting))
            self._actors.append(actor)
            self._ended.append(None)

    def ended(self) -> list[str | None]:
        ray = self._ray
        running = [rank for rank, said in enumerate(self._ended) if said is None]
        if running:
            calls = [self._calls[rank] for rank in running]
            done = set(ray.wait(calls, num_returns=len(calls), timeout=_LOOK_SECONDS, fetch_local=False)[0])
            for rank in running:
                if self._calls[rank] in done:
                    self._ended[rank] = self._taken(self._calls[rank])
        return self._ended

    def end_stopped(self) -> None:
        """Nothing: an actor's process may be on another host, and is ended with its actor."""

    def _taken(self, call: Any) -> str:
        """Keep what a rank has left; why it failed."""
        try:
            left: _Left = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            return f"ended with {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        with contextlib.suppress(OSError):  # a directory that can not be written to is told when the results are
            for name, content in left.files.items():
                path = self._results / name
                if not path.exists():  # not on a node that shares it
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        return f"failed: {left.error}" if left.error else ""

    def end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while None in self.ended() and time.monotonic() < deadline:
            continue  # they have been told; asking them waits
        for rank, said in enumerate(self._ended):
            if said is None:
                self._ray.kill(self._actors[rank])
        self._leave()

    def _leave(self) -> None:
        if self._connected:
            self._ray.shutdown()
            self._connected = False


class _Rank:
    """The actor: one rank, in a process of Ray's on the node that it belongs to."""

    def run(self, plan: RunPlan, world: World, meeting: tuple[str, int, str]) -> _Left:
        """Take part from the beginning to the end."""
        scratch = os.path.join(tempfile.gettempdir(), f"stoker-bench-{plan.run}")  # of all ranks of the host
        name, error = f"rank{world.rank:05d}", ""
        with contextlib.ExitStack() as stack:
            results = Path(plan.results)  # where it is there, of a rank that is killed more is left
            if not results.is_dir():
                results = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"stoker-bench-{name}-")))
            if world.rank % world.local_world_size == 0:
                stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            try:
                os.makedirs(scratch, mode=0o700, exist_ok=True)
                silence = plan.workload.train.step_timeout
                link = Link(lambda: meeting, world.rank, plan.digest, join_seconds=60, fatal=True, silence=silence)
                run_member(replace(plan, scratch=scratch, results=str(results)), world, link)
            except Exception as failure:  # noqa: BLE001 - all others have been told; what was measured is to come back
                error = error_text(failure)
            written = [*results.glob(f"{name}.json"), *results.glob(f"steps/{name}-*.npz")]
            return _Left(error, {str(path.relative_to(results)): path.read_bytes() for path in written})

"""Binding of ranks to processors: cores or NUMA nodes of a host are shared out to its ranks, unless a launcher did that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from stoker.display import counted
from stoker.errors import ConfigError

_SYSTEM: Final = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True)
class Topology:
    """The processors of a host.

    Attributes:
        nodes: NUMA node to its processors.
        cores: the processors of each core: those that share one are its threads. Cores of a node follow each other.
    """

    nodes: Mapping[int, frozenset[int]]
    cores: tuple[frozenset[int], ...]

    def node_of(self, processor: int) -> int:
        """The NUMA node of a processor; 0 where none has it."""
        return next((node for node, members in self.nodes.items() if processor in members), 0)


@dataclass(frozen=True, slots=True)
class Binding:
    """The processors of a rank.

    Attributes:
        processors: their numbers, in order.
        nodes: the NUMA nodes that they are of.
        bound: whether this run has bound the rank to them; else they are what it had.
        said: how it came to them, in words.
    """

    processors: tuple[int, ...]
    nodes: tuple[int, ...]
    bound: bool
    said: str


def read_topology(system: Path = _SYSTEM) -> Topology:
    """The processors of this host, as Linux tells them; one node, and a core for each, where it tells nothing.

    Args:
        system: the directory of Linux's description.
    """
    nodes = {int(path.name[4:]): _parse(path / "cpulist") for path in sorted(system.glob("node/node[0-9]*"))}
    nodes = {node: members for node, members in nodes.items() if members}  # some have memory alone
    processors = {int(path.name[3:]) for path in system.glob("cpu/cpu[0-9]*")} or set(range(os.cpu_count() or 1))
    found = Topology(nodes or {0: frozenset(processors)}, ())
    cores = set()
    for one in processors:
        siblings = _parse(system / f"cpu/cpu{one}/topology/thread_siblings_list")
        cores.add(siblings or frozenset([one]))
    ordered = sorted(cores, key=lambda core: (found.node_of(min(core)), min(core)))
    return Topology(found.nodes, tuple(ordered))


def choose_binding(
    how: Literal["cores", "numa"], allowed: Sequence[Sequence[int]], number: int, topology: Topology
) -> Binding:
    """The processors for one of a host's ranks.

    Args:
        how: ``"cores"``: an equal part of the cores; ``"numa"``: all processors of a node.
        allowed: of each rank of the host, the processors that it may use now.
        number: this rank's place among them.
        topology: of the host.
    """
    mine = frozenset(allowed[number])
    if any(frozenset(other) != mine for other in allowed):
        return _binding(mine, topology, "as its launcher has bound it", bound=False)
    ranks = len(allowed)
    if how == "numa":
        nodes = [node for node, members in sorted(topology.nodes.items()) if members & mine]
        if len(nodes) < 2:
            return _binding(mine, topology, f"to the one NUMA node there is, {counted(len(mine), 'processor')}")
        node = nodes[number * len(nodes) // ranks]
        part = topology.nodes[node] & mine
        return _binding(part, topology, f"to NUMA node {node}, {counted(len(part), 'processor')}")
    cores = [core & mine for core in topology.cores if core & mine]
    if len(cores) < ranks:  # by hardware threads, and where there are fewer of these, several ranks have the same
        cores = [frozenset([one]) for core in cores for one in sorted(core)]
    if len(cores) < ranks:
        part = cores[number * len(cores) // ranks]
        return _binding(part, topology, f"to one processor, which others of the {ranks} ranks share")
    chosen = cores[number * len(cores) // ranks : (number + 1) * len(cores) // ranks]
    part = frozenset().union(*chosen)
    return _binding(part, topology, f"to {counted(len(part), 'processor')} of its own")


@contextlib.contextmanager
def bound(
    how: Literal["none", "cores", "numa"], allowed: Sequence[Sequence[int]], number: int
) -> Iterator[Binding | None]:
    """Bind this process, and the threads and processes that it starts, as long as the block lasts.

    Args:
        how: ``"none"`` for not at all, else as :func:`choose_binding`.
        allowed, number: as there.

    Raises:
        ConfigError: this system can not.
    """
    if how == "none":
        yield None
        return
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(f"reader.bind {how}: this system binds no processes to processors: leave it out")
    found = choose_binding(how, allowed, number, read_topology())
    before = os.sched_getaffinity(0)
    _set(found.processors)
    try:
        yield found
    finally:
        _set(before)


def own_processors() -> list[int]:
    """The numbers of the processors that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def describe_bindings(bindings: Sequence[Mapping[str, Any] | None]) -> str | None:
    """All ranks' bindings in a few words; ``None`` where there is none."""
    said = list(dict.fromkeys(str(one["said"]) for one in bindings if one is not None))
    return f"each rank is bound {' or '.join(said[:4])}{' or ...' if len(said) > 4 else ''}" if said else None


def _binding(processors: frozenset[int], topology: Topology, said: str, *, bound: bool = True) -> Binding:
    nodes = sorted({topology.node_of(one) for one in processors})
    return Binding(tuple(sorted(processors)), tuple(nodes), bound, said)


def _set(processors: Sequence[int] | set[int]) -> None:
    """Of all threads of this process: those that were started before would otherwise go on elsewhere."""
    for thread in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["0"]:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), processors)


def _parse(path: Path) -> frozenset[int]:
    """Processors of a list such as ``0-3,8``; none where there is no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return frozenset()
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)

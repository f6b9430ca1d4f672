"""Compares what the ranks of a process group are about to read, once an epoch, without waiting for any of them.

Each rank writes what it reads to the process group's key-value store, where the first to do so has set what the others
compare theirs with, and where each data rank may be taken only so often. Of two ranks that differ, the later one sees it. No
rank waits for another: a rank that does not iterate, or iterates later, is no problem.

Where a rank's iterations begin, and how many batches it had of the one before, are compared too, and are a warning where
they differ: ranks that train together are out of step if one of them alone has taken a batch first, or loaded a state. Ranks
that do not wait for each other may differ so.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.cluster.call_stack import callers, module_of
from stoker.digests import blake2b
from stoker.errors import ConfigError
from stoker.order.sample_order import DataRank, EpochPosition, SampleOrder

logger = logging.getLogger(__name__)

_REMEDY: Final = (
    "All ranks must be given the same data and settings. Where ranks are to read apart from each other, give each "
    "world=World(); read=ReadOptions(compare_ranks=False) leaves this comparison out"
)
_STREAM: Final = ("fingerprint", "subset", "block_size", "choose")

_PATIENCE: Final = 1.0
"""Seconds to wait for a rank that was caught halfway through writing its claim."""

# Of this process: number of datasets that each line has made, and what was compared already.
_made: dict[str, int] = {}
_compared: set[str] = set()


class RankComparison:
    """The comparison of one dataset with its counterpart on the other ranks.

    Its counterpart was made by the same line of the training script, called by the same lines, as the dataset of the same
    number there. Where ranks run different scripts, their datasets have no counterparts and are not compared.
    """

    def __init__(self) -> None:
        origin = blake2b("\n".join(_lines()).encode(), 12).hexdigest()
        _made[origin] = number = _made.get(origin, -1) + 1
        self._key = f"stoker/{origin}/{number}"
        # Iterations that have begun; and whether a difference was told.
        self._begun, self._told = 0, False

    def agree(self, name: str, mine: str) -> str:
        """The text that the first rank to ask has given; ``mine`` without a process group.

        Args:
            name: of the text.
            mine: of this rank.
        """
        if (group := _group()) is None:
            return mine
        store, _, ranks, _ = group
        found: str = store.compare_set(f"{self._key}/{ranks}/{name}", "", mine).decode()
        return found

    def compare(self, order: SampleOrder, point: EpochPosition, data_rank: DataRank, loads: int, left: int) -> None:
        """Compare an epoch that begins.

        Args:
            order: what is read.
            point: where it begins.
            data_rank: who reads.
            loads: states that were loaded before.
            left: batches that the iteration before had delivered; 0 where there was none.

        Raises:
            ConfigError: another rank reads other data, or in another order, or takes the part of this one.
        """
        if (group := _group()) is None:
            return
        store, rank, ranks, number = group
        key = f"{self._key}/{ranks}/{point.epoch}/{loads}"
        once = f"{os.getpid()}/{number}/{key}"
        self._compare_steps(store, f"{self._key}/{ranks}/begun", rank, point, left)
        if once in _compared:
            return
        _compared.add(once)
        mine = _claim(order, data_rank)
        try:
            first = _set_first(store, key, rank, mine)
            others = _take(store, f"{key}/rank/{data_rank.rank}", rank)
        except Exception as error:  # noqa: BLE001 - whatever a store raises; its process group says so by itself
            logger.warning("ranks were not compared, as the process group's store failed: %s", error)
            return
        if first is not None:
            said = "; ".join(_differences(first[1], mine)) or "they differ"
            raise ConfigError(
                f"ranks {first[0]} and {rank} do not read the same in epoch {point.epoch}: {said}. {_REMEDY}"
            )
        if len(others) * data_rank.world_size > ranks:
            raise ConfigError(
                f"processes {', '.join(map(str, others))} of {ranks} all read as data rank {data_rank.rank} of "
                f"{data_rank.world_size} in epoch {point.epoch}, so that samples would come more than once, and others not "
                f"at all: leave world= out, which finds this process's rank, or correct it and replication=. {_REMEDY}"
            )

    def _compare_steps(self, store: Any, key: str, rank: int, point: EpochPosition, left: int) -> None:
        """Warn, once, if the first rank to begin as many iterations was elsewhere, or had left the one before elsewhere."""
        self._begun += 1
        mine = [rank, point.epoch, point.position, left]
        try:
            first = json.loads(store.compare_set(f"{key}/{self._begun}", "", json.dumps(mine)))
        except Exception as error:  # noqa: BLE001 - whatever a store raises; its process group says so by itself
            logger.warning("ranks were not compared, as the process group's store failed: %s", error)
            return
        # Of epochs that are not divided equally, and of batches that are fetched ahead, a rank may have one more.
        if self._told or (first[1:3] == mine[1:3] and abs(first[3] - left) <= 1):
            return
        self._told = True
        logger.warning(
            "ranks are out of step: as its iteration %d, rank %d begins epoch %d at position %d, after %d batches of the one "
            "before, and rank %d epoch %d at position %d, after %d. If they train together, samples are lost and others come "
            "twice: a rank must not take batches or load a state by itself (dataset[0] shows a sample). Ranks that do not "
            "wait for each other may differ so; read=ReadOptions(compare_ranks=False) leaves this comparison out",
            self._begun,
            *first,
            *mine,
        )


def _lines() -> Iterator[str]:
    """The lines that led here, of all code but stoker's and what starts scripts."""
    for frame in callers():
        name, code = module_of(frame), frame.f_code
        if name.partition(".")[0] != "stoker" and name != "runpy" and not code.co_filename.startswith("<frozen"):
            yield f"{os.path.basename(code.co_filename)}:{code.co_name}:{frame.f_lineno}"


def _group() -> tuple[Any, int, int, int] | None:
    """The store of the default process group, this process's rank in it, its size, and a number that no other group has.

    ``None`` where there is none of several ranks, or its store is not public (torch before 2.9).
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group, ranks = distributed.group.WORLD, distributed.get_world_size()
    found = getattr(group, "get_group_store", None)
    store = None if found is None or ranks == 1 else found()
    return None if store is None else (store, distributed.get_rank(), ranks, id(group))


def _claim(order: SampleOrder, data_rank: DataRank) -> dict[str, Any]:
    said = order.as_dict()
    streams = [{name: one.get(name) for name in _STREAM} for one in said["streams"].values()]
    return {
        **said["order"],
        "streams": streams,
        "batch_size": data_rank.batch_size,
        "data ranks": data_rank.world_size,
    }


def _set_first(store: Any, key: str, rank: int, mine: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """Say what this rank reads, if it is the first; otherwise the first rank and what it reads, if that is something else."""
    text = json.dumps(mine, sort_keys=True, default=str)
    digest = blake2b(text.encode(), 16).hexdigest()
    found, _, its_digest = store.compare_set(key, "", f"{rank} {digest}").decode().partition(" ")
    if int(found) == rank:
        store.set(f"{key}/said", text)
    if its_digest == digest:
        return None
    known = store.check([f"{key}/said"])
    return int(found), json.loads(store.get(f"{key}/said")) if known else {}


def _take(store: Any, key: str, rank: int) -> list[int]:
    """Note that this process reads as a data rank; the processes that do."""
    taken: set[int] = set()
    number = store.add(key, 1)
    store.set(f"{key}/{number}", str(rank))
    for one in range(1, number + 1):
        until = time.monotonic() + _PATIENCE
        while not (there := store.check([f"{key}/{one}"])) and time.monotonic() < until:
            time.sleep(0.001)  # it has taken its number, and says in a moment who it is
        if there:
            taken.add(int(store.get(f"{key}/{one}")))
    return sorted(taken)


def _differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[str]:
    if not theirs:
        return
    for name in sorted(theirs.keys() | mine.keys()):
        before, now = theirs.get(name), mine.get(name)
        if json.dumps(before, default=str, sort_keys=True) == json.dumps(now, default=str, sort_keys=True):
            continue
        yield "the data differs" if name == "streams" else f"{name} is {before!r} and {now!r}"

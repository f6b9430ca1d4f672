"""One rank of a run: goes through the stages, tells the others where it fails, and writes down what it measured."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from stoker.cluster import World
from stoker.errors import StokerError, StorageError
from stoker.policy import processor_count
from stoker_bench.checkpoint.saver import Saver
from stoker_bench.kv_cache.stage import KvCacheStage
from stoker_bench.loaders import get_loader
from stoker_bench.measure import page_cache as pagecache
from stoker_bench.measure.generation import make_data
from stoker_bench.measure.training import Training
from stoker_bench.ranks.abort import finish_without
from stoker_bench.ranks.binding import bound, own_processors
from stoker_bench.ranks.control.client import Link, RankFailedError
from stoker_bench.ranks.plan import RunPlan, load_plan
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.ranks.step_watch import StepWatch
from stoker_bench.ranks.termination import end_process, end_reason, ignore_sigterm, sigterm_interrupts
from stoker_bench.ranks.worker_stacks import listen
from stoker_bench.ranks.world import read_threads
from stoker_bench.results.record import save_record
from stoker_bench.vectors.stage import VectorStage

_DRAWN: Final = 10


class Member:
    """A rank.

    Args:
        plan: the run.
        world: this rank, and how many there are.
        link: to the other ranks.
        on_hang: called before this process ends itself because it hangs.
    """

    def __init__(self, plan: RunPlan, world: World, link: Link, on_hang: Callable[[str], object] | None = None) -> None:
        self.plan, self.world, self.link, self.on_hang = plan, world, link, on_hang
        self.record: dict[str, Any] = {
            "rank": world.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "processors": processor_count(),
            "memory_bytes": pagecache.memory_bytes(),
            "ranks_on_host": world.local_world_size,
            "read_threads": read_threads(plan.workload.reader.threads, world.local_world_size),
            "binding": None,
            "complete": False,
            "error": None,
            "generate": None,
            "listing": {},
            "calibration": None,
            "epochs": [],
            "checkpoint_layout": None,
            "checkpoints": [],
            "kv_cache": None,
            "vectors": None,
        }

    def run(self) -> None:
        """All stages.

        Raises:
            StokerError: of this rank, or another one's failure.
        """
        workload = self.plan.workload
        context = RankContext(self.plan, self.world, self.link, self.record, self.save)
        self.save()
        self.link.gather("start")
        if "generate" in workload.stages:
            self.record["generate"] = make_data(workload, self.plan.url, self.world, self.link)
            prepare = getattr(get_loader(workload.reader.loader), "prepare", None)
            if prepare is not None and self.world.rank == 0:
                prepare(workload, self.plan.url)
            self.save()
            self.link.barrier("prepared")
        with self._bound():
            self._measure(context)
        self.record["complete"] = True
        self.save()

    @contextlib.contextmanager
    def _bound(self) -> Iterator[None]:
        """This rank bound to processors, where that is asked for; generating takes all that there are."""
        how, host = self.plan.workload.reader.bind, self.record["host"]
        told = self.link.gather("processors", [host, own_processors()]) if how != "none" else []
        here = [processors for other, processors in told if other == host]
        before = sum(other == host for other, _ in told[: self.world.rank])
        with bound(how, here, before) as binding:
            self.record["binding"] = None if binding is None else asdict(binding)
            yield

    def _measure(self, context: RankContext) -> None:
        """The stages after ``generate``."""
        workload = self.plan.workload
        saver = None
        if "checkpoint" in workload.stages:
            saver = Saver(context)
        if "train" in workload.stages:
            expected = max(workload.compute.seconds.expected, workload.evaluation.seconds.expected)
            # A drawn time may be a multiple of the mean.
            limit = workload.train.step_timeout and workload.train.step_timeout + _DRAWN * expected
            with StepWatch(self.link, limit, self.hangs) as watch:
                training = Training(context, saver, watch)
                training.list_files()
                if workload.metric.calibrate:
                    training.calibrate()
                for repeat in range(workload.train.repeats):
                    training.train(repeat)
        if saver is not None:
            saver.stage()
        if "kv_cache" in workload.stages:
            KvCacheStage(context).run()
        if "vectors" in workload.stages:
            VectorStage(context).run()

    def leave(self, said: str, *, told: bool = False) -> None:
        """Keep what is known of this rank, which ends early, and tell all others why unless they told it."""
        self.record["error"] = said
        with contextlib.suppress(StorageError):
            self.save()
        self.link.leave(self.record)
        if not told:
            self.link.fail(said)

    def hangs(self, said: str) -> None:
        """End this process, whose main thread hangs."""
        sys.stderr.write(f"rank {self.world.rank}: {said}\n")
        sys.stderr.flush()
        try:
            self.leave(said)
            if self.on_hang is not None:
                self.on_hang(said)
        finally:
            end_process()

    def save(self) -> None:
        """Write what is known so far: it is kept whatever happens next."""
        save_record(self.record, Path(self.plan.results))


def run_member(
    plan: RunPlan, world: World, link: Link, *, on_hang: Callable[[str], object] | None = None
) -> list[dict[str, Any]]:
    """Run a rank; whatever goes wrong is told to all others and kept in its record.

    Args:
        plan: the run.
        world: this rank, and how many there are.
        link: to the other ranks.
        on_hang: called where this rank hangs, before its process is ended.

    Returns:
        All ranks' records where a launcher has started them, which may be on hosts that share no directory; else nothing.

    Raises:
        StokerError: of this rank.
        RankFailedError: of another.
    """
    member = Member(plan, world, link, on_hang)
    try:
        member.run()
        records = link.gather("end", member.record if world.source != "local" else None)
        link.close()
        return [record for record in records if record is not None]
    except BaseException as error:
        ignore_sigterm()
        member.leave(end_reason(error), told=isinstance(error, RankFailedError))
        raise


def main(arguments: list[str]) -> int:
    """``python -m stoker_bench.ranks.rank_main PLAN RANK WORLD PORT``: a rank that the run started on this host."""
    path, rank, size, port = Path(arguments[0]), int(arguments[1]), int(arguments[2]), int(arguments[3])
    token = os.environ.pop("_STOKER_BENCH_TOKEN", "")
    began = time.time()
    link = None
    try:
        plan = load_plan(path)
        with sigterm_interrupts():
            silence = plan.workload.train.step_timeout
            meeting = "127.0.0.1", port, token
            link = Link(lambda: meeting, rank, plan.digest, join_seconds=60, fatal=True, silence=silence)
            run_member(plan, World(rank, size, size, "local"), link)
    except StokerError as error:
        sys.stderr.write(f"rank {rank}: {error}\n")
        if link is not None and link.lost:
            finish_without(plan, size, failure=str(error), began=began, launcher="local processes")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__mp_main__":  # a worker process of a rank, which imports this module as its own main one
    listen()
if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)

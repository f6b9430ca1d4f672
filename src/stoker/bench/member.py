"""One rank of a run: opens the loader under test, steps through the epochs, and writes down what it measured."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker.bench import pagecache, usage
from stoker.bench.calibration import copy_files
from stoker.bench.checkpoint.saver import Saver
from stoker.bench.checkpoint.training import InEpoch
from stoker.bench.compute import ComputeStep, make_step
from stoker.bench.fingerprint import fingerprint
from stoker.bench.generation import make_data
from stoker.bench.loaders import get_loader
from stoker.bench.loaders.base import Job, OpenLoader, Split
from stoker.bench.metrics import block_metrics, epoch_metrics, stall_percentiles, stalls
from stoker.bench.plan import Plan, load_plan
from stoker.bench.rendezvous import Link, RankFailedError
from stoker.bench.steps import Steps, run_steps
from stoker.bench.workload import Workload
from stoker.bench.world import processors, read_threads
from stoker.cluster import World
from stoker.errors import StokerError
from stoker.storage import is_local

__all__ = ["Member", "run_member", "save_record"]


class _Run(NamedTuple):
    loader: OpenLoader
    compute: ComputeStep


class Member:
    """A rank.

    Args:
        plan: the run.
        world: this rank, and how many there are.
        link: to the other ranks.
    """

    def __init__(self, plan: Plan, world: World, link: Link) -> None:
        self.plan, self.world, self.link = plan, world, link
        self.results = Path(plan.results)
        self.first_here = world.rank % world.local_world_size == 0
        self.threads = read_threads(plan.workload.reader.threads, world.local_world_size)
        self.record: dict[str, Any] = {
            "rank": world.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "processors": processors(),
            "memory_bytes": pagecache.memory_bytes(),
            "ranks_on_host": world.local_world_size,
            "read_threads": self.threads,
            "complete": False,
            "error": None,
            "generate": None,
            "calibration": None,
            "epochs": [],
            "checkpoint_layout": None,
            "checkpoints": [],
        }
        self.saver: Saver | None = None

    def run(self) -> None:
        """All stages.

        Raises:
            StokerError: of this rank, or another one's failure.
        """
        workload = self.plan.workload
        self.link.gather("start")
        if "generate" in workload.stages:
            if self.world.rank == 0:
                self.record["generate"] = make_data(workload, self.plan.url)
                prepare = getattr(get_loader(workload.reader.loader), "prepare", None)
                if prepare is not None:
                    prepare(workload, self.plan.url)
            self.save()
            self.link.barrier("generated")
        if "checkpoint" in workload.stages:
            self.saver = Saver(self.plan, self.world, self.link, self.record, self.save)
        if "train" in workload.stages:
            if workload.metric.calibrate:
                self.calibrate()
            for repeat in range(workload.train.repeats):
                self.train(repeat)
        if self.saver is not None:
            self.saver.stage()
        self.record["complete"] = True
        self.save()

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, repeat: int) -> None:
        """All epochs, and the evaluations between them."""
        workload = self.plan.workload
        with contextlib.ExitStack() as stack:
            runs: dict[Split, _Run] = {}
            for epoch in range(workload.train.epochs):
                self._epoch(runs, stack, "train", repeat, epoch)
                after = epoch + 1 - workload.evaluation.after_epoch
                if "evaluate" in workload.stages and after >= 0 and not after % workload.evaluation.every:
                    self._epoch(runs, stack, "valid", repeat, epoch)

    def _open(self, split: Split, batch_size: int, url: str, workload: Workload) -> OpenLoader:
        loader = get_loader(workload.reader.loader)
        return loader.open(Job(workload, split, url, self.world, self.threads, batch_size, self.plan.scratch))

    def _begin(self, runs: dict[Split, _Run], stack: contextlib.ExitStack, split: Split) -> _Run:
        """Loader and accelerator of a split, opened when its first epoch begins."""
        if split not in runs:
            workload, train = self.plan.workload, split == "train"
            compute = make_step(workload, self.world, evaluation=not train)
            size = workload.reader.batch_size if train else workload.reader.batch_size_eval
            loader = self._open(split, size, self.plan.url, workload)
            stack.callback(loader.close)
            runs[split] = _Run(loader, compute)
        return runs[split]

    def _epoch(
        self, runs: dict[Split, _Run], stack: contextlib.ExitStack, split: Split, repeat: int, epoch: int
    ) -> None:
        workload, train = self.plan.workload, split == "train"
        dropped = self._drop(split)
        self.link.barrier("epoch")
        before = usage.measure()
        began_at, began = time.time(), time.perf_counter_ns()
        # Opening reads headers, and with small files all of them: it belongs to the first epoch, but to none of its steps.
        run = self._begin(runs, stack, split)
        loader, compute = run.loader, run.compute
        spun = compute.spun
        steps = Steps(self._expected(workload, split))
        compute.begin(epoch)
        entry: dict[str, Any] = {
            "kind": split,
            "repeat": repeat,
            "epoch": epoch,
            "began_at": began_at,
            "complete": False,
            "checkpoint_seconds": None,
            "with_checkpoints": None,
        }
        self.record["epochs"].append(entry)
        first = None
        saving = None
        if train and self.saver is not None:
            saving = InEpoch(self.saver, workload.checkpoint, repeat, epoch)
        try:
            first = run_steps(
                loader.epoch(epoch),
                compute,
                steps,
                limit=workload.train.steps if train else None,
                barrier=self._step_barrier if workload.train.barrier and train and self.world.world_size > 1 else None,
                check=self.link.check,
                block_steps=None if saving is None else workload.checkpoint.every_steps,
                at_block_end=None if saving is None else saving.at_step,
            )
        finally:
            entry |= self._measured(steps, workload)
            entry["time_to_first_batch"] = (int(steps.arrived[0]) - began) * 1e-9 if steps.count else None
            entry["usage"] = usage.measure().since(before)
            entry["spun_seconds"] = (compute.spun - spun) * 1e-9
            entry["cache"] = dropped
            self._save_steps(steps, f"{split}-{repeat}-{epoch}")
            self.save()
        entry["fingerprint"] = None if first is None else fingerprint(first.data)
        report = loader.report()
        entry["loader"] = {
            "decoded": report.decoded,
            "parallel": report.parallel,
            "order": report.order,
            "bytes_fetched": report.bytes_fetched,
            "versions": dict(report.versions),
            "notes": list(report.notes),
        }
        loader.release()
        self.save()
        # A rank that has no more batches waits here for those that have.
        self.link.barrier("epoch ended")
        if saving is not None:
            saving.at_end(steps.count)
            entry["checkpoint_seconds"] = saving.seconds
            entry["with_checkpoints"] = saving.parts(entry["blocks"])
            self.save()
        if self.first_here and self.plan.scratch:
            shutil.rmtree(f"{self.plan.scratch}/{split}-{epoch}", ignore_errors=True)

    def _step_barrier(self) -> None:
        self.link.gather("step")

    def _expected(self, workload: Workload, split: Split) -> int:
        dataset = workload.dataset
        samples = (dataset.files if split == "train" else dataset.files_eval) * dataset.samples_per_file
        batch = workload.reader.batch_size if split == "train" else workload.reader.batch_size_eval
        steps = samples // (batch * self.world.world_size) + 2
        limit = workload.train.steps if split == "train" else None
        return min(steps, 1 << 20, limit or steps)

    def _measured(self, steps: Steps, workload: Workload) -> dict[str, Any]:
        metric = workload.metric
        blocks = [block_metrics(steps, block, metric.exclude_start, metric.exclude_end) for block in steps.blocks]
        return {
            "complete": steps.complete,
            "blocks": [block.as_dict() for block in blocks],
            "metrics": epoch_metrics(blocks),
            "stall_seconds": stall_percentiles(stalls(steps, metric.exclude_start, metric.exclude_end)),
            "steps": steps.count,
            "samples": int(steps.samples[: steps.count].sum()),
            "bytes": int(steps.bytes[: steps.count].sum()),
            "computing_ns_p50": float(np.median((steps.ended - steps.begun)[: steps.count])) if steps.count else None,
        }

    def _drop(self, split: Split) -> dict[str, Any] | None:
        """Let the files leave the page cache of this host; what came of it."""
        workload = self.plan.workload
        if not is_local(self.plan.url) or workload.storage.cache != "drop":
            return None
        self.link.barrier("before dropping")  # all have let go of their files
        if not self.first_here:
            return None
        done = pagecache.drop(f"{self.plan.url.removeprefix('file://')}/{split}")
        return {"files": done.files, "bytes": done.bytes, "resident": done.resident}

    # -- calibration -----------------------------------------------------------------------------------------------

    def calibrate(self) -> None:
        """The same loader and steps over a copy of some files in memory: what endless storage would give."""
        workload = self.plan.workload
        copied = copy_files(self.plan, self.world) if self.first_here else None
        copied = next((one for one in self.link.gather("copied", copied) if one is not None), None)
        if copied is None or "error" in copied:
            self.record["calibration"] = {"error": "nothing was copied" if copied is None else copied["error"]}
            self.save()
            return
        try:
            dataset = replace(workload.dataset, files=copied["files"], files_eval=0)
            small = replace(
                workload,
                dataset=dataset,
                stages=("train",),
                storage=replace(workload.storage, url=copied["url"], cache="keep", options={}),
            )
            compute = make_step(small, self.world)
            loader = self._open("train", small.reader.batch_size, copied["url"], small)
            steps = Steps(self._expected(small, "train"))
            try:
                compute.begin(0)
                self.link.barrier("calibration")
                run_steps(
                    loader.epoch(0),
                    compute,
                    steps,
                    limit=small.train.steps,
                    barrier=self._step_barrier if small.train.barrier and self.world.world_size > 1 else None,
                    check=self.link.check,
                )
            finally:
                loader.close()
            self.record["calibration"] = {"files": copied["files"], "bytes": copied["bytes"]} | self._measured(
                steps, small
            )
            self.save()
            self.link.barrier("calibrated")
        finally:
            if self.first_here:
                shutil.rmtree(copied["url"], ignore_errors=True)

    # -- writing down ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what is known so far: it is kept whatever happens next."""
        save_record(self.record, self.results)

    def _save_steps(self, steps: Steps, name: str) -> None:
        folder = self.results / "steps"
        folder.mkdir(exist_ok=True)
        path = folder / f"rank{self.world.rank:05d}-{name}.npz"
        temporary = path.with_name(f".{path.name}.{os.getpid()}.npz")
        arrays = steps.arrays()
        asked = arrays["asked"]
        np.savez_compressed(
            temporary,
            asked=asked - (asked[0] if len(asked) else 0),
            wait=arrays["arrived"] - asked,
            compute=arrays["ended"] - arrays["begun"],
            barrier=arrays["barrier"],
            samples=arrays["samples"],
            bytes=arrays["bytes"],
            block=np.array([block.first for block in steps.blocks], np.int64),
        )
        temporary.replace(path)


def save_record(record: dict[str, Any], results: Path) -> None:
    """Write a rank's record, whole or not at all."""
    path = results / f"rank{record['rank']:05d}.json"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record))
    temporary.replace(path)


def run_member(plan: Plan, world: World, link: Link) -> list[dict[str, Any]]:
    """Run a rank; whatever goes wrong is told to all others and kept in its record.

    Returns:
        All ranks' records where a launcher has started them, which may be on hosts that share no directory; else nothing.

    Raises:
        StokerError: of this rank.
        RankFailedError: of another.
    """
    member = Member(plan, world, link)
    try:
        member.run()
        records = link.gather("end", member.record if world.source != "local" else None)
        link.close()
        return [record for record in records if record is not None]
    except BaseException as error:
        told = isinstance(error, RankFailedError)
        said = str(error) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"
        member.record["error"] = said
        with contextlib.suppress(OSError):
            member.save()
        if not told:
            link.fail(said)
        raise


def main(arguments: list[str]) -> int:
    """``python -m stoker.bench.member PLAN RANK WORLD PORT``: a rank that the run started on this host."""
    path, rank, size, port = Path(arguments[0]), int(arguments[1]), int(arguments[2]), int(arguments[3])
    token = os.environ.pop("_STOKER_BENCH_TOKEN", "")
    try:
        plan = load_plan(path)
        link = Link(lambda: ("127.0.0.1", port, token), rank, plan.digest, join_seconds=60, fatal=True)
        run_member(plan, World(rank, size, size, "local"), link)
    except StokerError as error:
        sys.stderr.write(f"rank {rank}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)

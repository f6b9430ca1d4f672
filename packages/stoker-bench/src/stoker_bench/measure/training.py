"""Training and evaluation on one rank: the loader under test and the accelerator are opened, and epochs run and measured."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker.storage import is_local
from stoker_bench.checkpoint.saver import Saver
from stoker_bench.checkpoint.training import InEpoch
from stoker_bench.loaders import get_loader
from stoker_bench.loaders.base import LoaderJob, OpenLoader, Split, SplitListing
from stoker_bench.loaders.listing import check_split, list_split, used_files
from stoker_bench.measure import page_cache as pagecache
from stoker_bench.measure import usage
from stoker_bench.measure.calibration import copy_files, copy_of_host, in_memory
from stoker_bench.measure.compute import ComputeStep, make_step
from stoker_bench.measure.content import look_at
from stoker_bench.measure.fingerprint import fingerprint
from stoker_bench.measure.metrics import block_metrics, epoch_metrics, percentiles, stalls, window
from stoker_bench.measure.request_counts import RequestCounts
from stoker_bench.measure.requests import Moment, request_record
from stoker_bench.measure.steps import Steps, run_steps
from stoker_bench.measure.storage_series import StorageSeries, block_device
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.ranks.step_watch import StepWatch
from stoker_bench.results.record import save_series, save_steps
from stoker_bench.settings.workload import Workload


class _Run(NamedTuple):
    loader: OpenLoader
    compute: ComputeStep


class Training:
    """The epochs of a rank.

    Args:
        rank: this one, to whose record what was measured is added, epoch by epoch.
        saver: of the checkpoints in training, if there are any.
        watch: looks on.
    """

    def __init__(self, rank: RankContext, saver: Saver | None, watch: StepWatch) -> None:
        self.plan, self.world, self.link, self.record, self.save = (
            rank.plan,
            rank.world,
            rank.link,
            rank.record,
            rank.save,
        )
        self.saver, self.watch = saver, watch
        self.results = Path(rank.plan.results)
        self.first_here = rank.first_on_host
        self.listings: dict[Split, SplitListing] = {}
        folder = is_local(rank.plan.url)
        self._path = None if folder is None else str(folder)
        self.requests = RequestCounts(rank.plan.workload.storage.endpoints)
        block = None if self._path is None else block_device(self._path)
        self.block = block if self.first_here else None
        self.told = usage.tells_device_from_page_cache(self._path)

    def list_files(self) -> None:
        """List the splits that are read, once for all ranks, before anything is timed."""
        workload = self.plan.workload
        if workload.reader.loader == "synthetic":
            return
        splits: tuple[Split, ...] = ("train", "valid") if "evaluate" in workload.stages else ("train",)
        for split in splits:
            listed = None
            if self.world.rank == 0:
                with self.watch.work("listing the data"):
                    listed = asdict(list_split(self._job(split, 1, self.plan.url, workload)))
                self.record["listing"][split] = listed
            found = self.listings[split] = SplitListing(**self.link.gather(f"{split} listed", listed)[0])
            if split == "train":
                check_split(workload, found, self.world.world_size)
                if self.world.rank == 0:  # what this reads leaves the page cache before the first epoch
                    self.record["content"] = look_at(
                        workload, self.plan.url, used_files(self._job(split, 1, self.plan.url, workload))
                    )

    def train(self, repeat: int) -> None:
        """All epochs, and the evaluations between them."""
        workload = self.plan.workload
        # What a loader imports, some of it many megabytes, is read from a disk, too: it is no part of an epoch.
        for module, _ in getattr(get_loader(workload.reader.loader), "packages", ()):
            importlib.import_module(module)
        with self.watch.work("opening and closing the data"), contextlib.ExitStack() as stack:
            runs: dict[Split, _Run] = {}
            for epoch in range(workload.train.epochs):
                self._epoch(runs, stack, "train", repeat, epoch)
                after = epoch + 1 - workload.evaluation.after_epoch
                if "evaluate" in workload.stages and after >= 0 and not after % workload.evaluation.every:
                    self._epoch(runs, stack, "valid", repeat, epoch)

    def _open(self, split: Split, batch_size: int, url: str, workload: Workload) -> OpenLoader:
        return get_loader(workload.reader.loader).open(self._job(split, batch_size, url, workload))

    def _job(self, split: Split, batch_size: int, url: str, workload: Workload) -> LoaderJob:
        listing = self.listings.get(split) if url == self.plan.url else None
        threads, scratch = self.record["read_threads"], self.plan.scratch
        return LoaderJob(workload, split, url, self.world, threads, batch_size, scratch, listing, self.requests)

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
        with contextlib.closing(StorageSeries(self.requests, self.block, self._path)) as series:
            self._watched_epoch(runs, stack, split, repeat, epoch, series)

    def _watched_epoch(
        self,
        runs: dict[Split, _Run],
        stack: contextlib.ExitStack,
        split: Split,
        repeat: int,
        epoch: int,
        series: StorageSeries,
    ) -> None:
        workload, train = self.plan.workload, split == "train"
        cached = self._page_cache(split)
        at_first = runs[split].loader.report().bytes_fetched if split in runs else 0
        fetched_before = at_first
        self.link.barrier("epoch")
        counted, repeated = self.requests.table(), self.requests.repeats()
        series.start()
        before = usage.measure(self._path)
        if is_local(self.plan.url):
            at_first = before.device
        began_at, began, begun = time.time(), time.perf_counter_ns(), time.monotonic()
        clocks = usage.all_clocks()
        requested = Moment(begun, counted)
        # Opening reads headers, and all of text: it belongs to the first epoch, but to none of its steps.
        opening, emptying = split not in runs, 0
        run = self._begin(runs, stack, split)
        loader, compute = run.loader, run.compute
        if opening:  # what it read, steps have to read again
            emptying = time.perf_counter_ns()
            cached = self._page_cache(split)
            self.link.barrier("opened")
            emptying = time.perf_counter_ns() - emptying
            now = usage.measure(self._path)
            before = replace(before, device=now.device, read=now.read)
        batches = loader.epoch(epoch)
        opened_at, at_open, opened = time.monotonic(), self._from_storage(loader), self.requests.table()
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
            with self.watch.steps(f"epoch {epoch} of {split}", lambda: steps.count, compute):
                first = run_steps(
                    batches,
                    compute,
                    steps,
                    limit=workload.train.steps if train else None,
                    barrier=self._step_barrier
                    if workload.train.barrier and train and self.world.world_size > 1
                    else None,
                    check=self.link.check,
                    block_steps=None if saving is None else workload.checkpoint.every_steps,
                    at_block_end=None if saving is None else self._unwatched(saving.at_step),
                )
        finally:
            ended, last = time.monotonic(), usage.measure(self._path)
            series.close()
            read = Moment(ended, self.requests.table())
            entry["ended_at"] = time.time()  # after the last look at the counters
            entry["clocks"] = [now - then for now, then in zip(usage.all_clocks(), clocks, strict=True)]
            entry |= self._measured(steps, workload)
            entry["time_to_first_batch"] = (int(steps.arrived[0]) - began - emptying) * 1e-9 if steps.count else None
            entry["usage"] = last.since(before)
            entry["spun_seconds"] = (compute.spun - spun) * 1e-9
            entry["cache"] = cached
            made = self.requests.repeats()
            entry["repeated_requests"] = {one: made[one] - repeated[one] for one in made if made[one] > repeated[one]}
            entry["requests"] = request_record(requested, Moment(opened_at, opened), read, told=self.told)
            entry["counted_read_bytes"] = self._read_while_counted(steps, series, began_at - began * 1e-9)
            save_steps(steps, self.results, self.world.rank, f"{split}-{repeat}-{epoch}")
            save_series(series, self.results, self.world.rank, f"{split}-{repeat}-{epoch}")
            self.save()
        entry["fingerprint"] = None if first is None else fingerprint(first.data)
        loader.release()
        self.save()
        # A rank that has no more batches waits here for those that have. Until then they may fetch what all ranks share.
        self.link.barrier("epoch ended")
        report = loader.report()
        entry["loader"] = asdict(report)
        reading = max(opened_at, entry["loader"].pop("reading_began") or 0)
        entry["requests"] = request_record(requested, Moment(reading, opened), read, told=self.told)
        if reading > opened_at and is_local(self.plan.url):
            # Until the loader's processes read, they load their own code, perhaps from the same device.
            by_then = series.stored_until([began_at + reading - begun], local=True)
            at_open = at_open if at_open is None or by_then is None else max(at_open, round(float(by_then[0])))
        entry["storage"] = _storage(
            (begun, at_first),
            (reading, at_open),
            (ended, last.device if is_local(self.plan.url) else report.bytes_fetched),
        )
        entry["fetched_bytes"] = _more(report.bytes_fetched, fetched_before)
        self.save()
        if saving is not None:
            self._unwatched(saving.at_end)(steps.count)
            entry["checkpoint_seconds"] = saving.seconds
            entry["with_checkpoints"] = saving.parts(entry["blocks"])
            self.save()
        if self.first_here and self.plan.scratch:
            shutil.rmtree(f"{self.plan.scratch}/{split}-{epoch}", ignore_errors=True)

    def _unwatched(self, save: Callable[[int], object]) -> Callable[[int], None]:
        """Saving a checkpoint, which takes as long as it takes."""

        def unwatched(step: int) -> None:
            with self.watch.pause():
                save(step)

        return unwatched

    def _from_storage(self, loader: OpenLoader) -> int | None:
        """Bytes that have come from storage so far; ``None`` where nobody knows."""
        return usage.measure(self._path).device if is_local(self.plan.url) else loader.report().bytes_fetched

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
            "stall_seconds": percentiles(stalls(steps, metric.exclude_start, metric.exclude_end)),
            "steps": steps.count,
            "samples": int(steps.samples[: steps.count].sum()),
            "bytes": int(steps.bytes[: steps.count].sum()),
            "computing_ns_p50": float(np.median((steps.ended - steps.begun)[: steps.count])) if steps.count else None,
        }

    def _read_while_counted(self, steps: Steps, series: StorageSeries, clock: float) -> int | None:
        """Bytes that came from storage while steps ran that count; what was read ahead before them is not in it.

        Args:
            steps: of the epoch.
            series: of the epoch.
            clock: what to add to ``time.perf_counter`` for ``time.time``.
        """
        metric, edges = self.plan.workload.metric, list[int]()
        for block in steps.blocks:
            kept = window(block, metric.exclude_start, metric.exclude_end)
            if kept.start < kept.stop:
                begin = block.begun if kept.start == block.first else steps.ended[kept.start - 1]
                edges += [int(begin), int(steps.ended[kept.stop - 1])]
        stored = series.stored_until([clock + edge * 1e-9 for edge in edges], local=bool(is_local(self.plan.url)))
        return None if stored is None else round(float((stored[1::2] - stored[::2]).sum()))

    def _page_cache(self, split: Split) -> dict[str, Any] | None:
        """Let the files leave the page cache of this host, if that is wanted, and ask how much of them is in it."""
        workload = self.plan.workload
        if not is_local(self.plan.url) or workload.reader.loader == "synthetic":
            return None
        self.link.barrier("before dropping")  # all have released their files
        if not self.first_here:
            return None
        inside = getattr(get_loader(workload.reader.loader), "subfolder", "")
        folder = "/".join(filter(None, (self.plan.url.removeprefix("file://"), inside, split)))
        return asdict(pagecache.cached_files(folder, drop=workload.storage.cache == "drop"))

    # -- calibration -----------------------------------------------------------------------------------------------

    def calibrate(self) -> None:
        """See :meth:`_calibrate`."""
        with self.watch.work("the calibration"):
            self._calibrate()

    def _calibrate(self) -> None:
        """The same loader and steps over a copy of some files in memory: what endless storage would give."""
        with ExitStack() as holds:
            own = copy_files(self.plan, self.world, holds) if self.first_here else None
            copied = copy_of_host(self.link.gather("copied", own), self.world)
            if "error" in copied:
                self.record["calibration"] = {"error": copied["error"]}
                self.save()
                return
            self._train_in_memory(copied)

    def _train_in_memory(self, copied: Mapping[str, Any]) -> None:
        workload = self.plan.workload
        dataset = replace(workload.dataset, files=copied["files"], files_eval=0)
        small = replace(
            workload,
            dataset=dataset,
            stages=("train",),
            storage=in_memory(workload.storage, copied["url"]),
        )
        compute = make_step(small, self.world)
        loader = self._open("train", small.reader.batch_size, copied["url"], small)
        steps = Steps(self._expected(small, "train"))
        try:
            compute.begin(0)
            self.link.barrier("calibration")
            with self.watch.steps("the calibration", lambda: steps.count, compute):
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
        self.record["calibration"] = {"files": copied["files"], "bytes": copied["bytes"]} | self._measured(steps, small)
        self.save()
        self.link.barrier("calibrated")


def _more(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


_Moment = tuple[float, int | None]
"""A time of ``time.monotonic``, and the bytes that had come from storage by then; ``None`` where nobody knows."""


def _storage(began: _Moment, opened: _Moment, ended: _Moment) -> dict[str, float | None]:
    """Bytes of an epoch from storage, and bytes a second.

    The mean is over the whole epoch, or, if that is more, from when the loader was open and its processes had started, which
    may take seconds in which little is read.
    """
    if began[1] is None or opened[1] is None or ended[1] is None:
        return {"bytes": None, "bytes_per_second": None}
    means = [
        (ended[1] - some) / max(ended[0] - at, 1e-9) for at, some in ((began[0], began[1]), (opened[0], opened[1]))
    ]
    return {"bytes": ended[1] - began[1], "bytes_per_second": max(means)}

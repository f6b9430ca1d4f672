"""Files of a trace: what a recorder wrote is read, and exported for Perfetto; such an export is read again."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.spans.recorder import APART, RECORD, WHOLE, Stage
from stoker.errors import ConfigError

SettingsByLoader = Mapping[str, Mapping[str, Any]]
"""A loader's class to its settings; see :func:`~stoker.concurrency.spans.recorder.note_settings`."""

SPAN: Final = np.dtype(
    [
        ("begin", "<i8"),
        ("end", "<i8"),
        ("thread", "<u4"),
        ("stage", "u1"),
        ("", "u1"),
        ("at_once", "<u2"),
        ("amount", "<i8"),
    ]
)
"""The layout of :data:`~stoker.concurrency.spans.recorder.RECORD`."""

_NAMES: Final = {stage: stage.name.lower() for stage in Stage}
_STAGES: Final = {name: stage for stage, name in _NAMES.items()}
_IN_BYTES: Final = (Stage.FETCH, Stage.DECOMPRESS)
_VERSION: Final = 2

_THREADS: Final = 1 << 23
"""Above all numbers of threads."""

_APART: Final = {stage: number * _THREADS for number, stage in enumerate(APART, 1)}
"""Per stage of :data:`APART`, an offset that gives its spans a track of their own: a track shows nested spans only."""


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """Spans of one process.

    Attributes:
        pid: the system's number of the process.
        rank: of the training process that it is, or belongs to.
        worker: number of the DataLoader worker that it is; ``None``: none.
        spans: dtype :data:`SPAN`, by begin; times in ns since the trace began.
        threads: number of a thread to its name.
        full: whether it recorded more than a trace holds, so that the end is missing.
        loaders: the settings of loaders that iterated in it.
    """

    pid: int
    rank: int
    worker: int | None
    spans: NDArray[Any]
    threads: Mapping[int, str] = field(default_factory=dict)
    full: bool = False
    loaders: SettingsByLoader = field(default_factory=dict)

    @property
    def has_read(self) -> bool:
        """Whether it has gone on to samples: has done more than to find out which there are."""
        return bool(self.loaders) or not np.isin(self.spans["stage"], (Stage.LIST, Stage.PROCESSOR)).all()


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Facts of a trace beside its spans.

    Attributes:
        rank: whose trace it is.
        world_size: ranks of the run.
        began: wall-clock time of its begin, in ns since 1970.
        cores: processors that the process may use.
    """

    rank: int
    world_size: int
    began: int
    cores: int


def read_recorded(folder: Path, rank: int, origin: int) -> list[TracedProcess]:
    """Read what a recorder and its copies in children have written until now.

    ``folder``: of the recorder. ``rank``: of this process. ``origin``: the monotonic clock's ns at the begin of the trace.
    """
    found = []
    # A process has notes and no spans where all that it did was too short for one.
    for path in sorted({path.with_suffix(".spans") for path in [*folder.glob("*.spans"), *folder.glob("*.jsonl")]}):
        data = path.read_bytes() if path.exists() else b""
        spans = np.frombuffer(data[: len(data) // RECORD.size * RECORD.size], SPAN)
        # Threads that are in a span, or were killed in one, leave zeros.
        spans = spans[(spans["begin"] > 0) & (spans["end"] >= spans["begin"]) & (spans["end"] > origin)].copy()
        spans["begin"] = np.maximum(spans["begin"] - origin, 0)
        spans["end"] -= origin
        facts: dict[str, Any] = {}
        threads: dict[int, str] = {}
        loaders: dict[str, Mapping[str, Any]] = {}
        notes = path.with_suffix(".jsonl")
        for line in notes.read_text().splitlines() if notes.exists() else ():
            told = json.loads(line)
            if "thread" in told:
                threads[int(told["thread"])] = str(told["name"])
            elif "loader" in told:
                loaders[told["loader"]] = told["settings"]
            else:
                facts |= told
        pid = int(path.name.partition("-")[0])
        spans = spans[np.lexsort((-spans["end"], spans["begin"]))]
        nest(spans)
        full = bool(facts.get("full"))
        found.append(TracedProcess(pid, rank, facts.get("worker"), spans, threads, full=full, loaders=loaders))
    return found


def nest(spans: NDArray[Any]) -> None:
    """See that spans of a thread lie apart or in each other, in place: what a sum of short samples overlaps cuts it.

    ``spans``: dtype :data:`SPAN`, by begin and, of those alike, the longer first.
    """
    around: dict[int, list[tuple[int, int]]] = {}  # of each thread, ends and numbers of the spans that are open
    cut: dict[int, int] = {}
    for number, (begin, end, thread, stage, *_) in enumerate(spans.tolist()):
        if stage in APART:
            continue
        inside = around.setdefault(thread, [])
        while inside and (inside[-1][0] <= begin or inside[-1][0] < end):
            last, outer = inside.pop()
            if last > begin:
                cut[outer] = begin
        inside.append((end, number))
    spans["end"][list(cut)] = list(cut.values())


def write_trace(path: Path, processes: Sequence[TracedProcess], facts: TraceFacts, folder: Path) -> None:
    """Write the trace as Perfetto and ``chrome://tracing`` read it; compressed where the name ends in ``.gz``.

    OSError if it can not be written. ``path``: the file, which appears whole. ``folder``: where it is written before; one
    that is removed in any case.
    """
    beside = folder / "written"
    with gzip.open(beside, "wt", 3) if path.suffix == ".gz" else open(beside, "w") as out:
        _write(out, processes, facts)
    os.replace(beside, path)


def _write(out: IO[str], processes: Sequence[TracedProcess], facts: TraceFacts) -> None:
    about = {
        "stoker": _VERSION,
        "rank": facts.rank,
        "world_size": facts.world_size,
        "began": str(facts.began),
        "cores": facts.cores,
    }
    out.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
    separator = "\n"
    for process in processes:
        for event in _events(process):
            out.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
    out.write("\n]}\n")


def _events(process: TracedProcess) -> Iterator[dict[str, Any]]:
    about = {"rank": process.rank, "worker": process.worker, "full": process.full, "loaders": process.loaders}

    def named(what: str, thread: int, **args: Any) -> dict[str, Any]:
        return {"name": what, "ph": "M", "pid": process.pid, "tid": thread, "args": args}

    shown = f"rank {process.rank}" + ("" if process.worker is None else f", worker {process.worker}")
    yield named("process_name", 0, name=shown, **about)
    yield named("process_sort_index", 0, sort_index=process.rank * 1000 + (process.worker or -1) + 1)
    for thread, name in process.threads.items():
        yield named("thread_name", thread, name=name)
    for stage, above in _APART.items():
        for thread in np.unique(process.spans["thread"][process.spans["stage"] == stage]).tolist():
            yield named("thread_name", thread + above, name=f"{process.threads.get(thread, thread)}: {_NAMES[stage]}")
    for begin, end, thread, stage, _, at_once, amount in process.spans.tolist():
        if stage == Stage.PROCESSOR:
            args = {"computed_ns": amount, "displaced_ns": at_once * (end - begin) // WHOLE}
        else:
            args = {"bytes" if stage in _IN_BYTES else "samples": amount} if amount else {}
            if at_once:
                args["at_once"] = at_once
        yield {
            "name": _NAMES[Stage(stage)],
            "cat": "stoker",
            "ph": "X",
            "ts": begin / 1e3,
            "dur": (end - begin) / 1e3,
            "pid": process.pid,
            "tid": thread + _APART.get(stage, 0),
            "args": args,
        }


def read_trace(path: Path) -> tuple[list[TracedProcess], TraceFacts]:
    """A trace that :func:`write_trace` wrote. ConfigError if there is none, or it is no trace of stoker."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            read = json.load(file)
        about = read["otherData"]
        if about["stoker"] != _VERSION:
            raise ConfigError(
                f"{path} is a trace of version {about['stoker']}, and this stoker reads version {_VERSION}: record it "
                "again, or show it in Perfetto"
            )
        facts = TraceFacts(int(about["rank"]), int(about["world_size"]), int(about["began"]), int(about["cores"]))
        return _processes(read["traceEvents"]), facts
    except OSError as error:
        raise ConfigError(f"{path} can not be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a trace that stoker wrote ({type(error).__name__}: {error}): give files of dataset.trace() or "
            "stoker profile"
        ) from None


def _processes(events: Sequence[Mapping[str, Any]]) -> list[TracedProcess]:
    names: dict[int, Mapping[str, Any]] = {}
    threads: dict[int, dict[int, str]] = {}
    rows: dict[int, list[tuple[int, ...]]] = {}
    for event in events:
        pid = int(event["pid"])
        if event["ph"] == "X":
            begin, args = round(event["ts"] * 1e3), event["args"]
            took, stage = round(event["dur"] * 1e3), _STAGES[event["name"]]
            if stage is Stage.PROCESSOR:
                at_once, amount = WHOLE * args["displaced_ns"] // max(1, took), args["computed_ns"]
            else:
                at_once, amount = args.get("at_once", 0), args.get("bytes", args.get("samples", 0))
            row = (begin, begin + took, event["tid"] % _THREADS, stage, 0, at_once, amount)
            rows.setdefault(pid, []).append(row)
        elif event["name"] == "process_name":
            names[pid] = event["args"]
        elif event["name"] == "thread_name" and event["tid"] < _THREADS:
            threads.setdefault(pid, {})[int(event["tid"])] = event["args"]["name"]
    return [
        TracedProcess(
            pid,
            int(told["rank"]),
            told["worker"],
            np.array(rows.get(pid, []), SPAN),
            threads.get(pid, {}),
            full=told["full"],
            loaders={str(loader): dict(settings) for loader, settings in told["loaders"].items()},
        )
        for pid, told in names.items()
    ]

"""The features of a :class:`~stoker.StreamingDataset` whose pairs and triples are recorded, each as a change of a plan.

A feature belongs to a group, such as the formats or the shuffles; of a group a run has one feature. The order of
:data:`FEATURES` is the order in which a run's features are applied, and so that of the steps of its chain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from stoker import (
    BadSamples,
    HashSplit,
    KeepIds,
    Schedule,
    SkipIds,
    SkipSteps,
    Stream,
    StreamingDataset,
    Where,
    World,
    open_writer,
)
from stoker.partitions import Contiguous, HashBased, RangeBased, RoundRobin, Stratified

__all__ = ["FEATURES", "NEUTRAL", "PROCESSES", "Feature", "Plan", "write_data"]

SIZES: Final = (70, 45, 53)
"""Samples of the streams. Sample n of stream s has ``x = 1000 * s + n``."""
_SHARD: Final = 20
"""Samples of a shard, about."""
Row = dict[str, Any]


# -- the data ----------------------------------------------------------------------------------------------------------


def row_of(x: int) -> Row:
    """A sample, but for its vector."""
    return {"x": x, "u": x % 1000 * 7 % 13, "s": f"c{x % 7} {x}"}


def vector_of(x: int) -> Any:
    """The array of a sample, in the formats that have arrays."""
    return np.array([x, x / 2, -x], np.float32)


def is_damaged(x: int) -> bool:
    """Whether a sample does not decode, in the data that is damaged."""
    return x % 31 == 11


def _write_mds(out: Path, rows: list[Row], *, damaged: bool = False, **options: Any) -> None:
    columns = {"x": "int", "u": "int", "s": "str", "v": "ndarray:float32:3", "doc": "json"}
    with open_writer("mds", columns, out, size_limit=70 * _SHARD, hashes=[], **options) as writer:
        for row in rows:
            writer.write({**row, "v": vector_of(row["x"]), "doc": {"is": row["x"]}})
    for shard in out.glob("*.mds") if damaged else ():
        content = shard.read_bytes()
        for x in (row["x"] for row in rows if is_damaged(row["x"])):
            content = content.replace(b'{"is": %d}' % x, b'{"is": %d]' % x)
        shard.write_bytes(content)


def _write_files(out: Path, rows: list[Row], form: str) -> None:
    out.mkdir(parents=True)
    for first in range(0, len(rows), _SHARD):
        part = rows[first : first + _SHARD]
        if form == "parquet":
            table = pa.Table.from_pylist([{**row, "v": vector_of(row["x"]).tolist()} for row in part])
            pq.write_table(table, out / f"{first:03}.parquet", row_group_size=_SHARD // 2)
        elif form == "arrow":
            feather.write_feather(pa.Table.from_pylist(part), out / f"{first:03}.arrow", compression="uncompressed")
        else:
            lines = [json.dumps(row) for row in part]
            if form == "damaged jsonl":  # at the same sizes
                lines = [
                    "}" + line[1:] if is_damaged(row["x"]) else line for line, row in zip(lines, part, strict=True)
                ]
            (out / f"{first:03}.jsonl").write_text("\n".join(lines) + "\n")


def write_data(root: Path) -> None:
    """All streams in all formats, and what they are joined and zipped with."""
    for stream, size in enumerate(SIZES):
        rows = [row_of(1000 * stream + number) for number in range(size)]
        _write_mds(root / "mds" / str(stream), rows)
        _write_mds(root / "zstd" / str(stream), rows, compression="zstd")
        _write_mds(root / "damaged mds" / str(stream), rows, damaged=True)
        for form in ("parquet", "arrow", "jsonl", "damaged jsonl"):
            _write_files(root / form / str(stream), rows, form)
        for form, size in (("csv", 300), ("tar", 40_000), ("tfrecord", 1400)):
            columns = {"x": "int", "u": "int", "s": "str"}
            with open_writer(form, columns, root / form / str(stream), size_limit=size, hashes=[]) as writer:
                for row in rows:
                    writer.write(row)
        with open_writer("mds", {"x": "int", "caption": "str"}, root / "captions" / str(stream), hashes=[]) as writer:
            for row in reversed(rows):
                if row["x"] % 11 != 3:
                    writer.write({"x": row["x"], "caption": f"of {row['x']}"})
        with open_writer("mds", {"n": "int"}, root / "numbers" / str(stream), hashes=[]) as writer:
            for row in rows:
                writer.write({"n": 3 * row["x"]})


# -- functions of users ------------------------------------------------------------------------------------------------


def doubled(sample: Row) -> Row:
    return {**sample, "m": int(sample["u"]) * 2 + 1}


def jittered(sample: Row, generator: Any) -> Row:
    return {**sample, "j": float(generator.random())}


def is_kept(sample: Row) -> bool:
    return bool(int(sample["u"]) % 3)


def copies(sample: Row) -> Iterator[Row]:
    return ({**sample, "w": turn} for turn in range(int(sample["u"]) % 3))


def failing(sample: Row) -> Row:
    if int(sample["u"]) == 4:
        raise ValueError(f"u is {sample['u']}")
    return sample


def with_sevens(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "seven": np.full(len(next(iter(columns.values()))), 7)}


class Overriding(StreamingDataset):
    """A dataset whose samples a subclass changes."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return {**sample, "of": type(self).__name__} if isinstance(sample, dict) else sample


# -- plans -------------------------------------------------------------------------------------------------------------

Step = Callable[[StreamingDataset, "Plan", Path], StreamingDataset]


@dataclass
class Plan:
    """How a dataset is made and delivered: what features change.

    Attributes:
        forms: format of each stream.
        weights: arguments of each stream.
        options: arguments of the dataset.
        read: arguments of its ``ReadOptions``.
        steps: of its chain, in order.
        bad: what becomes of bad samples; ``""``: whatever the dataset does by itself.
        cached: whether it is read through a cache.
        delivery: who delivers it, see ``runs.py``.
        kind: its class.
    """

    forms: list[str] = field(default_factory=lambda: ["mds"])
    weights: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    options: dict[str, Any] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    bad: str = ""
    cached: bool = False
    delivery: str = "batches"
    kind: type[StreamingDataset] = StreamingDataset

    def streams(self, root: Path, caches: Path, data: str | None = None) -> list[Stream]:
        """The streams; with ``data`` those of a dataset beside this one, which are read in place."""
        found = []
        for number, (form, weight) in enumerate(zip(self.forms, self.weights, strict=True)):
            path = root / (data or form) / str(number)
            more: dict[str, Any] = {"name": f"stream{number}", **({} if data else weight)}
            remote = str(path)
            if data is None and self.cached:
                remote = f"file://{path}"
                more["local"] = None if self.read.get("cache") == "memory" else str(caches / form / str(number))
            found.append(Stream(remote, **more))
        return found

    def opened(self, root: Path, caches: Path, world: World, batch_size: int, log: Path) -> StreamingDataset:
        """The dataset of one rank. ``log``: file that lists bad samples."""
        from stoker import ReadOptions

        given = dict(self.options)
        if self.bad not in ("", "raise"):
            given["on_bad_sample"] = BadSamples(self.bad, max_share=None, file=log)  # type: ignore[arg-type]
        dataset = self.kind(
            streams=self.streams(root, caches),
            batch_size=batch_size,
            world=world,
            read=ReadOptions(**{"read_threads": 0, "compare_ranks": False, **self.read}),
            **given,
        )
        for step in self.steps:
            dataset = step(dataset, self, root)
        return dataset


@dataclass(frozen=True)
class Feature:
    """A feature: its name, its group, and what it makes of a plan."""

    name: str
    group: str
    apply: Callable[[Plan], None]


def _form(form: str) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.forms = [form] * len(plan.forms)
        plan.bad = plan.bad or ("skip" if form.startswith("damaged") else "")

    return apply


def _streams(forms: list[str], *weights: dict[str, Any], **options: Any) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.forms, plan.weights = list(forms), [dict(one) for one in weights] or [{} for _ in forms]
        plan.options |= options

    return apply


def _two(**options: Any) -> Callable[[Plan], None]:
    """Options that mean something where there are several streams."""

    def apply(plan: Plan) -> None:
        if len(plan.forms) == 1:
            plan.forms, plan.weights = plan.forms * 2, [{}, {}]
        plan.options |= options

    return apply


def _options(**options: Any) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.options |= options

    return apply


def _shuffle(name: str) -> Callable[[Plan], None]:
    return _options(shuffle=True, shuffle_algo=name, shuffle_seed=17)


def _read(**options: Any) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.read |= options

    return apply


def _step(step: Step) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.steps.append(step)

    return apply


def _method(name: str, *arguments: Any, **options: Any) -> Callable[[Plan], None]:
    return _step(lambda dataset, plan, root: getattr(dataset, name)(*arguments, **options))


def _failing(plan: Plan) -> None:
    """Samples that are bad. Unless a further feature says what becomes of them, they are left out."""
    _method("map", failing)(plan)
    plan.bad = plan.bad or "skip"


def _beside(plan: Plan, root: Path, data: str) -> StreamingDataset:
    return StreamingDataset(streams=plan.streams(root, root, data))


def _joined(missing: Any) -> Callable[[Plan], None]:
    return _step(
        lambda dataset, plan, root: dataset.join(
            _beside(plan, root, "captions"), on="x", missing=missing, name="captions"
        )
    )


def _bad(kind: str) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.bad = kind

    return apply


def _cached(cache: str = "disk", **options: Any) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.cached = True
        plan.read["cache"] = cache
        plan.options |= options

    return apply


def _delivered(how: str) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        plan.delivery = how

    return apply


def _overriding(plan: Plan) -> None:
    plan.kind, plan.delivery = Overriding, "samples"


_SCHEDULE: Final = Schedule.parse({0: {"stream0": 0.8, "stream1": 0.2}, 60: {"stream0": 0.3, "stream1": 0.7}})
_QUARANTINE: Final = [SkipIds([0, 7, 33, 34]), SkipSteps(2, 3, epoch=0, global_batch=12)]

FEATURES: Final = (
    Feature("two streams", "streams", _streams(["mds", "mds"])),
    Feature("three forms", "streams", _streams(["mds", "parquet", "jsonl"], columns=["x", "u", "s"])),
    Feature("proportion", "streams", _streams(["mds", "mds"], {"proportion": 0.7}, {"proportion": 0.3}, epoch_size=90)),
    Feature("repeat", "streams", _streams(["mds", "mds"], {"repeat": 1.5}, {"repeat": 0.4})),
    Feature("choose", "streams", _streams(["mds", "mds"], {"choose": 100}, {"choose": 21})),
    Feature("schedule", "streams", _streams(["mds", "mds"], sampling_method=_SCHEDULE, epoch_size=110)),
    *(
        Feature(form, "form", _form(form))
        for form in ("zstd", "damaged mds", "parquet", "arrow", "jsonl", "damaged jsonl", "csv", "tar", "tfrecord")
    ),
    Feature("stratified batches", "batching", _two(batching_method="stratified")),
    Feature("per_stream", "batching", _two(batching_method="per_stream")),
    Feature("device_per_stream", "batching", _two(batching_method="device_per_stream")),
    *(
        Feature(f"shuffle {name}", "shuffle", _shuffle(name))
        for name in ("block", "global", "shard", "naive", "py1s", "py2s", "py1br", "py1e")
    ),
    Feature("canonical nodes", "canonical nodes", _options(num_canonical_nodes=2)),
    Feature("relaxed", "partition", _options(partition_algo="relaxed")),
    Feature("round robin", "partition", _options(partition_algo=RoundRobin())),
    Feature("contiguous", "partition", _options(partition_algo=Contiguous())),
    Feature("by hash", "partition", _options(partition_algo=HashBased(6, key="s"))),
    Feature(
        "by range", "partition", _options(partition_algo=RangeBased([(0, 10), (10, 20), (20, 30), (30, 45), (45, 70)]))
    ),
    Feature("stratified parts", "partition", _options(partition_algo=Stratified("u"))),
    Feature("hash split", "subset", _options(subset=HashSplit(0, 0.5, seed=3))),
    Feature("where", "subset", _options(subset=Where("u", "<", 9))),
    Feature("keep ids", "subset", _options(subset=KeepIds([*range(5, 50), 3]))),
    Feature("two subsets", "subset", _options(subset=[SkipIds([1, 2, 3]), HashSplit(0.2, 0.9, seed=1)])),
    Feature("drop", "remainder", _options(remainder="drop")),
    Feature("epoch size", "epoch size", _options(epoch_size=40)),
    Feature("fixed", "sampling", _options(sampling_method="fixed", sampling_granularity=3, epoch_size=40)),
    Feature(
        "quarantine",
        "quarantine",
        _read(quarantine=[SkipIds([0, 7, 33, 34]), SkipSteps(2, 3, epoch=0, global_batch=12)]),
    ),
    Feature("replicated", "replicated", _options(replication=2)),
    Feature("columns", "columns", _options(columns=["u", "s"])),
    Feature("ids", "ids", _read(ids="id")),
    Feature("map", "step", _method("map", doubled)),
    Feature("random_map", "step", _method("random_map", jittered)),
    Feature("fail", "step", _failing),
    Feature("filter", "step", _method("filter", is_kept)),
    Feature("filter, replace", "step", _method("filter", is_kept, dropped="replace")),
    Feature("flat_map", "step", _method("flat_map", copies)),
    Feature("rename", "step", _method("rename", {"s": "text"})),
    Feature("select", "step", _method("select", ["x", "u"])),
    Feature("enumerate", "step", _method("enumerate", "at")),
    Feature("join", "step", _joined("leave_out")),
    Feature("join, none", "step", _joined("none")),
    Feature("join, raise", "step", _joined("raise")),
    Feature(
        "zip", "step", _step(lambda dataset, plan, root: dataset.zip(_beside(plan, root, "numbers"), name="numbers"))
    ),
    Feature("batch_map", "step", _method("batch_map", with_sevens)),
    Feature("override", "override", _overriding),
    Feature("raise", "bad", _bad("raise")),
    Feature("skip", "bad", _bad("skip")),
    Feature("replace", "bad", _bad("replace")),
    Feature("disk cache", "cache", _cached()),
    Feature("cache limit", "cache", _cached(cache_limit=5000)),
    Feature("memory", "cache", _cached(cache="memory")),
    Feature("threads", "threads", _read(read_threads=3)),
    Feature("views", "views", _read(views=True)),
    Feature("checksums", "checksums", _read(checksums=True)),
    Feature("untuned", "untuned", _read(tune="off")),
    *(
        Feature(how, "delivery", _delivered(how))
        for how in ("samples", "by id", "loader", "columnar", "shard loader", "shard batches", "planned", "leased")
    ),
)
"""All that are delivered by this process alone."""

PROCESSES: Final = (
    Feature("workers", "delivery", _delivered("workers")),
    Feature("columnar workers", "delivery", _delivered("columnar workers")),
    Feature(
        "processes", "delivery", _read(run_in="processes", read_processes=2, start_method="fork", read_threads=None)
    ),
)
"""Those that start processes, whose pairs with all others are recorded, but no triples."""

NEUTRAL: Final = frozenset(
    {"zstd", "disk cache", "cache limit", "memory", "threads", "views", "checksums", "untuned", "processes"}
)
"""Those that change nothing of what comes: a run with one of them gives what it gives without.

But for shuffles of compressed shards: a shuffle's key knows the sizes of files, and headers of such shards name the codec.
"""

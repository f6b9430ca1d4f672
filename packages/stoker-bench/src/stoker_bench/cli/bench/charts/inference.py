"""Charts of the stages of inference, a KV cache and a search of vectors: latencies, and whose time they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from stoker.display import bytes_text
from stoker_bench.cli.bench.charts.common import MOST_BARS, SecondsAxis, named_axis
from stoker_bench.cli.bench.datum import NOTHING, datum
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table
from stoker_bench.cli.render.picture import COLOURS
from stoker_bench.cli.render.rates import bytes_rate_text, percent_text, time_text
from stoker_bench.results.report_files import RunFiles

_PERCENTILES: Final = (("p50", COLOURS[2]), ("p95", COLOURS[4]), ("p99", COLOURS[6]))
_SHARES: Final = (
    ("storage", "storage", COLOURS[0]),
    ("kernel", "processor time of the kernel in its calls", COLOURS[5]),
    ("queue", "waiting for a processor", COLOURS[4]),
    ("host", "host: the benchmark's own process", COLOURS[1]),
)


class _Operations(NamedTuple):
    """Operations of one kind.

    Attributes:
        name: for people.
        k: number of the run.
        run: the run.
        path: where they are in ``results.json``.
        done: the measured operations.
        timed: whether the storage's part of the time is known.
    """

    name: str
    k: int
    run: RunFiles
    path: str
    done: Mapping[str, Any]
    timed: bool


def inference_latency(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Percentiles of operations, and their sizes and rates."""
    found = [one for one in _operations(runs) if one.done["latency"] is not None][:MOST_BARS]
    values = [one.done["latency"][name] for one in found for name, _ in _PERCENTILES]
    if not any(value > 0 for value in values):
        return None
    low = math.floor(math.log10(min(value for value in values if value > 0)) - 0.1)  # so that the lowest bar is seen
    chart = Chart(
        "latency of entries of the KV cache and of queries of vectors: P50, P95 and P99",
        named_axis("", [one.name for one in found]),
        SecondsAxis("latency", 10.0**low, 10.0 ** (math.floor(math.log10(max(values))) + 1)),
        width=1110,
    )
    rows = []
    for at, one in enumerate(found):
        for side, (name, colour) in enumerate(_PERCENTILES):
            value, left = one.done["latency"][name], at + 0.6 + 0.8 / 3 * side
            said = f"{one.name}, {name.upper()}: {time_text(value)}"
            chart.bar(left, left + 0.8 / 3, value, said, begin=chart.y.low, colour=colour)
        count, calls, size = (one.done[name] for name in ("count", "calls", "bytes"))
        rows.append(
            (
                one.name,
                datum(one.k, one.run, f"{one.path}.count", "{:,}".format),
                *(datum(one.k, one.run, f"{one.path}.latency.{name}", time_text) for name, _ in _PERCENTILES),
                *(_at(one, f"device_latency.{name}") for name, _ in _PERCENTILES),
                datum(one.k, one.run, f"{one.path}.per_second", "{:,.1f}".format),
                datum(one.k, one.run, f"{one.path}.bytes_per_second", bytes_rate_text) if size else NOTHING,
                bytes_text(size / count) if size and count else NOTHING,
                bytes_text(size / calls) if size and calls else NOTHING,
            )
        )
    names = tuple(name.upper() for name, _ in _PERCENTILES)
    headings = (
        *("", "count", *names, *(f"{name} of the storage" for name in names)),
        *("per s", "bytes/s", "size of each", "size of a request"),
    )
    text = "Of whole entries and whole queries; on a logarithmic scale. Sizes are below, in the numbers."
    figure = Figure(chart, [(colour, name.upper()) for name, colour in _PERCENTILES])
    return Card("Request latency", text + left_out, [figure], Table(headings, rows))


def inference_shares(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """The parts of operations' time: the storage's, the kernel's, and the host's."""
    found = [one for one in _operations(runs) if one.timed][:MOST_BARS]
    if not found:
        return None
    chart = Chart(
        "whose time the latency is: the storage's, the kernel's, the host's",
        named_axis("", [one.name for one in found]),
        Axis("part of the time (%)", 0, 1.0, 0.01),
        width=1110,
    )
    rows = []
    for at, one in enumerate(found):
        parts = {name: float(one.done[f"{name}_share"]) for name in ("kernel", "queue", "host")}
        parts["storage"] = max(0.0, 1 - sum(parts.values()))
        begin = 0.0
        for name, words, colour in _SHARES:
            end = min(1.0, begin + max(0.0, parts[name]))
            chart.bar(at + 0.6, at + 1.4, end, f"{one.name}: {words} {parts[name]:.2%}", begin=begin, colour=colour)
            begin = end
        shares = (datum(one.k, one.run, f"{one.path}.{name}_share", percent_text) for name, _, _ in _SHARES[1:])
        rows.append((one.name, percent_text(parts["storage"]), *shares))
    table = Table(("", *(words for _, words, _ in _SHARES)), rows)
    figure = Figure(chart, [(colour, words) for _, words, colour in _SHARES])
    text = "Of the sum of all operations' time. What is not the storage's is this machine's."
    return Card("Share of the host", text + left_out, [figure], table)


def _at(one: _Operations, path: str) -> str:
    return datum(one.k, one.run, f"{one.path}.{path}", time_text) if one.timed else NOTHING


def _operations(runs: Sequence[RunFiles]) -> Iterator[_Operations]:
    """Of all runs those of which there were any; the accelerator's own memory is none of the storage."""
    for k, run in enumerate(runs):
        of = f"{run.name}: " if len(runs) > 1 else ""
        for stage, kinds in (("kv_cache", _KV_CACHE), ("vectors", _VECTORS)):
            found = run.result[stage]
            repeats = [] if found is None else found["repeats"]
            timed = stage == "kv_cache" or bool(found and found["unit"])
            for at, repeat in enumerate(repeats):
                number = f" {repeat['repeat']}" if len(repeats) > 1 else ""
                for path, name in kinds:
                    done: Any = repeat
                    for part in path.split("."):
                        done = done[part]
                    if done is not None and done["count"] > 0:
                        yield _Operations(f"{of}{name}{number}", k, run, f"{stage}.repeats.{at}.{path}", done, timed)


_KV_CACHE: Final = tuple(
    (f"tiers.{tier}.{kind}", f"{kind} {tier}") for tier in ("storage", "memory") for kind in ("read", "write")
)
_VECTORS: Final = (("search", "queries"), ("replay", "reads alone"))

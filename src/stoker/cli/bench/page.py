"""Benchmark runs as one page of HTML that needs no other file. All text from files is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from stoker.bench.results.report_files import RunFiles
from stoker.cli.bench.charts import charts
from stoker.cli.bench.datum import NOTHING, datum, epoch_name
from stoker.cli.bench.requests_table import listing_text
from stoker.cli.bench.system_text import SystemText
from stoker.cli.render.markup import Html, document, pairs, rows, scroll, section, tile
from stoker.cli.render.numbers import bytes_rate_text, decimal_bytes_text, percent_text, seconds_text

_EPOCHS: Final = 200
"""Rows of a table of epochs; the rest is in ``results.json``."""


def bench_page(runs: Sequence[RunFiles], *, title: str | None = None, system: SystemText | None = None) -> str:
    """The page.

    Each number of a result is a ``<data>`` element: ``value`` is the number as it is in ``results.json``, ``data-run``
    says of which run, counted from 0, and ``data-path`` where in the file.

    Args:
        runs: at least one.
        title: of the page; the workloads' names if there is none.
        system: description of the system that was measured, shown before the results.
    """
    names = title or " and ".join(dict.fromkeys(run.text("name") for run in runs))
    body = [f"<h1>{escape(names)}</h1>", f"<p>{escape(_said(runs))}</p>"]
    if system is not None:
        body.append(section("System", "", _system(system)))
    if len(runs) == 1:
        body.append(f'<div class="tiles">{"".join(_tiles(runs[0]))}</div>')
    for run in runs:
        of = "" if len(runs) == 1 else f"{run.name}: "
        for one in run.result["findings"]:
            if one["invalid"]:
                said = escape(f"{of}invalid, {one['rule']}: {one['reason']}")
                body.append(f'<div class="warning" role="note">{said}</div>')
    body.append(section("Summary", "", scroll(_summary(runs))))
    body += [charts(runs), _rules(runs)]
    for k, run in enumerate(runs):
        body.append(_details(k, run, alone=len(runs) == 1))
    return document(f"stoker bench: {names}", "".join(body))


def _system(described: SystemText) -> str:
    if isinstance(described, str):
        return f'<p class="own">{escape(described)}</p>'
    return pairs([(name, NOTHING if value is None else str(value)) for name, value in described])


def _said(runs: Sequence[RunFiles]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs of stoker bench."
    result = runs[0].result
    return f"{result['world']['said']}; {result['began']}, {seconds_text(result['seconds'])}."


def _rate(value: float) -> str:
    return f"{value:,.1f}"


def _verdict(run: RunFiles) -> str:
    result = run.result
    kind = {"passed": "good", "valid": ""}.get(result["verdict"], "bad")
    return Html(f'<span class="{kind}">{escape(result["verdict"])}</span>') if kind else "valid"


def _tiles(run: RunFiles) -> list[str]:
    shown = [
        ("verdict", _verdict(run)),
        ("bytes a second from storage", datum(0, run, "train.storage_bytes_per_second.mean", bytes_rate_text)),
        *_requests(run),
        ("bytes a second to the step", datum(0, run, "train.delivered_bytes_per_second.mean", bytes_rate_text)),
        (f"utilization; asked for: {run.number('metric.au', 0):.0%}", datum(0, run, "train.au.mean", percent_text)),
        ("nominal utilization", datum(0, run, "train.au_nominal.mean", percent_text)),
        ("computation of a step, drawn", datum(0, run, "train.compute_drawn.mean", seconds_text)),
        ("computation of a step, measured", datum(0, run, "train.compute_measured.mean", seconds_text)),
        ("samples a second", datum(0, run, "train.samples_per_second.mean", _rate)),
        ("until the first batch", datum(0, run, "train.time_to_first_batch.mean", seconds_text)),
        ("utilization with data in memory", datum(0, run, "calibration.au_ceiling", percent_text)),
        ("bytes a second, checkpoints saved", datum(0, run, "checkpoint.save.bytes_per_second.mean", bytes_rate_text)),
        ("bytes a second, checkpoints loaded", datum(0, run, "checkpoint.load.bytes_per_second.mean", bytes_rate_text)),
        ("bytes a second, KV cache written", datum(0, run, "kv_cache.write.bytes_per_second.mean", bytes_rate_text)),
        ("bytes a second, KV cache read", datum(0, run, "kv_cache.read.bytes_per_second.mean", bytes_rate_text)),
        ("95th percentile of reading an entry of the KV cache", datum(0, run, "kv_cache.read.p95.mean", seconds_text)),
        ("queries a second, vectors", datum(0, run, "vectors.queries_per_second.mean", _rate)),
        ("recall, vectors", datum(0, run, "vectors.recall.mean", percent_text)),
    ]
    return [tile(name, value) for name, value in shown if value != NOTHING]


def _requests(run: RunFiles) -> list[tuple[str, str]]:
    """Of the device or the network."""
    source = _served_by_storage((run.result.get("requests") or {}).get("train"))
    if source is None:
        return []
    path = f"requests.train.{source}"
    return [
        ("requests a second to storage", datum(0, run, f"{path}.per_second", _rate)),
        ("median of a request to storage", datum(0, run, f"{path}.latency.p50", seconds_text)),
        ("99th percentile of a request to storage", datum(0, run, f"{path}.latency.p99", seconds_text)),
    ]


def _served_by_storage(requests: Mapping[str, Any] | None) -> str | None:
    """Of where requests were served the storage that is measured; ``None`` where it served none."""
    return next((one for one in ("network", "device", "local") if one in (requests or {})), None)


def _summary(runs: Sequence[RunFiles]) -> str:
    headings = (
        *("run", "verdict", "loader", "decoded", "storage", "accelerators"),
        *("bytes/s from storage", "to the step"),
        *("utilization", "±", "nominal", "drawn", "computed"),
        *("stall", "samples/s", "first batch", "CPU s/GB"),
    )
    table = []
    for k, run in enumerate(runs):
        decoded = next((one["loader"]["decoded"] for one in run.result["epochs"] if one["loader"] is not None), "-")
        table.append(
            (
                run.name,
                _verdict(run),
                run.text("reader.loader") if run.result["epochs"] else NOTHING,
                decoded,
                run.result["storage"]["kind"],
                datum(k, run, "world.ranks", str),
                datum(k, run, "train.storage_bytes_per_second.mean", bytes_rate_text),
                datum(k, run, "train.delivered_bytes_per_second.mean", bytes_rate_text),
                datum(k, run, "train.au.mean", percent_text),
                datum(k, run, "train.au.stdev", percent_text),
                datum(k, run, "train.au_nominal.mean", percent_text),
                datum(k, run, "train.compute_drawn.mean", seconds_text),
                datum(k, run, "train.compute_measured.mean", seconds_text),
                datum(k, run, "train.stall_part.mean", percent_text),
                datum(k, run, "train.samples_per_second.mean", _rate),
                datum(k, run, "train.time_to_first_batch.mean", seconds_text),
                datum(k, run, "train.cpu_seconds_per_gb.mean", lambda value: f"{value:.3g}"),
            )
        )
    return _known_columns(headings, table)


def _known_columns(headings: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    """A table without the columns of which nothing was measured."""
    kept = [at for at in range(len(headings)) if any(row[at] != NOTHING for row in table)]
    return rows([headings[at] for at in kept], [[row[at] for at in kept] for row in table])


def _rules(runs: Sequence[RunFiles]) -> str:
    table = []
    for run in runs:
        for one in run.result["findings"]:
            kind = Html('<span class="bad">broken</span>') if one["invalid"] else "remark"
            table.append((run.name, one["rule"], kind, one["reason"]))
        if not any(one["invalid"] for one in run.result["findings"]):
            which = "all others" if run.result["findings"] else "all"
            table.append((run.name, which, Html('<span class="good">kept</span>'), "No rule was broken."))
    text = "A result that broke a rule does not say what it seems to say."
    return section("Rules", text, scroll(rows(("run", "rule", "", "reason"), table, words=True)))


def _details(k: int, run: RunFiles, *, alone: bool) -> str:
    result = run.result
    environment, loaders = (
        result["environment"],
        [one["loader"] for one in result["epochs"] if one["loader"] is not None],
    )
    facts = [
        ("directory", str(run.folder)),
        ("command", " ".join(result["plan"]["command"]) or "from Python"),
        ("workload", result["plan"]["source"] or "the defaults"),
        ("data", f"{result['storage']['url']} ({result['storage']['kind']})"),
        ("began", result["began"]),
        ("took", seconds_text(result["seconds"])),
        ("ended", "as it should" if result["complete"] else result["failure"] or "before all ranks had reported"),
        ("accelerators", result["world"]["said"]),
        *((f"listing of {split}", listing_text(found)) for split, found in result["listing"].items()),
    ]
    if loaders:
        one = loaders[-1]
        facts.append(("loader", f"{run.text('reader.loader')}: {one['decoded']}, {one['parallel']}, {one['order']}"))
        facts += [("loader's note", note) for note in one["notes"]]
    facts += [
        ("host", f"{environment['host']}, {environment['system']}"),
        ("processor", f"{environment['processor']}, {environment['processors_usable']} of {environment['processors']}"),
        ("memory", decimal_bytes_text(environment["memory_bytes"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment["versions"].items())),
    ]
    facts += [("note", note) for note in result["plan"]["notes"]]
    settings = (
        f"<details><summary>All settings</summary><pre>{escape(json.dumps(run.workload, indent=1))}</pre></details>"
    )
    epochs = scroll(_epochs(k, run))
    if len(result["epochs"]) > _EPOCHS:
        epochs += f"<p>The first {_EPOCHS} of {len(result['epochs'])}.</p>"
    title = "" if alone else f"{run.name}: "
    made = [section(f"{title}{'e' if title else 'E'}pochs", "", epochs)] if result["epochs"] else []
    if result["checkpoint"] is not None:
        made.append(section(f"{title}{'c' if title else 'C'}heckpoints", "", _checkpoints(k, run)))
    made.append(section(f"{title}{'h' if title else 'H'}ow it was measured", "", pairs(facts) + settings))
    return "".join(made)


def _of_requests(epoch: Mapping[str, Any]) -> list[tuple[str, Callable[[Any], str]]]:
    """Paths of an epoch's requests to storage, of the device or the network, and how they are told."""
    path = f"requests.{_served_by_storage(epoch.get('requests')) or 'device'}"
    return [
        (f"{path}.per_second", _rate),
        *((f"{path}.latency.{name}", seconds_text) for name in ("p50", "p99")),
    ]


def _epochs(k: int, run: RunFiles) -> str:
    headings = (
        *("epoch", "steps", "bytes/s from storage", "to the step"),
        *("utilization", "nominal", "stall", "barrier", "overhead", "drawn", "computed", "samples/s"),
        *("first batch", "stall p50", "p99", "most", "requests/s", "request p50", "p99"),
        *("from the device", "CPU s/GB", "memory"),
    )
    table = []
    for at, epoch in enumerate(run.result["epochs"][:_EPOCHS]):
        shown = (
            *((f"{name}_bytes_per_second", bytes_rate_text) for name in ("storage", "delivered")),
            *((name, percent_text) for name in ("au", "au_nominal", "stall_part", "barrier_part", "overhead_part")),
            *((name, seconds_text) for name in ("compute_drawn", "compute_measured")),
            *(("samples_per_second", _rate), ("time_to_first_batch", seconds_text)),
            *((f"stall_seconds.{name}", seconds_text) for name in ("p50", "p99", "max")),
            *_of_requests(epoch),
            *(("device_bytes", decimal_bytes_text), ("cpu_seconds_per_gb", lambda value: f"{value:.3g}")),
            ("peak_memory_bytes", decimal_bytes_text),
        )
        table.append(
            (
                epoch_name(run.result, epoch),
                str(max(epoch["steps"], default=0)),
                *(datum(k, run, f"epochs.{at}.{path}", words) for path, words in shown),
            )
        )
    return _known_columns(headings, table)


def _checkpoints(k: int, run: RunFiles) -> str:
    headings = (
        "",
        "while",
        "number",
        "size",
        "took",
        "bytes/s",
        "slowest rank",
        "fsync",
        "from the device",
        "CPU",
        "complete",
    )
    table = []
    for kind in ("saves", "loads"):
        for at, one in enumerate(run.result["checkpoint"][kind][:_EPOCHS]):
            shown = (
                *(("bytes", decimal_bytes_text), ("seconds", seconds_text), ("bytes_per_second", bytes_rate_text)),
                *(("rank_bytes_per_second.min", bytes_rate_text), ("fsync_seconds", seconds_text)),
                *(("device_bytes", decimal_bytes_text), ("cpu_seconds", seconds_text)),
            )
            table.append(
                (
                    one["kind"],
                    "training" if one["place"] == "train" else "nothing else",
                    str(one["number"]),
                    *(datum(k, run, f"checkpoint.{kind}.{at}.{path}", words) for path, words in shown),
                    "yes" if one["complete"] else Html('<span class="bad">no</span>'),
                )
            )
    layout = run.result["checkpoint"]["layout"]
    facts = [
        ("of all ranks", datum(k, run, "checkpoint.layout.bytes", decimal_bytes_text)),
        ("of the whole model", datum(k, run, "checkpoint.layout.whole_bytes", decimal_bytes_text)),
        ("ranks that it is for", str(layout["whole_ranks"])),
        ("where", run.result["checkpoint"]["storage"]["url"]),
    ]
    return f"{scroll(rows(headings, table))}{pairs(facts)}"

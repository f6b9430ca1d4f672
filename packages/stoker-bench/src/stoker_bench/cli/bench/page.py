"""Benchmark runs as one page of HTML that needs no other file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from stoker.cli.terminal import seconds_text
from stoker.display import bytes_text, counted
from stoker_bench.cli.bench.charts import charts
from stoker_bench.cli.bench.datum import NOTHING, datum, epoch_name, value_at
from stoker_bench.cli.bench.system_text import SystemText
from stoker_bench.cli.bench.tables.requests_table import device_read, listing_text, slowest_epoch
from stoker_bench.cli.bench.tables.result_table import generated_text
from stoker_bench.cli.render.html import Table, render
from stoker_bench.cli.render.rates import bytes_rate_text, percent_text
from stoker_bench.measure.metrics import deciding_au
from stoker_bench.results.report_files import RunFiles
from stoker_bench.results.rules import PUBLISHED

_NUMBER: Final = re.compile(r"\d[\d,.]*")
_WARNED: Final = 5
"""Broken rules that are told above the charts; the table of rules has all."""
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
    alone = len(runs) == 1
    return render(
        "bench.html",
        title=f"stoker bench: {names}",
        answers=[_answer(run, alone=alone) for run in runs],
        names=names,
        summary=_said(runs),
        differences=_differences(*runs) if len(runs) == 2 else None,
        system=_system(system),
        headlines=_headlines(runs[0]) if alone else (),
        warning=_warning(runs),
        cards=charts(runs),
        measured=_summary(runs),
        run_count=len(runs),
        findings=_grouped(runs),
        kept=_kept(runs),
        details=[_details(k, run, runs[0], alone=alone) for k, run in enumerate(runs)],
    )


def _system(described: SystemText | None) -> str | list[tuple[str, str]] | None:
    if described is None or isinstance(described, str):
        return described
    return [(name, NOTHING if value is None else str(value)) for name, value in described]


def _said(runs: Sequence[RunFiles]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs of stoker bench."
    result = runs[0].result
    began = result["began"].replace("T", " ").replace("Z", " UTC")
    return f"{result['world']['said']}; began {began}, took {seconds_text(result['seconds'])}."


def _answer(run: RunFiles, *, alone: bool) -> str:
    """The answer to what was to be found out, in a sentence."""
    result = run.result
    name = "" if alone else f"{run.name}: "
    au = None if result["train"] is None else deciding_au(result["train"])
    if au is None:
        return f"{name}{result['verdict']}"
    asked = run.number("metric.au", 0)
    said = f"feeds {_fed(result, asked)} of {counted(result['world']['ranks'], 'accelerator')} at {au:.1%}, asked {asked:.0%}"
    return (
        f"{name}{said}: {result['verdict']}"
        if result["verdict"] != "invalid"
        else f"{name}invalid: tells nothing of this storage"
    )


def _fed(result: Mapping[str, Any], asked: float) -> int:
    """Ranks whose utilization was enough, as the mean over epochs of training."""
    found: dict[int, list[float]] = {}
    for epoch in result["epochs"]:
        for rank in epoch["ranks"] if epoch["kind"] == "train" else ():
            au = deciding_au(rank["metrics"])
            found.setdefault(rank["rank"], []).append(0.0 if au is None else au)
    return sum(sum(each) / len(each) >= asked for each in found.values())


def _differences(one: RunFiles, other: RunFiles) -> Table:
    """Differences of two runs: in what was set, and in what was measured."""
    table = [(name, mine, theirs, "") for name, mine, theirs in _other_settings(one, other)]
    for name, path, words in _COMPARED:
        values = [value_at(run.result, path) for run in (one, other)]
        if None not in values:
            first, second = values
            table.append((name, words(first), words(second), f"{second / first - 1:+.1%}" if first else ""))
    return Table(("", one.name, other.name, ""), table)


def _other_settings(one: RunFiles, other: RunFiles) -> list[tuple[str, str, str]]:
    first, second = (dict(_flat(run.workload)) for run in (one, other))
    return [
        (name, json.dumps(first.get(name)), json.dumps(second.get(name)))
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]


def _rate(value: float) -> str:
    return f"{value:,.1f}"


def _verdict(run: RunFiles) -> str:
    result = run.result
    verdict: str = result["verdict"]
    kind = {"passed": "good", "valid": ""}.get(verdict, "bad")
    if verdict == "smoke test" and run.setting("metric.smoke") is True:
        kind = ""  # it was asked for
    return Markup('<span class="{}">{}</span>').format(kind, verdict) if kind else verdict


def _headlines(run: RunFiles) -> list[tuple[str, str]]:
    """Numbers to be seen first."""
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
        *_waits(run),
        ("until the first batch", datum(0, run, "train.time_to_first_batch.mean", seconds_text)),
        ("utilization with data in memory", datum(0, run, "calibration.au_ceiling", percent_text)),
        ("bytes a second, data set generated", _generated(run)),
        *((name, datum(0, run, path, words)) for _, name, path, words in _STAGES),
    ]
    return [(name, value) for name, value in shown if value != NOTHING]


def _generated(run: RunFiles) -> str:
    """The rate at which the files of the data set were written."""
    made = run.result["generate"]
    return NOTHING if made is None or not made["bytes"] else bytes_rate_text(made["bytes"] / max(made["seconds"], 1e-9))


def _requests(run: RunFiles) -> list[tuple[str, str]]:
    """Of the device or the network."""
    source = _served_by_storage((run.result.get("requests") or {}).get("train"))
    if source is None:
        read = device_read(run.result)
        return (
            [] if read is None else [("mean read of the block device, all programs", datum(0, run, read, seconds_text))]
        )
    path = f"requests.train.{source}"
    return [
        ("requests a second to storage", datum(0, run, f"{path}.per_second", _rate)),
        ("median of a request to storage", datum(0, run, f"{path}.latency.p50", seconds_text)),
        ("99th percentile of a request to storage", datum(0, run, f"{path}.latency.p99", seconds_text)),
    ]


def _waits(run: RunFiles) -> list[tuple[str, str]]:
    """Of a step for its batch, in the epoch with the longest."""
    path = slowest_epoch(run.result, "stall_seconds.p99")
    if path is None:
        return []
    median = path.removesuffix("p99") + "p50"
    return [
        ("median of a step's wait for its batch, slowest epoch", datum(0, run, median, seconds_text)),
        ("99th percentile of a step's wait for its batch, slowest epoch", datum(0, run, path, seconds_text)),
    ]


def _served_by_storage(requests: Mapping[str, Any] | None) -> str | None:
    """Of where requests were served the storage that is measured; ``None`` where it served none."""
    return next((one for one in ("network", "device", "local") if one in (requests or {})), None)


def _summary(runs: Sequence[RunFiles]) -> Table:
    headings = (
        *("run", "verdict", "loader", "decoded", "storage", "accelerators"),
        *("bytes/s from storage", "to the step"),
        *("utilization", "±", "nominal", "drawn", "computed"),
        *("stall", "samples/s", "first batch", "CPU s/GB", "generated"),
        *(name for name, *_ in _STAGES),
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
                _generated(run),
                *(datum(k, run, path, words) for _, _, path, words in _STAGES),
            )
        )
    return _known_columns(headings, table)


def _known_columns(headings: Sequence[str], table: Sequence[Sequence[str]]) -> Table:
    """A table without the columns of which nothing was measured."""
    kept = [at for at in range(len(headings)) if any(row[at] != NOTHING for row in table)]
    return Table([headings[at] for at in kept], [[row[at] for at in kept] for row in table])


_COMPARED: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("utilization", "train.au.mean", percent_text),
    ("nominal utilization", "train.au_nominal.mean", percent_text),
    ("samples a second", "train.samples_per_second.mean", _rate),
    ("bytes a second from storage", "train.storage_bytes_per_second.mean", bytes_rate_text),
    ("until the first batch", "train.time_to_first_batch.mean", seconds_text),
)
"""What two runs are compared by: its name, where it is, and how it is told."""
_STAGES: Final[tuple[tuple[str, str, str, Callable[[Any], str]], ...]] = (
    ("eval utilization", "utilization of evaluation", "evaluate.au.mean", percent_text),
    ("eval nominal", "nominal utilization of evaluation", "evaluate.au_nominal.mean", percent_text),
    (
        *("eval bytes/s", "bytes a second from storage, evaluation"),
        *("evaluate.storage_bytes_per_second.mean", bytes_rate_text),
    ),
    ("eval samples/s", "samples a second, evaluation", "evaluate.samples_per_second.mean", _rate),
    ("saved", "bytes a second, checkpoints saved", "checkpoint.save.bytes_per_second.mean", bytes_rate_text),
    ("loaded", "bytes a second, checkpoints loaded", "checkpoint.load.bytes_per_second.mean", bytes_rate_text),
    ("KV written", "bytes a second, KV cache written", "kv_cache.write.bytes_per_second.mean", bytes_rate_text),
    ("KV read", "bytes a second, KV cache read", "kv_cache.read.bytes_per_second.mean", bytes_rate_text),
    ("KV read P95", "95th percentile of reading an entry of the KV cache", "kv_cache.read.p95.mean", seconds_text),
    ("queries/s", "queries a second, vectors", "vectors.queries_per_second.mean", _rate),
    ("recall", "recall, vectors", "vectors.recall.mean", percent_text),
)
"""Of stages beside training: the heading of a column, the name of a tile, the path, and how it is told."""


class _Findings(NamedTuple):
    """The findings of a rule that are alike but for their numbers.

    Attributes:
        rule: its name.
        invalid: whether it is broken.
        said: names of runs, and their reasons.
    """

    rule: str
    invalid: bool
    said: list[tuple[str, str]]

    def whose(self, runs: int) -> str:
        """The runs in words."""
        return _whose([name for name, _ in self.said], runs)

    def alike(self) -> bool:
        """Whether the runs have the same numbers, too."""
        return len({reason for _, reason in self.said}) == 1

    def reason(self) -> str:
        """The reason; of the first run, which is named, where others have other numbers."""
        name, reason = self.said[0]
        return reason if self.alike() else f"{name}: {reason}"


def _whose(names: Sequence[str], runs: int) -> str:
    """Some of all runs in words."""
    if len(names) == runs > 1:
        return f"all {runs} runs"
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} others"


def _grouped(runs: Sequence[RunFiles]) -> list[_Findings]:
    """All findings; broken rules first, and of these those of most runs."""
    groups: dict[tuple[str, bool, str], list[tuple[str, str]]] = {}
    for run in runs:
        for one in run.result["findings"]:
            alike = _NUMBER.sub("#", one["reason"])
            groups.setdefault((one["rule"], one["invalid"], alike), []).append((run.name, one["reason"]))
    found = [_Findings(rule, invalid, said) for (rule, invalid, _), said in groups.items()]
    return sorted(found, key=lambda one: (not one.invalid, -len(one.said)))


class _Warning(NamedTuple):
    """Lines of a warning above the charts, and their title."""

    title: str
    lines: list[str]


def _warning(runs: Sequence[RunFiles]) -> _Warning:
    """The runs that are invalid, and the rules that they broke; a list, as a small run breaks many of MLPerf Storage's.

    Of valid ones, what their numbers are not to be taken for.
    """
    broken = [one for one in _grouped(runs) if one.invalid]
    if not broken:
        return _Warning("", [one.reason() for one in _grouped(runs) if one.rule in (PUBLISHED, "read ahead")])
    names = list(dict.fromkeys(name for one in broken for name, _ in one.said))
    lines = [
        f"{one.rule}{'' if len(one.said) == len(names) else f', {one.whose(len(runs))}'}: {one.reason()}"
        for one in broken[:_WARNED]
    ]
    if len(broken) > _WARNED:
        lines.append(f"{len(broken) - _WARNED} more, in the table of rules below")
    return _Warning("This run is invalid" if len(runs) == 1 else f"Invalid: {_whose(names, len(runs))}", lines)


def _kept(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Runs that broke no rule, and the rules that they kept: ``all``, or ``all others`` beside remarks."""
    kept: dict[str, list[str]] = {"all": [], "all others": []}
    for run in runs:
        findings = run.result["findings"]
        if not any(one["invalid"] for one in findings):
            kept["all others" if findings else "all"].append(run.name)
    return [(_whose(names, len(runs)), which) for which, names in kept.items() if names]


def _settings(run: RunFiles, first: RunFiles) -> tuple[str, str]:
    """A title, and all settings of the first run, and of others those that differ from it."""
    if run is first:
        return "All settings", json.dumps(run.workload, indent=1)
    differing = "\n".join(f"{name}: {mine}" for name, _, mine in _other_settings(first, run))
    return f"Settings that differ from those of {first.name}", differing or "none"


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted paths."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _details(k: int, run: RunFiles, first: RunFiles, *, alone: bool) -> dict[str, Any]:
    """Epochs, checkpoints and circumstances of a run, as the template has them."""
    result = run.result
    environment = result["environment"]
    loaders = {one["kind"]: one["loader"] for one in result["epochs"] if one["loader"] is not None}
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
    if result["generate"] is not None:
        facts.append(("generated", generated_text(result["generate"])))
    told = {
        kind: f"{run.text('reader.loader')}: {one['decoded']}, {one['parallel']}, {one['order']}"
        for kind, one in loaders.items()
    }
    names = {"train": "loader", "valid": "loader of evaluation"}
    facts += [(names[kind], told[kind]) for kind in names if kind in told]
    notes = dict.fromkeys(note for one in loaders.values() for note in one["notes"])
    facts += [("loader's note", note) for note in notes]
    facts += [
        ("host", f"{environment['host']}, {environment['system']}"),
        ("processor", f"{environment['processor']}, {environment['processors_usable']} of {environment['processors']}"),
        ("memory", bytes_text(environment["memory_bytes"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment["versions"].items())),
    ]
    facts += [("note", note) for note in result["plan"]["notes"]]
    epochs, checkpoint = len(result["epochs"]), result["checkpoint"]
    settings_title, settings = _settings(run, first)
    return {
        "name": "" if alone else run.name,
        "epochs": _epochs(k, run) if epochs else None,
        "epochs_left_out": f"The first {_EPOCHS} of {epochs}." if epochs > _EPOCHS else "",
        "checkpoints": None if checkpoint is None else _checkpoints(k, run),
        "checkpoint_facts": None if checkpoint is None else _checkpoint_facts(k, run),
        "facts": facts,
        "settings_title": settings_title,
        "settings": settings,
    }


def _of_requests(epoch: Mapping[str, Any]) -> list[tuple[str, Callable[[Any], str]]]:
    """Paths of an epoch's requests to storage, of the device or the network, and how they are told."""
    path = f"requests.{_served_by_storage(epoch.get('requests')) or 'device'}"
    return [
        (f"{path}.per_second", _rate),
        *((f"{path}.latency.{name}", seconds_text) for name in ("p50", "p99")),
    ]


def _epochs(k: int, run: RunFiles) -> Table:
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
            *(("device_bytes", bytes_text), ("cpu_seconds_per_gb", lambda value: f"{value:.3g}")),
            ("peak_memory_bytes", bytes_text),
        )
        table.append(
            (
                epoch_name(run.result, epoch),
                str(max(epoch["steps"], default=0)),
                *(datum(k, run, f"epochs.{at}.{path}", words) for path, words in shown),
            )
        )
    return _known_columns(headings, table)


def _checkpoints(k: int, run: RunFiles) -> Table:
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
                *(("bytes", bytes_text), ("seconds", seconds_text), ("bytes_per_second", bytes_rate_text)),
                *(("rank_bytes_per_second.min", bytes_rate_text), ("fsync_seconds", seconds_text)),
                *(("device_bytes", bytes_text), ("cpu_seconds", seconds_text)),
            )
            table.append(
                (
                    one["kind"],
                    "training" if one["place"] == "train" else "nothing else",
                    str(one["number"]),
                    *(
                        NOTHING  # nothing is synced by loading
                        if (kind, path) == ("loads", "fsync_seconds")
                        else datum(k, run, f"checkpoint.{kind}.{at}.{path}", words)
                        for path, words in shown
                    ),
                    "yes" if one["complete"] else Markup('<span class="bad">no</span>'),
                )
            )
    return Table(headings, table)


def _checkpoint_facts(k: int, run: RunFiles) -> list[tuple[str, str]]:
    checkpoint = run.result["checkpoint"]
    return [
        ("of all ranks", datum(k, run, "checkpoint.layout.bytes", bytes_text)),
        ("of the whole model", datum(k, run, "checkpoint.layout.whole_bytes", bytes_text)),
        ("ranks that it is for", str(checkpoint["layout"]["whole_ranks"])),
        ("where", checkpoint["storage"]["url"]),
    ]

"""A benchmark's result on the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stoker.cli.running import print_json
from stoker.cli.terminal import make_console, make_table, print_table
from stoker.display import bytes_text, counted
from stoker_bench.cli.bench.datum import epoch_name
from stoker_bench.cli.bench.tables.requests_table import show_requests
from stoker_bench.cli.bench.tables.verdicts import is_smoke_test, verdict_text
from stoker_bench.cli.render.rates import percent_text, time_text


def show_kv_cache(console: Console, found: Mapping[str, Any]) -> None:
    """Whole entries that were written and read, tier by tier."""
    users = ", ".join(f"{count} {name}" for name, count in found["users"].items())
    console.print(
        Text(f"KV cache at {found['storage']['url']}: {found['bytes_per_token']:,} bytes a token; {users}", style="dim")
    )
    table = make_table(("repeat", "entries", "", "MB/s", "per s", "P50", "P95", "P99", "host"))
    for repeat in found["repeats"]:
        for tier, done in repeat["tiers"].items():
            for kind in ("write", "read"):
                one = done[kind]
                if one is None or tier == "accelerator":
                    continue
                table.add_row(
                    str(repeat["repeat"]),
                    f"{one['count']:,}",
                    f"{kind} {tier}",
                    f"{one['bytes_per_second'] / 1e6:,.1f}",
                    f"{one['per_second']:,.1f}",
                    *(time_text(one["latency"][name]) for name in ("p50", "p95", "p99")),
                    f"{one['host_share']:.1%}",
                )
    print_table(console, table)
    console.print(
        Text("P50, P95, P99: of whole entries; host: part of their time that is not the storage's", style="dim")
    )
    for repeat in found["repeats"]:
        made = sum(one["write"]["bytes"] for one in repeat["tiers"].values() if one["write"] is not None)
        console.print(
            f"{repeat['requests']:,} requests in {repeat['seconds']:.1f} s, {repeat['generated_tokens']:,} tokens answered, "
            f"{bytes_text(made)} of entries"
        )
    over = found["read"]
    if over is not None and over["p95"]["count"] > 1:
        rate, p95 = over["bytes_per_second"], over["p95"]
        console.print(
            f"read: {rate['mean'] / 1e6:,.1f} MB/s (± {rate['stdev'] / 1e6:,.1f}), P95 {time_text(p95['mean'])} "
            f"(± {time_text(p95['stdev'])}), over {rate['count']} repeats"
        )


def show_vectors(console: Console, found: Mapping[str, Any]) -> None:
    """Queries, and the reads of their searches alone."""
    made = "" if found["build_seconds"] is None else f", made in {found['build_seconds']:.1f} s"
    size = bytes_text(found["bytes"])
    console.print(Text(f"{found['index']} at {found['path']}: {size}{made}", style="dim"))
    table = make_table(("repeat", "", "per s", "recall", "P50", "P95", "P99", "reads", "KB", "host"))
    for repeat in found["repeats"]:
        for name, what in (("search", "queries"), ("replay", "reads alone")):
            one = repeat[name]
            if one is None:
                continue
            size = repeat["device_bytes_a_query"] if not found["unit"] else one["bytes"] / one["count"]
            table.add_row(
                str(repeat["repeat"]),
                what,
                f"{one['per_second']:,.1f}",
                f"{repeat['recall']:.1%}" if name == "search" else "",
                *(time_text(one["latency"][at]) for at in ("p50", "p95", "p99")),
                f"{repeat['reads_a_query']:.1f}" if found["unit"] else "-",
                "-" if size is None else f"{size / 1e3:,.1f}",
                f"{one['host_share']:.1%}" if found["unit"] else "-",
            )
    print_table(console, table)
    console.print(Text("reads, KB: of a query; host: part of the time that is not the storage's", style="dim"))


_LEGEND: Final = (
    "nominal: drawn computation / time; drawn, computed: a step's computation; MB/s: read from storage; "
    "to step: MB/s delivered to the step; first: until the first batch; "
    "p99: of the time waited for a batch"
)


def show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Epochs, means, and what the rules found."""
    workload = result["plan"]["workload"]
    console.print(Text(f"{workload['name']}: {result['world']['said']}", style="bold"))
    if result["epochs"] or result["generate"] is not None:
        console.print(Text(f"loader {workload['reader']['loader']}, data at {result['storage']['url']}", style="dim"))
    if result["generate"] is not None:
        console.print(f"generated: {generated_text(result['generate'])}")
    if result["epochs"]:
        print_table(console, _epochs(result))
        console.print(Text(_LEGEND, style="dim"))
    for name in ("train", "evaluate"):
        over = result[name]
        if over and over["au"] is not None:
            au, rate = over["au"], _mean(over["samples_per_second"])
            samples = "-" if rate is None else f"{rate:,.1f}"  # where no step of a rank counts
            console.print(
                f"{name}: utilization {au['mean']:.2%} (± {au['stdev']:.2%} over "
                f"{au['count']} epoch{'' if au['count'] == 1 else 's'}), "
                f"nominal {percent_text(_mean(over['au_nominal']))}, "
                f"{samples} samples/s, {megabytes(_mean(over['storage_bytes_per_second']))} MB/s from storage"
            )
    show_requests(console, result)
    if result["checkpoint"] is not None:
        _checkpoints(console, result["checkpoint"])
    if result["kv_cache"] is not None:
        show_kv_cache(console, result["kv_cache"])
    if result["vectors"] is not None:
        show_vectors(console, result["vectors"])
    calibration = result["calibration"]
    if calibration is not None and calibration["au_ceiling"] is not None:
        console.print(f"with data in memory: utilization {calibration['au_ceiling']:.2%}")
    told = verdict_text(result)
    for finding in result["findings"]:
        if finding["reason"] in told:
            continue  # where the verdict is
        invalid = finding["invalid"] and not is_smoke_test(result)
        style = "bold red" if invalid else "yellow"
        console.print(Text.assemble(("invalid: " if invalid else "note: ", style), finding["reason"]))
    if told:
        console.print(Text(told, style="bold"))


def generated_text(found: Mapping[str, Any]) -> str:
    """The files of the data set that a run wrote, with their rate, and those that were there already."""
    told = []
    if found["made"]:
        size, rate = (bytes_text(found["bytes"] / over) for over in (1, max(found["seconds"], 1e-9)))
        told.append(f"{counted(found['made'], 'file')}, {size}, in {time_text(found['seconds'])} ({rate}/s)")
    if found["kept"] or not told:
        told.append(f"{counted(found['kept'], 'file')} {'was' if found['kept'] == 1 else 'were'} there already")
    return "; ".join(told)


def show_unsaved(chosen: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Print results that could not be written, so that the numbers are somewhere at least."""
    sys.stderr.write("the results can not be written; these numbers are all there is\n")
    if chosen.json:
        print_json(result)
        return
    show_result(make_console(), result)


def _checkpoints(console: Console, found: Mapping[str, Any]) -> None:
    layout = found["layout"]
    size, most = bytes_text(layout["bytes"]), bytes_text(layout["most_rank_bytes"])
    url = found["storage"]["url"]
    console.print(
        Text(f"checkpoints at {url}: {size} of {counted(layout['ranks'], 'rank')}, up to {most} a rank", style="dim")
    )
    table = make_table(("checkpoints", "", "seconds", "±", "MB/s", "slowest rank", "fsync"))
    for kind, done in (("save", "saved"), ("load", "loaded")):
        over = found[kind]
        if over is not None:
            seconds, slowest = over["seconds"], over["slowest_rank_bytes_per_second"]
            table.add_row(
                str(over["count"]),
                done,
                f"{seconds['mean']:.3f}",
                f"{seconds['stdev']:.3f}",
                f"{over['bytes_per_second']['mean'] / 1e6:,.1f}",
                "-" if slowest is None else f"{slowest['mean'] / 1e6:,.1f}",
                time_text(over["fsync_seconds"]["mean"] or None),
            )
    if table.row_count:
        print_table(console, table)


def _epochs(result: Mapping[str, Any]) -> Table:
    barrier = any(epoch["barrier_part"] for epoch in result["epochs"])
    headings = (
        *("epoch", "steps", "AU", "nominal", "stall", "barrier", "other"),
        *("drawn", "computed", "samples/s", "MB/s", "to step", "first", "p99"),
    )
    table = make_table([heading for heading in headings if barrier or heading != "barrier"])
    for epoch in result["epochs"]:
        stall, rate = epoch["stall_seconds"], epoch["samples_per_second"]
        parts = ("au", "au_nominal", "stall_part", *(("barrier_part",) if barrier else ()), "overhead_part")
        table.add_row(
            epoch_name(result, epoch),
            str(max(epoch["steps"], default=0)),
            *(percent_text(epoch[name]) for name in parts),
            *(time_text(epoch[name]) for name in ("compute_drawn", "compute_measured")),
            "-" if rate is None else f"{rate:,.1f}",
            *(megabytes(epoch[name]) for name in ("storage_bytes_per_second", "delivered_bytes_per_second")),
            time_text(epoch["time_to_first_batch"]),
            time_text(None if stall is None else stall["p99"]),
        )
    return table


def _mean(over: Mapping[str, Any] | None) -> float | None:
    return None if over is None else over["mean"]


def megabytes(value: float | None) -> str:
    """Bytes in MB of 10⁶; ``-`` for what was not measured."""
    return "-" if value is None else f"{value / 1e6:,.1f}"

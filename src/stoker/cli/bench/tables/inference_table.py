"""Results of the stages of inference on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from stoker.cli.render.numbers import time_text
from stoker.cli.terminal import make_table, print_table
from stoker.display import decimal_bytes_text


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
            f"{decimal_bytes_text(made)} of entries"
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
    size = decimal_bytes_text(found["bytes"])
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

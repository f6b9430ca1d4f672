"""``stoker bench run --loader A --loader B``: the same workload over several loaders, and one table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stoker.cli.running import arguments_of, on_interrupt, print_json
from stoker.cli.terminal import make_console, make_table, print_table
from stoker.errors import ConfigError
from stoker_bench.cli.bench.show import read_scaled, show_notes
from stoker_bench.cli.bench.tables.verdicts import exit_code, is_smoke_test
from stoker_bench.cli.render.rates import percent_text

_COLUMNS = ("loader", "format", "decoded", "AU", "samples/s", "MB/s", "to step", "first", "p99", "CPU s/GB", "verdict")


def run_loaders(chosen: argparse.Namespace) -> int | None:
    """Run the workload with each loader, one after the other; results are in folders of their names.

    A loader that does not read the workload's format gets the data in one that it reads: below the data's URL, in a folder of
    the format's name.

    Raises:
        ConfigError: a loader is named twice, or there is none of the name.
        StokerError: a run failed; what was measured until then is kept.
    """
    from stoker.storage import join_url
    from stoker_bench.cli.bench.tables.result_table import show_unsaved
    from stoker_bench.loaders import get_loader
    from stoker_bench.run import run_benchmark

    names: list[str] = chosen.loader
    if len(set(names)) != len(names):
        raise ConfigError("--loader: a loader is named twice")
    loaders = {name: get_loader(name) for name in names}  # one that is missing is told before any is run
    folder = Path(chosen.results)
    found: dict[str, dict[str, Any]] = {}
    for number, (name, loader) in enumerate(loaders.items()):
        settings = [*chosen.settings, f"reader.loader={name}"]
        resolved = read_scaled(chosen, settings, chosen.accelerators or 1)
        url = chosen.url or resolved.workload.storage.url
        formats = getattr(loader, "formats", ())
        if formats and resolved.workload.dataset.format not in formats:
            if url is None:
                raise ConfigError("storage.url is not set. Give it, or a URL or directory (--data)")
            resolved = read_scaled(chosen, [*settings, f"dataset.format={formats[0]}"], chosen.accelerators or 1)
            url = join_url(url, formats[0])
        if not chosen.json:
            sys.stderr.write(f"{name}: {resolved.workload.dataset.format} at {url}\n")
            if not number:
                show_notes(resolved.notes)
        with on_interrupt(f"what was measured until then is in {folder}"):
            here = {"results": folder / name.replace(":", "."), "url": url, "command": sys.argv}
            here["unsaved"] = partial(show_unsaved, chosen)
            result = run_benchmark(resolved, **arguments_of(run_benchmark, chosen) | here)
        if result:
            found[name] = result
    if not found:
        return None  # not rank 0
    if chosen.json:
        print_json(found)
    else:
        _show(found)
    return exit_code(found.values())


def _show(found: Mapping[str, Mapping[str, Any]]) -> None:
    from rich.text import Text

    console = make_console()
    table = make_table(_COLUMNS, left=_COLUMNS[:3])
    for name, result in found.items():
        table.add_row(*_row(name, result))
    print_table(console, table)
    console.print(
        Text(
            "means over the epochs of training; AU: the lower of measured and nominal; "
            "MB/s: read from storage; to step: MB/s delivered to the step; "
            "first: until the first batch of the first epoch; p99: waited",
            style="dim",
        )
    )
    for name, result in found.items():
        for finding in result["findings"]:
            if finding["invalid"] and not is_smoke_test(result):
                console.print(Text.assemble((f"{name} invalid: ", "bold red"), finding["reason"]))


def _row(name: str, result: Mapping[str, Any]) -> list[str]:
    from stoker_bench.cli.bench.tables.result_table import megabytes
    from stoker_bench.cli.render.rates import time_text
    from stoker_bench.measure.metrics import deciding_au

    epochs = [epoch for epoch in result["epochs"] if epoch["kind"] == "train"]
    first, last = (epochs[0], epochs[-1]) if epochs else ({}, {})
    stalls = [epoch["stall_seconds"]["p99"] for epoch in epochs if epoch["stall_seconds"]]
    over = result["train"] or {}
    cpu = last.get("cpu_seconds_per_gb")
    rate = over.get("samples_per_second")
    return [
        name,
        result["plan"]["workload"]["dataset"]["format"],
        str((last.get("loader") or {}).get("decoded", "-")),
        percent_text(deciding_au(over) if over else None),
        "-" if rate is None else f"{rate['mean']:,.1f}",
        *(megabytes((over.get(f"{kind}_bytes_per_second") or {}).get("mean")) for kind in ("storage", "delivered")),
        time_text(first.get("time_to_first_batch")),
        time_text(max(stalls, default=None)),
        "-" if cpu is None else f"{cpu:.2f}",
        result["verdict"],
    ]

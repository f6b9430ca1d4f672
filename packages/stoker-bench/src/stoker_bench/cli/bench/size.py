"""``stoker bench size``: how many accelerators a storage feeds, and what data set the rules demand for them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stoker.cli.arguments import byte_size, folder, integer
from stoker.cli.running import ExitCode, add_json, arguments_of, on_interrupt, print_json
from stoker.cli.terminal import make_console, make_pairs, make_table, print_table
from stoker.errors import ConfigError
from stoker_bench.cli.bench.arguments import add_workload
from stoker_bench.cli.bench.show import show_notes

if TYPE_CHECKING:
    from stoker_bench.mlperf.rules import Demand
    from stoker_bench.size.size import DatasetSize


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = kinds.add_parser(
        "size",
        help="search how many accelerators a storage feeds",
        description="Search how many simulated accelerators a storage feeds at the utilization that the workload asks for "
        "(metric.au), on data that is there: make it by stoker bench run --stages generate.",
    )
    add_workload(parser)
    parser.add_argument(
        "--results", metavar="DIR", type=folder, help="a directory, new or empty, for the results of all runs"
    )
    parser.add_argument("--loader", metavar="NAME", help="the loader, as reader.loader")
    parser.add_argument("--most", metavar="N", type=integer(1), default=64, help="accelerators to try; default: 64")
    parser.add_argument("--steps", metavar="N", type=integer(1), help="steps of a run; default: of about 15 s")
    parser.add_argument(
        "--repeats", metavar="N", type=integer(1), default=3, help="runs on each side of the border; default: 3"
    )
    parser.add_argument(
        "--no-calibrate",
        dest="calibrate",
        action="store_false",
        help="do not measure whether this host is too slow",
    )
    rules = parser.add_argument_group("what data set the rules of MLPerf Storage demand")
    rules.add_argument("--rules-only", action="store_true", help="compute only that, for --accelerators; run nothing")
    rules.add_argument("--accelerators", metavar="N", type=integer(1), help="with --rules-only")
    rules.add_argument("--hosts", metavar="N", type=integer(1), default=1, help="default: 1")
    rules.add_argument(
        "--host-memory", metavar="SIZE", type=byte_size, help="of each, such as 512gb; default: this one's"
    )
    add_json(parser)


def run(chosen: argparse.Namespace) -> int | None:
    """Do what was asked."""
    from stoker_bench.measure.page_cache import memory_bytes
    from stoker_bench.mlperf.rules import demanded
    from stoker_bench.settings.sources import read_workload

    settings = list(chosen.settings)
    if chosen.loader is not None:
        settings.append(f"reader.loader={chosen.loader}")
    resolved = read_workload(chosen.workload, settings)
    memory = chosen.host_memory or memory_bytes()
    if chosen.rules_only:
        if chosen.accelerators is None:
            raise ConfigError("--rules-only: for how many accelerators? Give --accelerators N")
        demand = demanded(resolved.workload, chosen.accelerators, chosen.hosts, memory)
        if chosen.json:
            print_json(asdict(demand))
        else:
            _show_demand(demand, resolved.workload.name)
        return None
    if chosen.accelerators is not None:
        raise ConfigError("--accelerators is what is searched for; it goes with --rules-only. --most bounds the search")
    if chosen.results is None:
        raise ConfigError("where do the results go? Give --results DIR")
    from stoker_bench.size.size import find_size

    if not chosen.json:
        show_notes(resolved.notes)
    with on_interrupt(f"the results of runs until then are in {chosen.results}"):
        found = find_size(
            resolved,
            demand=lambda count: demanded(resolved.workload, count, chosen.hosts, memory),
            on_run=None if chosen.json else _tell,
            **arguments_of(find_size, chosen) | {"command": sys.argv},
        )
    if chosen.json:
        print_json(found.as_dict())
    else:
        _show(found)
    return None if found.valid else ExitCode.PROBLEMS


def _tell(accelerators: int, result: Mapping[str, Any]) -> None:
    from stoker_bench.measure.metrics import deciding_au

    train = result["train"]
    au = None if train is None else deciding_au(train)
    sys.stderr.write(
        f"{accelerators} accelerator{'' if accelerators == 1 else 's'}: utilization {'-' if au is None else f'{au:.2%}'}\n"
    )


def _show(found: DatasetSize) -> None:
    from rich.text import Text

    console = make_console(wide=True)
    console.print(Text(f"{found.workload}, data at {found.url}, {found.steps} steps a run", style="bold"))
    table = make_table(("accelerators", "utilization", "at 95 %", "runs", "samples/s", ""))
    for point in found.points:
        known = point.low is not None and point.high is not None
        table.add_row(
            str(point.accelerators),
            f"{point.mean:.2%}",
            f"{max(0.0, point.low or 0):.1%} to {min(1.0, point.high or 0):.1%}" if known else "",
            str(len(point.values)),
            "" if point.samples_per_second is None else f"{point.samples_per_second:,.1f}",
            Text("fed" if point.fed else "not fed", style="green" if point.fed else "yellow"),
        )
    print_table(console, table)
    console.print(Text(found.said, style="bold"))
    for reason in found.broken.values():
        console.print(Text.assemble(("invalid: ", "bold red"), reason))
    console.print()
    _show_demand(found.demand, found.workload)


def _show_demand(demand: Demand, name: str) -> None:
    from stoker.display import bytes_text

    many = f"{demand.accelerators} accelerator{'' if demand.accelerators == 1 else 's'}"
    hosts = f"{demand.hosts} host{'' if demand.hosts == 1 else 's'} of {bytes_text(demand.host_memory_bytes)}"
    enough = "has as many samples" if demand.enough else "is too small for that"
    rows = [
        (
            "samples",
            f"{demand.samples:,}: for {'500 steps an epoch' if demand.decides == 'steps' else '5 times the memory'}",
        ),
        ("files", f"{demand.files:,} (dataset.files={demand.files})"),
        ("size", f"{bytes_text(demand.bytes)} ({demand.bytes:,} bytes)"),
        ("the workload's data set", enough),
    ]
    make_console(wide=True).print(
        make_pairs(f"what MLPerf Storage's rules demand of {name} for {many} on {hosts}", rows)
    )

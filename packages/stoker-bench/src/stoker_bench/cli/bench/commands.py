"""``stoker bench``: will the accelerators wait for this storage, and for this loader?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.arguments import folder, integer
from stoker.cli.running import add_json, arguments_of, on_interrupt, print_json
from stoker.cli.terminal import make_console
from stoker.errors import ConfigError
from stoker_bench.cli.bench import compare as bench_compare
from stoker_bench.cli.bench import history as bench_history
from stoker_bench.cli.bench import report as bench_report
from stoker_bench.cli.bench import show as bench_show
from stoker_bench.cli.bench import size as bench_size
from stoker_bench.cli.bench.arguments import add_workload, some_of
from stoker_bench.cli.bench.tables.verdicts import exit_code

if TYPE_CHECKING:
    from stoker_bench.settings.sources import Resolved

_RULES = ("stoker", "mlperf", "mlperf-open", "mlperf-v2", "mlperf-v2-open")
_STAGES = ("generate", "train", "evaluate", "checkpoint", "kv_cache", "vectors")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser("bench", description="Measure whether accelerators would wait for storage and loader.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    one = kinds.add_parser("run", help="run a workload", description="Run a workload, and write what was measured.")
    add_workload(one)
    one.add_argument("--results", metavar="DIR", type=folder, required=True, help="a directory, new or empty")
    one.add_argument(
        "--accelerators", metavar="N", type=integer(1), help="ranks to start here; default: 1, or the launcher's"
    )
    one.add_argument(
        "--stages",
        metavar="A,B",
        type=partial(some_of, known=_STAGES),
        help=f"of {', '.join(_STAGES)}; default: the workload's",
    )
    one.add_argument(
        "--loader",
        metavar="NAME",
        action="append",
        default=[],
        help="the loader under test, as reader.loader; of several, one after the other, a table compares them",
    )
    one.add_argument(
        "--rules",
        choices=_RULES,
        help="the rules that decide, as metric.rules: of MLPerf Storage v3 (mlperf) or v2, closed or open division",
    )
    bench_show.add_scale(one)
    add_json(one)
    two = kinds.add_parser("init", help="write a commented workload", description="Write a workload with all settings.")
    two.add_argument("file", metavar="FILE", nargs="?", help="where to; default: stdout")
    two.add_argument("--like", metavar="WORKLOAD", help="with the settings of this one; default: the defaults")
    three = kinds.add_parser(
        "list", help="list workloads and loaders", description="List shipped workloads, and loaders."
    )
    add_json(three)
    for more in (bench_compare, bench_report, bench_show, bench_size, bench_history):
        more.add(kinds)
    kinds.metavar = f"{{{','.join(kinds.choices)}}}"


def run(chosen: argparse.Namespace) -> int | None:
    """Do what was asked."""
    kinds: dict[str, Callable[[argparse.Namespace], int | None]] = {
        "run": _run,
        "init": _init,
        "list": _list,
        "compare": bench_compare.run,
        "report": bench_report.run,
        "show": bench_show.run,
        "size": bench_size.run,
        "history": bench_history.run,
    }
    chosen.settings = [*getattr(chosen, "settings", ()), *getattr(chosen, "params", ())]
    return kinds[chosen.kind](chosen)


def _run(chosen: argparse.Namespace) -> int | None:
    from stoker_bench.cli.bench.tables.result_table import show_unsaved
    from stoker_bench.run import run_benchmark

    if chosen.rules is not None:
        chosen.settings = [*chosen.settings, f"metric.rules={chosen.rules}"]
    if len(chosen.loader) > 1:
        from stoker_bench.cli.bench.loaders import run_loaders

        return run_loaders(chosen)
    settings = [*chosen.settings, *(f"reader.loader={name}" for name in chosen.loader)]
    resolved = bench_show.read_scaled(chosen, settings, chosen.accelerators or 1)
    if not chosen.json:
        bench_show.show_notes(resolved.notes)
    _tell_foreseen(resolved, chosen)
    with on_interrupt(f"what was measured until then is in {chosen.results}, marked as invalid"):
        here = {"command": sys.argv, "unsaved": partial(show_unsaved, chosen)}
        result = run_benchmark(resolved, **arguments_of(run_benchmark, chosen) | here)
    if not result:
        return None  # not rank 0
    if chosen.json:
        print_json(result)
    else:
        from stoker_bench.cli.bench.tables.result_table import show_result

        show_result(make_console(), result)
    return exit_code([result])


def _tell_foreseen(resolved: Resolved, chosen: argparse.Namespace) -> None:
    """Say on stderr why the result will be invalid, as far as the settings tell, before the time for it is spent."""
    from stoker_bench.preflight import foreseen

    workload = resolved.workload
    if chosen.stages is not None:
        workload = replace(workload, stages=tuple(chosen.stages))
    if not workload.metric.smoke:  # which no rule judges
        sys.stderr.writelines(f"will be invalid: {one}\n" for one in foreseen(workload, chosen.url))


def _init(chosen: argparse.Namespace) -> None:
    from stoker_bench.settings.sources import default_yaml, read_workload

    workload = None if chosen.like is None else read_workload(chosen.like, environ={}, dotenv=None).workload
    text = default_yaml(workload)
    if chosen.file is None:
        sys.stdout.write(text)
        return
    try:
        with Path(chosen.file).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{chosen.file} is there already: give another name, or remove it") from None
    except OSError as error:
        raise ConfigError(f"{chosen.file} can not be written: {error.strerror or error}") from None


def _list(chosen: argparse.Namespace) -> None:
    from stoker.errors import StokerError
    from stoker_bench.loaders import get_loader, loader_names
    from stoker_bench.settings.sources import shipped

    loaders: dict[str, str | None] = {}
    for name in loader_names():
        try:
            get_loader(name)
            loaders[name] = None
        except StokerError as error:
            loaders[name] = str(error)
    workloads = shipped()
    if chosen.json:
        print_json({"workloads": workloads, "loaders": loaders})
        return
    width = max(map(len, [*workloads, *loaders]))
    sys.stdout.write("workloads\n")
    sys.stdout.writelines(f"  {name:<{width}}  {said}\n" for name, said in workloads.items())
    sys.stdout.write("loaders\n")
    sys.stdout.writelines(f"  {name:<{width}}  {missing or 'ready'}\n" for name, missing in loaders.items())

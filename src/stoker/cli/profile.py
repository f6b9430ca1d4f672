"""``stoker profile``: reads a dataset for some steps, and says where the time goes and what to change."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.cli.arguments import byte_size, folder, integer, seconds
from stoker.cli.running import add_format, add_json, add_storage_options, arguments_of, print_json
from stoker.cli.terminal import make_console, make_table, print_table
from stoker.display import with_article
from stoker.errors import ConfigError, StokerError
from stoker.lazy import named_object

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.pipeline.stats.bottleneck import Profile
    from stoker.pipeline.tuning.tuner import TuningDecision


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser("profile", description=__doc__.partition(": ")[2].capitalize())
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("url", metavar="URL", nargs="?", help="a directory or URL of any format, a file, or a pattern")
    what.add_argument("--traces", nargs="+", metavar="FILE", help="read nothing: compare traces of all ranks of a run")
    parser.add_argument(
        "--out", default="trace.json", metavar="FILE", help="the trace, for Perfetto; default: trace.json"
    )

    run = parser.add_argument_group("the run")
    run.add_argument("--batch-size", type=integer(1), default=32, metavar="B", help="default: 32")
    run.add_argument("--steps", type=integer(1), default=500, metavar="N", help="batches at most; default: 500")
    run.add_argument("--seconds", type=seconds(True), default=30.0, metavar="S", help="at most; default: 30")
    run.add_argument(
        "--step-time",
        type=seconds(False),
        default=0.0,
        metavar="S",
        help="of a training step, which sleeps; default: 0",
    )
    run.add_argument("--workers", type=integer(0), default=0, metavar="W", help="of a StreamingDataLoader; default: 0")
    run.add_argument("--no-columns", action="store_true", help="with --workers: samples that are collated, not columns")
    run.add_argument(
        "--transform",
        metavar="MODULE:NAME",
        help="a function of a sample, or of a sample and its random numbers, or a Chain, which Python can import, also from "
        "this folder",
    )

    dataset = parser.add_argument_group("the dataset (as in StreamingDataset; defaults are the same)")
    dataset.add_argument(
        "--local", type=folder, metavar="DIR", help="the cache; new: what is fetched first is measured"
    )
    dataset.add_argument("--split", metavar="NAME")
    dataset.add_argument("--cache", choices=("disk", "memory"), default="disk")
    dataset.add_argument("--cache-limit", type=byte_size, metavar="SIZE")
    dataset.add_argument("--predownload", type=integer(0), metavar="SAMPLES")
    dataset.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="in the order of ids")
    dataset.add_argument("--columns", nargs="+", metavar="NAME", help="read only these")
    dataset.add_argument(
        "--on-bad-sample",
        choices=("raise", "skip", "replace"),
        default="raise",
        help="what becomes of samples that are damaged, or of which the function raises; default: raise",
    )
    dataset.add_argument("--read-threads", type=integer(0), metavar="N", help="see ReadOptions(read_threads=)")
    dataset.add_argument("--download-threads", type=integer(1), metavar="N", help="see ReadOptions(download_threads=)")
    dataset.add_argument("--tune", choices=("auto", "off"), default=None, help="see ReadOptions(tune=)")
    dataset.add_argument("--tune-memory", type=byte_size, metavar="SIZE", help="see ReadOptions(tune_memory=)")
    add_format(parser)
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Read, and show. StokerError if it can not be read, or nothing was read."""
    from stoker.pipeline.stats.trace import Trace, profile_traces

    if chosen.traces:
        _show(profile_traces(chosen.traces), chosen, None)
        return
    transform = None if chosen.transform is None else _imported(chosen.transform)
    trace = Trace(chosen.out)
    try:
        with trace, contextlib.closing(_open(chosen, transform)) as loader:
            _consume(loader if chosen.workers else loader.batches(), chosen)
            tuning = loader.stats().tuning
    except (StokerError, KeyboardInterrupt) as error:
        for note in getattr(error, "__notes__", ()):
            sys.stderr.write(f"stoker profile: {note}\n")
        raise
    _show(trace.profile(), chosen, str(trace.path), tuning)


def _open(chosen: argparse.Namespace, transform: Any) -> Any:
    from stoker.formats.base import ReadOptions
    from stoker.loaders.dataset import StreamingDataset

    threads = {name: value for name, value in arguments_of(ReadOptions, chosen).items() if value is not None}
    given = {**arguments_of(StreamingDataset, chosen), "transform": transform, "read": ReadOptions(**threads)}
    dataset = StreamingDataset(chosen.url, **given)
    if not chosen.workers:
        return dataset
    from stoker.loaders.dataloader import StreamingDataLoader

    return StreamingDataLoader(dataset, num_workers=chosen.workers, columnar=not chosen.no_columns)


def _imported(text: str) -> Any:
    """The function or chain that ``--transform`` names; one of a sample and random numbers as a chain that draws them."""
    from stoker.reading.chain import Chain
    from stoker.reading.step_methods import takes_random

    found = named_object(text, "--transform ")
    if isinstance(found, type) and not issubclass(found, Mapping):
        raise ConfigError(
            f"--transform {text} is a class: make an object of it in a module, such as crop = {found.__name__}(...), and "
            "name that"
        )
    if not callable(found):
        raise ConfigError(f"--transform {text} is {with_article(type(found).__name__)}: name a function or a Chain")
    return found if isinstance(found, Chain) or not takes_random(found) else Chain().random_map(found)


def _consume(batches: Iterable[Any], chosen: argparse.Namespace) -> None:
    end = time.monotonic() + chosen.seconds
    for _ in islice(batches, chosen.steps):
        if chosen.step_time:
            time.sleep(chosen.step_time)
        if time.monotonic() > end:
            break


def _show(
    profile: Profile, chosen: argparse.Namespace, path: str | None, tuning: Sequence[TuningDecision] = ()
) -> None:
    if chosen.json:
        print_json({**profile.as_dict(), "trace": path, "tuning": [asdict(one) for one in tuning]})
        return
    from rich.text import Text

    console = make_console()
    waited = sum(one.waited for one in profile.ranks)
    stages = make_table(
        ["stage", "spans", "time of threads", "waited for", "share of waiting"], title="stages", left=["stage"]
    )
    for stage in profile.stages:
        share = f"{100 * stage.waited / waited:.0f} %" if waited else "-"
        stages.add_row(stage.stage, f"{stage.spans:,}", f"{stage.seconds:.3f} s", f"{stage.waited:.3f} s", share)
    print_table(console, stages)
    console.print()
    ranks = make_table(["rank", "first batch", "then", "waited", "share"], title="consumers")
    for rank in profile.ranks:
        times = (f"{value:.3f} s" for value in (rank.first, rank.elapsed, rank.waited))
        ranks.add_row(str(rank.rank), *times, f"{100 * rank.share:.0f} %")
    print_table(console, ranks)
    console.print()
    if tuning:
        print_table(console, _tuning_table(tuning))
        console.print()
    console.print(Text(profile.sentence))
    if path is not None:
        console.print(Text(f"The trace is in {path}: open it at https://ui.perfetto.dev"))


def _tuning_table(tuning: Sequence[TuningDecision]) -> Table:
    left = ["process", "setting", "outcome", "why"]
    table = make_table(["process", "at", "setting", "from", "to", "outcome", "gain", "why"], title="tuning", left=left)
    for one in tuning:
        table.add_row(
            "main" if one.worker is None else f"worker {one.worker}",
            f"{one.seconds:.1f} s",
            one.setting,
            f"{one.before:,}",
            f"{one.after:,}",
            "kept" if one.kept else "withdrawn",
            f"{100 * one.gain:+.0f} %",
            one.why,
        )
    return table

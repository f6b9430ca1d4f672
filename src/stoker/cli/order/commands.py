"""``stoker order``: who reads which shard when on a cluster, what it costs and what waits, without reading data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

import numpy as np
from rich.markup import escape

from stoker.cli.arguments import byte_size, count, integer, seconds
from stoker.cli.order.predict import predict_run
from stoker.cli.order.runs import PARTITIONS, RunArgs, open_run
from stoker.cli.render.advice import advice
from stoker.cli.render.page import page
from stoker.cli.render.tables import show_simulation
from stoker.cli.running import arguments_of, print_json
from stoker.cli.terminal import make_console, make_table
from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.order.step import samples_of_step
from stoker.simulate import Cluster, CostModel, simulate


def show_step(chosen: argparse.Namespace) -> None:
    """Print them: each with ``--samples``, else how many there are of each shard.

    Raises:
        StokerError: there is no such dataset, step or rank, or the arguments do not go together.
    """
    if chosen.html or chosen.list_shards:
        raise ConfigError("--html and --list-shards are for a whole epoch: leave them out with --step")
    opened = open_run(RunArgs(**arguments_of(RunArgs, chosen)))
    world = chosen.nodes * chosen.ranks
    if chosen.rank is not None and chosen.rank >= world:
        raise ConfigError(f"--rank {chosen.rank}: expected 0 to {world - 1}")
    found = samples_of_step(
        lambda at, rank: opened.run_at(rank, world, at),
        opened.table,
        range(world) if chosen.rank is None else [chosen.rank],
        opened.position,
        chosen.step,
        since_resume=chosen.since_resume,
    )
    urls = {shard: opened.shard_url(shard) for shard in np.unique(found.shards).tolist()}
    if chosen.samples:
        columns = {"rank": found.ranks, "sample": found.ids, "shard": found.shards, "row": found.rows}
        lines = [
            dict(zip(columns, values, strict=True)) | {"url": urls[values[2]]}
            for values in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
    else:
        pairs, counts = np.unique(np.stack([found.ranks, found.shards]), axis=1, return_counts=True)
        lines = [
            {"rank": rank, "shard": shard, "samples": count, "url": urls[shard]}
            for (rank, shard), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
        ]
    if chosen.json:
        print_json(
            {"settings": dict(opened.settings), "step": chosen.step, "samples" if chosen.samples else "shards": lines}
        )
        return
    table = make_table(list(lines[0]), title=f"step {chosen.step} of epoch {opened.settings['epoch']}", left=["url"])
    for line in lines:
        table.add_row(*(escape(str(value)) for value in line.values()))
    make_console(wide=True).print(table)


_CONNECTIONS = 8
"""Downloads that each process has under way, as ``ReadOptions(download_threads=)`` has it."""

_MAKES_ORDER = "the order (as in StreamingDataset; defaults are the same)"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "order",
        description=__doc__.partition(": ")[2].capitalize(),
    )
    dataset = parser.add_mutually_exclusive_group(required=True)
    dataset.add_argument("url", metavar="URL", nargs="?", help="a directory or URL of any format, a file, or a pattern")
    dataset.add_argument(
        "--size",
        nargs=3,
        metavar=("SHARDS", "SAMPLES", "BYTES"),
        help="of a dataset that need not exist, such as 10m 1t 4000tb: predict what a node fetches, opens and holds",
    )
    parser.add_argument("--split", metavar="NAME", help="sub-directory of it")
    parser.add_argument("--predict", action="store_true", help="predict the same from the sizes of the dataset at URL")

    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--nodes", type=integer(1), default=1, metavar="N", help="default: 1")
    cluster.add_argument("--ranks", type=integer(1), default=1, metavar="R", help="ranks on each node; default: 1")
    cluster.add_argument(
        "--workers", type=integer(0), default=0, metavar="W", help="loader workers of a rank; default: 0"
    )
    cluster.add_argument("--batch-size", type=integer(1), default=32, metavar="B", help="of one rank; default: 32")

    order = parser.add_argument_group(_MAKES_ORDER)
    order.add_argument("--shuffle", choices=(*SHUFFLES, *MOSAICML_SHUFFLES), default="block", help="default: block")
    order.add_argument("--seed", type=int, default=9176, help="default: 9176")
    order.add_argument("--canonical-nodes", type=integer(1), metavar="C")
    order.add_argument("--block-size", type=count, metavar="K", help="samples in a shuffle block, such as 8192")
    order.add_argument("--epoch", type=integer(0), default=0, metavar="E", help="number of the epoch; default: 0")
    order.add_argument("--epoch-size", type=count, metavar="SAMPLES", help="such as 10m; default: all, once")
    order.add_argument("--partition", choices=PARTITIONS, default="elastic", help="default: elastic")
    order.add_argument("--remainder", choices=get_args(Remainder), default="pad", help="default: pad")
    order.add_argument(
        "--resume",
        metavar="STATE.json",
        help="resume from a saved state_dict(); its settings override those given here",
    )
    order.add_argument("--quarantine", metavar="FILE", help="leave out the samples that it names")

    model = parser.add_argument_group("what takes how long")
    model.add_argument(
        "--bandwidth", type=byte_size, default=1 << 30, metavar="SIZE", help="bytes a second of a node; default: 1gb"
    )
    model.add_argument("--latency", type=seconds(False), default=0.05, metavar="S", help="of a request; default: 0.05")
    model.add_argument("--step-time", type=seconds(True), default=0.25, metavar="S", help="of a batch; default: 0.25")
    model.add_argument("--cache-limit", type=byte_size, metavar="SIZE", help="of a node, such as 100gb; default: none")
    model.add_argument(
        "--predownload", type=integer(0), metavar="SAMPLES", help="ahead of each process; default: 1 GiB's worth a node"
    )

    output = parser.add_argument_group("output")
    output.add_argument(
        "--step",
        type=integer(0),
        metavar="N",
        help="show what the ranks get in this step, numbered from 0 from the epoch's beginning, and no more",
    )
    output.add_argument(
        "--since-resume", action="store_true", help="with --step and --resume: steps are numbered from where it resumes"
    )
    output.add_argument("--rank", type=integer(0), metavar="R", help="with --step: of this rank alone")
    output.add_argument("--samples", action="store_true", help="with --step: each sample; default: the shards")
    output.add_argument("--json", action="store_true", help="print everything as JSON")
    output.add_argument(
        "--list-shards", action="store_true", help="with --json: each node's shards and their first use"
    )
    output.add_argument("--html", metavar="FILE", help="also write a page with charts, which needs no other file")


def run(chosen: argparse.Namespace) -> None:
    """Simulate and show.

    Raises:
        StokerError: there is no such dataset, or the arguments do not go together.
    """
    if chosen.since_resume and (chosen.step is None or chosen.resume is None):
        raise ConfigError("--since-resume is for --step with --resume: leave it out")
    if chosen.size is not None or chosen.predict:
        if chosen.step is not None or chosen.samples or chosen.rank is not None:
            raise ConfigError("--step, --rank and --samples are not for predictions: leave them out")
        predict_run(chosen)
        return
    if chosen.step is not None:
        show_step(chosen)
        return
    if chosen.samples or chosen.rank is not None:
        raise ConfigError("--samples and --rank are of one step: add --step N")
    opened = open_run(RunArgs(**arguments_of(RunArgs, chosen)))
    cluster = Cluster(chosen.nodes, chosen.ranks)
    model = CostModel(
        step_time=chosen.step_time,
        bandwidth=float(chosen.bandwidth),
        latency=chosen.latency,
        connections=_CONNECTIONS * chosen.ranks * max(1, chosen.workers),
        lookahead=opened.lookahead,
        cache_limit=chosen.cache_limit,
    )
    report = simulate(opened.rank_run, opened.shards, cluster, model)
    warnings = advice(report, opened.num_canonical_nodes)
    if chosen.html:
        _write(chosen.html, page(report, opened.settings, warnings))
    if chosen.json:
        print_json(
            {"settings": dict(opened.settings), "warnings": warnings, **report.as_dict(shards=chosen.list_shards)}
        )
    else:
        show_simulation(make_console(), report, opened.settings, warnings)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path} can not be written: {error.strerror}") from None

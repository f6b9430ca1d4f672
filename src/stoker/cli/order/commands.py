"""``stoker order``: which samples the ranks get in a step, and where they lie, without reading data."""

from __future__ import annotations

import argparse
from typing import get_args

import numpy as np
from rich.markup import escape

from stoker.cli.arguments import count, integer
from stoker.cli.order.runs import PARTITIONS, RunArgs, open_run
from stoker.cli.running import arguments_of, print_json
from stoker.cli.terminal import make_console, make_table
from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.order.step import samples_of_step


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "order",
        description=__doc__.partition(": ")[2].capitalize(),
        epilog="stoker simulate predicts a whole epoch: what each node fetches and holds, and when.",
    )
    parser.add_argument("url", metavar="URL", help="a directory or URL of any format, a file, or a pattern")
    add_run(parser)

    output = parser.add_argument_group("output")
    output.add_argument("--step", type=integer(0), metavar="N", help="numbered from 0 from the epoch's beginning")
    output.add_argument(
        "--since-resume", action="store_true", help="with --resume: steps are numbered from where it resumes"
    )
    output.add_argument("--rank", type=integer(0), metavar="R", help="of this rank alone")
    output.add_argument("--samples", action="store_true", help="each sample; default: the shards")
    output.add_argument("--json", action="store_true", help="print everything as JSON")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Define what of :class:`~stoker.cli.order.runs.RunArgs` is not the URL: the cluster and the order."""
    parser.add_argument("--split", metavar="NAME", help="sub-directory of it")

    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--nodes", type=integer(1), default=1, metavar="N", help="default: 1")
    cluster.add_argument("--ranks", type=integer(1), default=1, metavar="R", help="ranks on each node; default: 1")
    cluster.add_argument(
        "--workers", type=integer(0), default=0, metavar="W", help="loader workers of a rank; default: 0"
    )
    cluster.add_argument("--batch-size", type=integer(1), default=32, metavar="B", help="of one rank; default: 32")

    order = parser.add_argument_group("the order (as in StreamingDataset; defaults are the same)")
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


def run(chosen: argparse.Namespace) -> None:
    """Print the samples of a step: each with ``--samples``, else how many there are of each shard.

    Raises:
        StokerError: there is no such dataset, step or rank, or the arguments do not go together.
    """
    if chosen.step is None:
        raise ConfigError("--step N says which step: add it. Of a whole epoch, stoker simulate tells what nodes fetch")
    if chosen.since_resume and chosen.resume is None:
        raise ConfigError("--since-resume is for --resume: leave it out")
    opened = open_run(RunArgs(**arguments_of(RunArgs, chosen)))
    world = chosen.nodes * chosen.ranks
    if chosen.rank is not None and chosen.rank >= world:
        raise ConfigError(f"--rank {chosen.rank}: expected 0 to {world - 1}")
    found = samples_of_step(
        lambda at, rank: opened.run_at(rank, world, at),
        opened.index.table,
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

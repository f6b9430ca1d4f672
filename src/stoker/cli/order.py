"""``stoker order``: which samples the ranks get in a step, and where they lie, without reading data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.markup import escape

from stoker.cache.base import CacheSettings
from stoker.cache.disk.disk_cache import DiskCache
from stoker.catalog.detect import format_instead
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.cli.arguments import count, integer
from stoker.cli.running import arguments_of, print_json
from stoker.cli.terminal import make_console, make_table
from stoker.errors import ConfigError, ObjectNotFoundError, StateError
from stoker.index.index import Index, load_index
from stoker.order.global_batches import Remainder
from stoker.order.left_out import run_without
from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES
from stoker.order.partition import Partition, partition_from_dict, strategies
from stoker.order.partition_strategies import HashBased
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.order.step import samples_of_step
from stoker.pipeline.build_order import OrderOptions, make_order
from stoker.pipeline.state.state import read_state
from stoker.storage import join_url, open_store
from stoker.streams.quarantine import Quarantine, check_quarantine
from stoker.streams.streams import Stream, Streams


@dataclass(frozen=True, slots=True)
class RunArgs:
    """The options of a run that choose samples for ranks; names as in :class:`~stoker.StreamingDataset`."""

    url: str | None
    split: str | None
    nodes: int
    ranks: int
    workers: int
    batch_size: int
    shuffle: str
    seed: int
    canonical_nodes: int | None
    block_size: int | None
    epoch: int
    epoch_size: int | None
    remainder: str
    partition: str
    resume: str | None
    quarantine: str | None


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run whose order is known.

    Attributes:
        run_at: order and plan of each rank from a position on.
        position: where the epoch begins, or is resumed.
        settings: everything that is in force, by name, for people.
        num_canonical_nodes: C of the order; 0 where ranks own parts of the data.
    """

    index: Index
    run_at: Callable[[int, int, EpochPosition], Run]
    position: EpochPosition
    settings: Mapping[str, Any]
    num_canonical_nodes: int
    shard_url: Callable[[int], str]

    def rank_run(self, rank: int, world_size: int) -> Run:
        """Order and plan of a rank."""
        return self.run_at(rank, world_size, self.position)


def open_location(args: RunArgs) -> tuple[str, DatasetLocation]:
    """URL of the dataset, and the dataset, whose cache is never looked at. StokerError if there is none."""
    url = join_url(args.url or "", *([args.split] if args.split else []))
    store = open_store(url)
    try:
        return url, DatasetLocation(load_index(store), DiskCache(Path("nowhere"), store, CacheSettings()))
    except ObjectNotFoundError as error:
        return url, open_unindexed(url, format_instead(url, None, error))


def open_run(args: RunArgs) -> OpenedRun:
    """Read the index and set up the order. StokerError if there is no index, or the arguments do not go together."""
    url, location = open_location(args)
    index = location.index

    def shard_url(shard: int) -> str:
        return location.cache.url_of(index.shards[shard])

    streams = Streams([Stream(remote=url)], [args.split or "data"], [location])
    options = OrderOptions(
        shuffle=args.shuffle,
        seed=args.seed,
        num_canonical_nodes=args.canonical_nodes,
        block_size=args.block_size,
        epoch_size=args.epoch_size,
        partition=partition_of(args),
        remainder=args.remainder,  # type: ignore[arg-type]
    )
    position = EpochPosition(args.epoch)
    quarantine = None if args.quarantine is None else Quarantine(args.quarantine)
    sample_order: SampleOrder
    if args.resume is None:
        sample_order = make_order(streams, options)
    else:
        options, sample_order, position = _resumed(args, streams, options, quarantine)
    left_out = None if quarantine is None else quarantine.left_out(index.table, shard_url, position.epoch)

    def run_at(rank: int, world_size: int, at: EpochPosition) -> Run:
        data_rank = DataRank(rank, world_size, args.ranks, args.batch_size)
        run = sample_order.run(at, data_rank)
        return run if left_out is None else run_without(run, index.table, left_out)

    known = sample_order.as_dict()
    order = known["order"]
    said = {
        "dataset": open_store(url).url_of(""),
        "samples": index.samples,
        "shards": len(index),
        "epoch": position.epoch,
        "position": position.position,
        "seed": options.seed,
        **{name: value for name, value in order.items() if isinstance(value, str | int)},
        **{name: stream[name] for stream in known["streams"].values() for name in ("block_size",) if name in stream},
        "partition": options.partition.name if isinstance(order["partition"], Mapping) else order["partition"],
        "remainder": options.remainder,
        "nodes": args.nodes,
        "ranks_per_node": args.ranks,
        "workers": args.workers,
        "batch_size": args.batch_size,
    }
    canonical = 0 if options.partition.static else int(order.get("num_canonical_nodes") or args.nodes)
    return OpenedRun(index, run_at, position, said, canonical, shard_url)


def partition_of(args: RunArgs) -> Partition:
    """The partition of its name. ``hash`` has a partition for each rank."""
    return HashBased(args.nodes * args.ranks) if args.partition == "hash" else strategies()[args.partition]()


def _resumed(
    args: RunArgs, streams: Streams, options: OrderOptions, quarantine: Quarantine | None
) -> tuple[OrderOptions, SampleOrder, EpochPosition]:
    """Read a state: options, sample order, and the position to resume at. Its settings override ``options``."""
    path = args.resume or ""
    try:
        state = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"the state {path} can not be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is not a state: it is not JSON ({error})") from None
    try:
        if isinstance(state, Mapping) and isinstance(state.get("order"), Mapping):
            options = _as_saved(options, state)
        data_rank = DataRank(0, args.nodes * args.ranks, args.ranks, args.batch_size)
        point, sample_order = read_state(state, make_order(streams, options), data_rank)
        check_quarantine(state, quarantine)
    except StateError as error:
        raise StateError(f"{path}: {error}") from None
    return options, sample_order, point


def _as_saved(options: OrderOptions, state: Mapping[str, Any]) -> OrderOptions:
    """The options that a state was saved with, as far as it says."""
    order = state["order"]
    saved = {name: order[name] for name in ("shuffle", "seed", "num_canonical_nodes", "epoch_size") if name in order}
    named = state.get("streams")
    for stream in named.values() if isinstance(named, Mapping) else ():
        if isinstance(stream, Mapping) and "block_size" in stream:
            saved["block_size"] = stream["block_size"]
    if isinstance(order.get("partition"), Mapping):
        saved["partition"] = partition_from_dict(order["partition"])
    wrong = [name for name, value in saved.items() if name not in ("shuffle", "partition") and type(value) is not int]
    if wrong or not isinstance(saved.get("shuffle", ""), str):
        raise StateError(f"this is not a state of a StreamingDataset: {', '.join(wrong or ['shuffle'])} is wrong")
    return replace(options, **saved)


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
    """Define what of :class:`RunArgs` is not the URL: the cluster and the order."""
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
    named = [name for name, kind in strategies().items() if name == "hash" or not signature(kind).parameters]
    order.add_argument("--partition", choices=named, default="elastic", help="default: elastic")
    order.add_argument("--remainder", choices=get_args(Remainder), default="pad", help="default: pad")
    order.add_argument(
        "--resume",
        metavar="STATE.json",
        help="resume from a saved state_dict(); its settings override those given here",
    )
    order.add_argument("--quarantine", metavar="FILE", help="leave out the samples that it names")


def run(chosen: argparse.Namespace) -> None:
    """Print the samples of a step: each with ``--samples``, else how many there are of each shard.

    StokerError if there is no such dataset, step or rank, or the arguments do not go together.
    """
    if chosen.step is None:
        raise ConfigError("add --step N, the step to print. For what nodes fetch in a whole epoch, use stoker simulate")
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

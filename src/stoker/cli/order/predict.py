"""``stoker order --size`` and ``--predict``: requests, bytes, descriptors and memory of a node, from sizes alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from stoker.cli.arguments import byte_size, count
from stoker.cli.order.runs import RunArgs, open_location, partition_of
from stoker.cli.render.numbers import bytes_text, count_text
from stoker.cli.running import arguments_of, print_json
from stoker.cli.terminal import make_console, make_pairs
from stoker.errors import ConfigError
from stoker.order.native import NativeOrder
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.policy import MOST_OPEN, ReadAmounts, most_fetches
from stoker.simulate import Cluster
from stoker.simulate.footprint import Footprint, ReadAhead, TotalSizes, predict


def predict_run(chosen: argparse.Namespace) -> None:
    """Predict and show.

    Raises:
        StokerError: there is no such dataset, or the arguments do not go together.
    """
    if chosen.resume or chosen.html or chosen.list_shards:
        raise ConfigError("--resume, --html and --list-shards are not for predictions: leave them out")
    args = RunArgs(**arguments_of(RunArgs, chosen))
    if chosen.size is None:
        index = open_location(args)[1].index
        size = TotalSizes(
            len(index), index.samples, max(1, sum(file.bytes for one in index.shards for file in one.stored))
        )
    else:
        size = _size(chosen.size)
    found = predict_footprint(args, size)
    if chosen.json:
        print_json({"size": asdict(size), "footprint": asdict(found)})
    else:
        make_console().print(make_pairs("a node, in an epoch", _in_words(found)))


def predict_footprint(args: RunArgs, size: TotalSizes, fetches: int | None = None) -> Footprint:
    """The footprint of a run of these arguments, with the loader's own settings of reading.

    Args:
        args: of the run.
        size: of the dataset.
        fetches: shards that a process fetches at once; ``None``: as many as it may.

    Raises:
        ConfigError: arguments that do not go together.
    """
    if args.shuffle not in SHUFFLES:
        raise ConfigError(f"--shuffle {args.shuffle}: predictions are for {', '.join(SHUFFLES)}")

    def make_order(table: ShardTable, part: float) -> NativeOrder:
        settings = NativeSettings(
            shuffle=args.shuffle,
            seed=args.seed,
            num_canonical_nodes=args.canonical_nodes,
            block_size=args.block_size,
            epoch_size=None if args.epoch_size is None else round(args.epoch_size * part),
            partition=partition_of(args),
            remainder=args.remainder,  # type: ignore[arg-type]
        )
        return NativeOrder([StreamSource.whole("data", table)], settings)

    sharers = max(1, args.workers) * args.ranks
    shard_bytes = size.bytes // size.shards
    reading = ReadAmounts(
        sample_bytes=size.bytes // size.samples,
        shard_bytes=shard_bytes,
        limit=args.cache_limit,
        sharers=sharers,
        predownload=args.predownload,
    )
    ahead = ReadAhead(
        samples=reading.lookahead(args.batch_size),
        chunk=reading.chunk(args.batch_size, one_by_one=False),
        open_shards=MOST_OPEN,
        fetches=fetches or most_fetches(shard_bytes, sharers),
        cache_limit=args.cache_limit,
    )
    cluster = Cluster(args.nodes, args.ranks)
    return predict(
        make_order,
        size,
        cluster,
        ahead,
        batch_size=args.batch_size,
        canonical_nodes=args.canonical_nodes,
        workers=args.workers,
    )


def _size(given: Sequence[str]) -> TotalSizes:
    try:
        return TotalSizes(count(given[0]), count(given[1]), byte_size(given[2]))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--size {' '.join(given)}: {error}") from None


def _in_words(found: Footprint) -> list[tuple[str, str]]:
    followed, nodes = found.nodes
    return [
        ("steps", count_text(found.steps)),
        ("samples", count_text(found.samples)),
        ("requests", f"{count_text(found.requests)}, of them {count_text(found.fetched_shards)} for shards"),
        ("bytes fetched", bytes_text(found.bytes)),
        ("cache", f"up to {bytes_text(found.cached_bytes)}; {bytes_text(found.cache_needed)} to fetch each shard once"),
        ("reading processes", count_text(found.processes)),
        ("shards open in a process", f"up to {count_text(found.open_shards)}"),
        ("descriptors of a process", f"up to {count_text(found.descriptors)}"),
        ("memory", f"{bytes_text(found.memory)}, {bytes_text(found.process_memory)} a process"),
        (
            "followed",
            f"{followed} of {count_text(nodes)} nodes" + ("" if found.exact else ", in a part of the dataset"),
        ),
    ]

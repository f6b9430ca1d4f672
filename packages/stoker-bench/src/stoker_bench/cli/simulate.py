"""``stoker simulate``: who reads which shard when on a cluster, what it costs and what waits, without reading data.

With ``--size`` and ``--predict``: requests, bytes, descriptors and memory of a node, from sizes alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from stoker.cli.arguments import byte_size, count, integer, seconds
from stoker.cli.order import RunArgs, add_run, open_location, open_run, partition_of
from stoker.cli.running import arguments_of, print_json
from stoker.cli.terminal import count_text, make_console, make_pairs
from stoker.display import bytes_text
from stoker.errors import ConfigError
from stoker.index.index import Index
from stoker.order.native import NativeOrder
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.policy import MOST_OPEN, ReadAmounts, most_fetches
from stoker_bench.cli.render.advice import advice
from stoker_bench.cli.render.tables import show_simulation
from stoker_bench.simulate import Cluster, CostModel, Shards, simulate
from stoker_bench.simulate.footprint import Footprint, ReadAhead, TotalSizes, predict

_CONNECTIONS = 8
"""Downloads that each process has under way, as ``ReadOptions(download_threads=)`` has it."""
_TIMES = {"bandwidth": float(1 << 30), "latency": 0.05, "step_time": 0.25}
"""What takes how long, where it is not given."""
_NOT_PREDICTED = {
    **dict.fromkeys(_TIMES),
    "epoch": 0,
    "resume": None,
    "quarantine": None,
    "html": None,
    "list_shards": False,
}
"""Options without a meaning for a prediction, which is of an average epoch, and of amounts alone; their defaults."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser("simulate", description=__doc__.partition(": ")[2].partition("\n")[0].capitalize())
    dataset = parser.add_mutually_exclusive_group(required=True)
    dataset.add_argument("url", metavar="URL", nargs="?", help="a directory or URL of any format, a file, or a pattern")
    dataset.add_argument(
        "--size",
        nargs=3,
        metavar=("SHARDS", "SAMPLES", "BYTES"),
        help="of a dataset that need not exist, such as 10m 1t 4000tb: predict what a node fetches, opens and holds",
    )
    parser.add_argument("--predict", action="store_true", help="predict the same from the sizes of the dataset at URL")
    add_run(parser)

    model = parser.add_argument_group("what takes how long")
    model.add_argument("--bandwidth", type=byte_size, metavar="SIZE", help="bytes a second of a node; default: 1gb")
    model.add_argument("--latency", type=seconds(False), metavar="S", help="of a request; default: 0.05")
    model.add_argument("--step-time", type=seconds(True), metavar="S", help="of a batch; default: 0.25")
    model.add_argument("--cache-limit", type=byte_size, metavar="SIZE", help="of a node, such as 100gb; default: none")
    model.add_argument(
        "--predownload", type=integer(0), metavar="SAMPLES", help="ahead of each process; default: 1 GiB's worth a node"
    )

    output = parser.add_argument_group("output")
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
    if chosen.size is not None or chosen.predict:
        predict_run(chosen)
        return
    if chosen.list_shards and not chosen.json:
        raise ConfigError("--list-shards is for --json: add that, or leave it out")
    opened = open_run(RunArgs(**arguments_of(RunArgs, chosen)))
    lookahead = _lookahead(chosen, opened.index)
    settings = {**opened.settings, "predownload": lookahead}
    cluster = Cluster(chosen.nodes, chosen.ranks)
    model = CostModel(
        **{name: usual if (given := getattr(chosen, name)) is None else given for name, usual in _TIMES.items()},
        connections=_CONNECTIONS * chosen.ranks * max(1, chosen.workers),
        lookahead=lookahead,
        cache_limit=chosen.cache_limit,
    )
    report = simulate(opened.rank_run, Shards.of(opened.index), cluster, model)
    warnings = advice(report, opened.num_canonical_nodes)
    if chosen.html:
        from stoker_bench.cli.render.page import page

        _write(chosen.html, page(report, settings, warnings))
    if chosen.json:
        print_json({"settings": settings, "warnings": warnings, **report.as_dict(shards=chosen.list_shards)})
    else:
        show_simulation(make_console(), report, settings, warnings)


def _lookahead(chosen: argparse.Namespace, index: Index) -> int:
    """Samples of a rank, over all of its workers, as the loader would have it with a remote."""
    workers = max(1, chosen.workers)
    sizing = ReadAmounts(
        sample_bytes=index.total_bytes // max(1, index.samples),
        shard_bytes=index.total_bytes // max(1, len(index)),
        limit=chosen.cache_limit,
        sharers=workers * chosen.ranks,
        predownload=chosen.predownload,
    )
    found: int = sizing.lookahead(chosen.batch_size) * workers
    return found


def predict_run(chosen: argparse.Namespace) -> None:
    """Predict and show.

    Raises:
        StokerError: there is no such dataset, or the arguments do not go together.
    """
    useless = [name for name, default in _NOT_PREDICTED.items() if getattr(chosen, name) != default]
    if chosen.size is not None and chosen.split is not None:
        useless.append("split")
    if useless:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in useless)
        with_size = "--predict" if chosen.size is None else "--size"
        raise ConfigError(
            f"{options}: of no meaning with {with_size}, which predicts amounts of an epoch: leave it out"
        )
    args = RunArgs(**arguments_of(RunArgs, chosen))
    if chosen.size is None:
        index = open_location(args)[1].index
        size = TotalSizes(
            len(index), index.samples, max(1, sum(file.bytes for one in index.shards for file in one.stored))
        )
    else:
        size = _size(chosen.size)
    found = predict_footprint(args, size, cache_limit=chosen.cache_limit, predownload=chosen.predownload)
    if chosen.json:
        print_json({"size": asdict(size), "footprint": asdict(found)})
    else:
        make_console().print(make_pairs("a node, in an epoch", _in_words(found)))


def predict_footprint(
    args: RunArgs,
    size: TotalSizes,
    *,
    fetches: int | None = None,
    cache_limit: int | None = None,
    predownload: int | None = None,
) -> Footprint:
    """The footprint of a run of these arguments, with the loader's own settings of reading.

    Args:
        args: of the run.
        size: of the dataset.
        fetches: shards that a process fetches at once; ``None``: as many as it may.
        cache_limit: bytes that a node's cache may hold; ``None``: any number.
        predownload: samples that each process looks ahead; ``None``: the loader's own number.

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
        limit=cache_limit,
        sharers=sharers,
        predownload=predownload,
    )
    ahead = ReadAhead(
        samples=reading.lookahead(args.batch_size),
        chunk=reading.chunk(args.batch_size, one_by_one=False),
        open_shards=MOST_OPEN,
        fetches=fetches or most_fetches(shard_bytes, sharers),
        cache_limit=cache_limit,
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


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path} can not be written: {error.strerror}") from None

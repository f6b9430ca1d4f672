"""``stoker order --step``: the samples that ranks get in one step, and where they lie."""

from __future__ import annotations

import argparse

import numpy as np
from rich.markup import escape

from stoker.cli.order.runs import RunArgs, open_run
from stoker.cli.running import arguments_of, print_json
from stoker.cli.terminal import make_console, make_table
from stoker.errors import ConfigError
from stoker.order.step import samples_of_step


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

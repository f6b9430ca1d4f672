"""Warnings about a simulated run, each with its remedy."""

from __future__ import annotations

from stoker.cli.terminal import count_text, seconds_text
from stoker.display import bytes_text
from stoker_bench.simulate import Report

# Shards at the borders of canonical nodes belong to two nodes; that so few bytes are fetched twice is as it should be.
_NATURAL = 0.02
# Waits that add less than this part to the run are not worth a word.
_SLIGHT = 0.001


def advice(report: Report, num_canonical_nodes: int) -> list[str]:
    """Warnings, the worst first, each with its remedy.

    Args:
        report: what the simulation found.
        num_canonical_nodes: C of the order; 0 where ranks own parts of the data.
    """
    return [*_waiting(report), *_cache(report), *_sharing(report, num_canonical_nodes), *_balance(report)]


def _waiting(report: Report) -> list[str]:
    waiting, total = report.clock.waiting, report.clock.total
    if waiting <= _SLIGHT * total:
        return []
    told = f"all ranks wait {seconds_text(waiting)} for data, {waiting / total:.1%} of the time"
    least = report.least_bandwidth
    enough = "" if least is None else f", or have {bytes_text(least)}/s a node"
    ahead = min(node.cache.lookahead for node in report.nodes)
    if ahead < report.lookahead:
        limit = bytes_text(report.model.cache_limit or 0)
        why = f"the cache limit of {limit} leaves room to look ahead {ahead} steps instead of {report.lookahead}"
        return [f"{told}: {why}. Raise --cache-limit{enough}"]
    if least is None:
        return [f"{told}, and no bandwidth would prevent it: shards are asked for too late. Raise --predownload"]
    return [f"{told}: a link of {bytes_text(report.model.bandwidth or 0)}/s is too slow. Raise --predownload{enough}"]


def _cache(report: Report) -> list[str]:
    limit = report.model.cache_limit
    if limit is None:
        return []
    said = []
    over = max(node.cache.over for node in report.nodes)
    again = sum(node.refetched for node in report.nodes)
    if over:
        said.append(
            f"shards that are in use at once take {bytes_text(over)} more than the cache limit of {bytes_text(limit)}: "
            f"raise --cache-limit, or lower --block-size or --canonical-nodes"
        )
    if again > _NATURAL * report.bytes:
        needed = report.cache_needed
        why = (
            f"a cache of {bytes_text(needed)} holds each shard for as long as it is needed, and an order too wide for its "
            "cache is read shard by shard, which fetches less than is told here"
            if needed > limit
            else "shards that are used again after a long time have been removed by then"
        )
        said.append(
            f"{bytes_text(again)} are fetched again because of the cache limit of {bytes_text(limit)}: {why}. Raise "
            "--cache-limit, or lower --block-size"
        )
    return said


def _sharing(report: Report, canonical: int) -> list[str]:
    extra, nodes = report.sharing.extra_bytes, report.cluster.nodes
    if extra <= _NATURAL * report.bytes:
        return []
    told = (
        f"{count_text(report.sharing.shards)} of {count_text(report.shards)} shards are fetched by up to "
        f"{report.sharing.most_nodes} nodes, {bytes_text(extra)} more than once each"
    )
    if not canonical:
        return [
            f"{told}: such is this partition. With --partition elastic or contiguous each shard is read by one node"
        ]
    multiple = -(-canonical // nodes) * nodes
    ranks = report.cluster.world_size
    together = report.samples_a_step
    if canonical % nodes:
        return [f"{told}: make --canonical-nodes a multiple of the {nodes} nodes, such as {multiple}"]
    if together % canonical:
        why = f"the global batch of {together} samples on {ranks} ranks is not a multiple of the {canonical} canonical nodes"
        return [f"{told}: {why}. Change --batch-size or --canonical-nodes so that it is"]
    if report.shards < 4 * canonical:
        return [f"{told}: {report.shards} shards are few for {canonical} canonical nodes. Write smaller shards"]
    return [f"{told}. Shuffles that mix all shards at once do so on every node"]


def _balance(report: Report) -> list[str]:
    said = []
    balance = report.balance
    if balance.padding:
        said.append(
            f"{count_text(balance.padding)} samples come twice so that all ranks take the same number of steps; "
            "--remainder drop or uneven repeats none"
        )
    idle = int((balance.samples == 0).sum())
    if idle:
        said.append(f"{count_text(idle)} ranks have no sample at all: use fewer ranks")
    if int(balance.steps.min()) != int(balance.steps.max()):
        said.append(
            f"ranks take {count_text(int(balance.steps.min()))} to {count_text(int(balance.steps.max()))} steps: training "
            "that steps together hangs unless it stops with the first; --remainder pad or drop makes them equal"
        )
    return said

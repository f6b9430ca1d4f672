"""Requests to storage on the terminal: how many, how large, how long, by where they were served; and what listing took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from stoker.cli.terminal import make_table, print_table
from stoker.display import bytes_text
from stoker_bench.cli.bench.datum import value_at
from stoker_bench.cli.render.rates import time_text

SERVED_BY: Final = {
    "device": "device",
    "page_cache": "page cache",
    "cache_directory": "cache directory",
    "network": "network",
    "local": "not told apart",
}
"""Words for where requests are served, in the order in which they are shown."""
_LEGEND: Final = "P50, P99, most: of a request's time; of one that was read ahead, from when a thread wants it"
_RATES: Final = "per s, MB/s: without the time of opening; size and times: of all requests"
"""Said where the bytes of a second are not so many requests of the mean size."""
_STAGES: Final = (
    ("generate", "generated "),
    ("train", ""),
    ("evaluate", "eval "),
    ("save", "save "),
    ("load", "load "),
)


def listing_text(found: Mapping[str, Any]) -> str:
    """The time and rate of a listing: ``700 files in 1.20 s (583 files/s)``."""
    rate = found.get("files_per_second")
    return (
        f"{found['files']:,} files in {time_text(found['seconds'])}{'' if rate is None else f' ({rate:,.0f} files/s)'}"
    )


def show_requests(console: Console, result: Mapping[str, Any]) -> None:
    """A line for each listing, and a row for each source of requests; says so where the loader's are not measured."""
    for split, found in result["listing"].items():
        console.print(f"listed {split}: {listing_text(found)}")
    requests = result.get("requests")
    if requests is None:
        return
    apart = False
    table = make_table(("requests", "per s", "MB/s", "size", "P50", "P99", "most"))
    for stage, before in _STAGES:
        for source, words in SERVED_BY.items():
            one = (requests.get(stage) or {}).get(source)
            if one is not None:
                apart |= not math.isclose(one["per_second"] * one["mean_bytes"], one["bytes_per_second"], rel_tol=0.05)
                table.add_row(
                    f"{before}{words}",
                    f"{one['per_second']:,.1f}",
                    f"{one['bytes_per_second'] / 1e6:,.1f}",
                    bytes_text(one["mean_bytes"]),
                    *(time_text(one["latency"][name]) for name in ("p50", "p99", "max")),
                )
    if table.row_count:
        print_table(console, table)
        console.print(Text(f"{_RATES}; {_LEGEND}" if apart else _LEGEND, style="dim"))
    if (told := not_measured(result)) is not None:
        console.print(Text(f"requests: {told}", style="dim"))


def not_measured(result: Mapping[str, Any]) -> str | None:
    """The words for requests of a training that are not measured; ``None`` where they are, or there is no training."""
    loader = result["plan"]["workload"]["reader"]["loader"]
    if not result["epochs"] or (result.get("requests") or {}).get("train") is not None or loader == "synthetic":
        return None
    how = "; with storage.client buffered or direct they are" if loader == "stoker" else ""
    read = device_read(result)
    if read is None:
        return f"not measured with the loader {loader} and this data{how}"
    took, share = time_text(value_at(result, read)), _share(value_at(result, read.partition(".storage_series")[0]))
    return (
        f"not measured with the loader {loader} and this data{how}; the block device took {took} for a read in the mean, "
        f"in the epoch that read most of it; {share:.0%} of what it read was this program's"
    )


def device_read(result: Mapping[str, Any]) -> str | None:
    """The path of the mean time that the block device took for a read, in the training epoch that read most from it.

    The device counts the reads of all programs. ``None`` where the epochs read nothing from it, or no device is known.
    """
    epochs = [(at, one) for at, one in enumerate(result["epochs"]) if one["kind"] == "train" and one["device_bytes"]]
    known = [(at, one) for at, one in epochs if value_at(one, "storage_series.block_device.mean_seconds") is not None]
    most = max(known, key=lambda found: found[1]["device_bytes"], default=None)
    return None if most is None else f"epochs.{most[0]}.storage_series.block_device.mean_seconds"


def _share(epoch: Mapping[str, Any]) -> float:
    """The part of the bytes that the block device read which were this program's."""
    found: float = epoch["device_bytes"] / max(1, sum(epoch["storage_series"]["block_device"]["bytes"]))
    return min(1.0, found)


def slowest_epoch(result: Mapping[str, Any], name: str) -> str | None:
    """The path of a number of the training epoch where it is the largest; ``None`` where no epoch has it.

    Args:
        result: ``results.json``.
        name: the number's path in an epoch, with dots.
    """
    paths = [f"epochs.{at}.{name}" for at, one in enumerate(result["epochs"]) if one["kind"] == "train"]
    known = [path for path in paths if value_at(result, path) is not None]
    return max(known, key=lambda path: value_at(result, path), default=None)

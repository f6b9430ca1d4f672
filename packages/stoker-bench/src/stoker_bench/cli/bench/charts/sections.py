"""All charts of a report, in the order in which they are on the page."""

from __future__ import annotations

from collections.abc import Sequence

from stoker_bench.cli.bench.charts.compared import by_accelerators, compared
from stoker_bench.cli.bench.charts.inference import inference_latency, inference_shares
from stoker_bench.cli.bench.charts.requests import request_distribution, request_latency, request_sizes
from stoker_bench.cli.bench.charts.storage import checkpoints, storage_over_time
from stoker_bench.cli.bench.charts.training import by_rank, computation, stalls, time_goes, utilization_over_time
from stoker_bench.cli.render.html import Card
from stoker_bench.cli.render.picture import COLOURS
from stoker_bench.results.report_files import RunFiles


def charts(runs: Sequence[RunFiles]) -> list[Card]:
    """All charts for which there is something to show."""
    drawn = runs[: len(COLOURS)]
    left_out = "" if len(drawn) == len(runs) else f" Drawn are the first {len(drawn)} of {len(runs)} runs."
    several = len(runs) > 1
    made = [
        storage_over_time(drawn, left_out),
        compared(runs, "storage_bytes_per_second") if several else None,
        request_latency(drawn, left_out),
        request_distribution(drawn, left_out),
        request_sizes(drawn, left_out),
        checkpoints(drawn, left_out),
        inference_latency(drawn, left_out),
        inference_shares(drawn, left_out),
        utilization_over_time(drawn, left_out),
        *([compared(runs, "au"), compared(runs, "samples_per_second")] if several else []),
        time_goes(runs),
        computation(runs),
        stalls(drawn, left_out),
        by_rank(drawn, left_out),
        by_accelerators(runs),
    ]
    return [card for card in made if card is not None]

"""Exports statistics of loaders: a collector for ``prometheus_client``, and OpenTelemetry instruments.

Each needs its package; :meth:`StreamStats.prometheus` needs none. Metrics are read when they are collected, so they cost
nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from stoker.errors import MissingPackageError
from stoker.pipeline.stats.stats import METRIC_PREFIX, METRICS, PERCENTILES, READ_TIME, READ_TIME_ABOUT, StreamStats


def register_with_prometheus(
    stats: Callable[[], StreamStats], labels: Mapping[str, str] | None = None, registry: Any = None
) -> Any:
    """Register a collector with ``prometheus_client``, which reads the stats each time that it is asked.

    Args:
        stats: takes a snapshot, such as ``loader.stats``.
        labels: put on every metric, such as the rank.
        registry: a ``CollectorRegistry``; default, the package's own.

    Returns:
        The collector, to be unregistered when the loader is closed.

    Raises:
        MissingPackageError: ``prometheus_client`` is not installed.
    """
    try:
        client = import_module("prometheus_client")
        core = import_module("prometheus_client.core")
    except ImportError as error:
        raise MissingPackageError(
            "metrics for prometheus_client need it: pip install prometheus-client; or serve stats.prometheus() yourself"
        ) from error
    names, values = list(labels or {}), [str(value) for value in (labels or {}).values()]

    class Collector:
        def collect(self) -> Iterator[Any]:
            now = stats()
            for attribute, metric in METRICS.items():
                make = core.CounterMetricFamily if metric.rises else core.GaugeMetricFamily
                family = make(metric.prometheus_name, metric.about, labels=names)
                family.add_metric(values, getattr(now, attribute))
                yield family
            summary = core.SummaryMetricFamily(METRIC_PREFIX + READ_TIME, READ_TIME_ABOUT, labels=names)
            summary.add_metric(values, now.reads, now.mean_load_time * now.samples_loaded)
            yield summary

    collector = Collector()
    (client.REGISTRY if registry is None else registry).register(collector)
    return collector


def observe_with_opentelemetry(
    stats: Callable[[], StreamStats], labels: Mapping[str, str] | None = None, meter: Any = None
) -> None:
    """Make observable counters and gauges of the stats, which the meter's reader reads when it collects.

    MissingPackageError if ``opentelemetry-api`` is not installed. ``stats``: takes a snapshot, such as ``loader.stats``.
    ``labels``: attributes of every observation, such as the rank. ``meter``: of ``opentelemetry.metrics``; default, the
    global provider's for ``stoker``.
    """
    try:
        metrics = import_module("opentelemetry.metrics")
    except ImportError as error:
        raise MissingPackageError("OpenTelemetry metrics need its API: pip install opentelemetry-api") from error
    meter = meter or metrics.get_meter("stoker")
    attributes = dict(labels or {})

    def reads(attribute: str) -> Callable[[Any], list[Any]]:
        return lambda _: [metrics.Observation(getattr(stats(), attribute), attributes)]

    units = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}
    for attribute, metric in METRICS.items():
        make = meter.create_observable_counter if metric.rises else meter.create_observable_gauge
        name = f"stoker.{metric.name}"
        make(name, callbacks=[reads(attribute)], unit=units[metric.unit], description=metric.about)

    def quantiles(_: Any) -> list[Any]:
        now = stats().load_percentiles
        return [metrics.Observation(now[percent], {**attributes, "quantile": percent / 100}) for percent in PERCENTILES]

    meter.create_observable_gauge("stoker.read_time", callbacks=[quantiles], unit="s", description=READ_TIME_ABOUT)

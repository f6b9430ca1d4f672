"""Stats as metrics: Prometheus' text format, a collector for ``prometheus_client``, and OpenTelemetry instruments.

Neither package is needed for the text; each of the other two needs its own. Metrics are read when they are collected, so
they cost nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, Final, NamedTuple

from stoker.errors import ConfigError, MissingPackageError
from stoker.pipeline.stats.stats import PERCENTILES, StreamStats

__all__ = ["METRICS", "Metric", "observe_with_opentelemetry", "prometheus_text", "register_with_prometheus"]


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: without prefix and without the endings that a system asks for.
        attribute: of :class:`~stoker.pipeline.stats.stats.StreamStats`.
        unit: its unit by Prometheus' names; empty for a number of things.
        counts: whether it only ever rises.
        about: what it is.
    """

    name: str
    attribute: str
    unit: str
    counts: bool
    about: str


METRICS: Final = tuple(
    [
        Metric(told["name"] or one.name, one.name, told["unit"], told["rises"], told["about"])
        for one in fields(StreamStats)
        if (told := one.metadata)
    ]
)

_PREFIX: Final = "stoker_"
_READ_TIME: Final = "read_seconds"
_READ_ABOUT: Final = "Time of a step of reading, by quantile."


def _full_name(metric: Metric) -> str:
    parts = [_PREFIX + metric.name, metric.unit, "total" if metric.counts else ""]
    return "_".join(filter(None, parts))


def prometheus_text(stats: StreamStats, labels: Mapping[str, str] | None = None) -> str:
    """All metrics in Prometheus' text exposition format 0.0.4.

    Args:
        stats: a snapshot.
        labels: put on every metric, such as the rank.

    Raises:
        ConfigError: a label's name is none that Prometheus allows.
    """
    given = dict(labels or {})
    for name in given:
        if not name.isidentifier() or not name.isascii() or name.startswith("__") or name == "quantile":
            raise ConfigError(f"{name!r} is no name for a label: letters, digits and underscores, and not 'quantile'")
    lines: list[str] = []
    for metric in METRICS:
        name = _full_name(metric)
        lines += [
            f"# HELP {name} {metric.about}",
            f"# TYPE {name} {'counter' if metric.counts else 'gauge'}",
            f"{name}{_labels(given)} {_number(getattr(stats, metric.attribute))}",
        ]
    name = _PREFIX + _READ_TIME
    lines += [f"# HELP {name} {_READ_ABOUT}", f"# TYPE {name} summary"]
    for percent, seconds in stats.load_percentiles.items():
        lines.append(f"{name}{_labels({**given, 'quantile': str(percent / 100)})} {_number(seconds)}")
    lines.append(f"{name}_sum{_labels(given)} {_number(stats.mean_load_time * stats.samples_loaded)}")
    lines.append(f"{name}_count{_labels(given)} {stats.reads}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    written = []
    for name, value in labels.items():
        text = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        written.append(f'{name}="{text}"')
    return "{" + ",".join(written) + "}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


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
            for metric in METRICS:
                name = "_".join(filter(None, [_PREFIX + metric.name, metric.unit]))
                family = (core.CounterMetricFamily if metric.counts else core.GaugeMetricFamily)(
                    name, metric.about, labels=names
                )
                family.add_metric(values, getattr(now, metric.attribute))
                yield family
            summary = core.SummaryMetricFamily(_PREFIX + _READ_TIME, _READ_ABOUT, labels=names)
            summary.add_metric(values, now.reads, now.mean_load_time * now.samples_loaded)
            yield summary

    collector = Collector()
    (client.REGISTRY if registry is None else registry).register(collector)
    return collector


def observe_with_opentelemetry(
    stats: Callable[[], StreamStats], labels: Mapping[str, str] | None = None, meter: Any = None
) -> None:
    """Make observable counters and gauges of the stats, which the meter's reader reads when it collects.

    Args:
        stats: takes a snapshot, such as ``loader.stats``.
        labels: attributes of every observation, such as the rank.
        meter: of ``opentelemetry.metrics``; default, the global provider's for ``stoker``.

    Raises:
        MissingPackageError: ``opentelemetry-api`` is not installed.
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
    for metric in METRICS:
        make = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
        name = f"stoker.{metric.name}"
        make(name, callbacks=[reads(metric.attribute)], unit=units[metric.unit], description=metric.about)

    def quantiles(_: Any) -> list[Any]:
        now = stats().load_percentiles
        return [metrics.Observation(now[percent], {**attributes, "quantile": percent / 100}) for percent in PERCENTILES]

    meter.create_observable_gauge("stoker.read_time", callbacks=[quantiles], unit="s", description=_READ_ABOUT)

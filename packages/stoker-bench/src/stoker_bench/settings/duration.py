"""A duration: a number of seconds, or a distribution to draw from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker_bench.settings.schema import Node

Distribution = Literal["constant", "normal", "uniform", "gamma", "exponential", "poisson"]

Numbers = Sequence[float]
"""The parameters of a distribution, in the order of :data:`_KINDS`."""

_KINDS: Final[dict[str, tuple[tuple[str, ...], Callable[[Numbers], float], str]]] = {
    "constant": (("mean",), lambda given: given[0], ""),
    "normal": (("mean", "stdev"), lambda given: given[0], "normal"),
    "uniform": (("min", "max"), lambda given: sum(given) / 2, "uniform"),
    "gamma": (("shape", "scale"), math.prod, "gamma"),
    "exponential": (("scale",), lambda given: given[0], "exponential"),
    "poisson": (("lam",), lambda given: given[0], "poisson"),
}
"""Parameters of each distribution, its mean by them, and the method of NumPy's generators that draws from it."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, by the distributions and the names of their parameters that DLIO has.

    A draw below 0 counts as 0. (DLIO takes the absolute value instead, which makes the mean of a wide normal larger.)

    Attributes:
        distribution: which.
        mean, stdev: of ``constant`` (mean only) and ``normal``.
        min, max: of ``uniform``.
        shape, scale: of ``gamma``; ``scale`` alone of ``exponential``.
        lam: of ``poisson``.
    """

    distribution: Distribution = "constant"
    mean: float | None = None
    stdev: float | None = None
    min: float | None = None
    max: float | None = None
    shape: float | None = None
    scale: float | None = None
    lam: float | None = None

    def __post_init__(self) -> None:
        needed = _KINDS[self.distribution][0]
        given = {one.name for one in fields(self) if one.name != "distribution" and getattr(self, one.name) is not None}
        if given != set(needed):
            raise ConfigError(
                f"a {self.distribution} duration needs {', '.join(needed)}, got {sorted(given) or 'nothing'}"
            )
        if any(not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0) for name in needed):
            raise ConfigError(f"a duration has {' and '.join(needed)} of 0 or more seconds, finite")
        if self.distribution == "uniform" and self.min is not None and self.max is not None and self.min > self.max:
            raise ConfigError(f"a uniform duration's min {self.min} is above its max {self.max}")

    @property
    def expected(self) -> float:
        """The mean in seconds, of the distribution as it is before draws below 0 are cut."""
        return float(_KINDS[self.distribution][1](self._numbers))

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        """``count`` durations in nanoseconds: int64 of shape ``(count,)``, none below 0."""
        method = _KINDS[self.distribution][2]
        drawn: NDArray[np.float64] = np.full(count, self._numbers[0])
        if method:
            drawn = getattr(random, method)(*self._numbers, count)
        return np.rint(np.maximum(drawn, 0.0) * 1e9).astype(np.int64)

    @property
    def _numbers(self) -> list[float]:
        return [getattr(self, name) for name in _KINDS[self.distribution][0]]

    @property
    def plain(self) -> Any:
        """A number where it is constant, else a mapping: what :func:`parse_duration` reads."""
        if self.distribution == "constant":
            return self.mean
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}


def parse_duration(node: Node, path: str) -> Duration:
    """A duration of a number or of a mapping such as ``{distribution: normal, mean: 0.1, stdev: 0.01}``.

    ``type`` means ``distribution``, as in DLIO. A mean with a stdev is ``normal``.

    Raises:
        ConfigError: see :class:`Duration`; says where.
    """
    given = node.plain
    if isinstance(given, str):
        try:
            given = float(given)
        except ValueError:
            given = None
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return Duration(mean=float(given))
        if not isinstance(given, dict) or not given:
            raise ConfigError("must be seconds, or a mapping such as {distribution: normal, mean: 0.1, stdev: 0.01}")
        values = dict(given)
        kind = values.pop("distribution", None) or values.pop("type", None)
        if kind is None:
            kind = "normal" if "stdev" in values else "constant"
        if kind not in get_args(Distribution):
            raise ConfigError(f"distribution must be one of {', '.join(get_args(Distribution))}, got {kind!r}")
        unknown = set(values) - {one.name for one in fields(Duration)}
        if unknown:
            raise ConfigError(f"{min(unknown)!r} is not a parameter of a duration")
        try:
            numbers = {name: float(value) for name, value in values.items()}
        except (TypeError, ValueError):
            raise ConfigError(f"parameters must be numbers, got {given!r}") from None
        return Duration(kind, **numbers)
    except ConfigError as error:
        raise ConfigError(f"{node.where}: {path}: {error}") from None

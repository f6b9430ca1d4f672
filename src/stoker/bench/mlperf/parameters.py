"""Settings that a submission may change, and the changes that a workload has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.bench.mlperf.editions import MlperfDivision
from stoker.bench.settings.dlio_keys import KEYS
from stoker.bench.settings.workload import Workload, as_plain

_TRAINING: Final = ("compute", "dataset", "reader", "train", "metric")
_CHECKPOINTING: Final = ("model", "checkpoint")
_OURS: Final = frozenset(
    {
        *("train.repeats", "train.seed", "reader.decode", "reader.bind", "reader.options", "reader.batch_size_eval"),
        "reader.checksums",
        *(
            "dataset.files_eval",
            "dataset.dlio",
            "metric.rules",
            "metric.calibrate",
            "metric.calibrate_bytes",
            "model.data",
        ),
        *("checkpoint.url", "checkpoint.options", "checkpoint.keep", "checkpoint.verify", "checkpoint.shift"),
        *("checkpoint.writes", "checkpoint.reads"),
    }
)
"""Settings that change no workload: how often it runs, where it writes, what else is measured. ``writes`` and ``reads`` have
a rule of their own."""
_CLOSED: Final = frozenset({"dataset.files", "dataset.subfolders", "reader.threads", "reader.prefetch"})
_OPEN: Final = frozenset({"dataset.format", "dataset.samples_per_file", "reader.loader"})
_LOADERS: Final = ("stoker", "torch")
"""Loaders that take the place of DLIO's in the closed division."""
_MOST_PREFETCH: Final = 2


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A setting that differs from the published workload.

    Attributes:
        path: the dotted setting.
        seen, wanted: its value, and the published one.
        allowed: the division from which on it may be changed; ``None`` for none.
    """

    path: str
    seen: Any
    wanted: Any
    allowed: MlperfDivision | None

    def breaks(self, division: MlperfDivision) -> bool:
        """Whether it may not be changed in a division."""
        return self.allowed is None or (self.allowed == "open" and division == "closed")


def changes(workload: Workload, original: Workload) -> list[ParameterChange]:
    """The settings of a workload that differ from the published one, of the parts that its stages use."""
    sections = (_TRAINING if "train" in workload.stages else ()) + (
        _CHECKPOINTING if "checkpoint" in workload.stages else ()
    )
    mine, theirs = (
        {path: value for name in sections for path, value in _flat(as_plain(getattr(one, name)), name)}
        for one in (workload, original)
    )
    found = [
        ParameterChange(path, value, theirs[path], _allowed(path, value))
        for path, value in mine.items()
        if path in theirs and value != theirs[path] and path not in _OURS
    ]
    if workload.storage.client == "direct" and "train" in workload.stages and workload.name != "unet3d":
        found.append(ParameterChange("storage.client", "direct", "auto", None))
    return found


def _allowed(path: str, value: Any) -> MlperfDivision | None:
    if path == "reader.loader" and value in _LOADERS:
        return "closed"
    if path == "reader.prefetch" and value > _MOST_PREFETCH:
        return None
    return "closed" if path in _CLOSED else "open" if path in _OPEN else None


def dlio_name(path: str) -> str:
    """DLIO's name of a setting; the setting's own where DLIO has none."""
    return next((name for name, key in KEYS.items() if key.ours == path), path)


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and path.count(".") < 1:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}")
    else:
        yield path, value

"""The results below a directory, one line a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.bench.results.report_files import read_run
from stoker.bench.results.results import RESULTS
from stoker.errors import ConfigError, FormatError


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A run in the history.

    Attributes:
        folder: of its results.
        began: in UTC, as ISO 8601; empty of one that can not be read.
        workload: its name.
        accelerator: that was simulated.
        ranks: how many.
        verdict: ``invalid``, ``smoke test``, ``not passed``, ``passed`` or ``valid``.
        au: accelerator utilization, 0 to 1; ``None`` where nothing was trained.
        storage_bytes_per_second: read from storage: by training, else by a KV cache, else by loading checkpoints; else
            written by saving them. ``None`` where it was not measured.
        hosts: of the ranks.
        error: why the results can not be read; empty where they can.
    """

    folder: str
    began: str
    workload: str
    accelerator: str
    ranks: int
    verdict: str
    au: float | None
    storage_bytes_per_second: float | None
    hosts: tuple[str, ...]
    error: str = ""


def history(folder: str | os.PathLike[str]) -> list[HistoryEntry]:
    """The runs whose results are in a directory or below it, newest first; those that can not be read are last.

    Raises:
        ConfigError: it is no directory.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(f"{root} is no directory: give one that holds what --results of stoker bench run named")
    found = [_entry(Path(parent)) for parent, _, names in os.walk(root) if RESULTS in names]
    return sorted(found, key=lambda one: (one.began, one.folder), reverse=True)


def _entry(folder: Path) -> HistoryEntry:
    try:
        result = read_run(folder)
    except FormatError as error:
        return HistoryEntry(str(folder), "", "", "", 0, "", None, None, (), str(error))
    workload = result["plan"]["workload"]
    train = result["train"]
    return HistoryEntry(
        str(folder),
        result["began"],
        str(workload.get("name", "")),
        str(workload.get("accelerator", "")),
        result["world"]["ranks"],
        result["verdict"],
        None if train is None or train["au"] is None else train["au"]["mean"],
        _storage_rate(result),
        tuple(result["world"]["hosts"]),
    )


def _storage_rate(result: Mapping[str, Any]) -> float | None:
    over = [
        *((result["train"], "storage_bytes_per_second"), ((result["kv_cache"] or {}).get("read"), "bytes_per_second")),
        *(((result["checkpoint"] or {}).get(name), "bytes_per_second") for name in ("load", "save")),
    ]
    rates = (part[name] for part, name in over if part is not None)
    return next((rate["mean"] for rate in rates if rate is not None), None)

"""Lists the runs whose results are below a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError, FormatError
from stoker_bench.measure.metrics import deciding_au
from stoker_bench.results.report_files import read_run
from stoker_bench.results.results import RESULTS


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A run in the history.

    Attributes:
        folder: the directory of the results.
        began: the start of the run in UTC, as ISO 8601. It is empty where the results can not be read.
        workload: the name of the workload.
        accelerator: the name of the simulated accelerator.
        ranks: the number of ranks.
        verdict: ``invalid``, ``smoke test``, ``not passed``, ``passed`` or ``valid``.
        au: accelerator utilization, the lower one of measured and nominal, 0 to 1; ``None`` where nothing was trained.
        storage_bytes_per_second: the rate of reading from storage, by training, a KV cache or the loading of checkpoints,
            whichever comes first; else the rate of saving checkpoints. ``None`` where none was measured.
        hosts: the names of the hosts.
        error: the reason why the results or the directory can not be read; empty where they can.
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
    """List the runs whose results are in a directory or below it.

    Returns:
        The runs, newest first, then the results and directories that can not be read.

    Raises:
        ConfigError: ``folder`` is no directory.

    Example:
        >>> history("results")  # doctest: +SKIP
        [HistoryEntry(folder='results/unet3d', began='2026-09-21T14:13:20Z', workload='unet3d', ...)]
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory: give one that holds what --results of stoker bench run named")
    unread: list[OSError] = []
    found = [_entry(Path(parent)) for parent, _, names in os.walk(root, onerror=unread.append) if RESULTS in names]
    found += [_unreadable(str(one.filename), f"{one.filename} can not be listed: {one.strerror}") for one in unread]
    return sorted(found, key=lambda one: (one.began, one.folder), reverse=True)


def _entry(folder: Path) -> HistoryEntry:
    try:
        result = read_run(folder)
    except FormatError as error:
        return _unreadable(str(folder), str(error))
    workload = result["plan"]["workload"]
    train = result["train"]
    return HistoryEntry(
        str(folder),
        result["began"],
        str(workload.get("name", "")),
        str(workload.get("accelerator", "")),
        result["world"]["ranks"],
        result["verdict"],
        None if train is None else deciding_au(train),
        _storage_rate(result),
        tuple(result["world"]["hosts"]),
    )


def _unreadable(folder: str, error: str) -> HistoryEntry:
    return HistoryEntry(folder, "", "", "", 0, "", None, None, (), error)


def _storage_rate(result: Mapping[str, Any]) -> float | None:
    over = [
        *((result["train"], "storage_bytes_per_second"), ((result["kv_cache"] or {}).get("read"), "bytes_per_second")),
        *(((result["checkpoint"] or {}).get(name), "bytes_per_second") for name in ("load", "save")),
    ]
    rates = (part[name] for part, name in over if part is not None)
    return next((rate["mean"] for rate in rates if rate is not None), None)

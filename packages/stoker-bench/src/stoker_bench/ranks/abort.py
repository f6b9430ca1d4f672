"""The end of a run whose leader is gone: the ranks that remain write the results and remove unfinished files."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final

from stoker.errors import StorageError
from stoker.storage import RetryPolicy
from stoker_bench.checkpoint import manifest as manifests
from stoker_bench.checkpoint.saver import open_checkpoint_store
from stoker_bench.kv_cache.stage import remove_entries
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.results.results import collect, write_results

_SOON: Final = RetryPolicy(patience=10.0)
"""Of what is done after a failure, which may be that of the store."""


def clear_unfinished(plan: RunPlan) -> None:
    """Remove this run's checkpoints that never counted, and its entries of a KV cache, once no rank is left that writes them.

    Those of other runs stay: they may be under way. What can not be removed stays, too; of checkpoints the next run there
    says so.
    """
    if "kv_cache" in plan.workload.stages:
        with contextlib.suppress(Exception):
            remove_entries(plan, retry=_SOON)
    if "checkpoint" not in plan.workload.stages:
        return
    with contextlib.suppress(Exception):
        store = open_checkpoint_store(plan, retry=_SOON)
        mine = manifests.checkpoint_folder(plan.run, 0).rpartition("-")[0]
        for one in manifests.unfinished(store):
            if one.folder.rpartition("-")[0] == mine:
                manifests.remove(store, one.folder, [], all_=True)


def finish_without(plan: RunPlan, ranks: int, *, failure: str, began: float, launcher: str) -> None:
    """Write the results of a run whose leader is gone, marked as invalid, of all ranks that have told; on each that is left.

    Args:
        plan: the run.
        ranks: how many there were.
        failure: why it ended.
        began: when it did, in seconds since 1970.
        launcher: who started the ranks.
    """
    clear_unfinished(plan)
    if plan.scratch:
        shutil.rmtree(plan.scratch, ignore_errors=True)
    folder = Path(plan.results)
    with contextlib.suppress(StorageError):
        write_results(collect(plan, folder, ranks, failure=failure, began=began, launcher=launcher), folder)

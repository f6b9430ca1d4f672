"""The laboratory of stoker: what measures storage and loaders, and what makes and predicts what they read.

Names are imported when first used:
    read_workload    the settings of a benchmark, from a file or one of those shipped
    run_benchmark    one run of it: generate, train, checkpoint
    generate         synthetic datasets of any format
    DatasetSpec      the description of one, for ``generate``

A loader under test has the methods of ``stoker_bench.loaders.LoaderUnderTest``; ``stoker_bench.simulate`` simulates a run on
a cluster from its order alone. ``stoker bench``, ``stoker generate`` and ``stoker simulate`` are commands of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker_bench.generation import DatasetSpec, generate
    from stoker_bench.run import run_benchmark
    from stoker_bench.settings.sources import read_workload

__all__ = ["DatasetSpec", "generate", "read_workload", "run_benchmark"]

_MODULES: Final = {
    "DatasetSpec": "stoker_bench.generation",
    "generate": "stoker_bench.generation",
    "read_workload": "stoker_bench.settings.sources",
    "run_benchmark": "stoker_bench.run",
}
_get = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    return _get(name)


def __dir__() -> list[str]:
    return list(__all__)

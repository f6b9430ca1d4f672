"""Who writes how much of a checkpoint: DLIO's own class, asked rank by rank, against stoker's layout.

    git clone https://github.com/argonne-lcf/dlio_benchmark && python benchmarks/dlio_checkpoints.py dlio_benchmark

DLIO's class is loaded from its file, and given what it asks MPI, its storage and its settings for. Tensors are only counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker_bench.checkpoint.layout import checkpoint_layout
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import WIDTHS, ModelSettings

FILE = "dlio_benchmark/checkpointing/base_checkpointing.py"


class Anything:
    """Whatever is called on it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Ranks:
    """MPI, as far as it is asked: the rank that is looked at."""

    rank_now = 0

    @staticmethod
    def get_instance() -> Any:
        alone = types.SimpleNamespace(rank=1, size=1, allreduce=lambda value: value)
        return types.SimpleNamespace(comm=lambda: alone, rank=lambda: Ranks.rank_now)


class Settings:
    """DLIO's settings of this moment."""

    now: Any = None

    @staticmethod
    def get_instance() -> Any:
        return Settings.now


def load(checkout: Path) -> Any:
    """DLIO's class, made to count."""
    modules: dict[str, dict[str, Any]] = {
        "psutil": {},
        "dlio_benchmark.common.enumerations": {"CheckpointLocationType": None, "CheckpointModeType": Anything()},
        "dlio_benchmark.storage.storage_factory": {
            "StorageFactory": lambda: types.SimpleNamespace(get_storage=lambda *_: Anything())
        },
        "dlio_benchmark.utils.config": {"ConfigArguments": Settings},
        "dlio_benchmark.utils.utility": {"DLIOMPI": Ranks, "utcnow": str},
    }
    for name, content in modules.items():
        for end in range(1, name.count(".") + 1):
            above = ".".join(name.split(".")[:end])
            sys.modules.setdefault(above, types.ModuleType(above))
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(content)
    spec = importlib.util.spec_from_file_location("dlio_base", checkout / FILE)
    assert spec is not None
    assert spec.loader is not None
    base = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(base)

    def size(state: Any) -> int:
        return sum(map(size, state.values())) if isinstance(state, dict) else state

    class Counting(base.BaseCheckpointing):  # type: ignore[misc, name-defined]
        def set_madvise_mergeable(self, tensor: Any) -> bool:  # noqa: ARG002
            return False

        def get_tensor_core(self, length: int, datatype: str = "int8", randomize: bool = True) -> int:  # noqa: ARG002
            return length * WIDTHS[datatype]

        def save_state(self, suffix: str, state: Any, fsync: bool = False) -> None:  # noqa: ARG002
            self.files[suffix.rpartition("/")[2]] = size(state)

        def load_state(self, suffix: str, state: Any) -> None: ...
        def load_checkpoint(self, epoch: int, step_number: int) -> None: ...
        def finalize(self) -> None: ...
        def save_checkpoint(self, epoch: int, step_number: int) -> None:
            self.files: dict[str, int] = {}
            super().save_checkpoint(epoch, step_number)

    return Counting


def dlio(counting: Any, model: ModelSettings, ranks: int) -> list[dict[str, int]]:
    """Names and bytes of each rank's files."""
    found = []
    for rank in range(ranks):
        Ranks.rank_now = rank
        given = {
            "pipeline_parallelism": model.pipeline,
            "tensor_parallelism": model.tensor,
            "data_parallelism": -1,
            "comm_size": ranks,
            "my_rank": rank,
            "num_layers": model.layers or -1,
            "model_size": model.size_bytes,
            "model_type": model.type,
            "num_attention_heads": model.attention_heads,
            "num_kv_heads": model.kv_heads,
            "model_datatype": model.model_dtype,
            "optimizer_datatype": model.optimizer_dtype,
            "optimization_groups": list(model.optimization_groups),
            "layer_parameters": list(model.layer_parameters),
        }
        given |= {name: getattr(model, name) for name in ("zero_stage", "hidden_size", "vocab_size", "ffn_hidden_size")}
        given |= {"checkpoint_randomize_tensor": True, "checkpoint_fsync": False, "checkpoint_mode": None}
        given |= {"checkpoint_folder": "x", "storage_type": None, "framework": None, "logger": Anything()}
        given |= dict.fromkeys(("ksm_init", "ksm_madv_mergeable_id", "ksm_await_time"), 0)
        given |= dict.fromkeys(("ksm_high_ram_trigger", "ksm_low_ram_exit"), 0)
        Settings.now = types.SimpleNamespace(**given)
        one = counting("pt")
        one.save_checkpoint(1, 1)
        found.append(one.files)
    return found


def cases() -> list[tuple[str, ModelSettings, int]]:
    """Models, and how many ranks save them."""
    made = []
    for name, ranks in (("8b", 8), ("70b", 64), ("405b", 512), ("1t", 1024)):
        made.append((name, read_workload(f"llama-{name}-checkpoint", environ={}, dotenv=None).workload.model, ranks))
    small = replace(
        made[0][1], hidden_size=64, ffn_hidden_size=224, vocab_size=1000, attention_heads=8, kv_heads=2, layers=7
    )
    for zero in range(4):
        for tensor, pipeline, data in ((1, 1, 4), (2, 1, 2), (2, 3, 2), (1, 4, 3)):
            if zero < 3 or pipeline == 1:
                model = replace(small, zero_stage=zero, tensor=tensor, pipeline=pipeline)
                made.append((f"ZeRO {zero}, {tensor} x {pipeline} x {data}", model, tensor * pipeline * data))
    given = replace(small, layer_parameters=(100, 30), optimization_groups=(10, 20), tensor=2, pipeline=2, zero_stage=1)
    made.append(("given sizes", given, 8))
    made.append(("a size", replace(small, layers=0, size_bytes=10240, type="cnn", zero_stage=0), 1))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of dlio_benchmark")
    counting = load(parser.parse_args().checkout)
    differ = 0
    for name, model, ranks in cases():
        theirs = dlio(counting, model, ranks)
        ours = [{file.name: file.bytes for file in files} for files in checkpoint_layout(model, ranks).files]
        sizes = [sum(files.values()) for files in theirs]
        same = theirs == ours
        differ += not same
        print(
            f"{name:<18} {ranks:>5} ranks {sum(sizes):>18,} bytes, a rank {min(sizes):>14,} to {max(sizes):>14,}: "
            f"{'all files the same' if same else 'NOT the same'}"
        )
    return differ


if __name__ == "__main__":
    sys.exit(main())

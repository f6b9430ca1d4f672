# ruff: noqa: RUF009 - setting() makes a field, as dataclasses.field does
"""A workload's model, and the saving and loading of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.bench.settings.schema import ContradictionError, at_least, setting
from stoker.errors import ConfigError

__all__ = ["WIDTHS", "CheckpointSettings", "ModelSettings"]

WIDTHS: Final = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "int8": 1, "uint8": 1}
"""Bytes of a parameter, by DLIO's name of its type."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The model whose state a checkpoint holds."""

    size_bytes: int = setting(0, "bytes of a checkpoint where no layers are given", unit="bytes")
    type: str = setting("none", "none, transformer, or another name")
    layers: int = setting(0, "transformer layers")
    vocab_size: int = setting(32000, "tokens of the vocabulary")
    hidden_size: int = setting(2048, "width")
    ffn_hidden_size: int = setting(8192, "width of the feed-forward part")
    attention_heads: int = setting(32, "heads of attention")
    kv_heads: int = setting(8, "heads of keys and values")
    model_dtype: str = setting("fp16", "of parameters: fp16, bf16, fp32, fp64, int8, uint8")
    optimizer_dtype: str = setting("fp32", "of optimizer states, the same")
    tensor: int = setting(1, "tensor parallelism")
    pipeline: int = setting(1, "pipeline parallelism")
    data: int | None = setting(None, "data parallelism; null: ranks divided by the other two")
    zero_stage: int = setting(0, "ZeRO stage: what data-parallel ranks share out, 0 to 3")
    optimization_groups: tuple[int, ...] = setting((), "sizes of optimizer states, instead of those of the layers")
    layer_parameters: tuple[int, ...] = setting((), "sizes of a layer's parameters, instead of those of a transformer")

    def __post_init__(self) -> None:
        at_least(self, 0, "size_bytes", "layers", "zero_stage")
        at_least(self, 1, "tensor", "pipeline", "data", "vocab_size", "hidden_size", "attention_heads", "kv_heads")
        if self.zero_stage > 3:
            raise ConfigError(f"zero_stage is 0, 1, 2 or 3, got {self.zero_stage}")
        for name in ("model_dtype", "optimizer_dtype"):
            if getattr(self, name) not in WIDTHS:
                raise ConfigError(f"{name} is one of {', '.join(WIDTHS)}, got {getattr(self, name)!r}")
        if self.zero_stage == 3 and self.pipeline > 1:
            raise ContradictionError("ZeRO stage 3 does not go with pipeline parallelism", "zero_stage", "pipeline")
        if 0 < self.layers < self.pipeline:
            raise ContradictionError(
                f"{self.layers} layers can not be shared out to {self.pipeline} stages", "layers", "pipeline"
            )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Saving and loading of checkpoints."""

    url: str | None = setting(None, "where to; null: below the data's URL, in checkpoints/")
    after_epoch: int = setting(1, "the first epoch after which one is saved")
    every_epochs: int = setting(1, "epochs from one to the next")
    every_steps: int | None = setting(None, "steps from one to the next, instead of epochs; each begins a block")
    writes: int = setting(0, "checkpoints to write, apart from training")
    reads: int = setting(0, "checkpoints to read, apart from training")
    pause_seconds: float = setting(0.0, "between them")
    fsync: bool = setting(True, "a checkpoint counts as saved when it is on the device")
    ranks: Literal["all", "zero"] = setting(
        "all", "who writes where the model has no layers: each rank an equal part, or rank 0 all"
    )
    keep: int = setting(0, "checkpoints to keep, the oldest are removed; 0: all")
    threads: int = setting(2, "parts of 8 MiB of a rank that are written or read at once")
    direct: bool = setting(False, "files by O_DIRECT, past the page cache")
    verify: bool = setting(False, "compare what is read to what was written; takes part of the time of reading")
    shift: int | Literal["host"] = setting(
        0, "ranks further on whose part each reads; host: of the next host, so that no cache has it"
    )
    options: dict[str, Any] = setting(
        dict, "credentials and settings of url, by obstore's names; default: storage's", secret=True
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "after_epoch", "every_epochs", "every_steps", "threads")
        at_least(self, 0, "writes", "reads", "pause_seconds", "keep")
        if self.shift != "host":
            at_least(self, 0, "shift")
        left = min(self.writes, self.keep or self.writes)
        if self.writes and self.reads > left:
            raise ContradictionError(f"{self.reads} checkpoints are to be read, and {left} are left", "reads", "keep")

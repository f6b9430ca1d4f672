# ruff: noqa: RUF009 - setting() makes a field, as dataclasses.field does
"""A workload's model, of which checkpoints and the KV cache are made, and the saving and loading of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.errors import ConfigError
from stoker_bench.settings.schema import ContradictionError, Section, setting

WIDTHS: Final = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "int8": 1, "uint8": 1}
"""Bytes of a parameter, by DLIO's name of its type."""


@dataclass(frozen=True, slots=True)
class ModelSettings(Section):
    """The model whose state a checkpoint holds, and whose users' keys and values a cache holds."""

    size_bytes: int = setting(0, "bytes of a checkpoint where no layers are given", unit="bytes", least=0)
    type: str = setting("none", "none, transformer, or another name")
    layers: int = setting(0, "transformer layers", least=0)
    vocab_size: int = setting(32000, "tokens of the vocabulary", least=1)
    hidden_size: int = setting(2048, "width", least=1)
    ffn_hidden_size: int = setting(8192, "width of the feed-forward part")
    attention_heads: int = setting(32, "heads of attention", least=1)
    kv_heads: int = setting(8, "heads of keys and values", least=1)
    head_dim: int = setting(0, "width of a head; 0: hidden_size divided by attention_heads", least=0)
    kv_latent: int = setting(
        0,
        "width of what a layer keeps of a token where keys and values are compressed together (MLA); 0: they are not",
        least=0,
    )
    model_dtype: str = setting("fp16", "of parameters, keys and values: fp16, bf16, fp32, fp64, int8, uint8")
    optimizer_dtype: str = setting("fp32", "of optimizer states, the same")
    tensor: int = setting(1, "tensor parallelism", least=1)
    pipeline: int = setting(1, "pipeline parallelism", least=1)
    data: int | None = setting(None, "data parallelism; null: ranks divided by the other two", least=1)
    zero_stage: int = setting(0, "ZeRO stage: what data-parallel ranks share out, 0 to 3", least=0)
    optimization_groups: tuple[int, ...] = setting((), "sizes of optimizer states, instead of those of the layers")
    layer_parameters: tuple[int, ...] = setting((), "sizes of a layer's parameters, instead of those of a transformer")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
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

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        width = WIDTHS[self.model_dtype]
        if self.kv_latent:
            return self.layers * self.kv_latent * width
        return self.layers * 2 * self.kv_heads * (self.head_dim or self.hidden_size // self.attention_heads) * width


@dataclass(frozen=True, slots=True)
class CheckpointSettings(Section):
    """Saving and loading of checkpoints."""

    url: str | None = setting(None, "where to; null: below the data's URL, in checkpoints/")
    after_epoch: int = setting(1, "the first epoch after which one is saved", least=1)
    every_epochs: int = setting(1, "epochs from one to the next", least=1)
    every_steps: int | None = setting(
        None, "steps from one to the next, instead of epochs; each begins a block", least=1
    )
    writes: int = setting(0, "checkpoints to write, apart from training", least=0)
    reads: int = setting(0, "checkpoints to read, apart from training", least=0)
    pause_seconds: float = setting(0.0, "between them", least=0)
    fsync: bool = setting(True, "a checkpoint counts as saved when it is on the device")
    ranks: Literal["all", "zero"] = setting(
        "all", "who writes where the model has no layers: each rank an equal part, or rank 0 all"
    )
    keep: int = setting(0, "checkpoints to keep, the oldest are removed; 0: all", least=0)
    threads: int = setting(2, "parts of 8 MiB of a rank that are written or read at once", least=1)
    direct: bool = setting(False, "files by O_DIRECT, past the page cache")
    verify: bool = setting(False, "compare what is read to what was written; takes part of the time of reading")
    shift: int | Literal["host"] = setting(
        0, "ranks further on whose part each reads; host: of the next host, so that no cache has it", least=0
    )
    options: dict[str, Any] = setting(
        dict, "credentials and settings of url, by obstore's names; default: storage's", secret=True
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        left = min(self.writes, self.keep or self.writes)
        if self.writes and self.reads > left:
            raise ContradictionError(f"{self.reads} checkpoints are to be read, and {left} are left", "reads", "keep")

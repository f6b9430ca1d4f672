"""The files that each rank saves: a model's state in bytes, by the formulas of DLIO's ``base_checkpointing.py``.

The formulas and the differences from DLIO are in docs/bench/checkpoint_layout.md. Model states are spread over tensor and
pipeline parallelism, with ZeRO stage 3 over data parallelism too; optimizer states over data parallelism with any ZeRO stage
but 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from stoker.display import counted
from stoker.errors import ConfigError
from stoker_bench.settings.workload import WIDTHS, ModelSettings

_STATES: Final = 3
"""Copies of the parameters in an optimizer's state: the master weights, and Adam's two moments."""
_SMALL: Final = 5
"""Times the width, of the small tensor beside each of them."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file of a checkpoint.

    Attributes:
        name: in the checkpoint.
        bytes: its size.
        kind: whose state it holds.
    """

    name: str
    bytes: int
    kind: Literal["model", "optimizer"]


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """A whole checkpoint.

    Attributes:
        ranks: ranks that save all of it; a run may have fewer, and saves a subset.
        files: of each of these ranks, in the order in which they are written.
    """

    ranks: int
    files: tuple[tuple[StateFile, ...], ...]

    def total(self, kind: str | None = None, ranks: int | None = None) -> int:
        """Bytes of all files, of a kind, of the first ``ranks``."""
        mine = self.files[:ranks]
        return sum(one.bytes for files in mine for one in files if kind in (None, one.kind))


def checkpoint_layout(model: ModelSettings, ranks: int, *, all_write: bool = True) -> CheckpointLayout:
    """The files of each rank.

    Args:
        model: its shape and parallelism.
        ranks: of the run. With ``model.data``, these are the first of ``tensor * pipeline * data``.
        all_write: of a model without layers, whether each rank writes an equal part, or rank 0 all.

    Raises:
        ConfigError: the ranks do not fit the parallelism, or there is nothing to save.
    """
    across = model.tensor * model.pipeline
    if model.data is None:
        if ranks % across:
            raise ConfigError(
                f"{counted(ranks, 'rank')}: no multiple of model.tensor x model.pipeline = {across}. Start {across}, or a "
                "multiple; or say of how many data-parallel parts these ranks are to save a subset (model.data)"
            )
        whole = ranks
    else:
        whole = across * model.data
        if ranks > whole:
            raise ConfigError(
                f"{counted(ranks, 'rank')}: more than model.tensor x model.pipeline x model.data = {whole}"
            )
    files = tuple(tuple(_files(model, rank, whole, all_write)) for rank in range(whole))
    if not any(one.bytes for mine in files for one in mine):
        raise ConfigError("there is nothing to save: give model.layers and the model's shape, or model.size_bytes")
    return CheckpointLayout(whole, files)


def _files(model: ModelSettings, rank: int, whole: int, all_write: bool) -> Iterator[StateFile]:
    across = model.tensor * model.pipeline
    replica, index = divmod(rank, across)
    if model.size_bytes and model.type != "transformer":
        size = model.size_bytes // whole + (rank < model.size_bytes % whole) if all_write else model.size_bytes
        if size and (all_write or rank == 0):
            yield StateFile(f"model_states-{rank}", size, "model")
    if model.zero_stage == 0 and replica:
        return  # all that it has, the first data-parallel rank has, too
    layers = _layers(model, whole // across, rank // model.tensor % model.pipeline)
    if layers:
        shared = model.zero_stage in (1, 2)
        if not shared:
            yield StateFile(f"zero_pp_rank_{replica}_mp_rank_{index}_model_states", sum(layers.values()), "model")
        elif not replica and model.pipeline > 1:
            for layer, size in layers.items():
                yield StateFile(f"layer_{layer}-model_{index}_model_states", size, "model")
        elif not replica:
            yield StateFile(f"model_{index}_model_states", sum(layers.values()), "model")
    optimizer = _optimizer(model, whole)
    if optimizer:
        yield StateFile(f"zero_pp_rank_{replica}_mp_rank_{index}_optim_states", optimizer, "optimizer")


def parameters(model: ModelSettings) -> int:
    """Of the whole model: embedding, layers with gated feed-forward parts, last norm, and output."""
    if not model.layers:
        return 0
    hidden = model.hidden_size
    layer = 2 * hidden + _attention(model) + hidden * hidden + 3 * hidden * model.ffn_hidden_size
    return 2 * model.vocab_size * hidden + model.layers * layer + hidden


def _attention(model: ModelSettings) -> int:
    """Parameters that make queries, keys and values of a layer."""
    keys = model.hidden_size // model.attention_heads * model.kv_heads
    return model.hidden_size * (model.hidden_size + 2 * keys)


def _layers(model: ModelSettings, data: int, stage: int) -> dict[int, int]:
    """Bytes of each layer that a rank of a pipeline stage has.

    Layers 1 to n are shared out among the stages, the first ones getting one more; 0 is the embedding, of the first stage,
    and n + 1 and n + 2 are the output and the last norm, of the last one.
    """
    if not model.layers:
        return {}
    each, more = divmod(model.layers, model.pipeline)
    first = stage * each + min(stage, more) + 1
    last = first + each - (stage >= more)
    if model.layer_parameters:
        size = sum(one // model.tensor for one in model.layer_parameters)
        return dict.fromkeys(range(first, last + 1), size) if size else {}
    if stage == 0:
        first = 0
    if stage == model.pipeline - 1:
        last = model.layers + 2
    return {layer: _layer_bytes(model, layer, data) for layer in range(first, last + 1)}


def _layer_bytes(model: ModelSettings, layer: int, data: int) -> int:
    hidden, parts = model.hidden_size, data if model.zero_stage == 3 else 1
    # Norms are on every tensor-parallel rank; all other tensors are divided.
    if layer == model.layers + 2:
        whole, divided = [hidden], []
    elif layer in (0, model.layers + 1):
        whole, divided = [], [hidden * model.vocab_size]
    else:
        whole = [hidden, hidden]
        feed = hidden * model.ffn_hidden_size
        divided = [_attention(model), hidden * hidden, 2 * feed, feed]
    count = sum(one // parts for one in whole) + sum(one // model.tensor // parts for one in divided)
    return count * WIDTHS[model.model_dtype]


def _optimizer(model: ModelSettings, whole: int) -> int:
    """Bytes of optimizer states of a rank."""
    if model.optimization_groups:
        return 3 * sum(model.optimization_groups)
    divisor = whole if model.zero_stage else model.tensor * model.pipeline
    count = parameters(model) // divisor
    return _STATES * (count + _SMALL * model.hidden_size) * WIDTHS[model.optimizer_dtype] if count else 0

"""Settings of every layout, and of the rank that it is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from stoker.arguments import at_least, checked, must_be
from stoker.errors import ConfigError
from stoker.order.sample_order import check_rank

_LONGEST: Final = (1 << 31) - 1

LabelKind = Literal["shifted", "unshifted", "none"]


class LMOptions(TypedDict, total=False):
    """The arguments of :class:`LMSettings` that the loaders for language models take, too; see there."""

    labels: LabelKind
    pad_id: int | None
    eos_id: int | None
    cross_document_labels: bool
    reset_positions: bool
    ignore_index: int
    dtype: DTypeLike
    vocab_size: int | None


@checked
@dataclass(frozen=True, slots=True)
class ShardConfig:
    """The rank, the world size and the seed of a ``StreamingParquetLoader``: shorthand for its ``world=`` and ``seed=``.

    Attributes:
        rank: in ``[0, world_size)``.
        world_size: number of ranks that read different tokens.
        seed: any integer; the same on all ranks.
    """

    rank: int
    world_size: int
    seed: int = 42

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)

    @classmethod
    def single(cls) -> ShardConfig:
        """One rank."""
        return cls(0, 1)


@checked
@dataclass(frozen=True, slots=True)
class LMSettings:
    """Settings by which documents become batches.

    Attributes:
        seq_len: S, tokens in a row.
        labels: ``"shifted"``: ``labels[t]`` is the token that follows ``input_ids[t]`` in its document, also where that one
            is in the next row or was cut off. ``"unshifted"``: ``labels[t]`` is ``input_ids[t]``, for models that shift by
            themselves, as those of Hugging Face do. A model of the other kind would shift twice, or never. ``"none"``: there
            are none, for those who make them where the model is; it saves half of a batch's memory.
        pad_id: what fills rows up; needed only where rows are not full.
        eos_id: put behind every document that is not empty, whatever its last token is. ``None``: documents end as they
            are.
        cross_document_labels: let the last token of a document predict the first of the next one in its row (in joined
            documents: of the next one at all). Otherwise that label is ``ignore_index``.
        reset_positions: positions count from 0 at each document's beginning in a row; otherwise at each row's.
        ignore_index: the label of what is not to be learnt; negative.
        dtype: of ``input_ids``, ``labels`` and ``position_ids``: int64, int32 or int16.
        vocab_size: ids must be smaller, if given.
    """

    seq_len: int
    labels: LabelKind = "shifted"
    pad_id: int | None = None
    eos_id: int | None = None
    cross_document_labels: bool = False
    reset_positions: bool = True
    ignore_index: int = -100
    dtype: DTypeLike = np.int64
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        must_be(f"from 1 to {_LONGEST}", 1 <= self.seq_len <= _LONGEST, seq_len=self.seq_len)
        signed = self.output.kind == "i" and self.output.itemsize >= 2
        must_be(f"int64, int32 or int16, as labels may be {self.ignore_index}", signed, dtype=str(self.output))
        negative = np.iinfo(self.output).min <= self.ignore_index < 0
        must_be(f"negative, so that it is not a token, and fit {self.output}", negative, ignore_index=self.ignore_index)
        at_least(1, vocab_size=self.vocab_size)
        for name in ("pad_id", "eos_id"):
            token = getattr(self, name)
            must_be(f"a token in [0, {self.limit})", token is None or 0 <= token < self.limit, **{name: token})

    @property
    def output(self) -> np.dtype[Any]:
        """The dtype of ids in a batch."""
        return np.dtype(self.dtype)

    @property
    def limit(self) -> int:
        """One more than the largest id that is allowed."""
        most = int(np.iinfo(self.output).max) + 1
        return most if self.vocab_size is None else min(most, self.vocab_size)

    def padding(self, why: str) -> int:
        """``pad_id``, which is needed.

        Raises:
            ConfigError: there is none; ``why`` says what it is needed for.
        """
        if self.pad_id is None:
            raise ConfigError(f"{why} needs pad_id=, the token that fills rows")
        return self.pad_id

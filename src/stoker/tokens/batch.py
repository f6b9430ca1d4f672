"""A batch for a language model, in the forms that frameworks want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import must_know
from stoker.errors import ConfigError, import_option
from stoker.integers import ranges
from stoker.lazy import cached_property
from stoker.tokens.settings import LabelKind
from stoker.types import Array, Ids

SOURCE_SHIFT: Final = 42
"""A document of a mixture is ``source << 42 | number``: so many bits hold its number in its source."""

FIELDS: Final = (
    "input_ids",
    "labels",
    "loss_mask",
    "attention_mask",
    "position_ids",
    "document_ids",
    "cu_seqlens",
    "max_seqlen",
)


@dataclass(frozen=True, slots=True)
class Extents:
    """Positions of documents' tokens in a batch. A *span* is a run of tokens of one document in one row.

    Attributes:
        starts: slots where spans begin, ``row * s + column``; int64, shape ``(k,)``, rising.
        lengths: tokens in each span, at least 1; int64, shape ``(k,)``.
        documents: number of each span's document; int64, shape ``(k,)``.
    """

    starts: Ids
    lengths: Ids
    documents: Ids


@dataclass(frozen=True, eq=False, repr=False)
class LMBatch:
    """A batch of b rows of s tokens. Fields other than ids and labels are computed when first accessed.

    Attributes:
        input_ids: shape ``(b, s)``.
        given_labels: see :attr:`labels`; ``None`` if they were not requested.
        label_kind: ``"shifted"``, ``"unshifted"`` or ``"none"``.
        num_tokens: slots that are not padding; those of eos count.
        made: the extents of documents, or a function that computes them on first use.
        ignore_index: the label of tokens that are not to be learnt.
        reset_positions: positions count from each span's beginning, not from each row's.
        cut_documents: documents of which the layout cut something off.
        cut_tokens: tokens that were cut off. The first of those of each document may still be a label.
    """

    input_ids: Array
    given_labels: Array | None
    label_kind: LabelKind
    num_tokens: int
    made: Extents | Callable[[], Extents]
    ignore_index: int = -100
    reset_positions: bool = True
    cut_documents: int = 0
    cut_tokens: int = 0

    def __getstate__(self) -> dict[str, Any]:
        # What extents are made of is larger: rows of other batches, or all documents of a block.
        return {**self.__dict__, "made": self.extents}

    def __len__(self) -> int:
        return len(self.input_ids)

    def split(self, rows: int) -> list[LMBatch]:
        """Batches of so many rows each, the last of the remainder, without a copy. They do not report cut documents."""
        count, width = self.shape
        if count <= rows:
            return [self]
        firsts = range(0, count, rows)
        sizes = [min(rows, count - first) for first in firsts]
        tokens = [size * width for size in sizes]
        if self.num_tokens < self.input_ids.size:
            known = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.extents.lengths)])
            borders = np.searchsorted(self.extents.starts, np.array([*firsts, count], dtype=np.int64) * width)
            tokens = np.diff(known[borders]).tolist()
        labels, made = self.given_labels, self.made if isinstance(self.made, Extents) else cache(self.made)
        return [
            LMBatch(
                self.input_ids[first : first + size],
                None if labels is None else labels[first : first + size],
                self.label_kind,
                number,
                partial(extents_of_part, made, width, first, first + size),
                self.ignore_index,
                self.reset_positions,
            )
            for first, size, number in zip(firsts, sizes, tokens, strict=True)
        ]

    def __repr__(self) -> str:
        rows, width = self.shape
        dtype = self.input_ids.dtype
        kind = "no" if self.given_labels is None else self.label_kind
        return f"LMBatch({rows} x {width} of {dtype}, {kind} labels, {self.num_tokens} tokens)"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens in a row."""
        return self.input_ids.shape[0], self.input_ids.shape[1]

    @property
    def labels(self) -> Array:
        """Shape ``(b, s)``; see :class:`~stoker.tokens.settings.LMSettings`.

        Raises:
            ConfigError: the batch was made with ``labels="none"``.
        """
        if self.given_labels is None:
            raise ConfigError("this batch was made with labels='none': ask for 'shifted' or 'unshifted' ones")
        return self.given_labels

    @cached_property
    def extents(self) -> Extents:
        """Positions of documents' tokens. Spans cover all positions but padding."""
        return self.made if isinstance(self.made, Extents) else self.made()

    @property
    def padding_waste(self) -> float:
        """The fraction of all slots that is padding, 0 to 1."""
        return 1 - self.num_tokens / self.input_ids.size if self.input_ids.size else 0.0

    @cached_property
    def loss_mask(self) -> NDArray[np.bool_]:
        """True where ``labels`` is to be learnt; shape ``(b, s)``."""
        mask: NDArray[np.bool_] = self.labels != self.ignore_index
        return mask

    @cached_property
    def attention_mask(self) -> NDArray[np.bool_]:
        """True on tokens, False on padding; shape ``(b, s)``. It does not separate documents."""
        flags = np.zeros(self._gaps_and_spans.size, dtype=bool)
        flags[1::2] = True
        return np.repeat(flags, self._gaps_and_spans).reshape(self.shape)

    @cached_property
    def position_ids(self) -> Array:
        """Position of each token, of the dtype of ``input_ids``, shape ``(b, s)``; 0 on padding.

        A document that continues in another row starts again from 0 there.
        """
        size, dtype = self.input_ids.size, self.input_ids.dtype
        if not self.reset_positions:
            row = np.tile(np.arange(self.shape[1], dtype=dtype), (self.shape[0], 1))
            row *= self.attention_mask
            return row
        # In padding, every slot is its own beginning.
        first = np.zeros(self._gaps_and_spans.size, dtype=np.int64)
        first[1::2] = self.extents.starts
        positions = np.arange(size, dtype=np.int64)
        positions -= np.repeat(first, self._gaps_and_spans)
        if self.num_tokens < size:
            positions *= self.attention_mask.reshape(-1)
        return positions.astype(dtype, copy=False).reshape(self.shape)

    @cached_property
    def document_ids(self) -> Ids:
        """Number of each token's document, int64, shape ``(b, s)``; -1 on padding."""
        numbers = np.full(self._gaps_and_spans.size, -1, dtype=np.int64)
        numbers[1::2] = self.extents.documents
        return np.repeat(numbers, self._gaps_and_spans).reshape(self.shape)

    @property
    def source_ids(self) -> Ids:
        """Number of each token's source in a mixture, int64, shape ``(b, s)``; -1 on padding."""
        return self.document_ids >> SOURCE_SHIFT

    @cached_property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Borders of attention for flash-attn's and torch's ``varlen`` functions; int32, from 0 to ``b * s``.

        They count through the flattened batch. Rows are borders, and each run of padding in a row is a sequence of its own,
        so ``q.view(b * s, heads, width)`` goes with them as it is. Without padding see :meth:`hugging_face`.
        """
        rows = np.arange(0, self.input_ids.size + 1, max(self.shape[1], 1), dtype=np.int64)
        if not self.shape[1]:
            rows = np.zeros(1, dtype=np.int64)
        borders = np.unique(np.concatenate([rows, self.extents.starts, self.extents.starts + self.extents.lengths]))
        if borders[-1] > np.iinfo(np.int32).max:
            raise ConfigError(f"{self.input_ids.size} tokens in a batch are too many for cu_seqlens, which are int32")
        return borders.astype(np.int32)

    @cached_property
    def max_seqlen(self) -> int:
        """The longest sequence of :attr:`cu_seqlens`."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def as_dict(self, *fields: str) -> dict[str, Any]:
        """The named fields, all that there are if none is named, as NumPy arrays; ``max_seqlen`` is an int.

        Raises:
            ConfigError: there is no such field, or labels were not made.
        """
        must_know("field", fields, (*FIELDS, "source_ids"))
        return {name: getattr(self, name) for name in fields or self._fields}

    def torch(self, *fields: str) -> dict[str, Any]:
        """:meth:`as_dict` as tensors that share the arrays' memory.

        Raises:
            MissingPackageError: torch is not installed.
        """
        return _as_torch(self.as_dict(*fields))

    def jax(self, *fields: str) -> dict[str, Any]:
        """:meth:`as_dict` as JAX arrays. On a CPU, ids and labels share the arrays' memory, which must then not be changed.

        64-bit integers become 32-bit ones, in a copy, unless ``jax_enable_x64`` is on: ask for ``dtype="int32"`` at once.

        Raises:
            MissingPackageError: jax is not installed.
            ConfigError: document numbers do not fit 32 bits; ask for other fields or turn on ``jax_enable_x64``.
        """
        jax = import_option("jax", "LMBatch.jax() needs jax", "jax")
        wide = bool(jax.config.jax_enable_x64)
        made: dict[str, Any] = {}
        for name, value in self.as_dict(*fields).items():
            if not isinstance(value, np.ndarray):
                made[name] = value
                continue
            array: Array = value
            if array.dtype == np.int64 and not wide:
                if array.size and int(array.max()) > np.iinfo(np.int32).max:
                    raise ConfigError(f"{name} holds {int(array.max())}, which does not fit int32: set jax_enable_x64")
                array = array.astype(np.int32)
            made[name] = jax.device_put(array)
        return made

    @property
    def _fields(self) -> Sequence[str]:
        if self.given_labels is not None:
            return FIELDS
        return [name for name in FIELDS if name not in ("labels", "loss_mask")]

    @cached_property
    def shifted_labels(self) -> Array:
        """Labels where ``labels[t]`` follows ``input_ids[t]``. From unshifted ones, the last of each row is ignored."""
        if self.label_kind == "shifted":
            return self.labels
        shifted = np.empty_like(self.labels)
        shifted[:, :-1] = self.labels[:, 1:]
        shifted[:, -1:] = self.ignore_index
        return shifted

    @cached_property
    def unshifted_labels(self) -> Array:
        """Labels for a model that shifts. From shifted ones, the last of each row is lost, as no slot predicts it."""
        if self.label_kind == "unshifted":
            return self.labels
        unshifted = np.empty_like(self.labels)
        unshifted[:, 1:] = self.labels[:, :-1]
        unshifted[:, :1] = self.ignore_index
        return unshifted

    def hugging_face(self, *, flatten: bool = False) -> dict[str, Any]:
        """Tensors by the names of Hugging Face models, whose labels the model shifts.

        Args:
            flatten: one row of all tokens without padding, as ``DataCollatorWithFlattening`` makes, with ``position_ids``
                and the arguments of flash attention: ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q``,
                ``max_length_k``; no ``attention_mask``. A label that ends its row is lost. Otherwise rows as they are, with
                ``attention_mask`` (0 on padding) and ``position_ids``.
        """
        if not flatten:
            return _as_torch(
                {
                    "input_ids": self.input_ids,
                    "labels": self.unshifted_labels,
                    "attention_mask": self.attention_mask.astype(self.input_ids.dtype),
                    "position_ids": self.position_ids,
                }
            )
        real = self.attention_mask
        labels = self.unshifted_labels.copy()
        labels[:, :1] = self.ignore_index  # in one long row, the last token of the row before would predict it
        borders = np.zeros(self.extents.lengths.size + 1, dtype=np.int32)
        np.cumsum(self.extents.lengths, out=borders[1:])
        longest = int(self.extents.lengths.max(initial=0))
        made = _as_torch(
            {
                "input_ids": self.input_ids[real][None],
                "labels": labels[real][None],
                "position_ids": self.position_ids[real][None],
                "cu_seq_lens_q": borders,
            }
        )
        return {**made, "cu_seq_lens_k": made["cu_seq_lens_q"], "max_length_q": longest, "max_length_k": longest}

    def megatron(self) -> dict[str, Any]:
        """Tensors by the names of Megatron's GPT data set: ``tokens``, ``labels`` (shifted; 0 where ``loss_mask`` is 0),
        ``loss_mask`` (float32), ``position_ids``, and ``cu_seqlens``, ``max_seqlen`` over the flattened batch."""
        labels = self.shifted_labels
        learnt = labels != self.ignore_index
        return _as_torch(
            {
                "tokens": self.input_ids,
                "labels": np.where(learnt, labels, labels.dtype.type(0)),
                "loss_mask": learnt.astype(np.float32),
                "position_ids": self.position_ids,
                "cu_seqlens": self.cu_seqlens,
                "max_seqlen": self.max_seqlen,
            }
        )

    @cached_property
    def _gaps_and_spans(self) -> Ids:
        """Lengths of padding, span, padding, span, ..., padding; int64, shape ``(2k + 1,)``."""
        return gaps_and_spans(self.extents.starts, self.extents.lengths, self.input_ids.size)


def extents_of_parts(
    made: Sequence[Extents | Callable[[], Extents]], shapes: Sequence[tuple[int, int]], rows: Ids | None = None
) -> Extents:
    """Positions of documents' tokens in batches one after the other; in the order in which ``rows`` come, if it is given."""
    parts = [one if isinstance(one, Extents) else one() for one in made]
    begins = np.cumsum([0, *(count * width for count, width in shapes)]).tolist()
    whole = Extents(
        np.concatenate([part.starts + begin for part, begin in zip(parts, begins, strict=False)]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.documents for part in parts]),
    )
    return whole if rows is None else extents_of_rows(whole, shapes[0][1], rows)


def extents_of_part(made: Extents | Callable[[], Extents], width: int, first: int, stop: int) -> Extents:
    """Positions of documents' tokens in rows of a batch that follow each other."""
    whole = made if isinstance(made, Extents) else made()
    return extents_of_rows(whole, width, np.arange(first, stop, dtype=np.int64))


def extents_of_rows(whole: Extents, width: int, rows: Ids) -> Extents:
    """Positions of documents' tokens in some rows of a batch, in their order."""
    first = np.searchsorted(whole.starts, rows * width)
    counts = np.searchsorted(whole.starts, (rows + 1) * width) - first
    part = ranges(first, counts)
    shifts = np.repeat((np.arange(rows.size, dtype=np.int64) - rows) * width, counts)
    return Extents(whole.starts[part] + shifts, whole.lengths[part], whole.documents[part])


def gaps_and_spans(starts: Ids, lengths: Ids, size: int) -> Ids:
    """Lengths of the gap before each span and of the span, alternating, and of the gap after the last."""
    found = np.empty(2 * starts.size + 1, dtype=np.int64)
    ends = starts + lengths
    found[1::2] = lengths
    found[2:-1:2] = starts[1:] - ends[:-1]
    found[0] = starts[0] if starts.size else size
    if starts.size:
        found[-1] = size - ends[-1]
    return found


def _as_torch(arrays: dict[str, Any]) -> dict[str, Any]:
    torch = import_option("torch", "tensors need torch", "stoker[torch]")
    return {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in arrays.items()}

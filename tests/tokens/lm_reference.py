"""What batches must be, worked out place by place, and documents to make them of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from stoker.tokens import LMBatch, LMSettings, Ragged
from stoker.tokens.layouts.assemble import assemble
from stoker.tokens.layouts.bin_packing import TooLong, pack_documents

EOS, PAD = 1, 0
FIRST_TOKEN = 2

Documents = list[list[int]]


def numbered(lengths: Sequence[int]) -> Documents:
    """Documents of these lengths in which no token comes twice, so that a token says where it is from."""
    ends = np.cumsum([0, *lengths]) + FIRST_TOKEN
    return [list(range(a, b)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def ragged(documents: Documents, dtype: str = "uint32") -> Ragged:
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    return Ragged(np.array([token for one in documents for token in one], dtype=dtype), offsets)


def whole(documents: Documents, eos_id: int | None) -> Documents:
    """Documents with their eos."""
    return [[*one, eos_id] if one and eos_id is not None else one for one in documents]


def settings_of(seq_len: int) -> st.SearchStrategy[LMSettings]:
    return st.builds(
        LMSettings,
        st.just(seq_len),
        labels=st.sampled_from(["shifted", "unshifted"]),
        pad_id=st.just(PAD),
        eos_id=st.sampled_from([None, EOS]),
        cross_document_labels=st.booleans(),
        reset_positions=st.booleans(),
        dtype=st.sampled_from(["int64", "int32"]),
    )


lengths_lists = st.lists(st.integers(0, 23), max_size=25)


def tokens_of(batches: Sequence[LMBatch]) -> list[tuple[int, int]]:
    """Document and token of all places but padding, sorted."""
    return sorted(
        (document, token)
        for batch in batches
        for document, token in zip(batch.document_ids.ravel().tolist(), batch.input_ids.ravel().tolist(), strict=True)
        if document >= 0
    )


def rows_of(batches: Sequence[LMBatch]) -> list[tuple[list[int], list[int], list[int]]]:
    """Ids, labels and documents of each row, whatever batch it came in."""
    return [
        (ids.tolist(), labels.tolist(), documents.tolist())
        for batch in batches
        for ids, labels, documents in zip(batch.input_ids, batch.labels, batch.document_ids, strict=True)
    ]


def check_batch(batch: LMBatch, documents: Documents, settings: LMSettings, *, joined: bool = False) -> None:
    """Look at every place of a batch; ``documents`` are all that there are, numbered from 0, with their eos."""
    stream = [(number, token) for number, one in enumerate(documents) for token in one]
    b, s = batch.shape
    assert batch.input_ids.dtype == batch.labels.dtype == batch.position_ids.dtype == settings.output
    for name in ("input_ids", "labels", "loss_mask", "attention_mask", "position_ids", "document_ids"):
        assert getattr(batch, name).shape == (b, s)
    assert np.array_equal(batch.loss_mask, batch.labels != settings.ignore_index)
    assert batch.attention_mask.sum() == batch.num_tokens
    borders = {0, b * s}
    for row in range(b):
        borders.add(row * s)
        ids = batch.input_ids[row].tolist()
        owners = batch.document_ids[row].tolist()
        begin = 0
        for column, (token, owner, label) in enumerate(zip(ids, owners, batch.labels[row].tolist(), strict=True)):
            changed = column > 0 and owner != owners[column - 1]
            if changed:
                borders.add(row * s + column)
                begin = column
            assert batch.attention_mask[row, column] == (owner >= 0)
            position = batch.position_ids[row, column]
            if owner < 0:
                assert (token, label, position) == (settings.pad_id, settings.ignore_index, 0)
                continue
            assert position == (column - begin if settings.reset_positions else column)
            mine = documents[owner]
            at = mine.index(token)
            if column > begin:
                assert ids[column - 1] == mine[at - 1], "a piece is a run of its document"
            if settings.labels == "unshifted":
                begins = changed or (column == 0 and at == 0)
                assert label == (settings.ignore_index if begins and not settings.cross_document_labels else token)
            elif at + 1 < len(mine):
                assert label == mine[at + 1]
            elif not settings.cross_document_labels:
                assert label == settings.ignore_index
            elif joined:
                where = stream.index((owner, token)) + 1
                assert label == (stream[where][1] if where < len(stream) else settings.ignore_index)
            else:
                near = column + 1 < s and owners[column + 1] >= 0
                assert label == (ids[column + 1] if near else settings.ignore_index)
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.cu_seqlens.tolist() == sorted(borders)
    assert batch.max_seqlen == max(np.diff(sorted(borders)).tolist(), default=0)


def pack(documents: Ragged, how: LMSettings, *, too_long: TooLong = "split", first_document: int = 0) -> LMBatch:
    """All documents in as few rows as best-fit-decreasing finds."""
    how.padding("the pack layout")
    placed = pack_documents(documents, how, too_long)
    spans, shape = placed.spans(np.arange(placed.count), how.seq_len), (placed.count, how.seq_len)
    return assemble(documents, spans, shape, how, first_document=first_document, cut=placed.cut).batch(how)

"""Batches in the forms that frameworks want."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_reference import EOS, PAD, lengths_lists, numbered, pack, ragged, settings_of

from stoker.errors import ConfigError
from stoker.tokens import LMBatch, LMSettings, pad, windows


def example(**settings: Any) -> LMBatch:
    """Rows: document 0 and padding; documents 1 and 2."""
    return pack(ragged(numbered([3, 2, 4])), LMSettings(6, pad_id=PAD, **settings))


def test_a_packed_batch_is_as_drawn_here() -> None:
    assert example().input_ids.tolist() == [[2, 3, 4, 0, 0, 0], [5, 6, 7, 8, 9, 10]]
    batch = pack(ragged(numbered([3, 2])), LMSettings(6, pad_id=PAD))
    assert batch.input_ids.tolist() == [[2, 3, 4, 5, 6, 0]]
    assert batch.labels.tolist() == [[3, 4, -100, 6, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, -1]]
    assert batch.cu_seqlens.tolist() == [0, 3, 5, 6]
    assert batch.max_seqlen == 3
    assert batch.num_tokens == 5
    assert batch.padding_waste == pytest.approx(1 / 6)
    crossing = pack(ragged(numbered([3, 2])), LMSettings(6, pad_id=PAD, cross_document_labels=True))
    assert crossing.labels.tolist() == [[3, 4, 5, 6, -100, -100]]
    unshifted = pack(ragged(numbered([3, 2])), LMSettings(6, pad_id=PAD, labels="unshifted", eos_id=EOS))
    assert unshifted.input_ids.tolist() == [[2, 3, 4, 1, 0, 0], [5, 6, 1, 0, 0, 0]]
    assert unshifted.labels.tolist() == [[-100, 3, 4, 1, -100, -100], [-100, 6, 1, -100, -100, -100]]


def test_joined_rows_are_as_drawn_here() -> None:
    batch = windows(ragged(numbered([3, 5])), 0, 2, LMSettings(4, eos_id=EOS, pad_id=PAD))
    assert batch.input_ids.tolist() == [[2, 3, 4, 1], [5, 6, 7, 8]]
    assert batch.labels.tolist() == [[3, 4, 1, -100], [6, 7, 8, 9]]
    assert windows(ragged(numbered([3, 5])), 2, 1, LMSettings(4, eos_id=EOS)).position_ids.tolist() == [[0, 1, 0, 1]]


def test_tensors_share_the_arrays_memory() -> None:
    batch = example()
    tensors = batch.torch()
    assert tensors["input_ids"].dtype == torch.int64
    assert set(tensors) == {
        "input_ids",
        "labels",
        "loss_mask",
        "attention_mask",
        "position_ids",
        "document_ids",
        "cu_seqlens",
        "max_seqlen",
    }
    for name in ("input_ids", "labels", "position_ids", "cu_seqlens"):
        assert tensors[name].data_ptr() == getattr(batch, name).ctypes.data
    assert list(batch.torch("labels", "loss_mask")) == ["labels", "loss_mask"]
    with pytest.raises(ConfigError, match="field 'tokens' is unknown"):
        batch.as_dict("tokens")


@given(lengths_lists.filter(sum), settings_of(7), st.integers(1, 6), st.booleans())
def test_batches_split_off_have_what_their_rows_had(
    lengths: list[int], how: LMSettings, rows: int, joined: bool
) -> None:
    documents = ragged(numbered(lengths))
    total = sum(lengths) + (how.eos_id is not None) * sum(map(bool, lengths))
    whole = windows(documents, 0, -(-total // 7), how) if joined else pack(documents, how)
    parts = whole.split(rows)
    assert [len(part) for part in parts[:-1]] == [rows] * (len(parts) - 1)
    assert sum(part.num_tokens for part in parts) == whole.num_tokens
    for name in ("input_ids", "labels", "loss_mask", "attention_mask", "position_ids", "document_ids"):
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(whole, name).tolist()
    lengths_of = [np.diff(part.cu_seqlens) for part in parts]
    assert np.concatenate(lengths_of).tolist() == np.diff(whole.cu_seqlens).tolist()
    assert np.shares_memory(parts[-1].input_ids, whole.input_ids)


@pytest.mark.parametrize("joined", [False, True])
def test_labels_that_nobody_wants_are_not_made(joined: bool) -> None:
    def make(**settings: Any) -> LMBatch:
        how = LMSettings(4, pad_id=PAD, **settings)
        return windows(ragged(numbered([8])), 0, 2, how) if joined else pack(ragged(numbered([3, 2])), how)

    batch = make(labels="none")
    assert batch.input_ids.tolist() == make().input_ids.tolist()
    assert set(batch.as_dict()) == set(make().as_dict()) - {"labels", "loss_mask"}
    for name in ("labels", "loss_mask", "shifted_labels"):
        with pytest.raises(ConfigError, match="labels='none'"):
            batch.as_dict("labels") if name == "labels" else getattr(batch, name)
    for form in (batch.hugging_face, batch.megatron):
        with pytest.raises(ConfigError, match="labels='none'"):
            form()


def test_ids_and_labels_do_not_share_memory() -> None:
    for batch in (example(), windows(ragged(numbered([8])), 0, 2, LMSettings(3))):
        assert not np.shares_memory(batch.input_ids, batch.labels)


@given(data=st.data(), lengths=lengths_lists, seq_len=st.integers(2, 9))
def test_a_hugging_face_model_learns_what_shifted_labels_say(data: Any, lengths: list[int], seq_len: int) -> None:
    how = data.draw(settings_of(seq_len))
    batch = pack(ragged(numbered(lengths)), how)
    given_to_model = batch.hugging_face()
    # What the model does: the label of place t + 1 is what place t predicts.
    learnt = given_to_model["labels"].numpy()[:, 1:]
    expected = batch.shifted_labels[:, :-1]
    assert np.array_equal(learnt, expected)
    assert np.array_equal(given_to_model["attention_mask"].numpy(), batch.attention_mask)


@given(data=st.data(), lengths=lengths_lists, seq_len=st.integers(2, 9))
def test_flattened_for_hugging_face_there_is_no_padding_and_no_label_across_rows(
    data: Any, lengths: list[int], seq_len: int
) -> None:
    how = data.draw(settings_of(seq_len))
    batch = pack(ragged(numbered(lengths)), how)
    flat = batch.hugging_face(flatten=True)
    assert "attention_mask" not in flat
    assert flat["input_ids"].shape == (1, batch.num_tokens)
    borders = flat["cu_seq_lens_q"].numpy()
    assert borders.dtype == np.int32
    assert borders[0] == 0
    assert borders[-1] == batch.num_tokens
    assert flat["max_length_q"] == max(np.diff(borders).tolist(), default=0)
    owners = batch.document_ids[batch.attention_mask]
    ids, labels = flat["input_ids"][0].numpy(), flat["labels"][0].numpy()
    assert set(labels[labels != -100]) <= set(ids)
    rows = np.repeat(np.arange(len(batch)), batch.attention_mask.sum(axis=1))
    for place in range(1, ids.size):
        if rows[place] != rows[place - 1] or (owners[place] != owners[place - 1] and not how.cross_document_labels):
            assert labels[place] == -100
        else:
            assert labels[place] == ids[place]


def test_megatron_gets_its_names_and_no_negative_label() -> None:
    for kind in ("shifted", "unshifted"):
        batch = pad(ragged(numbered([3, 6])), LMSettings(6, pad_id=PAD, labels=kind))
        given_to_model = batch.megatron()
        assert given_to_model["tokens"].tolist() == batch.input_ids.tolist()
        assert given_to_model["labels"].tolist() == [[3, 4, 0, 0, 0, 0], [6, 7, 8, 9, 10, 0]]
        assert given_to_model["loss_mask"].dtype == torch.float32
        assert given_to_model["loss_mask"].tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
        assert given_to_model["cu_seqlens"].tolist() == [0, 3, 6, 12]


def test_cu_seqlens_keep_documents_apart_in_attention() -> None:
    batch = example()
    attend = torch.nn.functional.scaled_dot_product_attention
    heads, width = 2, 4
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch.input_ids.size, heads, width, generator=rng) for _ in range(3))
    pieces = []
    borders = batch.cu_seqlens.tolist()
    for first, last in pairwise(borders):
        a, b, c = (x[first:last].transpose(0, 1) for x in (q, k, v))
        pieces.append(attend(a, b, c, is_causal=True).transpose(0, 1))
    by_borders = torch.cat(pieces)
    owner = torch.from_numpy(batch.document_ids).reshape(-1)
    place = torch.arange(owner.numel())
    row = place // batch.shape[1]
    same = (owner[:, None] == owner[None]) & (row[:, None] == row[None]) & (place[:, None] >= place[None])
    by_ids = attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=same).transpose(0, 1)
    torch.testing.assert_close(by_borders, by_ids)


def test_batches_travel_to_other_processes() -> None:
    for batch in (example(), windows(ragged(numbered([5, 7])), 1, 2, LMSettings(4))):
        again = pickle.loads(pickle.dumps(batch))
        for name, value in batch.as_dict().items():
            assert np.array_equal(getattr(again, name), value)


def test_an_empty_batch_has_all_fields() -> None:
    for batch in (
        pack(ragged([]), LMSettings(4, pad_id=0)),
        windows(ragged([]), 0, 0, LMSettings(4)),
        pad(ragged([]), LMSettings(4, pad_id=0)),
    ):
        assert batch.shape == (0, 4)
        assert batch.as_dict()["max_seqlen"] == 0
        assert batch.padding_waste == 0
        assert batch.hugging_face(flatten=True)["input_ids"].shape == (1, 0)
        batch.megatron()


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16"])
def test_ids_and_labels_lie_where_jax_takes_them_without_a_copy(dtype: str) -> None:
    for rows in range(1, 5):
        documents = ragged(numbered([7] * rows))
        how = LMSettings(7, pad_id=0, dtype=dtype)
        for batch in (pack(documents, how), windows(documents, 0, rows, how)):
            assert batch.input_ids.ctypes.data % 64 == batch.labels.ctypes.data % 64 == 0

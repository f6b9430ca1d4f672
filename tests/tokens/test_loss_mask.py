"""Labels of documents of which only some tokens are learnt, in all layouts that make rows of whole documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.tokens import LMSettings, Ragged, pad
from stoker.tokens.layouts.assemble import assemble
from stoker.tokens.layouts.bin_packing import pack_documents

IGNORED, PAD, EOS = -100, 0, 1


def documents(lengths: list[int], seed: int) -> Ragged:
    rng = np.random.default_rng(seed)
    made = Ragged.from_arrays([rng.integers(2, 1000, length) for length in lengths])
    made.loss_mask = rng.random(made.values.size) < 0.5
    return made


def marked(one: Ragged) -> list[list[tuple[int, bool]]]:
    assert one.loss_mask is not None
    return [
        list(zip(one.values[first:stop].tolist(), one.loss_mask[first:stop].tolist(), strict=True))
        for first, stop in zip(one.offsets[:-1], one.offsets[1:], strict=True)
    ]


def test_documents_keep_what_is_learnt_when_they_are_cut_taken_and_joined() -> None:
    made = documents([3, 0, 5, 2], 0)
    all_marked = marked(made)
    assert marked(made[1:3]) == all_marked[1:3]
    assert marked(made.take(np.array([3, 0, 0, 2]))) == [all_marked[number] for number in (3, 0, 0, 2)]
    assert marked(Ragged.concat([made[:2], made[3:]])) == [all_marked[number] for number in (0, 1, 3)]
    whole = Ragged.concat([made, Ragged.from_arrays([[7, 8]])])
    assert marked(whole)[-1] == [(7, False), (8, False)]


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
    labels=st.sampled_from(["shifted", "unshifted"]),
    eos=st.sampled_from([None, EOS]),
    packed=st.booleans(),
)
def test_labels_are_the_learnt_tokens(
    lengths: list[int], seed: int, labels: Any, eos: int | None, packed: bool
) -> None:
    made = documents(lengths, seed)
    settings = LMSettings(8, labels=labels, pad_id=PAD, eos_id=eos)
    if packed:
        rows = pack_documents(made, settings, "split")
        batch = assemble(made, rows.spans(np.arange(rows.count), 8), (rows.count, 8), settings).batch(settings)
    else:
        batch = pad(made, settings, too_long="truncate")
    assert batch.labels is not None
    ended = [[*one, *([(eos, one[-1][1])] if eos is not None and one else [])] for one in marked(made)]
    extents = batch.extents
    expected = np.full(batch.input_ids.size, IGNORED)
    for start, length, number in zip(
        extents.starts.tolist(), extents.lengths.tolist(), extents.documents.tolist(), strict=True
    ):
        ids = batch.input_ids.ravel()[start : start + length].tolist()
        # A long document is cut into pieces of a row.
        first = next(at for at in range(0, len(ended[number]), 8) if [t for t, _ in ended[number][at:]][:length] == ids)
        for slot in range(length):
            at = first + slot + (labels == "shifted")
            # What begins a document, or a piece of it behind other documents, is not predicted from what lies before it.
            alone = labels == "unshifted" and slot == 0 and (first == 0 or start % 8 > 0)
            if at < len(ended[number]) and ended[number][at][1] and not alone:
                expected[start + slot] = ended[number][at][0]
    np.testing.assert_array_equal(batch.labels.ravel(), expected)


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss_mask must be bool of shape \(3,\)"):
        Ragged(np.arange(3), np.array([0, 3]), loss_mask=np.ones(2, np.bool_))


def test_no_learnt_tokens_mean_no_labels() -> None:
    made = documents([4, 4], 1)
    made.loss_mask = np.zeros(8, np.bool_)
    batch = pad(made, LMSettings(8, pad_id=PAD))
    assert batch.labels is not None
    assert bool((batch.labels == IGNORED).all())

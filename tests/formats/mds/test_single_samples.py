"""One sample of an MDS shard, by ``dataset[i]``, is what iteration gives of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import describe, image_samples, stable_samples
from stoker import ReadOptions, StreamingDataset
from stoker.errors import DecodeError
from support import write_samples


@pytest.mark.parametrize("name", [*stable_samples(), *image_samples()])
@pytest.mark.parametrize("views", [False, True])
def test_a_single_sample_is_as_iteration_gives_it(name: str, views: bool, tmp_path: Path) -> None:
    columns, samples = {**stable_samples(), **image_samples()}[name]
    write_samples(tmp_path, samples, columns, size_limit=500)
    options: dict[str, Any] = {"read": ReadOptions(views=views), "allow_unsafe_types": True}
    for chosen in (None, sorted(columns)[-1:]):
        dataset = StreamingDataset(local=tmp_path, columns=chosen, **options)
        for number, expected in enumerate(dataset):
            found = dataset[number]
            assert list(found) == list(expected)
            for column, value in found.items():
                assert type(value) is type(expected[column])
                same = (
                    bytes(one) if isinstance(one, memoryview) else describe(one) for one in (value, expected[column])
                )
                assert next(same) == next(same)
                if isinstance(value, np.ndarray):
                    assert value.flags.writeable == expected[column].flags.writeable


def test_a_damaged_sample_is_named_also_alone(tmp_path: Path) -> None:
    write_samples(tmp_path, ({"a": "text", "b": [number]} for number in range(3)))
    path = tmp_path / "shard.00000.mds"
    damaged = path.read_bytes()
    path.write_bytes(damaged.replace(b"[1]", b"[1["))
    dataset = StreamingDataset(local=tmp_path, validate_hash=False)
    assert dataset[2] == {"a": "text", "b": [2]}
    with pytest.raises(DecodeError, match="column 'b'") as raised:
        dataset[1]
    assert (raised.value.row, raised.value.sample, raised.value.column) == (1, 1, "b")
    at = damaged.index(b"text[1]")
    path.write_bytes(damaged[: at - 8] + (99).to_bytes(4, "little") + damaged[at - 4 :])
    with pytest.raises(DecodeError, match="sample 1"):
        StreamingDataset(local=tmp_path, validate_hash=False)[1]

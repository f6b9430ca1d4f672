"""Shards that an index says have no samples: such a shard is never opened, so the index alone must prove it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import MDSWriter, StreamingDataset
from stoker.errors import CorruptDataError
from stoker.formats.common.records import RecordEncoder
from stoker.formats.mds.encoder import MDSEncoder
from stoker.formats.text.csv import XSVEncoder
from stoker.formats.text.json import JSONEncoder
from stoker.inspection import verify
from stoker.writers import CSVWriter, JSONWriter
from stoker.writing.shard_formats import TarWriter, TFRecordWriter

_SETTINGS: dict[str, Any] = {"compression": None, "hashes": [], "size_limit": 2000}


def _write(folder: Path, writer: Callable[..., Any], **options: Any) -> Any:
    with writer({"row": "int"}, out=folder, size_limit=2000, **options) as out:
        for row in range(700):
            out.write({"row": row})
    return json.loads((folder / "index.json").read_text())


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter, TarWriter, TFRecordWriter])
def test_a_shard_whose_samples_the_index_denies_is_named(
    tmp_path: Path, writer: Callable[..., Any], compression: str | None
) -> None:
    index = _write(tmp_path, writer, compression=compression)
    assert len(index["shards"]) > 1
    index["shards"][1]["samples"] = 0
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptDataError, match=r"shard 1: the index says 0 samples, but shard\.00001"):
        StreamingDataset(local=tmp_path)
    problems = verify(tmp_path, quick=True).problems
    assert any("the index says 0 samples" in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("writer", "encoder"),
    [
        (MDSWriter, MDSEncoder({"row": "int"}, _SETTINGS)),
        (JSONWriter, JSONEncoder({"row": "int"}, _SETTINGS, "\n")),
        (CSVWriter, XSVEncoder({"row": "int"}, _SETTINGS, "\n", ",", "csv")),
    ],
)
def test_an_empty_shard_is_read_as_one(tmp_path: Path, writer: Callable[..., Any], encoder: RecordEncoder) -> None:
    index = _write(tmp_path, writer, hashes=[])
    entry = json.loads(json.dumps(index["shards"][0]))
    entry["samples"] = 0
    for role, pieces in zip(encoder.roles, encoder.files(memoryview(b""), np.zeros(0, np.int64)), strict=True):
        name = f"empty.{role}"
        data = b"".join(pieces)
        (tmp_path / name).write_bytes(data)
        entry[f"raw_{role}"] = {"basename": name, "bytes": len(data), "hashes": {}}
    index["shards"].insert(1, entry)
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert [int(sample["row"]) for sample in StreamingDataset(local=tmp_path)] == list(range(700))
    assert not verify(tmp_path).problems

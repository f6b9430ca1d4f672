"""Stoker's own shards without an index.json: what they say of themselves is their index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker import MDSWriter, StreamingDataset
from stoker.errors import CorruptDataError, IndexFileError, ObjectNotFoundError
from stoker.writers import JSONWriter

pytestmark = pytest.mark.usefixtures("own_cache")


def write(out: Path, make: Any = MDSWriter, **options: Any) -> None:
    with make(columns={"id": "int", "text": "str"}, out=out, size_limit=600, **options) as writer:
        for number in range(60):
            writer.write({"id": number, "text": f"sample {number}"})


@pytest.mark.parametrize("make", [MDSWriter, JSONWriter])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("cached", [False, True])
def test_samples_are_found_without_the_index(make: Any, compression: str | None, cached: bool, tmp_path: Path) -> None:
    write(tmp_path / "data", make, compression=compression, hashes="xxh64")
    where: dict[str, Any] = {"remote": tmp_path / "data", **({"local": tmp_path / "cache"} if cached else {})}
    with_index = StreamingDataset(**where, format="mds")
    (tmp_path / "data" / "index.json").unlink()
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(**where)
    dataset = StreamingDataset(**where, format="mds", shuffle=True)
    assert len(dataset.index) > 2
    assert dataset.index.fingerprint == with_index.index.fingerprint  # states of one are good for the other
    assert sorted(sample["id"] for sample in dataset) == list(range(60))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before


def test_what_is_torn_or_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="is empty: there are no files"):
        StreamingDataset(remote=tmp_path, format="mds")
    write(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(IndexFileError, match="not valid JSON"):
        StreamingDataset(remote=tmp_path, format="mds")
    (tmp_path / "index.json").unlink()
    shard = tmp_path / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(CorruptDataError, match=r"shard\.00001\.mds: torn"):
        StreamingDataset(remote=tmp_path, format="mds")

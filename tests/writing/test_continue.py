"""Adding to a dataset, and going on where a writer stopped."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker import MDSWriter, StreamingDataset, merge_index
from stoker.errors import ConfigError
from stoker.storage import open_store
from stoker.writers import CSVWriter, JSONWriter

COLUMNS = {"x": "int", "t": "str"}
WRITERS: list[Any] = [MDSWriter, JSONWriter, CSVWriter]


def samples(start: int = 0, stop: int = 60) -> Any:
    return ({"x": i, "t": f"text {i}"} for i in range(start, stop))


def write(kind: Any, out: Any, rows: Any, **options: Any) -> None:
    with kind(COLUMNS, out, **{"size_limit": 300, **options}) as writer:
        for sample in islice(rows, writer.samples_written if options.get("resume") else 0, None):
            writer.write(sample)


def fail_after(writer: MDSWriter, rows: Any) -> None:
    for sample in rows:
        writer.write(sample)
    raise RuntimeError


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir()) if path.is_file()}


def numbers(root: Any, **options: Any) -> list[int]:
    dataset = StreamingDataset(local=root) if isinstance(root, Path) else StreamingDataset(remote=root, **options)
    return [int(dataset[i]["x"]) for i in range(len(dataset))]


# -- append ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_are_added_after_those_that_are_there(tmp_path: Path, kind: Any) -> None:
    write(kind, tmp_path, samples(0, 10))
    before = files(tmp_path)
    with kind(COLUMNS, tmp_path, append=True, compression="zstd", hashes="sha1") as writer:
        assert writer.samples_written == 10
        for sample in samples(10, 25):
            writer.write(sample)
        assert writer.samples_written == 25
        assert files(tmp_path)["index.json"] == before["index.json"]  # until it is finished
    assert numbers(tmp_path) == list(range(25))
    assert {name: data for name, data in files(tmp_path).items() if name in before and name != "index.json"} == {
        name: data for name, data in before.items() if name != "index.json"
    }


def test_appending_to_nothing_begins_a_dataset(tmp_path: Path) -> None:
    for start in range(0, 30, 10):
        write(MDSWriter, tmp_path, samples(start, start + 10), append=True)
    assert numbers(tmp_path) == list(range(30))


def test_a_failed_append_leaves_the_dataset_as_it_was(tmp_path: Path) -> None:
    write(MDSWriter, tmp_path, samples(0, 10))
    index = (tmp_path / "index.json").read_bytes()
    with pytest.raises(RuntimeError), MDSWriter(COLUMNS, tmp_path, append=True, size_limit=300) as writer:
        fail_after(writer, samples(10, 40))
    assert (tmp_path / "index.json").read_bytes() == index
    assert numbers(tmp_path) == list(range(10))
    write(MDSWriter, tmp_path, samples(10, 40), append=True)
    assert numbers(tmp_path) == list(range(40))


def test_appending_to_a_merged_dataset(tmp_path: Path) -> None:
    for part in range(2):
        write(MDSWriter, tmp_path / str(part), samples(part * 10, part * 10 + 10))
    merge_index(str(tmp_path))
    write(MDSWriter, tmp_path, samples(20, 30), append=True)
    assert numbers(tmp_path) == list(range(30))


@pytest.mark.parametrize("mode", ["append", "resume"])
@pytest.mark.parametrize("columns", [{"x": "int"}, {"x": "int32", "t": "str"}, {"x": "int", "t": "str", "z": "int"}])
def test_other_columns_are_refused(tmp_path: Path, mode: str, columns: dict[str, str]) -> None:
    write(MDSWriter, tmp_path, samples())
    with pytest.raises(ConfigError, match="other columns"):
        MDSWriter(columns, tmp_path, **{mode: True})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="other columns"):
        CSVWriter(COLUMNS, tmp_path, **{mode: True})  # type: ignore[arg-type]
    (tmp_path / "index.json").unlink()
    with pytest.raises(ConfigError):
        MDSWriter(columns, tmp_path, size_limit=300, **{mode: True})  # type: ignore[arg-type]


def test_extra_keys_of_the_index_are_kept(tmp_path: Path) -> None:
    write(MDSWriter, tmp_path, samples(0, 5))
    index = json.loads((tmp_path / "index.json").read_bytes())
    (tmp_path / "index.json").write_text(json.dumps({**index, "note": "ours"}))
    write(MDSWriter, tmp_path, samples(5, 9), append=True)
    assert json.loads((tmp_path / "index.json").read_bytes())["note"] == "ours"


# -- resume ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("options", [{}, {"compression": "gz", "hashes": ["sha1", "xxh64"]}], ids=["raw", "gz"])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_whole_shards_are_resumed(tmp_path: Path, kind: Any, options: dict[str, Any], left: int) -> None:
    write(kind, tmp_path / "whole", samples(), **options)
    expected = files(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "out")
    (tmp_path / "out" / "index.json").unlink()
    for name in expected:
        if name.startswith("shard") and int(name.split(".")[1]) >= left:
            (tmp_path / "out" / name).unlink()
    with kind(COLUMNS, tmp_path / "out", size_limit=300, resume=True, **options) as writer:
        done = writer.samples_written
        assert (done > 0) == (left > 0)
        writer.write_batch({"x": np.arange(done, 60), "t": [f"text {i}" for i in range(done, 60)]})
    assert files(tmp_path / "out") == expected


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "br:1", "hashes": "md5"}])
@pytest.mark.parametrize("damage", ["cut", "header", "empty", "gone"])
def test_what_follows_a_torn_or_missing_shard_is_written_again(
    tmp_path: Path, kind: Any, options: dict[str, Any], damage: str
) -> None:
    write(kind, tmp_path, samples(), **options)
    expected = files(tmp_path)
    (tmp_path / "index.json").unlink()
    path = max(tmp_path.glob("shard.00001.*"))  # the one with the offsets
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-3], "header": b"\xff" * 8 + data[8:], "empty": b""}[damage])
    with kind(COLUMNS, tmp_path, size_limit=300, resume=True, **options) as writer:
        assert 0 < writer.samples_written < 30
        assert not list(tmp_path.glob("shard.00002.*"))
        for sample in islice(samples(), writer.samples_written, None):
            writer.write(sample)
    assert files(tmp_path) == expected


def test_resuming_where_nothing_is_begins(tmp_path: Path) -> None:
    write(MDSWriter, tmp_path, samples(), resume=True)
    assert numbers(tmp_path) == list(range(60))


def test_resuming_a_finished_dataset_changes_nothing(tmp_path: Path) -> None:
    write(MDSWriter, tmp_path, samples())
    before = files(tmp_path)
    write(MDSWriter, tmp_path, samples(), resume=True)
    assert files(tmp_path) == before


def test_a_killed_append_is_resumed(tmp_path: Path) -> None:
    write(MDSWriter, tmp_path / "a", samples(0, 20))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    following = f"shard.{len(list(tmp_path.glob('b/shard.*'))):05}.mds"
    write(MDSWriter, tmp_path / "a", samples(20, 60), append=True)
    shutil.copy(tmp_path / "a" / following, tmp_path / "b")
    with MDSWriter(COLUMNS, tmp_path / "b", size_limit=300, resume=True) as writer:
        assert writer.samples_written > 20
        for sample in islice(samples(), writer.samples_written, None):
            writer.write(sample)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize(
    "changed",
    [{"size_limit": 301}, {"compression": "zstd"}, {"hashes": "sha1"}, {"compression": "zstd", "hashes": "md5"}],
)
def test_other_settings_are_refused_not_mixed(tmp_path: Path, changed: dict[str, Any]) -> None:
    write(MDSWriter, tmp_path, samples())
    (tmp_path / "index.json").unlink()
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=next(iter(changed))):
        MDSWriter(COLUMNS, tmp_path, **{"size_limit": 300, "resume": True, **changed})
    assert files(tmp_path) == before


def test_a_remote_and_its_local_copy_are_resumed_together(tmp_path: Path, bucket: Bucket) -> None:
    url, options = f"{bucket.url}/data", {"storage_options": bucket.storage_options, "compression": "zstd"}
    write(MDSWriter, tmp_path / "whole", samples(), compression="zstd")
    expected = files(tmp_path / "whole")
    write(MDSWriter, (tmp_path / "out", url), samples(), keep_local=True, **options)
    store = open_store(url, bucket.storage_options)
    store.delete("index.json")
    store.delete("shard.00002.mds.zstd")
    for name in ("index.json", "shard.00000.mds.zstd"):
        (tmp_path / "out" / name).unlink()
    write(MDSWriter, (tmp_path / "out", url), samples(), keep_local=True, resume=True, **options)
    assert files(tmp_path / "out") == expected
    assert {item.key: store.get(item.key, max_bytes=1 << 30) for item in store.list()} == expected

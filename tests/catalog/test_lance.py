"""Tables of Lance beyond what all tables have in common: values, blobs, processes, and tables that are rewritten."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lance_tables import all_kinds, change, clone, delete, expect, tag, there, write, write_blobs, write_outside
from torch.utils.data import DataLoader

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset, inspect, verify
from stoker.catalog.tables import lance as lance_spans
from stoker.conversion import convert
from stoker.errors import ConfigError, DatasetChangedError, ObjectNotFoundError, StokerError
from stoker.loaders.parquet_loader import StreamingParquetLoader

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(importlib.util.find_spec("lance") is None, reason="pylance is not installed"),
]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of 40 rows of all kinds in 5 fragments; 7 rows are deleted."""
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    place = str(tmp_path / "t.lance")
    there(write, place, all_kinds())
    there(delete, place, "x < 6 or x = 20")
    return place


def numbers(source: Any, **options: Any) -> list[int]:
    with StreamingDataset(source, **options) as dataset:
        return sorted(int(sample["x"]) for sample in dataset)


LEFT = [number for number in range(6, 40) if number != 20]


def test_values_are_those_of_parquet_whether_rows_or_spans_are_read(url: str, tmp_path: Path) -> None:
    kept = all_kinds().take(pa.array(LEFT))
    pq.write_table(kept, tmp_path / "same.parquet", row_group_size=8)
    with (
        StreamingDataset(tmp_path / "same.parquet", format="parquet") as parquet,
        StreamingDataset(url) as lance,
    ):
        for number in (0, 1, 13, 14, 32, 0):  # rows, and then the span that they are in
            for name, value in parquet[number].items():
                np.testing.assert_array_equal(lance[number][name], value)
                assert type(lance[number][name]) is type(value), name
        for ids in ([5], [32, 0, 0, 13, 14], [], list(range(33))):
            ours, theirs = lance.read(np.array(ids, np.int64)), parquet.read(np.array(ids, np.int64))
            for name in theirs if ids else ():
                assert type(ours[name]) is type(theirs[name]), name
                assert repr(list(ours[name])) == repr(list(theirs[name])), name
        batch: Any = lance.read(np.arange(33))
        assert batch["vector"].dtype == np.float32
        assert batch["vector"].shape == (33, 4)
    assert there(expect, url, [14])[0]["x"] == int(LEFT[14])


def test_a_fragment_is_read_in_spans_and_rows_are_taken_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_spans, "_SPAN_BYTES", 1500)
    with StreamingDataset(url, shuffle=True, batch_size=4) as dataset:
        shards = dataset.num_shards
        order = [int(number) for batch in dataset.batches() for number in batch["x"]]
    assert shards > 5
    assert sorted(order) == LEFT
    assert order != LEFT


def test_a_column_that_is_not_there_and_arguments_that_make_no_sense(url: str, tmp_path: Path) -> None:
    with StreamingDataset(url, columns=["text", "x"]) as dataset:
        assert set(dataset[0]) == {"x", "text"}
    with StreamingDataset(url) as first, StreamingDataset(url, columns=["x"]) as second:
        assert first.state_dict()["streams"] == second.state_dict()["streams"], "columns are not part of the identity"
    cases: list[dict[str, Any]] = [
        {"columns": ["txt"]},
        {"local": tmp_path / "cache"},
        {"cache_limit": "1gb"},
        {"validate_hash": "sha1"},
    ]
    for options in cases:
        with pytest.raises(ConfigError):
            StreamingDataset(url, **options)
    with pytest.raises(ConfigError, match="format"):
        StreamingParquetLoader(url, format="lance")  # type: ignore[arg-type]
    with pytest.raises(StokerError, match="tables are read by"):
        verify(url)
    there(write, str(tmp_path / "empty.lance"), pa.table({"x": pa.array([], pa.int64())}))
    with pytest.raises(ObjectNotFoundError, match="no rows"):
        StreamingDataset(tmp_path / "empty.lance")


def test_columns_that_were_added_and_rows_that_were_updated(url: str) -> None:
    with StreamingDataset(url) as before:
        expected = there(change, url)
        with StreamingDataset(url, columns=["x", "text", "double"]) as dataset:
            assert list(dataset) == expected
            assert [dataset[number] for number in range(len(expected))] == expected
        assert sorted(int(one["x"]) for one in before) == LEFT, "of the version that was opened"
        assert before[4]["text"] == "row 10"


def test_a_tag_names_a_version(url: str) -> None:
    there(tag, url, "whole", 1)
    assert numbers(url, format="lance", format_options={"version": "whole"}) == list(range(40))


def test_blobs_that_are_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"of the reader")
    url = str(tmp_path / "table")
    there(write_outside, url, f"file://{tmp_path}/secret")
    with StreamingDataset(url, format="lance") as dataset:
        assert dataset[0]["blob"] == b"own"
        with pytest.raises(ConfigError, match=r"row 1 is a blob elsewhere \(file://.*secret\)"):
            dataset[1]


def test_files_of_other_tables_are_refused(url: str, tmp_path: Path) -> None:
    there(clone, url, str(tmp_path / "clone"))
    with pytest.raises(ConfigError, match=r"has files elsewhere \(.*t\.lance\), as shallow clones do"):
        StreamingDataset(tmp_path / "clone", format="lance")


def test_blobs_are_read_as_bytes(tmp_path: Path) -> None:
    url = str(tmp_path / "b.lance")
    there(write_blobs, url)
    with StreamingDataset(url, shuffle=True) as dataset:
        found = {int(sample["x"]): sample["blob"] for sample in dataset}
    assert found == {i: bytes([i]) * i if i % 5 else None for i in range(20)}
    with StreamingDataset(url, columns=["blob"]) as dataset:
        assert dataset.read(np.array([19, 3, 3]))["blob"] == [b"\x13" * 19, b"\3" * 3, b"\3" * 3]
    assert [one.type for one in inspect(url).columns] == ["int64", "large_binary"]


def test_values_of_lances_own_types_are_refused_unless_they_are_left_out(tmp_path: Path) -> None:
    url = str(tmp_path / "j.lance")
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    values = pa.StructArray.from_arrays([pa.array([b"12"], pa.large_binary())], fields=[blob])
    there(write, url, pa.table({"x": [1], "s": values}))
    with pytest.raises(ConfigError, match=r"column 's' are not read: s\.b is of Lance's type blob"):
        StreamingDataset(url)
    assert numbers(url, columns=["x"]) == [1]
    facts = inspect(url)
    assert facts.samples == 1
    assert any("'s' are not read" in note for note in facts.notes)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_each_row_once(url: str, method: str) -> None:
    columns = ["x", "vector"]
    with StreamingDataset(url, shuffle=True, batch_size=4, columns=columns) as dataset:
        assert int(dataset[0]["x"]) == 6, "the parent reads, too"
        workers = 2 if method == "fork" else 1
        loader: Any = DataLoader(
            dataset, batch_size=4, num_workers=workers, multiprocessing_context=method, timeout=PATIENCE
        )
        assert sorted(int(number) for batch in loader for number in batch["x"]) == LEFT


def test_a_process_that_uses_lance_itself_may_fork(url: str) -> None:
    """Lance crashes in a child of a process that has opened a table, if that opens one: rows come from a helper."""
    code = f"""
        import os, signal, sys, warnings
        from stoker import StreamingDataset
        with StreamingDataset({url!r}) as dataset:
            dataset[0]
            assert "lance" not in sys.modules
            warnings.simplefilter("ignore")
            import lance
            lance.dataset({url!r}).take([1, 2])
            for _ in range(2):
                child = os.fork()
                if not child:
                    signal.alarm(60)
                    os._exit(0 if sorted(int(one["x"]) for one in dataset) == {LEFT!r} else 3)
                assert os.waitpid(child, 0)[1] == 0
        print("read")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "read\n", done.stderr


def test_a_table_that_is_written_anew_in_its_place_is_an_error(url: str) -> None:
    with StreamingDataset(url) as dataset:
        shutil.rmtree(url)
        there(write, url, all_kinds())
        there(delete, url, "x < 6 or x = 21")
        with pytest.raises(DatasetChangedError, match="rewritten in place"):
            dataset[0]


def test_files_that_were_removed_are_an_error_that_says_so(url: str) -> None:
    with StreamingDataset(url) as dataset:
        for file in Path(url, "data").iterdir():
            file.unlink()
        with pytest.raises(StokerError, match=r"version 2 can not be read.*cleanup_old_versions"):
            dataset[0]


def test_a_helper_that_is_killed_is_started_again(url: str) -> None:
    from stoker.storage import fork_proxy as proxy

    with StreamingDataset(url) as dataset:
        assert int(dataset[0]["x"]) == 6
        proxy._helper().kill()
        assert int(dataset[1]["x"]) == 7


def test_values_are_converted_with_their_types(url: str, tmp_path: Path) -> None:
    convert(url, tmp_path / "out", to="parquet", select=["x", "vector", "text"])
    with StreamingDataset(tmp_path / "out") as dataset:
        assert sorted(int(one["x"]) for one in dataset) == LEFT
        sample = dataset[0]
    assert sample["vector"].dtype == np.float32
    assert sample["vector"].shape == (4,)
    assert sample["text"].startswith("row")


@pytest.mark.s3
def test_a_table_on_s3(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    local = str(tmp_path / "table")
    there(write, local, all_kinds())
    there(delete, local, "x < 6 or x = 20")
    client = bucket.server.client()
    for folder, _, files in os.walk(local):
        for name in files:
            path = os.path.join(folder, name)
            client.upload_file(path, bucket.name, f"t.lance/{os.path.relpath(path, local)}")
    options: dict[str, Any] = {"storage_options": bucket.storage_options}
    table = f"{bucket.url}/t.lance"
    assert numbers(table, **options) == LEFT
    assert numbers(table, format="lance", format_options={"version": 1}, shuffle=True, **options) == list(range(40))
    assert inspect(table, **options).samples == len(LEFT)
    convert(table, tmp_path / "out", to="mds", select=["x"], **options)
    assert numbers(tmp_path / "out") == LEFT
    with StreamingDataset(table, **options) as dataset:
        secret = str(bucket.storage_options.get("secret_access_key", "?"))
        assert secret not in json.dumps(dataset.state_dict())
        assert secret not in repr(dataset)
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(f"{bucket.url}/nope", format="lance", **options)


def test_a_server_that_is_silent_is_an_error() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        options = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "region": "us-east-1"}
        options |= {"access_key_id": "a", "secret_access_key": "b"}
        with pytest.raises(StokerError, match="can not be opened"):
            StreamingDataset(
                "s3://bucket/t.lance", format="lance", storage_options=options, download_timeout=1, download_retry=0
            )

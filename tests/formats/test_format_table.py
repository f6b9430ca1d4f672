"""Every format in every place: written by stoker, or by others and read as it is, streamed in one order and gone on with."""

from __future__ import annotations

import mmap
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_table import OTHERS, ROWS, WRITTEN, sample_of, table

from s3server import Bucket
from stoker import ReadOptions, StreamingDataset
from stoker.errors import ConfigError
from stoker.formats.registry import format_names, get_format
from stoker.storage import open_store
from stoker.storage.files.mapped import MappedFile
from support import TESTS

PLACES = ["directory", pytest.param("s3", marks=pytest.mark.s3)]

pytestmark = pytest.mark.usefixtures("own_cache")


def place_for(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    if place == "directory":
        return {"remote": str(tmp_path / "data")}
    bucket: Bucket = request.getfixturevalue("bucket")
    return {"remote": f"{bucket.url}/data", "local": tmp_path / "cache", "storage_options": bucket.storage_options}


def check_streams(number: Any, **where: Any) -> None:
    """All samples once, in order, shuffled, and shuffled after a stop."""
    plain = StreamingDataset(**where)
    assert plain.size == ROWS
    assert len(plain.index) > 2
    assert sorted(number(sample) for sample in plain) == list(range(ROWS))
    order: dict[str, Any] = {"shuffle": True, "shuffle_seed": 5, "batch_size": 8}
    numbers = [number(sample) for sample in StreamingDataset(**where, **order)]
    assert sorted(numbers) == list(range(ROWS))
    assert numbers != sorted(numbers)
    stopped = StreamingDataset(**where, **order)
    iterator = iter(stopped)
    head = [number(next(iterator)) for _ in range(24)]
    resumed = StreamingDataset(**where, **order)
    resumed.load_state_dict(stopped.state_dict())
    assert head + [number(sample) for sample in resumed] == numbers
    rows = sum(len(next(iter(batch.values()))) for batch in StreamingDataset(**where, **order).batches())
    assert rows == ROWS


@pytest.mark.s3
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_streamed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    where = place_for("s3", tmp_path, request)
    case = WRITTEN[name]
    storage = {key: where[key] for key in ("storage_options",) if key in where}
    with case.make(columns=case.columns, out=where["remote"], hashes="xxh64", **case.options, **storage) as writer:
        for number in range(ROWS):
            writer.write(sample_of(number, case.columns))
    column = "label" if "label" in case.columns else "id"
    check_streams(lambda sample: int(sample[column]), **where)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("place", PLACES)
def test_what_others_wrote_is_streamed_as_it_is(
    name: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = place_for(place, tmp_path, request)
    store = open_store(where["remote"], where.get("storage_options"))
    case = OTHERS[name]
    for key, data in case.files(range(ROWS)).items():
        store.put(key, data)
    check_streams(case.number, **where, format=name, format_options=case.options)
    if place == "directory":
        made = {str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").rglob("*") if path.is_file()}
        assert made == set(case.files(range(ROWS)))  # nothing is written beside what others own


def test_samples_are_made_without_any_store(tmp_path: Path) -> None:
    options = {"samples": ROWS, "columns": {"id": "number", "x": "ndarray:float32:3"}, "shard_samples": 13}
    check_streams(lambda sample: int(sample["id"]), format="synthetic", format_options=options)


@pytest.mark.parametrize("name", [name for name in format_names() if get_format(name).views])
def test_views_are_of_the_mapped_file(name: str, tmp_path: Path) -> None:
    if name == "synthetic":
        options = {"samples": 4, "columns": {"x": "bytes:100"}}
        dataset = StreamingDataset(format=name, format_options=options, read=ReadOptions(views=True))
        assert isinstance(dataset[1]["x"], memoryview)
        return
    if name in ("arrow", "hdf5", "npy", "npz", "tfrecord"):  # others' files here are compressed, or of other columns
        case = WRITTEN[name]
        with case.make(columns=case.columns, out=tmp_path) as writer:
            for number in range(ROWS):
                writer.write(sample_of(number, case.columns))
        for path in [*tmp_path.glob("*.meta"), tmp_path / "index.json"]:
            path.unlink()
    else:
        for key, data in OTHERS[name].files(range(ROWS)).items():
            (tmp_path / key).parent.mkdir(exist_ok=True)
            (tmp_path / key).write_bytes(data)
    dataset = StreamingDataset(local=tmp_path, format=name, read=ReadOptions(views=True))
    batch = dataset.read(np.arange(3))
    assert any(is_view(column if isinstance(column, np.ndarray) else column[-1]) for column in batch.values()), batch


def is_view(value: Any) -> bool:
    """Whether a value lies in a mapped file, or in the bytes of a small one."""
    while isinstance(value, np.ndarray) and value.base is not None:
        if value.flags.writeable:
            return False
        value = value.base
    if type(value).__module__ == "pyarrow.lib":
        return True
    return isinstance(value, bytes | mmap.mmap | MappedFile) or (isinstance(value, memoryview) and value.readonly)


def test_the_table_of_the_docs_is_this_one() -> None:
    text = (TESTS.parent / "docs" / "formats.md").read_text()
    assert "\n".join(table()) in text, "make it anew: python tests/formats/format_table.py"
    assert set(format_names()) == {*WRITTEN, *OTHERS, "synthetic"}


@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in OTHERS if not get_format(name).extra])
def test_what_needs_no_extra_reads_without_it(name: str, tmp_path: Path) -> None:
    for key, data in OTHERS[name].files(range(ROWS)).items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(data)
    code = f"""
        import sys
        for module in ("h5py", "PIL", "tfrecord", "webdataset", "torch", "polars", "tokenizers"):
            sys.modules[module] = None
        from stoker import StreamingDataset
        dataset = StreamingDataset(remote={str(tmp_path)!r}, format={name!r}, format_options={OTHERS[name].options!r})
        assert len(list(dataset)) == {ROWS}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_arguments_that_do_not_go_together_are_reported(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"remote": "x", "format": "zarr"}, "'zarr' is unknown; .*known: arrow, .*jsonl"),
        (
            {"remote": "x", "format": "mds", "format_options": {"a": 1}},
            "format_options= is only for files without an index",
        ),
        ({"remote": ["x"], "format": "mds"}, "a list of files needs another format="),
        ({"remote": "x", "format": "synthetic"}, "have no remote="),
        ({"remote": str(tmp_path), "format": "npy", "format_options": {"filters": []}}, "setting 'filters' is unknown"),
        (
            {"remote": str(tmp_path), "format": "npy", "format_options": {"settings": 1}},
            "setting 'settings' is unknown",
        ),
        (
            {"remote": str(tmp_path), "format": "parquet", "format_options": {"x": 1}},
            "setting 'x' is unknown; known: filters, hive",
        ),
        ({"format": "synthetic", "format_options": {"samples": 1}}, "give columns"),
        ({"format": "npy"}, "give remote="),
    ]
    np.save(tmp_path / "a.npy", np.zeros(3))
    for arguments, message in cases:
        with pytest.raises(ConfigError, match=message):
            StreamingDataset(**arguments)

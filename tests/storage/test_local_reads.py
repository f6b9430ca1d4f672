"""Options of local files and of objects that other packages understand, and those that nobody does."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.errors import ConfigError
from stoker.lazy import INSTALL_BENCH
from stoker.storage import open_store
from stoker.storage.transfer import OBJECT_CLIENTS
from support import read_local_files_into_memory


def test_settings_of_files_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    with pytest.raises(ConfigError, match="without read_by"):
        open_store("/tmp/x", {"part_size": "8MB"})
    with pytest.raises(ConfigError) as raised:
        open_store("/tmp/x", {"read_by": "direct"})
    assert str(raised.value) == (
        f"storage_options['read_by'] is 'direct': that comes with the package stoker-bench: {INSTALL_BENCH}"
    )


@pytest.mark.processes
def test_a_package_reads_local_files_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_local_files_into_memory(monkeypatch)
    with MDSWriter(out=str(tmp_path), columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    options = {"read_by": "buffered"}
    assert open_store(tmp_path, options).transfer.read_by == "buffered"
    memory = ReadOptions(cache="memory")
    assert [row["x"] for row in StreamingDataset(remote=str(tmp_path), read=memory, storage_options=options)] == [1]
    with pytest.raises(ConfigError, match=r"needs ReadOptions\(cache='memory'\)"):
        StreamingDataset(remote=str(tmp_path), storage_options=options)
    with pytest.raises(ConfigError, match="give the directory as remote="):
        StreamingDataset(local=str(tmp_path), read=memory, storage_options=options)


def test_an_unknown_library_is_told_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [EntryPoint("minio", "of.another:package", OBJECT_CLIENTS)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints(found))
    with pytest.raises(ConfigError) as raised:
        open_store("s3://b", {"library": "mini"})
    assert str(raised.value) == (
        "storage_options['library'] is 'mini': expected 'obstore' or 'minio'; did you mean 'minio'?"
    )
    found.clear()
    with pytest.raises(ConfigError, match=rf"expected 'obstore'; others come with .*: {re.escape(INSTALL_BENCH)}$"):
        open_store("s3://b", {"library": "mini"})


@pytest.mark.parametrize(
    "source", [{"local": "mds"}, {"remote": "mds"}, {"remote": "mds", "local": "cache"}, {"remote": "x.npy"}]
)
def test_what_fetches_objects_is_refused_for_a_directory(
    source: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MDSWriter(out=str(tmp_path / "mds"), columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    np.save(tmp_path / "x.npy", np.arange(3))
    places: dict[str, Any] = {name: tmp_path / path for name, path in source.items()}
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda **_: EntryPoints([EntryPoint("boto3", "of.another:package", OBJECT_CLIENTS)]),
    )
    with pytest.raises(ConfigError, match=r"storage_options \['library'\] mean nothing for /.*: leave them out"):
        StreamingDataset(**places, storage_options={"library": "boto3"})

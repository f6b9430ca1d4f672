"""A format of another package is one class and an entry point, and then as good as stoker's own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker import StreamingDataset
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError, FormatError
from stoker.formats import registry
from stoker.formats.registry import format_names, get_format
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage import open_store

TOY = '''
import numpy as np
from stoker.formats.common.container import PackedFormat, PackedShard
from stoker.formats.common.inspect_header import HeaderFacts, only_settings


class ToyShard(PackedShard):
    """Four bytes a sample."""

    def __init__(self, info, data, where, options):
        super().__init__(info, where, options)
        self._values = np.frombuffer(data, "<u4")

    def take(self, name, rows):
        return self._values[rows]


class ToyFormat(PackedFormat):
    name = "toy"
    suffixes = (".toy",)

    def inspect_header(self, source, settings):
        only_settings(settings, self.settings, self.name)
        return HeaderFacts(source.size // 4, {"columns": {"value": "uint32"}})

    def open(self, info, files, *, where, options=None):
        return ToyShard(info, files[0], where, options)


class Liar(ToyFormat):
    name = "another"


def broken():
    raise RuntimeError("the toy is broken")


class Nothing:
    name = "nothing"
'''
ENTRIES = {"toy": "ToyFormat", "liar": "Liar", "broken": "broken", "nothing": "Nothing", "mds": "ToyFormat"}


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with formats, installed as far as Python can tell."""
    root = tmp_path / "site"
    metadata = root / "toybox-1.0.dist-info"
    metadata.mkdir(parents=True)
    (root / "toybox.py").write_text(TOY)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toybox\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = toybox:{made}" for name, made in ENTRIES.items())
    (metadata / "entry_points.txt").write_text(f"[stoker.formats]\n{lines}\n")
    monkeypatch.syspath_prepend(str(root))
    forget()
    yield root
    forget()
    sys.modules.pop("toybox", None)


def forget() -> None:
    registry._others.cache_clear()
    get_format.cache_clear()


def test_files_of_its_format_are_read(toys: Path, tmp_path: Path) -> None:
    assert "toy" in format_names()
    for number in range(3):
        (tmp_path / f"{number}.toy").write_bytes(np.arange(number * 10, number * 10 + 10, dtype="<u4").tobytes())
    place = open_unindexed(tmp_path, "toy")
    assert place.index.sizes.tolist() == [10, 10, 10]
    pool = ShardPool(place.index, place.cache)
    batch = read_samples(pool, np.array([2, 0, 1]), np.array([9, 0, 5]))
    assert batch["value"].tolist() == [29, 0, 15]  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.s3)])
def test_its_files_are_streamed_as_stokers_own_formats_are(
    place: str, toys: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "kept"))
    where: dict[str, Any] = {"remote": str(tmp_path / "data")}
    if place == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        where = {"remote": bucket.url, "local": tmp_path / "cache", "storage_options": bucket.storage_options}
    store = open_store(where["remote"], where.get("storage_options"))
    for number in range(3):
        store.put(f"{number}.toy", np.arange(number * 10, number * 10 + 10, dtype="<u4").tobytes())
    options: dict[str, Any] = {**where, "format": "toy", "shuffle": True, "batch_size": 4}
    values = [int(sample["value"]) for sample in StreamingDataset(**options)]
    assert sorted(values) == list(range(30)) != values
    stopped = StreamingDataset(**options)
    iterator = iter(stopped)
    head = [int(next(iterator)["value"]) for _ in range(12)]
    resumed = StreamingDataset(**options)
    resumed.load_state_dict(stopped.state_dict())
    assert head + [int(sample["value"]) for sample in resumed] == values
    with pytest.raises(ConfigError, match="format 'toy' has no setting 'colour'"):
        StreamingDataset(**{**options, "format_options": {"colour": 1}})


def test_stokers_own_names_stay_its_own(toys: Path) -> None:
    assert type(get_format("mds")).__module__ == "stoker.formats.mds.format"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "'broken' of toybox can not be loaded.*the toy is broken"),
        ("liar", "'liar' of toybox is none: it calls itself 'another'"),
        ("nothing", "'nothing' of toybox is none: it is no stoker.formats.format.Format"),
        ("missing", "'missing' is unknown; known: .*mds.*toy"),
    ],
)
def test_what_is_no_format_is_told(toys: Path, name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        get_format(name)


def test_stoker_is_imported_and_its_formats_found_without_looking_for_others() -> None:
    code = """
        import sys
        import stoker
        from stoker.formats.registry import format_names, get_format
        assert "npy" in format_names()
        get_format("mds")
        heavy = {"importlib.metadata", "h5py", "pyarrow", "PIL", "stoker.formats.arrays.npy"} & set(sys.modules)
        assert not heavy, heavy
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_registry_leads_to_a_format() -> None:
    for name in tuple(format_names()):
        made: Any = get_format(name)
        assert made.name == name

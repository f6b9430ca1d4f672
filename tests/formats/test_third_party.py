"""A format of another package is one class and an entry point, and then as good as stoker's own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker import ReadOptions, StreamingDataset
from stoker.errors import ConfigError, FormatError, ObjectNotFoundError
from stoker.formats import registry
from stoker.formats.registry import aliases, format_name, format_names, get_format
from stoker.storage import open_store
from stoker.testing import FormatTests

TOY = '''
import numpy as np
from stoker.errors import CorruptDataError
from stoker.formats.common.container import PackedFormat, PackedShard
from stoker.formats.common.inspect_header import HeaderFacts


class ToyShard(PackedShard):
    """Four bytes a sample."""

    def __init__(self, info, files, where, options):
        super().__init__(info, where, options)
        if len(files[0]) != 4 * info.samples:
            raise CorruptDataError(f"{where}: {len(files[0])} bytes for {info.samples} samples of 4")
        self._values = np.frombuffer(files[0], "<u4")

    def take(self, name, rows):
        return self._values[rows]


class ToyFormat(PackedFormat):
    name = "toy"
    suffixes = (".toy",)
    reader = ToyShard

    def inspect_header(self, source, settings):
        return HeaderFacts(source.size // 4, {"columns": {"value": "uint32"}})


class Liar(ToyFormat):
    name = "another"


class Short(ToyFormat):
    name = "short"
    suffixes = (".short",)

    def read_many(self, shards, which, rows, columns=None):
        return {name: column[:-1] for name, column in super().read_many(shards, which, rows, columns).items()}

    def iterate_many(self, shards, which, rows, columns=None):
        return {name: iter(column.tolist()) for name, column in self.read_many(shards, which, rows, columns).items()}


def broken():
    raise RuntimeError("the toy is broken")


class Nothing:
    name = "nothing"
'''
ENTRIES = {
    "toy": "ToyFormat",
    "short": "Short",
    "liar": "Liar",
    "broken": "broken",
    "nothing": "Nothing",
    "mds": "ToyFormat",
}


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


@pytest.mark.usefixtures("toys")
class TestToy(FormatTests):
    """The tests that its author would run."""

    format = "toy"

    def write(self, folder: Path, numbers: range) -> None:
        for turn, first in enumerate(range(0, max(1, len(numbers)), 10)):
            (folder / f"{turn}.toy").write_bytes(np.array(numbers[first : first + 10], "<u4").tobytes())

    def sample(self, number: int) -> dict[str, Any]:
        return {"value": number}

    def number(self, sample: Mapping[str, Any]) -> int:
        return int(sample["value"])


@pytest.mark.s3
def test_its_files_are_streamed_from_an_object_store(toys: Path, tmp_path: Path, bucket: Bucket) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    for number in range(3):
        store.put(f"{number}.toy", np.arange(number * 10, number * 10 + 10, dtype="<u4").tobytes())
    where: dict[str, Any] = {"remote": bucket.url, "storage_options": bucket.storage_options, "format": "toy"}
    dataset = StreamingDataset(**where, local=tmp_path / "cache", shuffle=True, batch_size=4)
    values = [int(sample["value"]) for sample in dataset]
    assert sorted(values) == list(range(30)) != values
    with pytest.raises(ConfigError, match="format 'toy': setting 'colour' is unknown"):
        StreamingDataset(**where, local=tmp_path / "cache", format_options={"colour": 1})


def test_its_files_are_detected_by_their_names(toys: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "README.md").write_text("numbers")
    for number in range(3):
        (data / f"{number}.toy").write_bytes(np.arange(number * 10, number * 10 + 10, dtype="<u4").tobytes())
    for given in (data, data / "*.toy", [data / f"{number}.toy" for number in range(3)]):
        dataset = StreamingDataset(given)
        assert [int(sample["value"]) for sample in dataset] == list(range(30))
    np.save(data / "a.npy", np.arange(3))
    with pytest.raises(ObjectNotFoundError, match=r"several formats \(3 of toy, 1 of npy\)"):
        StreamingDataset(data)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("by_sample", [True, False])
def test_one_that_reads_too_few_samples_is_an_error(toys: Path, tmp_path: Path, threads: int, by_sample: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    # One file: a thread that reads another would look for its format when the package is gone.
    np.arange(10, dtype="<u4").tofile(data / "0.short")
    given = pytest.raises(FormatError, match=r"gave (too few|\d+) values of column 'value'")
    with StreamingDataset(data, batch_size=10, read=ReadOptions(read_threads=threads)) as dataset, given:
        list(dataset if by_sample else dataset.batches())


def test_an_alias_stands_for_one_format() -> None:
    found = [format_name(name) for name in ("jsonl", "webdataset", "h5", "npy", "nonsense")]
    assert found == ["json", "tar", "hdf5", "npy", "nonsense"]
    assert format_name(None) is None
    assert not set(aliases()) & set(format_names())


def test_stokers_own_names_stay_its_own(toys: Path) -> None:
    assert type(get_format("mds")).__module__ == "stoker.formats.mds.reader"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "'broken' of toybox can not be loaded.*the toy is broken"),
        ("liar", "'liar' of toybox can not be used: it calls itself 'another'"),
        ("nothing", "'nothing' of toybox can not be used: it is not a stoker.formats.format.Format"),
        ("missing", "'missing' is unknown; known: .*mds.*toy"),
    ],
)
def test_what_is_no_format_is_reported(toys: Path, name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        get_format(name)


@pytest.mark.processes
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


@pytest.mark.processes
def test_each_format_is_imported_alone() -> None:
    code = """
        import os
        from stoker.formats.registry import format_names
        for name in tuple(format_names()):
            child = os.fork()
            if not child:
                from stoker.formats.registry import get_format
                get_format(name)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, name
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_every_name_of_the_registry_leads_to_a_format() -> None:
    for name in tuple(format_names()):
        made: Any = get_format(name)
        assert made.name == name

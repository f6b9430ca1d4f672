"""One call opens the writer of any format, and all writers have one protocol; the functions of ``stoker`` are functions."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import StreamingDataset, writers
from stoker.errors import ConfigError, FormatError
from stoker.formats import registry
from stoker.formats.registry import format_names
from stoker.writing.shard_formats import EncoderWriter, find_writer, writable_formats, writer_of
from support import environ

TOKENS = {"tokens": "ndarray:uint16:3"}
IMAGE = b"\x89PNG\r\n\x1a\n"
COLUMNS: dict[str, tuple[dict[str, str], dict[str, Any], Any]] = {
    "csv": ({"x": "int"}, {}, 1),
    "jpeg": ({"image": "jpeg"}, {}, b"\xff\xd8\xff\xe0"),
    "json": ({"x": "int"}, {}, 1),
    "png": ({"image": "png"}, {}, IMAGE),
    "tsv": ({"x": "int"}, {}, 1),
    "xsv": ({"x": "int"}, {"separator": "|"}, 1),
}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("form", writable_formats())
def test_a_writer_of_each_format_has_the_protocol(form: str, tmp_path: Path) -> None:
    columns, options, value = COLUMNS.get(form, (TOKENS, {}, np.arange(3, dtype=np.uint16)))
    (name,) = columns
    with stoker.open_writer(form, columns, tmp_path, **options) as writer:
        assert isinstance(writer, writers.Writer)
        writer.write({name: value})
        writer.end_shard()
        writer.write_batch({name: [value, value]})
        assert writer.samples_written == 3
    assert len(StreamingDataset(tmp_path, format=None if (tmp_path / "index.json").exists() else form)) == 3
    with pytest.raises(ConfigError, match="this writer is finished"):
        writer.write({name: value})
    with pytest.raises(ConfigError, match="exist_ok=True"):
        stoker.open_writer(form, columns, tmp_path, **options)
    stoker.open_writer(form, columns, tmp_path, **options, exist_ok=True).abort()


def test_every_writer_of_a_format_with_arguments_of_its_own_is_public() -> None:
    listed = {getattr(writers, name) for name in writers.__all__}
    for name in writable_formats():
        kind: Any = writer_of(name)
        assert kind in listed or (kind.__bases__ == (EncoderWriter,) and "__init__" not in vars(kind))
    assert set(writable_formats()) < set(format_names())


@pytest.mark.parametrize(
    ("value", "said"),
    [("no.such.module:Writer", "can not be loaded: ModuleNotFoundError"), ("json:dumps", "is not a subclass")],
)
def test_a_writer_of_another_package_that_is_none_is_an_error(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("megalith", value, "stoker.writers")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [entry])
    with pytest.raises(FormatError, match=said):
        find_writer.__wrapped__("megalith")


class _TheirWriter(writers.MDSWriter):
    """A writer of another package."""


def test_another_package_adds_a_writer_of_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {
        "stoker.formats": EntryPoint("theirs", "stoker.formats.mds.reader:MDSFormat", "stoker.formats"),
        "stoker.writers": EntryPoint("theirs", f"{__name__}:_TheirWriter", "stoker.writers"),
    }
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, **_: [theirs[group]])
    for one in (registry._others, find_writer):
        one.cache_clear()
    try:
        writer = stoker.open_writer("theirs", {"x": "int"}, tmp_path)
        assert type(writer) is _TheirWriter
        writer.abort()
    finally:
        monkeypatch.undo()
        for one in (registry._others, find_writer):
            one.cache_clear()


def test_other_names_of_a_format_are_known(tmp_path: Path) -> None:
    for name, kind in (("jsonl", "JSONWriter"), ("webdataset", "TarWriter"), ("mds", "MDSWriter")):
        writer = stoker.open_writer(name, {"x": "int"}, tmp_path / name)
        assert type(writer).__name__ == kind
        writer.abort()


def test_unknown_formats_and_options_are_errors_that_name_what_there_is(tmp_path: Path) -> None:
    for form, options, said in (
        ("parqet", {}, "'parqet' is unknown; did you mean 'parquet'"),
        ("nonsense", {}, r"known: .*mds.*parquet"),
        ("files", {}, "format='files' is read and not written; formats to write: arrow, .*parquet"),
        ("mds", {"sizelimit": 1}, "'sizelimit' is unknown; did you mean 'size_limit'"),
        ("tfrecord", {"row": True}, "'row' is unknown; did you mean 'raw'"),
        ("xsv", {}, "separator"),
        ("mds", {"size_limit": "many"}, "size"),
    ):
        given: dict[str, Any] = options
        with pytest.raises(ConfigError, match=said):
            stoker.open_writer(form, {"x": "int"}, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    "imports",
    [
        *permutations(
            [
                "import stoker.conversion.job",
                "from stoker import convert, inspect",
                "import stoker.inspection",
            ]
        ),
        (
            "import stoker.conversion.convert",
            "from stoker.conversion import convert",
            "import stoker.tokens.tokenize.sinks",
        ),
        ("import stoker.writers", "from stoker import *", "import stoker.inspection"),
        ("import stoker.cli.convert, stoker.cli.tokenize, stoker.cli.inspect",),
    ],
    ids=lambda lines: "; ".join(lines),
)
def test_functions_are_functions_after_imports_in_any_order(imports: tuple[str, ...]) -> None:
    code = "; ".join(["import stoker", *imports])
    code += "; names = ('convert', 'inspect', 'open_writer', 'tokenize', 'verify')"
    code += "; assert all(type(getattr(stoker, name)).__name__ == 'function' for name in names)"
    code += "; assert stoker.writers.MDSWriter is stoker.MDSWriter and stoker.testing.FormatTests"
    done = subprocess.run([sys.executable, "-c", code], env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_functions_convert_verify_and_inspect(tmp_path: Path) -> None:
    (tmp_path / "made.jsonl").write_text("".join(f'{{"text": "{number}"}}\n' for number in range(10)))
    assert stoker.convert(tmp_path / "made.jsonl", tmp_path / "mds", processes=1).samples == 10
    assert stoker.verify(tmp_path / "mds").ok
    assert stoker.inspect(tmp_path / "mds").samples == 10

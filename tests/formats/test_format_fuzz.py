"""Damaged files of every format give samples or an error of stoker's own that names the file, in bounded memory."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_all import HEAVY, SEED, FuzzError, run, run_tested
from fuzz_files import FORMATS
from fuzz_reading import facts_of

from packed_cases import opened
from stoker.errors import CorruptDataError, FormatError
from stoker.formats.parquet.thrift import skip_struct
from stoker.formats.registry import format_names, get_format
from support import TESTS


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", sorted({*FORMATS} - {*HEAVY}))
def test_mutations_are_read_or_refused(name: str) -> None:
    run_tested(name)


def test_no_format_is_left_out() -> None:
    assert {*format_names(), "compressed", "index", "side"} == {*FORMATS, "synthetic"}
    assert {*HEAVY} < {*FORMATS}  # those are in tests/test_fuzz_heavy.py


BAD = """
import os, signal, sys, time
sys.path.insert(0, {folder!r})
import fuzz_formats
from fuzz_damage import Target

def read(files, bits):
    if sum(files[0]) % 50 == 3 and len(files[0]) < 72:
        {what}

fuzz_formats.targets_of = lambda name: [Target([b"abcdefgh" * 9], read)]
fuzz_formats.main()
"""


def script_that(what: str, folder: Path) -> Path:
    """The fuzzer of a format whose reader does this to some damaged files."""
    script = folder / "bad.py"
    script.write_text(BAD.format(what=what, folder=str(TESTS / "formats")))
    return script


@pytest.mark.processes
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raise ZeroDivisionError", "neither samples nor an error of stoker's own"),
        ("bytearray(8 << 30)", "MemoryError"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
    ],
)
def test_a_fault_is_reported_with_what_makes_it_again(what: str, told: str, tmp_path: Path) -> None:
    script = script_that(what, tmp_path)
    with pytest.raises(FuzzError, match=told) as caught:
        run("npy", 4000, SEED, script=script)
    number = str(caught.value).partition("--only ")[2].split()[0]
    command: list[str] = [sys.executable, str(script), "npy", "--seed", str(SEED)]
    assert subprocess.run([*command, "--only", number], capture_output=True, check=False).returncode
    assert not subprocess.run([*command, "--mutations", number], capture_output=True, check=False).returncode


@pytest.mark.processes
def test_memory_that_grows_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FuzzError, match=r"npy: took \d+ MiB. Again: .* npy --seed 1 --first 0 --mutations"):
        run("npy", 4000, SEED, script=script_that("bytearray(b'y') * (400 << 20)", tmp_path))


@pytest.mark.processes
def test_what_hangs_is_ended_and_told(tmp_path: Path) -> None:
    with pytest.raises(FuzzError, match="not done after 5 s"):
        run("npy", 4000, SEED, timeout=5, script=script_that("time.sleep(600)", tmp_path))


@pytest.mark.parametrize("readers", [1, 2])
def test_what_is_no_character_in_an_array_is_refused(readers: int) -> None:
    out = io.BytesIO()
    np.save(out, np.array(["abc", "def", "ghi"]))
    reader = opened(out.getvalue()[:-1] + b"\x7f")
    rows = np.arange(3)
    with pytest.raises(CorruptDataError, match="the file: column 'data'"):
        get_format("npy").read_many([reader] * readers, rows % readers, rows)


def test_filters_refuse_a_footer_whose_row_group_lacks_a_column() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1], "b": [2]}), out, store_schema=False)
    whole = out.getvalue()
    footer = whole[-8 - int.from_bytes(whole[-8:-4], "little") : -8]
    # A list of two chunks, of which the second one is taken out.
    start = footer.index(b"\x19\x2c\x26\x00")
    second = skip_struct(footer, start + 2, 0)
    less = footer[:start] + b"\x19\x1c" + footer[start + 2 : second] + footer[skip_struct(footer, second, 0) :]
    with pytest.raises(FormatError, match="row group 0 has 1 column chunks, the schema 2 columns"):
        facts_of(whole[: -8 - len(footer)] + less + len(less).to_bytes(4, "little") + b"PAR1", {}, [("b", ">", 1)])

"""Formats whose columns are arrays or lists by their values: batches have those of their own samples."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from array_or_list_cases import all_told, alone, told

from stoker import StreamingDataset
from stoker.formats.tfrecord.example import crc32c_function, mask

COUNT, BATCH = 96, 4


def odd(number: int, of: int) -> bool:
    """True for some numbers, in some batches only."""
    return number // 12 % 2 == 0 and number % of == 0


def write_tar(folder: Path) -> None:
    """Members that some samples lack: the bytes of arrays."""
    with tarfile.open(folder / "a.tar", "w") as out:
        for number in range(COUNT):
            values = {"json": json.dumps(number).encode()}
            if not odd(number, 7):
                values["x"] = np.full(3, number, "<f4").tobytes()
            for name, data in values.items():
                member = tarfile.TarInfo(f"{number:04}.{name}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


def write_tfrecord(folder: Path) -> None:
    """Features of one value and of many, which some records lack."""
    pb2 = pytest.importorskip("tfrecord.example_pb2")
    crc, out = crc32c_function(), b""
    for number in range(COUNT):
        message = pb2.Example()
        feature = message.features.feature
        feature["id"].int64_list.value.append(number)
        feature["list"].int64_list.value.extend(range(2 + odd(number, 5)))
        if not odd(number, 7):
            feature["one"].float_list.value.append(number / 2)
            feature["some"].float_list.value.extend([number, number])
            feature["bytes"].bytes_list.value.append(np.full(2, number, "<i4").tobytes())
        data = message.SerializeToString()
        head = len(data).to_bytes(8, "little")
        out += head + mask(crc(head)).to_bytes(4, "little") + data + mask(crc(data)).to_bytes(4, "little")
    (folder / "a.tfrecord").write_bytes(out)


def table() -> pa.Table:
    """Numbers and lists of which some are null, or hold nulls."""
    numbers = range(COUNT)
    return pa.table(
        {
            "id": list(numbers),
            "null": pa.array([None if odd(n, 5) else n for n in numbers], pa.int16()),
            "list": [[n] * (2 + odd(n, 7)) for n in numbers],
            "holes": [[n, None if odd(n, 5) else n] for n in numbers],
            "truth": [None if odd(n, 3) else n % 2 == 0 for n in numbers],
        }
    )


def write_arrow(folder: Path) -> None:
    """Record batches of 10 rows."""
    with pa.ipc.new_file(str(folder / "a.arrow"), table().schema) as out:
        for batch in table().to_batches(max_chunksize=10):
            out.write_batch(batch)


def write_lance(folder: Path) -> None:
    """A table of three fragments."""
    if importlib.util.find_spec("lance") is None:
        pytest.skip("lance is not installed")
    with pa.ipc.new_file(str(folder.parent / "table.arrow"), table().schema) as out:
        out.write_table(table())
    # In a process of its own: one that has Lance loaded can not be forked by other tests.
    code = (
        "import lance, pyarrow.ipc, sys; "
        "lance.write_dataset(pyarrow.ipc.open_file(sys.argv[1]).read_all(), sys.argv[2], max_rows_per_file=32)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(folder.parent / "table.arrow"), str(folder / "table.lance")], check=True
    )


def write_numbers(folder: Path) -> None:
    """Lines of whole numbers, some of which no array holds."""
    lines = [json.dumps({"id": n, "n": 10**30 if odd(n, 5) else n}) for n in range(COUNT)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")


CASES: dict[str, tuple[Callable[[Path], None], dict[str, Any], tuple[str, ...]]] = {
    "tar": (write_tar, {"format_options": {"encodings": {"x": "ndarray:float32:3"}}}, ("x",)),
    "tfrecord": (
        write_tfrecord,
        {
            "format_options": {
                "columns": {"id": "int64", "list": "int64[]", "one": "float32", "some": "float32[]", "bytes": "bytes"},
                "encodings": {"bytes": "ndarray:int32:2"},
            }
        },
        ("list", "one", "some", "bytes"),
    ),
    "arrow": (write_arrow, {}, ("null", "list", "holes", "truth")),
    "lance": (write_lance, {}, ("null", "list", "holes", "truth")),
    "json": (write_numbers, {"format_options": {"columns": {"id": "int", "n": "int"}}}, ("n",)),
}


@pytest.mark.parametrize(
    "name", [*(name for name in CASES if name != "lance"), pytest.param("lance", marks=pytest.mark.processes)]
)
def test_columns_are_those_of_their_own_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "user"))
    write, options, columns = CASES[name]
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    source = folder / "table.lance" if name == "lance" else folder

    def dataset(**settings: Any) -> StreamingDataset:
        given: dict[str, Any] = {"remote": source, "format": name, "batch_size": BATCH}
        return StreamingDataset(**(given | options | settings))

    whole = all_told(dataset().batches())
    for column in columns:
        kinds = {batch[column][0] for batch in whole}
        assert kinds == {"ndarray", "list"}, column
    assert alone(dataset(), dataset()) == whole
    samples = list(dataset())
    assert all_told(samples) == [told(dataset()[number]) for number in range(COUNT)]
    for column in columns:
        for at, batch in zip(range(0, COUNT, BATCH), dataset().batches(), strict=True):
            values = [sample[column] for sample in samples[at : at + BATCH]]
            assert isinstance(batch[column], np.ndarray) == are_alike(values), column


def are_alike(values: list[Any]) -> bool:
    """Whether values are numbers that an array holds, or arrays of one shape."""
    if any(
        value is None or isinstance(value, list) or (isinstance(value, int) and value > 1 << 63) for value in values
    ):
        return False
    return len({np.shape(value) for value in values}) == 1

"""Data that lies, is torn or is out of reach: an error of stoker's own that says what and where, and nothing is lost."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from patience import PATIENCE
from s3server import Bucket
from stoker import MDSWriter, StokerError, StreamingDataset
from stoker.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptDataError,
    FormatError,
    IndexFileError,
    ObjectNotFoundError,
)

Entry = dict[str, Any]


def write(out: Path, rows: int = 60, **options: Any) -> None:
    with MDSWriter(columns={"id": "int", "text": "str"}, out=str(out), size_limit=1024, **options) as writer:
        for number in range(rows):
            writer.write({"id": number, "text": f"sample {number}"})


def edit_index(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = root / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def first_shard(change: Callable[[Entry], None]) -> Callable[[dict[str, Any]], None]:
    return lambda index: change(index["shards"][0])


INDEX_LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "version": (lambda index: index.update(version=3), "version 3"),
    "no version": (lambda index: index.pop("version"), "version"),
    "shard version": (first_shard(lambda s: s.update(version=1)), "version"),
    "no shards": (lambda index: index.pop("shards"), "shards"),
    "shards is a number": (lambda index: index.update(shards=5), "shards"),
    "unknown format": (first_shard(lambda s: s.update(format="mdz")), "'mdz'"),
    "unknown encoding": (first_shard(lambda s: s.update(column_encodings=["int", "strr"])), "'strr'"),
    "fewer encodings": (first_shard(lambda s: s.update(column_encodings=["int"])), "column_"),
    "wrong size": (first_shard(lambda s: s.update(column_sizes=[4, None])), "column_sizes|size"),
    "parent": (first_shard(lambda s: s["raw_data"].update(basename="../shard.00000.mds")), r"\.\./shard"),
    "deep parent": (first_shard(lambda s: s["raw_data"].update(basename="a/../../x")), r"a/\.\./\.\./x"),
    "absolute": (first_shard(lambda s: s["raw_data"].update(basename="/etc/passwd")), "/etc/passwd"),
    "nul": (first_shard(lambda s: s["raw_data"].update(basename="a\0b")), "unsafe name"),
    "the index itself": (first_shard(lambda s: s["raw_data"].update(basename="index.json")), r"index\.json"),
    "negative samples": (first_shard(lambda s: s.update(samples=-1)), "samples"),
    "samples is text": (first_shard(lambda s: s.update(samples="9")), "samples"),
    "negative bytes": (first_shard(lambda s: s["raw_data"].update(bytes=-5)), "bytes"),
    "ten gigabytes": (first_shard(lambda s: s["raw_data"].update(bytes=10 * 2**30)), "10737418240 bytes"),
    "unknown codec": (
        first_shard(
            lambda s: s.update(compression="rar", zip_data={**s["raw_data"], "basename": "shard.00000.mds.rar"})
        ),
        "rar",
    ),
}


@pytest.mark.parametrize("lie", INDEX_LIES)
def test_an_index_that_lies(tmp_path: Path, lie: str) -> None:
    change, message = INDEX_LIES[lie]
    write(tmp_path)
    edit_index(tmp_path, change)
    with pytest.raises(FormatError, match=message) as caught:
        StreamingDataset(local=tmp_path)
    assert "index.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 2, "shards": [7]}', "\ufeff", "[" * 100_000])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(IndexFileError, match=r"index\.json"):
        StreamingDataset(local=tmp_path)


def _set_u32(data: bytearray, place: int, value: int) -> None:
    struct.pack_into("<I", data, 4 * place, value)


def _truncate(data: bytearray) -> None:
    del data[-9:]


SHARD_LIES: dict[str, Callable[[bytearray], None]] = {
    "truncated": _truncate,
    "more samples": lambda data: _set_u32(data, 0, 1 << 30),
    "first offset in the header": lambda data: _set_u32(data, 1, 0),
    "offset beyond the file": lambda data: _set_u32(data, 3, 1 << 31),
    "offsets backwards": lambda data: _set_u32(data, 3, struct.unpack_from("<I", data, 8)[0] - 4),
    "last offset short": lambda data: _set_u32(data, 1 + struct.unpack_from("<I", data)[0], 40),
    "a column too long": lambda data: _set_u32_at(data, struct.unpack_from("<I", data, 4)[0], 0xFFFFFFF0),
    "a column too short": lambda data: _set_u32_at(data, struct.unpack_from("<I", data, 4)[0], 0),
    "text that is no text": lambda data: data.__setitem__(slice(-4, None), b"\xff\xfe\xfd\xfc"),
}


def _set_u32_at(data: bytearray, offset: int, value: int) -> None:
    struct.pack_into("<I", data, offset, value)


@pytest.mark.parametrize("lie", SHARD_LIES)
@pytest.mark.parametrize("way", ["iterate", "batches", "by id"])
def test_a_shard_that_lies(tmp_path: Path, lie: str, way: str) -> None:
    write(tmp_path)
    path = tmp_path / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    SHARD_LIES[lie](data)
    path.write_bytes(data)
    dataset = StreamingDataset(local=tmp_path, batch_size=7)
    ways: dict[str, Callable[[], Any]] = {
        "iterate": lambda: list(dataset),
        "batches": lambda: list(dataset.batches()),
        "by id": lambda: dataset[:],
    }
    with pytest.raises((CorruptDataError, ObjectNotFoundError), match=r"shard\.00001\.mds"):
        ways[way]()
    assert path.read_bytes() == bytes(data)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_to_a_shard_gives_samples_or_an_error_of_our_own(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "fuzzed"
    if not root.exists():
        with MDSWriter(
            columns={"a": "ndarray", "b": "str", "c": "uint16", "d": "json", "e": "ndarray:int8", "f": "str_int"},
            out=str(root),
        ) as writer:
            for number in range(8):
                writer.write(
                    {
                        "a": np.arange(number + 1, dtype=np.float32).reshape(1, -1),
                        "b": "x" * number,
                        "c": number,
                        "d": {"n": [number]},
                        "e": np.ones(3, np.int8),
                        "f": 10**number,
                    }
                )
        (tmp_path / "whole").write_bytes((root / "shard.00000.mds").read_bytes())
    changed = bytearray((tmp_path / "whole").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    (root / "shard.00000.mds").write_bytes(changed)
    try:
        samples = list(StreamingDataset(local=root))
    except StokerError as error:
        assert "shard.00000.mds" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert len(samples) == 8


BOMB = """
import sys
from stoker import StreamingDataset
from stoker.errors import CorruptDataError
try:
    list(StreamingDataset(remote=sys.argv[1], local=sys.argv[2]))
except CorruptDataError as error:
    assert "shard.00000.mds" in str(error), error
    # Not getrusage(): its figure includes what the test's own process had when it forked.
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.processes
@pytest.mark.parametrize("claimed", [2000, 3 * 2**30])
def test_a_small_file_that_expands_without_end(tmp_path: Path, claimed: int) -> None:
    import gzip

    remote = tmp_path / "remote"
    write(remote, rows=5, compression="gz")
    bomb = gzip.compress(bytes(64 << 20), 9)
    (remote / "shard.00000.mds.gz").write_bytes(bomb)

    def change(shard: Entry) -> None:
        shard["zip_data"]["bytes"] = len(bomb)
        shard["raw_data"]["bytes"] = claimed

    edit_index(remote, first_shard(change))
    code = [sys.executable, "-c", BOMB, str(remote), str(tmp_path / "local")]
    # The claim of 3 GiB must not become an allocation of 3 GiB either.
    done = subprocess.run(
        code,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, done.stderr
    assert int(done.stdout) / 1024 < 400
    assert not list((tmp_path / "local").glob("shard.*"))


def test_a_zip_that_is_none(tmp_path: Path) -> None:
    for codec in ("zstd", "gz", "br", "bz2", "snappy"):
        remote = tmp_path / codec
        write(remote, rows=5, compression=codec)
        path = remote / f"shard.00000.mds.{codec}"
        path.write_bytes(zlib.crc32(b"x").to_bytes(4, "big") * (path.stat().st_size // 4 + 1))

        def change(shard: Entry, size: int = path.stat().st_size) -> None:
            shard["zip_data"]["bytes"] = size

        edit_index(remote, first_shard(change))
        with pytest.raises(CorruptDataError, match=rf"shard\.00000\.mds\.{codec}"):
            list(StreamingDataset(remote=remote, local=tmp_path / "cache" / codec))


# -- out of reach ------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_wrong_credentials_name_the_url_and_not_the_secret(bucket: Bucket, tmp_path: Path) -> None:
    with MDSWriter(columns={"id": "int"}, out=f"{bucket.url}/d", storage_options=bucket.storage_options) as writer:
        writer.write({"id": 1})
    wrong = {**bucket.storage_options, "secret_access_key": "not-the-secret"}
    with pytest.raises(AccessDeniedError, match=r"s3://.*/d/index\.json") as caught:
        StreamingDataset(remote=f"{bucket.url}/d", local=tmp_path / "a", storage_options=wrong)
    assert "not-the-secret" not in str(caught.value)
    with (
        pytest.raises(AccessDeniedError, match="s3://"),
        MDSWriter(columns={"id": "int"}, out=f"{bucket.url}/e", storage_options=wrong) as writer,
    ):
        writer.write({"id": 1})
    right = StreamingDataset(remote=f"{bucket.url}/d", local=tmp_path / "a", storage_options=bucket.storage_options)
    assert [sample["id"] for sample in right] == [1]


@pytest.mark.s3
def test_no_bucket_and_no_dataset_are_distinguished(bucket: Bucket, tmp_path: Path) -> None:
    options = {"local": tmp_path, "storage_options": bucket.storage_options}
    with pytest.raises(ObjectNotFoundError, match="bucket"):
        StreamingDataset(remote="s3://there-is-no-such-bucket-here/d", **options)  # type: ignore[arg-type]
    with pytest.raises(ObjectNotFoundError, match="nothing is there: there are no files"):
        StreamingDataset(remote=f"{bucket.url}/nothing", **options)  # type: ignore[arg-type]


@pytest.mark.s3
def test_two_identities_in_one_process(bucket: Bucket, tmp_path: Path) -> None:
    with MDSWriter(columns={"id": "int"}, out=f"{bucket.url}/d", storage_options=bucket.storage_options) as writer:
        writer.write_batch({"id": np.arange(10)})
    good = StreamingDataset(remote=f"{bucket.url}/d", local=tmp_path / "a", storage_options=bucket.storage_options)
    iterator = iter(good)
    next(iterator)
    with pytest.raises(AccessDeniedError):
        StreamingDataset(
            remote=f"{bucket.url}/d",
            local=tmp_path / "b",
            storage_options={**bucket.storage_options, "access_key_id": "stranger"},
        )
    assert len(list(iterator)) == 9


# -- wrong declarations of good data -----------------------------------------------------------------------------------


def _archive(path: Path) -> None:
    """A tar of WebDataset's with three samples, the last of which has one file more."""
    image = BytesIO()
    Image.new("RGB", (4, 4)).save(image, "JPEG")
    array = BytesIO()
    np.save(array, np.arange(3))
    with tarfile.open(path, "w") as archive:
        for number in range(3):
            files = {"jpg": image.getvalue(), "cls": b"%d" % number, "npy": array.getvalue(), "txt": b"some text"}
            if number == 2:
                files["note"] = b"the last"
            for column, data in files.items():
                info = tarfile.TarInfo(f"{number:04}.{column}")
                info.size = len(data)
                archive.addfile(info, BytesIO(data))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encodings": {"jpg": "pil"}}, "'jpg' holds a JPEG image, and is declared as 'pil' .*: declare it as 'jpeg'"),
        ({"encodings": {"jpg": "int"}}, r"'jpg' holds a JPEG image, and is declared as 'int' \(8 raw bytes\)"),
        ({"encodings": {"npy": "ndarray"}}, "'npy' holds an NPY file, .*: leave it out of encodings="),
        ({"encodings": {"cls": "float64"}}, r"'cls' holds a number in digits \('0'\), .*: declare it as 'str_int'"),
        ({"encodings": {"txt": "int"}}, r"'txt' holds text \('some text'\), .*: declare it as 'str'"),
        ({"encodings": {"jgp": "jpeg"}}, "encodings: column 'jgp' is unknown; did you mean 'jpg'"),
        ({"encodings": {"jpg": "jpge"}}, "encoding 'jpge' is unknown; did you mean 'jpeg'"),
        ({"encodings": ["jpg"]}, "encodings must be a dict of strings"),
        ({"encodings": {"jpg": 5}}, r"encodings\['jpg'\] must be a string, got 5"),
        ({"columns": ["jpg", "clss"]}, "columns: column 'clss' is unknown"),
        ({"columns": "jpg"}, r"for a single one, write columns=\['jpg'\]"),
        ({"columns": []}, "columns must be a list of at least one"),
        ({"encoding": {"jpg": "jpeg"}}, "setting 'encoding' is unknown; did you mean 'encodings'"),
    ],
)
def test_a_wrong_declaration_is_distinguished_from_damaged_data(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    _archive(tmp_path / "a.tar")
    with pytest.raises((ConfigError, FormatError), match=message) as caught:
        list(StreamingDataset(remote=tmp_path, format="tar", format_options=settings))
    assert not isinstance(caught.value, CorruptDataError)


@pytest.mark.parametrize("kind", ["int", "uint8", "int64"])
def test_digits_of_a_class_are_a_number_of_any_declared_type(tmp_path: Path, kind: str) -> None:
    _archive(tmp_path / "a.tar")
    options = {"encodings": {"cls": kind}, "columns": ["cls", "note"]}
    samples = list(StreamingDataset(remote=tmp_path, format="tar", format_options=options))
    assert [(int(sample["cls"]), sample["note"]) for sample in samples] == [(0, None), (1, None), (2, b"the last")]


def test_a_damaged_file_of_the_declared_kind_stays_damaged_data(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("0.json")
        info.size = 7
        archive.addfile(info, BytesIO(b'{"a": 1'))
    with pytest.raises(CorruptDataError, match="'json'"):
        list(StreamingDataset(remote=tmp_path, format="tar"))


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_unknown_shuffle_names_all_that_there_are(tmp_path: Path, shuffle: bool) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError, match=r"shuffle_algo 'py1x' is unknown; did you mean 'py1.'") as caught:
        StreamingDataset(local=tmp_path, shuffle=shuffle, shuffle_algo="py1x")
    for name in ("block", "global", "shard", "naive", "py1s", "py2s", "py1br", "py1e"):
        assert name in str(caught.value)

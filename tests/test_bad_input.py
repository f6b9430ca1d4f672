"""Data that lies, is torn or is out of reach: an error of stoker's own that says what and where, and nothing is lost."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3server import Bucket
from stoker import MDSWriter, StokerError, StreamingDataset
from stoker.errors import (
    AccessDeniedError,
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
        timeout=120,
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
def test_wrong_credentials_name_the_place_and_not_the_secret(bucket: Bucket, tmp_path: Path) -> None:
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
def test_no_bucket_and_no_dataset_are_told_apart(bucket: Bucket, tmp_path: Path) -> None:
    options = {"local": tmp_path, "storage_options": bucket.storage_options}
    with pytest.raises(ObjectNotFoundError, match="bucket"):
        StreamingDataset(remote="s3://there-is-no-such-bucket-here/d", **options)  # type: ignore[arg-type]
    with pytest.raises(ObjectNotFoundError, match=r"nothing/index\.json"):
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

"""Text, tar and TFRecord files that others compressed: decompressed once, into the cache, and streamed like any other."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import multiprocessing
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset
from stoker.cache import decompress as unpacking
from stoker.catalog.detect import Detected, detect
from stoker.conversion import convert
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.registry import get_format
from stoker.inspection import inspect, verify
from stoker.storage import open_store
from support import cache_of

ROWS = 40
FILES = 3

pytestmark = pytest.mark.usefixtures("own_cache")


def zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


PACK: dict[str, Any] = {".gz": gzip.compress, ".zst": zstd}


def json_file(ids: range) -> bytes:
    return "".join(json.dumps({"id": n, "text": "é" * (n % 5)}, ensure_ascii=False) + "\n" for n in ids).encode()


def csv_file(ids: range) -> bytes:
    return ("﻿id,text\r\n" + "".join(f'{n},"a\nb,{n}"\r\n' for n in ids)).encode()


def tsv_file(ids: range) -> bytes:
    return ("id\ttext\n" + "".join(f"{n}\tx\n" for n in ids)).encode()


def tar_file(ids: range) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for n in ids:
            member = tarfile.TarInfo(f"{n:05}.id")
            member.size = len(str(n))
            archive.addfile(member, io.BytesIO(str(n).encode()))
    return out.getvalue()


FORMS: dict[str, tuple[str, Any]] = {
    "csv": (".csv", csv_file),
    "json": (".jsonl", json_file),
    "tar": (".tar", tar_file),
    "tsv": (".tsv", tsv_file),
}


def fill(folder: Path, form: str, end: str) -> Path:
    suffix, make = FORMS[form]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        run = range(number * ROWS, number * ROWS + ROWS)
        (folder / f"part-{number}{suffix}{end}").write_bytes(PACK[end](make(run)))
    return folder


def numbers(dataset: StreamingDataset) -> list[int]:
    return [int(sample["id"]) for sample in dataset]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", PACK)
@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.s3)])
def test_they_are_streamed_shuffled_and_resumed(
    form: str, end: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = fill(tmp_path / "data", form, end)
    where: dict[str, Any] = {"remote": folder, "format": form}
    if place == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        store = open_store(f"{bucket.url}/dump", bucket.storage_options)
        for path in folder.iterdir():
            store.put(path.name, path.read_bytes())
        where.update(remote=f"{bucket.url}/dump", storage_options=bucket.storage_options, local=tmp_path / "cache")
    assert detect(where["remote"], where.get("storage_options")) == Detected("files", form)
    before = sorted(path.name for path in folder.rglob("*"))
    plain = StreamingDataset(**where)
    assert numbers(plain) == list(range(FILES * ROWS))
    assert len(plain.index.shards) == FILES
    shuffled = numbers(StreamingDataset(**where, shuffle=True, batch_size=8))
    assert sorted(shuffled) == list(range(FILES * ROWS))
    assert shuffled != sorted(shuffled)
    again = StreamingDataset(**where, shuffle=True, batch_size=8)
    iterator = iter(again)
    head = [int(next(iterator)["id"]) for _ in range(48)]
    resumed = StreamingDataset(**where, shuffle=True, batch_size=8)
    resumed.load_state_dict(again.state_dict())
    assert head + numbers(resumed) == shuffled
    assert sorted(path.name for path in folder.rglob("*")) == before  # a data set is not written to


def test_files_with_the_numbers_of_tensorflow_do_not_share_what_comes_out_of_them(tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / f"x.jsonl.gz-0000{number}-of-00002"
        path.write_bytes(gzip.compress(json_file(range(10 + number * 10, 20 + number * 10)), 0, mtime=0))
        os.utime(path, (1, 1))  # of one size and time
    assert len({path.stat().st_size for path in tmp_path.iterdir()}) == 1
    assert numbers(StreamingDataset(tmp_path)) == list(range(10, 30))
    (tmp_path / "x.jsonl-00000-of-00002").write_bytes(json_file(range(9)))
    with pytest.raises(ConfigError, match=r"x\.jsonl\.gz-00000-of-00002 lies beside x\.jsonl-00000-of-00002"):
        StreamingDataset(tmp_path)


def test_samples_are_the_same_as_of_files_that_are_not_compressed(tmp_path: Path) -> None:
    suffix, make = FORMS["csv"]
    (tmp_path / "plain").mkdir()
    for number in range(FILES):
        (tmp_path / "plain" / f"{number}{suffix}").write_bytes(make(range(number * 9, number * 9 + 9)))
    (tmp_path / "packed").mkdir()
    for path in (tmp_path / "plain").iterdir():
        (tmp_path / "packed" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    options: dict[str, Any] = {"format": "csv"}
    found = [list(StreamingDataset(remote=tmp_path / name, **options)) for name in ("plain", "packed")]
    assert found[0] == found[1]
    options["format_options"] = {"piece_bytes": 60}
    cut = [StreamingDataset(remote=tmp_path / name, **options) for name in ("plain", "packed")]
    assert len(cut[0].index.shards) == len(cut[1].index.shards) > FILES
    assert list(cut[0]) == list(cut[1])


LINES = st.lists(st.sampled_from([b"{}", b"\n", b"\r\n", b'{"n": 1}\n', b'{"n": "\xc3\xa9"}\n']), max_size=20).map(
    lambda parts: b"\n".join(parts)
)


@given(text=LINES, cut=st.integers(0, 40), end=st.sampled_from(sorted(PACK)), size=st.integers(1, 50))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_in_any_number_of_streams(
    text: bytes, cut: int, end: str, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("text")
    (folder / "plain").mkdir()
    (folder / "packed").mkdir()
    (folder / "plain" / "a.jsonl").write_bytes(text)
    (folder / "packed" / f"a.jsonl{end}").write_bytes(PACK[end](text[:cut]) + PACK[end](text[cut:]))
    given_: dict[str, Any] = {"format": "json", "format_options": {"columns": {"n": "json"}, "piece_bytes": size}}
    plain, packed = (list(StreamingDataset(remote=folder / name, **given_)) for name in ("plain", "packed"))
    assert plain == packed


def test_a_second_start_opens_no_file_and_a_new_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "json", ".gz")
    first = StreamingDataset(remote=tmp_path, format="json")
    form: Any = type(get_format("json"))
    original, seen = form.inspect_header, []

    def counted(self: Any, source: Any, settings: Any) -> Any:
        seen.append(source.where)
        return original(self, source, settings)

    monkeypatch.setattr(form, "inspect_header", counted)
    with monkeypatch.context() as patch:
        patch.setattr(unpacking, "_decompress", lambda *_: pytest.fail("decompressed a second time"))
        again = StreamingDataset(remote=tmp_path, format="json")
        assert again.index.fingerprint == first.index.fingerprint
        assert numbers(again) == list(range(FILES * ROWS))
    assert not seen
    (tmp_path / "part-1.jsonl.gz").write_bytes(gzip.compress(json_file(range(900, 907))))
    changed = StreamingDataset(remote=tmp_path, format="json")
    assert [Path(one).name for one in seen] == ["part-1.jsonl.gz"]
    assert numbers(changed)[ROWS : ROWS + 7] == list(range(900, 907))


def test_what_was_evicted_is_decompressed_again_and_the_limit_kept(tmp_path: Path) -> None:
    fill(tmp_path / "data", "json", ".zst")
    where: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "format": "json"}
    size = max(len(json_file(range(n * ROWS, n * ROWS + ROWS))) for n in range(FILES))
    limit = 2 * size + size // 2
    dataset = StreamingDataset(**where, cache_limit=limit)
    held = [path.stat().st_size for path in cache_of(tmp_path / "cache").glob("*.jsonl")]
    assert 0 < sum(held) <= limit
    for _ in range(2):
        assert numbers(dataset) == list(range(FILES * ROWS))
    (tmp_path / "cache2").mkdir()
    where["local"] = tmp_path / "cache2"
    whole = StreamingDataset(**where)
    for path in cache_of(tmp_path / "cache2").glob("*.jsonl"):
        path.unlink()
    assert numbers(whole) == list(range(FILES * ROWS))
    torn = next(cache_of(tmp_path / "cache2").glob("*.jsonl"))
    torn.write_bytes(torn.read_bytes()[:-1])
    assert numbers(StreamingDataset(**where)) == list(range(FILES * ROWS))


@pytest.mark.s3
def test_each_file_is_fetched_once(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_STRETCH", 100)  # a file comes in several pieces, however small
    folder = fill(tmp_path / "data", "json", ".gz")
    store = open_store(f"{bucket.url}/dump", bucket.storage_options)
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())
    dataset = StreamingDataset(
        remote=f"{bucket.url}/dump", local=tmp_path / "cache", format="json", storage_options=bucket.storage_options
    )
    assert numbers(dataset) == list(range(FILES * ROWS))
    assert dataset.stats().bytes_fetched == sum(path.stat().st_size for path in folder.iterdir())
    assert not list((tmp_path / "cache" / ".stoker").glob("*.part"))


def test_zeros_behind_streams_of_gzip_are_nothing(tmp_path: Path) -> None:
    """As tapes and stores of blocks leave them; gzip reads it."""
    parts = [json_file(range(n, n + 5)) for n in range(0, 20, 5)] + [b"\n"]
    for name, zeros in {"a": 1, "b": 512, "c": 1 << 17}.items():
        data = b"".join(gzip.compress(part) + bytes(zeros) for part in parts)
        assert gzip.decompress(data) == b"".join(parts)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(data)
    assert [row["id"] for row in StreamingDataset(tmp_path)] == [*range(20)] * 3
    assert inspect(tmp_path, count=True).samples == 60
    (tmp_path / "a.jsonl.gz").write_bytes(bytes(512))
    with pytest.raises(CorruptDataError, match=r"a\.jsonl\.gz: not gz, damaged, or cut off"):
        StreamingDataset(tmp_path)


def test_zstd_of_a_large_window_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(base64.b64decode("KLUv/QCohQAAQHsiYSI6MX0KAQA1v75wAQ=="))  # --long=31
    for read in (StreamingDataset, inspect):
        with pytest.raises(CorruptDataError, match=r"a\.jsonl\.zst: .*its window is larger than 128 MiB.*--long=31"):
            read(tmp_path)


@pytest.mark.parametrize("end", PACK)
@pytest.mark.parametrize("damage", ["cut", "flip", "none of it", "junk behind"])
def test_a_damaged_file_is_named_and_leaves_nothing(end: str, damage: str, tmp_path: Path, own_cache: Path) -> None:
    fill(tmp_path, "json", end)
    path = tmp_path / f"part-1.jsonl{end}"
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:-9],
            "flip": data[:middle] + bytes(byte ^ 255 for byte in data[middle : middle + 9]) + data[middle + 9 :],
            "none of it": b"what is this",
            "junk behind": data + b"junkjunkjunk",
        }[damage]
    )
    with pytest.raises(CorruptDataError, match=rf"part-1\.jsonl{end}: "):
        list(StreamingDataset(remote=tmp_path, format="json"))
    assert not [one for one in own_cache.rglob("*") if "part-1" in one.name]


def test_a_file_that_claims_to_hold_the_world_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_ALWAYS", 1 << 20)
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(b" " * (20 << 20)))
    with pytest.raises(CorruptDataError, match=r"bomb\.jsonl\.gz: .* hold more than .*: decompress it by hand"):
        StreamingDataset(remote=tmp_path, format="json")


def test_a_file_and_itself_compressed_are_not_both_read(tmp_path: Path) -> None:
    fill(tmp_path, "json", ".gz")
    (tmp_path / "part-1.jsonl").write_bytes(json_file(range(3)))
    with pytest.raises(
        ConfigError, match=r"part-1\.jsonl\.gz lies beside part-1\.jsonl, and its samples would come twice"
    ):
        StreamingDataset(remote=tmp_path, format="json")
    dataset = StreamingDataset(remote=f"{tmp_path}/*.gz", format="json")
    assert numbers(dataset) == list(range(FILES * ROWS))
    (tmp_path / "part-1.jsonl").rename(tmp_path / "part-9.jsonl")
    assert numbers(StreamingDataset(remote=tmp_path, format="json"))[-3:] == [0, 1, 2]


def test_one_file_or_a_list_of_them(tmp_path: Path) -> None:
    fill(tmp_path, "json", ".gz")
    one = StreamingDataset(remote=tmp_path / "part-2.jsonl.gz", format="json")
    assert numbers(one) == list(range(2 * ROWS, 3 * ROWS))
    two = StreamingDataset(remote=[tmp_path / "part-2.jsonl.gz", tmp_path / "part-0.jsonl.gz"], format="json")
    assert numbers(two) == [*range(2 * ROWS, 3 * ROWS), *range(ROWS)]
    (tmp_path / "empty.jsonl.gz").write_bytes(gzip.compress(b""))
    assert len(StreamingDataset(remote=tmp_path, format="json")) == FILES * ROWS


def test_they_are_inspected_and_verified(tmp_path: Path) -> None:
    fill(tmp_path, "csv", ".gz")
    facts = inspect(tmp_path, count=True, samples=2)
    assert (facts.format, facts.samples, len(facts.preview)) == ("csv", FILES * ROWS, 2)
    assert verify(tmp_path, deep=True).ok
    path = tmp_path / "part-1.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    report = verify(tmp_path, deep=True)
    assert [problem.key for problem in report.problems] == ["part-1.csv.gz"]


def test_they_are_converted_and_nothing_of_them_stays(tmp_path: Path, own_cache: Path) -> None:
    fill(tmp_path / "data", "json", ".gz")
    report = convert(tmp_path / "data", tmp_path / "mds", processes=1)
    assert (report.samples, report.columns) == (FILES * ROWS, {"id": "int", "text": "str"})
    assert numbers(StreamingDataset(local=tmp_path / "mds")) == list(range(FILES * ROWS))
    assert not list(own_cache.rglob("*.jsonl"))


def _read(folder: Path, queue: Any) -> None:
    dataset = StreamingDataset(remote=folder, format="json", shuffle=True, batch_size=8)
    queue.put(numbers(dataset))


@pytest.mark.processes
def test_processes_of_a_node_share_what_is_decompressed(tmp_path: Path, own_cache: Path) -> None:
    fill(tmp_path, "json", ".gz")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_read, args=(tmp_path, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=PATIENCE) for _ in processes]
    for process in processes:
        process.join(PATIENCE)
    assert all(one == found[0] for one in found)
    assert np.array_equal(sorted(found[0]), np.arange(FILES * ROWS))
    assert len(list(own_cache.rglob("*.jsonl"))) == FILES
    assert not list(own_cache.rglob("*.part"))


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("a.csv", gzip.compress, "gzip data: end its name with .gz"),
        ("a.jsonl", gzip.compress, "gzip data: end its name with .gz"),
        ("a.tar", gzip.compress, "not a tar archive, but gzip data: end its name with .gz"),
        ("a.tfrecord", gzip.compress, "not a TFRecord file, but gzip data: end its name with .gz"),
        ("a.tar", bz2.compress, "bzip2 data: decompress it"),
        ("a.csv", lzma.compress, "xz data: decompress it"),
        ("a.csv", lambda data: data.decode().encode("utf-16"), "UTF-16 text: convert it"),
        ("a.jsonl", lambda data: data.decode().encode("utf-16be"), "UTF-16 text without its mark: convert it"),
    ],
)
def test_what_is_packed_and_not_named_so_is_told(
    tmp_path: Path, name: str, make: Callable[[bytes], bytes], told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(make(b"a,b\n1,2\n" * 200))
    with pytest.raises(CorruptDataError, match=told):
        StreamingDataset(path)

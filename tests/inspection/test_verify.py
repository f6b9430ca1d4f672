"""``verify``: what is whole passes, whatever is broken is found and named, and nothing crashes it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken import FORMATS, OTHERS, ROWS, flip, shard_files, write, write_others
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packed_cases import tiny_image
from s3server import Bucket
from stoker import MDSWriter
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.formats.common.compression import parse_compression
from stoker.formats.parquet.pages import page_heads
from stoker.inspection import Problem, VerifyReport, inspect, verify
from stoker.storage import open_store
from stoker.storage.files.locked_folder import LockedFolder

_HASHED = ("mds", "json", "xsv", "arrow", "npz", "tar", "tfrecord", "png")
_PROPERTY = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def kinds(report: VerifyReport) -> set[str]:
    return {problem.kind for problem in report.problems}


def upload(root: Path, bucket: Bucket) -> str:
    url = f"{bucket.url}/{root.name}"
    store = open_store(url, bucket.storage_options)
    for path in root.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(root).as_posix(), path.read_bytes())
    return url


@pytest.mark.parametrize(
    ("name", "compression"),
    [*((name, None) for name in FORMATS), *((name, "zstd") for name in FORMATS if name not in ("jpeg", "png"))],
)
def test_what_was_written_is_whole(name: str, compression: str | None, tmp_path: Path) -> None:
    write(name, tmp_path / "data", hashes=["xxh64", "sha1"], **({"compression": compression} if compression else {}))
    depths: list[dict[str, Any]] = [{}, {"deep": True}, {"quick": True}]
    for options in depths:
        report = verify(tmp_path / "data", **options)
        assert report.ok, report.problems
        assert report.samples == ROWS
        assert report.shards > 1
        assert not report.strange
        assert not report.notes
        files = len(shard_files(tmp_path / "data"))
        # Of a compressed shard both the file and what comes out of it are compared.
        assert report.hashed == (0 if options.get("quick") else files * (2 if compression else 1))


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_wrote_is_whole(name: str, tmp_path: Path) -> None:
    write_others(name, tmp_path / "data")
    depths: list[dict[str, Any]] = [{}, {"deep": True}]
    for options in depths:
        report = verify(tmp_path / "data", **options)
        assert report.ok, report.problems
        assert (report.format, report.samples) == (name.removesuffix("_rows"), ROWS)
    assert verify(tmp_path / "data", quick=True).ok


@pytest.mark.s3
@pytest.mark.parametrize("name", ["mds", "json", "tfrecord", "jpeg"])
def test_damage_on_an_object_store_is_found(name: str, tmp_path: Path, bucket: Bucket) -> None:
    write(name, tmp_path / "data", hashes=["xxh3_64"])
    url = upload(tmp_path / "data", bucket)
    assert verify(url, deep=True, storage_options=bucket.storage_options).ok
    victim = shard_files(tmp_path / "data")[3]
    flip(victim, 20)
    key = victim.relative_to(tmp_path / "data").as_posix()
    store = open_store(url, bucket.storage_options)
    store.put(key, victim.read_bytes())
    report = verify(url, storage_options=bucket.storage_options)
    assert [problem.key for problem in report.problems if problem.kind == "hash"] == [key]
    assert len({problem.shard for problem in report.problems}) == 1
    store.delete(key)
    report = verify(url, storage_options=bucket.storage_options)
    assert [(problem.kind, problem.key) for problem in report.problems] == [("missing", key)]


@pytest.mark.s3
@pytest.mark.parametrize("name", ["npy", "parquet", "png", "tfrecord"])
def test_others_files_on_an_object_store(name: str, tmp_path: Path, bucket: Bucket) -> None:
    write_others(name, tmp_path / "data")
    url = upload(tmp_path / "data", bucket)
    report = verify(url, deep=True, storage_options=bucket.storage_options)
    assert report.ok, report.problems
    assert report.samples == ROWS
    victim = shard_files(tmp_path / "data")[1]
    key = victim.relative_to(tmp_path / "data").as_posix()
    open_store(url, bucket.storage_options).put(key, victim.read_bytes()[:-30])
    report = verify(url, deep=True, storage_options=bucket.storage_options)
    assert {problem.key for problem in report.problems} == {key}


@pytest.mark.parametrize(
    ("name", "compression"), [*((name, None) for name in _HASHED), ("mds", "zstd"), ("json", "gz"), ("tfrecord", "br")]
)
def test_any_flipped_byte_of_a_hashed_dataset_is_found(
    name: str, compression: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("data") / "data"
    write(name, root, hashes=["xxh64"], **({"compression": compression} if compression else {}))
    files = shard_files(root)

    @_PROPERTY
    @given(st.data())
    def check(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(files))
        at = data.draw(st.integers(0, victim.stat().st_size - 1))
        bits = data.draw(st.integers(1, 255))
        flip(victim, at, bits)
        try:
            report = verify(root)
            assert victim.relative_to(root).as_posix() in {problem.key for problem in report.problems}
            assert "hash" in kinds(report)
        finally:
            flip(victim, at, bits)

    check()
    assert verify(root, deep=True).ok


@pytest.mark.parametrize(
    ("name", "ours"), [*((name, True) for name in FORMATS), *((name, False) for name in ("megatron", "npz", "parquet"))]
)
def test_deep_verify_survives_any_damage_without_hashes(
    name: str, ours: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("data") / "data"
    if not ours:
        write_others(name, root)
    else:
        write(name, root)
    files = shard_files(root)

    @_PROPERTY
    @given(st.data())
    def check(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(files))
        whole = victim.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "insert", "zeros"]))
        damaged = {
            "flip": whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :],
            "cut": whole[:at],
            "insert": whole[:at] + b"\xff" + whole[at:],
            "zeros": whole[:at] + bytes(min(16, len(whole) - at)) + whole[at + 16 :],
        }[how]
        victim.write_bytes(damaged)
        try:
            report = verify(root, deep=True)
            key = victim.relative_to(root).as_posix()
            assert {problem.shard for problem in report.problems} <= {_shard_of(report, key)}
            if ours and len(damaged) != len(whole):
                assert not report.ok
        finally:
            victim.write_bytes(whole)

    check()
    assert verify(root, deep=True).ok


def _shard_of(report: VerifyReport, key: str) -> int | None:
    """The shard of the first problem; all must be of the same, which is that of the file."""
    for problem in report.problems:
        assert _stem(problem.key) == _stem(key)
    return report.problems[0].shard if report.problems else None


def _stem(key: str) -> str:
    return key.removesuffix(".meta").removesuffix(".bin").removesuffix(".idx")


@pytest.mark.parametrize("name", ["tfrecord", "png"])
def test_formats_with_checksums_need_no_hashes(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("data") / "data"
    write_others(name, root)
    victim = shard_files(root)[1]

    @_PROPERTY
    @given(at=st.integers(0, victim.stat().st_size - 1), bits=st.integers(1, 255))
    def check(at: int, bits: int) -> None:
        flip(victim, at, bits)
        try:
            report = verify(root)
            assert [problem.key for problem in report.problems][:1] == [victim.relative_to(root).as_posix()]
        finally:
            flip(victim, at, bits)

    check()


def test_npz_members_are_compared_with_their_checksums(tmp_path: Path) -> None:
    write_others("npz", tmp_path / "data")
    victim = shard_files(tmp_path / "data")[0]
    data = victim.read_bytes()
    at = data.index(b"NUMPY", data.index(b"pixels.npy")) + 200
    flip(victim, at)
    (problem,) = verify(tmp_path / "data").problems
    assert (problem.kind, problem.shard, problem.key) == ("structure", 0, victim.name)
    assert "pixels.npy" in problem.message


@pytest.mark.parametrize("name", FORMATS)
def test_each_kind_of_trouble_is_named(name: str, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write(name, root, hashes=["sha1"])
    index = json.loads((root / "index.json").read_text())
    names = [entry["raw_data"]["basename"] for entry in index["shards"]]
    (root / names[0]).unlink()
    with (root / names[1]).open("ab") as file:
        file.write(b"more")
    (root / "notes.txt").write_text("left here")
    report = verify(root)
    assert [(problem.kind, problem.shard, problem.key) for problem in report.problems] == [
        ("missing", 0, names[0]),
        ("size", 1, names[1]),
    ]
    assert report.strange == ("notes.txt",)
    assert all(problem.key in problem.message for problem in report.problems)
    assert kinds(verify(root, quick=True)) == {"missing", "size"}


def test_a_count_that_is_not_the_shards_is_found(tmp_path: Path) -> None:
    write("mds", tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"][2]["samples"] -= 1
    (tmp_path / "index.json").write_text(json.dumps(index))
    report = verify(tmp_path)
    assert [(problem.kind, problem.shard) for problem in report.problems] == [("structure", 2)]


def test_offsets_that_run_backwards_are_found_without_hashes(tmp_path: Path) -> None:
    write("mds", tmp_path, hashes=())
    victim = tmp_path / "shard.00001.mds"
    flip(victim, 4 + 4 * 3 + 2, 0x7F)
    report = verify(tmp_path)
    assert [(problem.kind, problem.shard) for problem in report.problems] == [("structure", 1)]
    assert "no hashes" in report.notes[0]


def image_dataset(root: Path, numbers: range = range(10)) -> None:
    with MDSWriter({"image": "jpeg", "label": "int"}, root, size_limit=3000, hashes=()) as writer:
        for number in numbers:
            writer.write({"image": tiny_image(number, "jpeg"), "label": number})


def test_deep_names_the_sample_and_the_column(tmp_path: Path) -> None:
    image_dataset(tmp_path)
    victim = shard_files(tmp_path)[1]
    data = victim.read_bytes()
    ends = [at for at in range(len(data)) if data.startswith(b"\xff\xd8\xff", at)]
    victim.write_bytes(data[: ends[1]] + b"\0" * 8 + data[ends[1] + 8 :])
    assert verify(tmp_path).ok
    (problem,) = verify(tmp_path, deep=True).problems
    shards = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert problem == Problem(
        "decode", str(victim), problem.message, victim.name, 1, 1, shards[0]["samples"] + 1, "image"
    )
    assert str(problem).startswith(f"decode: shard 1, sample 1 ({shards[0]['samples'] + 1} of all), column 'image': ")


def test_images_that_are_cut_off_inside_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "cat"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(tiny_image(number, "jpeg"))
    assert verify(tmp_path, deep=True).ok
    (folder / "1.jpg").write_bytes(tiny_image(1, "jpeg")[:-40])
    assert [(one.key, one.sample) for one in verify(tmp_path, deep=True).problems] == [("cat/1.jpg", 1)]


def test_it_continues_after_the_first_problem_and_stops_at_too_many(tmp_path: Path) -> None:
    write("mds", tmp_path, hashes=["sha1"])
    files = shard_files(tmp_path)
    for path in files:
        flip(path, path.stat().st_size - 1)
    report = verify(tmp_path)
    assert [problem.shard for problem in report.problems] == list(range(len(files)))
    assert not report.stopped
    report = verify(tmp_path, max_problems=2)
    assert len(report.problems) == 2
    assert report.stopped


def test_parquet_values_are_checked_deep(tmp_path: Path) -> None:
    write_others("parquet", tmp_path)
    victim = tmp_path / "part-1.parquet"
    start, end = _pages_of(victim, 0)
    data = victim.read_bytes()
    page = next(page_heads(data, start, end - start))
    victim.write_bytes(data[: page.start] + b"\xff" * 8 + data[page.start + 8 :])  # Snappy's length of what comes out
    assert verify(tmp_path).ok  # there is no checksum that could tell
    report = verify(tmp_path, deep=True)
    assert report.problems
    assert {(problem.key, problem.shard) for problem in report.problems} == {("part-1.parquet", 1)}
    assert "row group 1" in report.problems[0].message
    victim.write_bytes(data[:-5])
    assert kinds(verify(tmp_path)) == {"structure"}


def _pages_of(path: Path, column: int) -> tuple[int, int]:
    chunk = pq.read_metadata(path).row_group(1).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, start + chunk.total_compressed_size


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "brotli"])
def test_a_changed_byte_of_a_parquet_page_with_a_checksum_is_found_without_decoding(
    version: str, compression: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(400), "text": [["x", f"number {number % 7}"] for number in range(400)]})
    pq.write_table(
        table,
        path,
        row_group_size=200,
        compression=compression,
        data_page_version=version,
        data_page_size=500,
        write_page_checksum=True,
        column_encoding={"id": "DELTA_BINARY_PACKED"},
        use_dictionary=["text.list.element"],
    )
    report = verify(tmp_path)
    assert report.ok
    assert report.bytes > path.stat().st_size / 2
    for column, name in ((0, "id"), (1, "text.list.element")):
        _, end = _pages_of(path, column)
        for at in (end - 9, end - 1):
            flip(path, at)
            assert verify(tmp_path, quick=True).ok
            problems = verify(tmp_path).problems
            assert {(one.kind, one.key) for one in problems} == {("structure", "a.parquet")}
            assert f"row group 1, column '{name}': page " in problems[0].message
            flip(path, at)


def test_parquet_pages_that_are_not_those_of_the_footer_are_found(tmp_path: Path) -> None:
    def written(name: str, rows: int) -> Path:
        table = pa.table({"id": pa.array(range(rows)), "n": pa.array([7] * rows)})
        pq.write_table(table, tmp_path / name, use_dictionary=["n"], compression="none", store_schema=False)
        return tmp_path / name

    # Pages of 99 rows where the footer tells of 100.
    few, many = written("few", 99).read_bytes(), written("many", 100).read_bytes()
    chunk, other = (pq.read_metadata(tmp_path / name).row_group(0).column(1) for name in ("many", "few"))
    first, last = chunk.dictionary_page_offset, chunk.dictionary_page_offset + chunk.total_compressed_size
    there = few[other.dictionary_page_offset : other.dictionary_page_offset + other.total_compressed_size]
    root = tmp_path / "data"
    root.mkdir()
    (root / "a.parquet").write_bytes(many[:first] + there + many[first + len(there) :])
    assert len(there) <= last - first
    assert kinds(verify(root)) == {"structure"}
    (root / "a.parquet").write_bytes(many[:first] + bytes(last - first) + many[last:])
    (problem,) = verify(root).problems
    assert "row group 0, column 'n': page 0: " in problem.message


def test_bytes_that_belong_to_no_sample_are_reported(tmp_path: Path) -> None:
    write_others("megatron", tmp_path)
    with (tmp_path / "part-1.bin").open("ab") as file:
        file.write(b"more")
    report = verify(tmp_path)
    assert report.ok  # Megatron's index does not say where the data ends
    assert report.notes == (f"{tmp_path / 'part-1.bin'}: its last 4 bytes belong to no sample",)


@pytest.mark.parametrize("name", ["npy", "parquet"])
def test_files_that_do_not_go_together_are_named(name: str, tmp_path: Path) -> None:
    write_others(name, tmp_path / "data")
    if name == "parquet":
        pq.write_table(pa.table({"id": ["text"]}), tmp_path / "data" / "zz.parquet")
    else:
        write_others("npy_rows", tmp_path / "rows")
        shutil.copy(shard_files(tmp_path / "rows")[0], tmp_path / "data" / "zz.npy")
    (problem,) = verify(tmp_path / "data").problems
    assert (problem.kind, problem.key) == ("index", f"zz.{name}")


def test_memory_for_decompressed_shards_may_be_too_little(tmp_path: Path) -> None:
    write("mds", tmp_path, compression="zstd", hashes=["xxh64"])
    report = verify(tmp_path, deep=True, memory=1, threads=4)
    assert report.ok
    assert report.samples == ROWS


def test_pickles_are_not_opened_without_consent(tmp_path: Path) -> None:
    with MDSWriter({"x": "pkl", "y": "int"}, tmp_path) as writer:
        writer.write({"x": {"a": 1}, "y": 1})
    report = verify(tmp_path, deep=True)
    assert report.ok
    assert any("'x' is not decoded" in note for note in report.notes)
    assert not [note for note in verify(tmp_path, deep=True, allow_unsafe_types=True).notes if "'x'" in note]


def test_raw_files_next_to_compressed_ones_are_checked_too(tmp_path: Path) -> None:
    write("mds", tmp_path / "zip", hashes=["sha1"], compression="zstd")
    for path in shard_files(tmp_path / "zip"):
        raw = parse_compression("zstd").decompress_unsized(path.read_bytes(), 1 << 20)
        path.with_suffix("").write_bytes(raw)
    assert verify(tmp_path / "zip").ok
    flip(tmp_path / "zip" / "shard.00002.mds", 100)
    assert [problem.key for problem in verify(tmp_path / "zip").problems] == ["shard.00002.mds"]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        verify(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="choose one"):
        verify(tmp_path, deep=True, quick=True)
    (tmp_path / "a.npy").write_bytes(b"")
    (tmp_path / "b.tar").write_bytes(b"")
    with pytest.raises(ConfigError, match="several formats"):
        verify(tmp_path)
    write("mds", tmp_path / "sub")
    shutil.rmtree(tmp_path / "sub", ignore_errors=False)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "what").write_bytes(b"x")
    with pytest.raises(ConfigError, match="format="):
        verify(tmp_path / "c")
    assert verify(tmp_path / "c", format="files").samples == 1


def test_the_report_is_plain_json(tmp_path: Path) -> None:
    write("mds", tmp_path, hashes=())
    flip(tmp_path / "shard.00000.mds", 0)
    found: dict[str, Any] = json.loads(json.dumps(verify(tmp_path).as_dict()))
    assert found["ok"] is False
    assert found["problems"][0]["kind"] == "structure"


@pytest.mark.processes
@pytest.mark.parametrize("job", [inspect, verify])
def test_the_next_start_removes_what_killed_ones_left_for_files_of_stores(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it works on a dataset leaves its folder for fetched files."""
    image_dataset(tmp_path / "data")
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    if (pid := os.fork()) == 0:
        try:
            left = LockedFolder(folder, f"stoker-{job.__name__}-")
            (left.path / "fetched").write_bytes(b"part of a shard")
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert [one.name for one in folder.rglob("fetched")] == ["fetched"]

    with LockedFolder(folder, f"stoker-{job.__name__}-") as live:
        (folder / f"stoker-{job.__name__}-of_mine").mkdir()
        job(tmp_path / "data")
        assert sorted(folder.iterdir()) == sorted([live, folder / f"stoker-{job.__name__}-of_mine"])


@pytest.mark.parametrize("job", [inspect, verify])
def test_a_folder_for_temporary_files_that_can_not_be_used_is_told(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an OSError of the system's that names no remedy."""
    image_dataset(tmp_path / "data")
    gone = tmp_path / "gone"
    monkeypatch.setattr(tempfile, "tempdir", str(gone))
    with pytest.raises(ConfigError, match=f"{gone}, the folder for temporary files: No such file.*set TMPDIR"):
        job(tmp_path / "data")

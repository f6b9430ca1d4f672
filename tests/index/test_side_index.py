"""The file that keeps a parsed index: used only where it was made of this very index, and never needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import StreamingDataset
from stoker.catalog.unindexed.file_facts import save_side_file
from stoker.concurrency.shared import bytes as shared_bytes
from stoker.errors import FormatError
from stoker.formats.mds import encodings
from stoker.index import index as index_module
from stoker.index import version
from stoker.index.index import INDEX_NAME, Index
from stoker.index.side_index import SideIndex
from stoker.index.version import LoadedIndex, read_index
from stoker.inspection.caches import list_caches, prune_caches
from stoker.storage import Store, open_store
from stoker.storage.files import mounts
from stoker.storage.files.part_files import claim, release
from support import write_samples


@pytest.fixture(autouse=True)
def _keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of any size are kept."""
    monkeypatch.setattr(index_module, "FEW", 1)
    monkeypatch.setattr(version, "_LARGE", 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder, compression="zstd:3", hashes=["sha1"])
    return folder


def write(folder: Path, samples: int = 30, **more: Any) -> None:
    write_samples(folder, ({"x": at, "ý": f"text {at}"} for at in range(samples)), size_limit=200, **more)


def side_of(folder: Path) -> SideIndex:
    def save(parts: Sequence[bytes | memoryview]) -> None:
        folder.mkdir(exist_ok=True)
        save_side_file(folder, "side", parts)

    return SideIndex(lambda: folder / "side", save)


def read(store: Store, side: SideIndex | None = None) -> LoadedIndex:
    """As a dataset reads its index, which makes the side index where it needs one."""
    return read_index(store, None if side is None else lambda: side)


def told(loaded: LoadedIndex) -> tuple[Any, ...]:
    index = loaded.index
    return list(index.shards), index.extra, index.fingerprint, index.content, index.columns, loaded.version


def no_parsing(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("parsed again")


def test_an_index_is_parsed_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(data)
    plain = read(store)
    first = read(store, side_of(tmp_path / "kept"))
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["side"]
    monkeypatch.setattr(Index, "from_json", no_parsing)
    again = read(store, side_of(tmp_path / "kept"))
    assert told(plain) == told(first) == told(again)
    assert plain.index.to_json() == again.index.to_json()
    assert all(one.spec is again.index.shards[0].spec for one in again.index.shards)


@pytest.mark.parametrize("remote", [False, True])
def test_datasets_keep_their_index_in_the_users_cache(
    data: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    where: dict[str, Any] = {"remote": data, "local": tmp_path / "local"} if remote else {"local": data}
    before = sorted(data.rglob("*"))
    first = StreamingDataset(**where, batch_size=4)
    samples = [batch["ý"] for batch in first.batches()]
    (kept,) = own_cache.rglob("index")
    assert kept.parent.name == ".stoker"
    listed = {cache.path: (cache.origin, cache.files) for cache in list_caches()}
    assert listed[str(kept.parent.parent)] == (str(data), 0)
    assert list(kept.parent.parent.iterdir()) == [kept.parent]  # nothing else would go with it
    monkeypatch.setattr(Index, "from_json", no_parsing)
    second = StreamingDataset(**where, batch_size=4)
    assert [batch["ý"] for batch in second.batches()] == samples
    assert second.state_dict() == first.state_dict()
    assert [path for path in before if not path.exists()] == []
    assert list(data.rglob("index")) == []
    prune_caches(gone=True)
    assert kept.exists()
    prune_caches(everything=True)
    assert not kept.parent.parent.exists()
    assert [batch["ý"] for batch in second.batches()] == samples


@pytest.mark.parametrize("few", [1, 10_000])
def test_one_of_several_processes_parses_and_the_others_wait(
    data: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(index_module, "FEW", few)  # with many, nothing is kept, and each parses its own
    parse, parsed, begin = Index.from_json, [], threading.Barrier(4)

    def slowly(*given: Any, **more: Any) -> Index:
        parsed.append(threading.get_ident())
        time.sleep(0.2)
        return parse(*given, **more)

    def opened(_: int) -> int:
        begin.wait(PATIENCE)
        return len(StreamingDataset(local=data))

    monkeypatch.setattr(Index, "from_json", slowly)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(opened, range(4))) == [30] * 4
    assert len(parsed) == (1 if few == 1 else 4)
    assert list(own_cache.rglob("*turn*")) == []


@pytest.mark.processes
def test_the_next_process_parses_where_the_one_that_did_was_killed(data: Path, own_cache: Path) -> None:
    code = (
        "import sys, time\n"
        "from stoker import StreamingDataset\n"
        "from stoker.index import version\n"
        "from stoker.index.index import Index\n"
        "version._LARGE = 0\n"
        "Index.from_json = lambda *given, **more: print('parsing', flush=True) or time.sleep(300)\n"
        "StreamingDataset(sys.argv[1])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, data], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "parsing\n"
        with ThreadPoolExecutor(1) as threads:
            opened = threads.submit(StreamingDataset, data)
            with pytest.raises(TimeoutError):
                opened.result(0.3)
            process.kill()
            assert len(opened.result(PATIENCE)) == 30
    (kept,) = own_cache.rglob("index")
    assert kept.is_file()


def test_an_index_that_was_written_anew_is_read(tmp_path: Path) -> None:
    data, side = tmp_path / "data", side_of(tmp_path / "kept")
    write(data)
    old = read(open_store(data), side).index
    status = os.stat(data / INDEX_NAME)
    text = (data / INDEX_NAME).read_text()
    (data / INDEX_NAME).write_text(text.replace("shard.00001", "shard.10001"))  # as long as before
    os.utime(data / INDEX_NAME, ns=(status.st_atime_ns, status.st_mtime_ns))
    new = read(open_store(data), side).index
    assert [file.basename for file in new.shards[1].raw] == ["shard.10001.mds"]
    assert [file.basename for file in old.shards[1].raw] == ["shard.00001.mds"]  # mapped of the file before
    (data / INDEX_NAME).write_text(text)
    assert read(open_store(data), side).index.shards == old.shards


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.sampled_from(["flip", "cut", "longer", "empty", "other", "directory"]))
def test_a_damaged_file_is_passed_over_and_replaced(
    data: Path, tmp_path_factory: pytest.TempPathFactory, at: float, damage: str
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    store, path = open_store(data), folder / "side"
    plain = read(store, side_of(folder))
    whole = path.read_bytes()
    where = int(at * len(whole))
    path.unlink()
    if damage == "directory":
        path.mkdir()
    else:
        path.write_bytes(
            {
                "flip": whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :],
                "cut": whole[:where],
                "longer": whole + b"\0",
                "empty": b"",
                "other": b"\0" * len(whole),
            }[damage]
        )
    digest = plain.version.digest
    assert side_of(folder).load(digest) is None
    assert told(read(store, side_of(folder))) == told(plain)
    if damage != "directory":
        assert path.read_bytes() == whole
        assert side_of(folder).load("0" * len(digest)) is None
    assert [file.name for file in folder.iterdir()] == ["side"]


WRONG: dict[str, Any] = {
    "count": [10**30, 0, -1, 1.5, "1", None, [], 10**9],
    "width": [10**30, 0, -1, 0.5, None, 10**9],
    "firsts": [[10**30], [], [[]], 1, {}],
    "entries": [[], 1, [1], [[]], {}, None],
    "content": [],
    "key": [None, 1],
    "byteorder": [None, "big", 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_header_that_makes_no_sense_is_passed_over(data: Path, tmp_path: Path, name: str, value: Any) -> None:
    plain = read(open_store(data), side_of(tmp_path))
    whole = (tmp_path / "side").read_bytes()
    at = 32 + int.from_bytes(whole[24:32], "little")
    text = json.dumps({**json.loads(whole[32:at]), name: value}).encode()
    text = text.ljust(-len(text) % 8 + len(text))
    forge(tmp_path / "side", len(text).to_bytes(8, "little") + text + whole[at:])
    assert side_of(tmp_path).load(plain.version.digest) is None
    assert told(read(open_store(data), side_of(tmp_path))) == told(plain)
    assert (tmp_path / "side").read_bytes() == whole


def forge(path: Path, body: bytes) -> None:
    """Write a file whose digest is right."""
    path.write_bytes(path.read_bytes()[:8] + xxhash.xxh3_128_digest(body) + body)


def test_arrays_that_make_no_sense_are_passed_over(data: Path, tmp_path: Path) -> None:
    plain = read(open_store(data), side_of(tmp_path))
    whole = (tmp_path / "side").read_bytes()
    at = 32 + int.from_bytes(whole[24:32], "little")
    header = json.loads(whole[32:at])
    count, width = header["count"], header["width"]
    ends = at + 8 * count * (1 + width)
    wrong = [(place, 8, value) for place in range(at, ends + 8 * count, 8) for value in (-2, -(2**63))]
    wrong += [(place, 8, 2**62) for place in range(ends, ends + 8 * count, 8)]
    wrong += [(place, 4, value) for place in range(ends + 8 * count, ends + 12 * count, 4) for value in (-1, 9)]
    for place, size, value in wrong:
        forge(tmp_path / "side", whole[24:place] + value.to_bytes(size, "little", signed=True) + whole[place + size :])
        assert side_of(tmp_path).load(plain.version.digest) is None, (place, value)
    forge(tmp_path / "side", whole[24:] + b"x")
    assert side_of(tmp_path).load(plain.version.digest) is None
    forge(tmp_path / "side", whole[24:])
    assert side_of(tmp_path).load(plain.version.digest) is not None


@pytest.mark.parametrize("kind", ["ext4", "nfs4", ""])
def test_only_a_file_that_no_other_machine_replaces_is_mapped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(shared_bytes, "SHARED", 1)
    monkeypatch.setattr(mounts, "file_system_of", lambda _: kind)
    loaded = read(open_store(data), side_of(tmp_path))
    maps = Path("/proc/self/maps").read_text()
    assert (str(tmp_path / "side") in maps) == (kind == "ext4")
    assert told(loaded) == told(read(open_store(data)))


def test_what_a_killed_write_left_is_removed(data: Path, tmp_path: Path) -> None:
    left, held, other = (tmp_path / f"{name}.part" for name in (f"side.{'0a' * 8}", f"side.{'1b' * 8}", "side.turn"))
    for path in (left, held, other):
        path.write_bytes(b"some")
    descriptor = claim(held)
    assert descriptor is not None
    try:
        read(open_store(data), side_of(tmp_path))
    finally:
        release(descriptor)
    assert sorted(tmp_path.iterdir()) == sorted([held, other, tmp_path / "side"])


def test_a_directory_that_can_not_be_written_to_is_no_error(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    side = side_of(tmp_path / "file")
    plain = read(open_store(data))
    assert told(read(open_store(data), side)) == told(plain)


def test_an_encoding_that_is_unknown_today_is_refused_as_ever(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, store = side_of(tmp_path / "kept"), open_store(data)
    read(store, side)
    known = encodings.mds_encoding

    def mds_encoding(name: str, size: int | None) -> Any:
        if name == "str":
            raise FormatError("unknown encoding 'str'")
        return known(name, size)

    from stoker.formats.common import checks

    monkeypatch.setattr(checks, "mds_encoding", mds_encoding)
    checks.mds_spec.cache_clear()
    with pytest.raises(FormatError, match="shard 0: column 'ý': unknown encoding 'str'"):
        read(store, side)
    checks.mds_spec.cache_clear()


def test_what_a_listing_tells_is_not_kept(tmp_path: Path) -> None:
    """Sizes of compressed chunks are not in litdata's index: they may change while the index does not."""
    chunk = {"filename": "chunk-0-0.zstd.bin", "chunk_bytes": 90, "chunk_size": 4, "dim": None}
    spec = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
    config = {"compression": "zstd", "chunk_size": 4, "chunk_bytes": 90, "data_format": ["int"], "data_spec": spec}
    text = json.dumps({"chunks": [chunk], "config": config}).encode()
    index = Index.from_json(text, "x", sizes=lambda names: dict.fromkeys(names, 50))
    assert [shard.format for shard in index.shards] == ["litdata"]
    assert side_of(tmp_path / "kept").keep(index, "digest") is index
    assert not (tmp_path / "kept").exists()

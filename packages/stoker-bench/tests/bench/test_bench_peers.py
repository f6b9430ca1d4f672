"""Loaders of other packages, and storage clients: they deliver what was generated, and nothing is exchanged silently."""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker.cli import main
from stoker.cluster import World
from stoker.errors import ConfigError, MissingPackageError, ObjectNotFoundError
from stoker_bench.clients import CLIENTS, Client, ClientLocation, find_client
from stoker_bench.loaders import LoaderJob, check_client, get_loader
from stoker_bench.measure.generation import make_data
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Workload

PEERS = {
    "huggingface": ("parquet", "datasets"),
    "litdata": ("npz", "litdata"),
    "mosaicml": ("mds", "streaming"),
    "ray": ("parquet", "pandas"),  # without which Ray Data can not be imported
    "webdataset": ("tar", "webdataset"),
}
SMALL = ("dataset.files=4", "dataset.samples_per_file=6", "dataset.record_bytes=512", "reader.batch_size=3")
COLUMNS = "dataset.columns=[{name: x, dtype: float32, shape: [3, 5]}, {name: label, dtype: int64}]"


def workload(loader: str, *more: str) -> Workload:
    fixed = ("compute.seconds=0", "reader.threads=0", f"reader.loader={loader}")
    return read_workload(None, [*SMALL, *fixed, *more], environ={}, dotenv=None).workload


def opened(made: Workload, url: Path, rank: int = 0, ranks: int = 1, threads: int = 0) -> Any:
    scratch = url.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    loader = get_loader(made.reader.loader)
    return loader.open(LoaderJob(made, "train", str(url), World(rank, ranks, ranks, "local"), threads, 3, str(scratch)))


def rows(opened: Any, epoch: int) -> list[bytes]:
    """Each sample's values as bytes, in the order of the names."""
    found = []
    for batch in opened.epoch(epoch):
        columns = [np.asarray(batch.data[name]) for name in sorted(batch.data)]
        assert {len(column) for column in columns} == {batch.samples}
        assert batch.bytes == sum(column.nbytes for column in columns)
        found += [b"".join(column[row].tobytes() for column in columns) for row in range(batch.samples)]
    return found


def truth(made: Workload, url: Path) -> list[bytes]:
    """The same samples as stoker reads them, from another format's files of the same specification."""
    from dataclasses import replace

    plain = replace(made, dataset=replace(made.dataset, format="npz"), reader=replace(made.reader, loader="stoker"))
    make_data(plain, str(url))
    return rows(opened(plain, url), 0)


@pytest.mark.filterwarnings("ignore")  # of the packages' own
@pytest.mark.parametrize("more", [(), (COLUMNS,)], ids=["bytes", "columns"])
@pytest.mark.parametrize("name", sorted(PEERS))
def test_each_sample_comes_once_decoded_and_in_another_order_each_epoch(
    name: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    kind, module = PEERS[name]
    pytest.importorskip(module)
    made = workload(name, f"dataset.format={kind}", *more)
    make_data(made, str(tmp_path / "data"))
    prepare = getattr(get_loader(name), "prepare", None)
    if prepare is not None:
        prepare(made, str(tmp_path / "data"))
    run = opened(made, tmp_path / "data")
    try:
        first = rows(run, 0)
        run.release()
        second = rows(run, 1)
    finally:
        run.close()
    expected = Counter(truth(made, tmp_path / "truth"))
    assert len(expected) == 24
    assert Counter(first) == Counter(second) == expected
    assert first != second
    report = run.report()
    assert report.decoded == "arrays"
    assert report.versions


def test_webdataset_s_ranks_share_the_files(tmp_path: Path) -> None:
    made = workload("webdataset", "dataset.format=tar", COLUMNS)
    make_data(made, str(tmp_path / "data"))
    parts = [rows(opened(made, tmp_path / "data", rank, 2), 0) for rank in range(2)]
    assert [len(part) for part in parts] == [12, 12]
    assert len({*parts[0], *parts[1]}) == 24


@pytest.mark.processes
def test_a_table_compares_loaders_over_the_same_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    arguments = ["bench", "run", str(tmp_path / "w.yaml"), "--data", str(tmp_path / "data")]
    (tmp_path / "w.yaml").write_text(
        "dataset: {format: parquet, files: 4, samples_per_file: 6, record_bytes: 512}\n"
        "reader: {batch_size: 2, threads: 0}\nmetric: {exclude_start: 0}\n"
    )
    arguments += ["--loader", "stoker", "--loader", "webdataset", "--stages", "generate,train"]
    assert main([*arguments, "--results", str(tmp_path / "out")]) in (None, 0, 3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["stoker", "parquet", "arrays"],
        ["webdataset", "tar", "arrays"],
    ]
    for name in ("stoker", "webdataset"):
        result = json.loads((tmp_path / "out" / name / "results.json").read_text())
        assert result["epochs"][0]["samples"] == 24
        assert result["plan"]["workload"]["reader"]["loader"] == name


def test_what_is_missing_is_an_error_at_the_start_and_nothing_else_is_run(tmp_path: Path) -> None:
    absent = [name for name, (_, module) in PEERS.items() if importlib.util.find_spec(module) is None]
    absent = absent or pytest.skip("all are installed here")
    for name in absent:
        resolved = read_workload(None, [*SMALL, f"reader.loader={name}"], environ={}, dotenv=None)
        with pytest.raises(MissingPackageError, match=rf"the loader '{name}' can not be used here: .*pip install"):
            run_benchmark(resolved, results=tmp_path / "out", url=str(tmp_path), accelerators=1, stages=("train",))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("reader.loader=webdataset", "dataset.format=npz"), "webdataset reads tar, not 'npz'"),
        (("reader.loader=webdataset", "dataset.format=tar", "dataset.resize_bytes=9"), "resize_bytes"),
    ],
)
def test_what_a_loader_can_not_do_is_an_error(more: tuple[str, ...], said: str, tmp_path: Path) -> None:
    made = workload("webdataset", *more)
    make_data(made, str(tmp_path / "data"))
    with pytest.raises(ConfigError, match=said):
        opened(made, tmp_path / "data")


# -- storage clients -----------------------------------------------------------------------------------------------


def client_at(name: str, place: ClientLocation) -> Client:
    return find_client(name, place.url)(place)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3_000_001])
@pytest.mark.parametrize("name", ["buffered", "direct", "mmap"])
def test_a_client_of_files_reads_all_bytes(name: str, size: int, tmp_path: Path) -> None:
    data = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(data)
    client = client_at(name, ClientLocation(str(tmp_path), {}))
    try:
        found = client.read("file")
    except ConfigError as error:
        assert name == "direct"
        assert "refuses O_DIRECT" in str(error)  # noqa: PT017 - some file systems do
        return
    assert bytes(memoryview(found)) == data
    with pytest.raises(ObjectNotFoundError, match="generate the data first"):
        client.read("none")


def test_direct_reads_leave_the_page_cache_alone(tmp_path: Path) -> None:
    from stoker_bench.measure.page_cache import resident_pages

    (tmp_path / "file").write_bytes(os.urandom(1 << 20))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        before = resident_pages(descriptor, 1 << 20)
        if before is None or before[0]:
            pytest.skip("this file system keeps files in memory")
        try:
            client_at("direct", ClientLocation(str(tmp_path), {})).read("file")
        except ConfigError:
            pytest.skip("this file system refuses O_DIRECT")
        after = resident_pages(descriptor, 1 << 20)
        assert after is not None
        assert after[0] == 0
        client_at("buffered", ClientLocation(str(tmp_path), {})).read("file")
        there = resident_pages(descriptor, 1 << 20)
        assert there is not None
        assert there[0] == there[1]
    finally:
        os.close(descriptor)


@pytest.mark.s3
@pytest.mark.parametrize("name", ["obstore", "s3dlio", "s3torchconnector", "minio", "boto3"])
def test_a_client_of_objects_reads_all_bytes(name: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    for variable in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(variable)  # and what the client sets is taken back with them
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    data = os.urandom(11_000_001)
    bucket.server.client().put_object(Bucket=bucket.name, Key="data/train/file", Body=data)
    options = dict(bucket.storage_options) | ({"allow_http": True} if name == "obstore" else {})
    place = ClientLocation(f"{bucket.url}/data/train", options)
    client = client_at(name, place)
    assert bytes(memoryview(client.read("file"))) == data
    told: dict[str, Any] = {"part_bytes": 5 << 20, "part_requests": 2, "attempts": 3}
    told = {setting: value for setting, value in told.items() if setting in type(client).heeds}
    assert bytes(memoryview(client_at(name, replace(place, **told)).read("file"))) == data
    with pytest.raises(ObjectNotFoundError, match=f"{bucket.url}/data/train/none"):
        client.read("none")
    client.close()


@pytest.mark.s3
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # of the packages' own
def test_the_loader_mosaicml_says_what_it_fetched(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all ranks of a host together, in each epoch."""
    pytest.importorskip("streaming")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)  # of loaders that were opened in this process
    settings = (
        *("dataset.format=mds", "dataset.files=6", "dataset.samples_per_file=4", "dataset.record_bytes=20000"),
        *("reader.loader=mosaicml", "reader.threads=0", "train.epochs=2", "compute.seconds=0.001"),
        f"storage.options={json.dumps(bucket.storage_options)}",
    )
    result = run_benchmark(
        read_workload(None, settings, environ={}, dotenv=None),
        results=tmp_path / "r",
        url=f"{bucket.url}/data",
        accelerators=2,
        stages=("generate", "train"),
    )
    sizes = [epoch["fetched_bytes"] for epoch in result["epochs"]]
    assert sizes == [pytest.approx(6 * 4 * 20_000, rel=0.02)] * 2
    found = {one["rule"]: one["reason"] for one in result["findings"]}
    assert not {"whole samples", "fetched again"} & set(found)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("name", ["buffered", "direct", "mmap"])
def test_torch_reads_through_the_client_that_was_requested(name: str, decode: bool, tmp_path: Path) -> None:
    made = workload(
        "torch", "dataset.samples_per_file=1", f"storage.client={name}", f"reader.decode={str(decode).lower()}"
    )
    make_data(made, str(tmp_path / "data"))
    run = opened(made, tmp_path / "data")
    try:
        batches = list(run.epoch(0))
    except ConfigError as error:
        assert "refuses O_DIRECT" in str(error)  # noqa: PT017 - some file systems do
        return
    finally:
        run.close()
    assert sum(batch.samples for batch in batches) == 3  # of 4: the last batch is not full
    whole = sorted(path.stat().st_size for path in (tmp_path / "data" / "train").glob("*.npz"))
    assert batches[0].bytes == (3 * 512 if decode else sum(whole[:3]))
    assert any(name in note for note in run.report().notes)


def test_a_client_that_can_not_read_there_or_is_missing_is_an_error(tmp_path: Path) -> None:
    here = str(tmp_path)
    for loader, url, said, settings in (
        ("webdataset", here, "fetches its files itself; .* direct are torch and stoker", ("client=direct",)),
        ("stoker", "s3://b/x", "not s3torchconnector: take the loader torch", ("client=s3torchconnector",)),
        ("stoker", "s3://b/x", "does not read s3://b/x", ("client=direct",)),
        ("stoker", here, "storage.attempts: the loader stoker can not be told so", ("attempts=3",)),
        ("stoker", here, "storage.part_bytes", ("part_bytes=8MB",)),
        ("webdataset", "s3://b/x", "storage.endpoints: the loader webdataset", ("endpoints=['http://a']",)),
        ("torch", here, "storage.part_requests: the storage client buffered", ("client=buffered", "part_requests=3")),
    ):
        with pytest.raises(ConfigError, match=said):
            check_client(workload(loader, *(f"storage.{one}" for one in settings)), url)
    check_client(workload("stoker", "storage.client=direct", "storage.part_requests=3"), here)
    saves = (
        "stages=[train, checkpoint]",
        "checkpoint.url=s3://b/c",
        "storage.endpoints=['http://a']",
        "storage.attempts=3",
    )
    check_client(workload("stoker", *saves), here)
    with pytest.raises(
        ConfigError, match=r"storage\.endpoints, storage\.attempts: the loader stoker can not be told so"
    ):
        check_client(workload("stoker", *saves, f"checkpoint.url={here}"), here)
    with pytest.raises(ConfigError, match=r"storage\.attempts: a run without training can not be told so"):
        check_client(workload("stoker", "stages=[generate]", "storage.attempts=3"), here)
    alone = ("stages=[checkpoint]", "storage.attempts=3")
    with pytest.raises(ConfigError, match=r"storage\.attempts: a run without training .* where it reads no data"):
        check_client(workload("stoker", *alone, f"checkpoint.url={here}"), None)
    check_client(workload("stoker", *alone, "checkpoint.url=s3://b/c"), None)
    with pytest.raises(ConfigError, match=r"storage\.attempts: the loader synthetic .* where it reads no data"):
        check_client(workload("synthetic", "storage.attempts=3"), None)
    check_client(workload("stoker", "storage.part_requests=3", "storage.endpoints=['http://a']"), "s3://b/x")
    with pytest.raises(ConfigError, match="does not read s3://b/x; obstore, s3dlio, s3torchconnector, minio, boto3 do"):
        find_client("mmap", "s3://b/x")
    with pytest.raises(ConfigError, match="did you mean 'minio'"):
        find_client("mini", "s3://b/x")
    for name in CLIENTS:
        if name not in ("buffered", "direct", "mmap") and importlib.util.find_spec(name) is None:
            with pytest.raises(MissingPackageError, match=f"pip install {name}"):
                check_client(workload("torch", f"storage.client={name}"), "s3://b/x")


def test_missing_packages_are_told_with_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"streaming", "torch"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else object())
    said = r"mosaicml-streaming and torch are not installed: pip install mosaicml-streaming torch$"
    with pytest.raises(MissingPackageError, match=said):
        get_loader("mosaicml")
    missing.clear()
    missing.add("torch")
    with pytest.raises(MissingPackageError, match=r"torch is not installed: pip install 'stoker\[torch\]'$"):
        get_loader("torch")
